"""A model as a function of each sample, and the products J u and J^T v of it.

:class:`LocalMap` settles which tensor of a model is the map's input (``at=``) and
which its output; :class:`LinearMap` differentiates the map at a batch of points, a
block of vectors at a time; :func:`plan_chunks` says how many samples and vectors fit
into memory. :class:`AutogradMap` and :class:`FunctionalMap` are its two ways of
differentiating, by recorded passes and by ``torch.func``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import jvp, vjp, vmap
from torch.utils._pytree import tree_map

from normalign._errors import describe, require, require_kind
from normalign._hooks import (
    At,
    Location,
    Model,
    batched_location,
    insert_token,
    named_modules,
    token_of,
)
from normalign._torch_compat import (
    REFUSED_BY_FUNC,
    REFUSED_BY_VMAP,
    attention_with_derivatives,
    forward_mode,
    frozen_randomness,
    has_recurrence,
    outside_autocast,
    recurrence_with_derivatives,
    unwrap,
)

__all__ = [
    "TORCH_ONLY",
    "AutogradMap",
    "ChunkPlan",
    "ChunkSize",
    "FunctionalMap",
    "LinearMap",
    "LocalMap",
    "PointMap",
    "bytes_per_sample",
    "default_budget",
    "plan_chunks",
    "refuse_mixing",
    "remedy_for",
    "rounding",
]

# The remedy where a model is made of the operations of another library.
TORCH_ONLY = (
    "The model must be a function of tensors made of torch operations: autograd sees "
    "no others. Write it in torch, or wrap it with its derivative in a "
    "torch.autograd.Function."
)


ChunkSize = int | Literal["auto"] | None

GIB = 2**30

# What a pass should at most hold of one activation, for the batch and all vectors that
# go through together. Beyond, one vector after the other is faster: a backward pass of
# a ResNet-18 over 640 rows on two cores takes twice as long per row as over 64, 16 MiB;
# ten of a ResNet-50 over 512 samples on an H200 take 0.7 s alone, 1.0 s together.
WORKING_SET = {"cpu": 16 * 2**20, "cuda": 64 * 2**20}


class PointMap(NamedTuple):
    """The function whose geometry is measured, and a batch of points.

    Attributes
    ----------
    function : callable
        Takes a tensor like ``point`` and returns the outputs, shape ``(n, k)``; row i
        of the result depends on row i of the argument alone.
    point : Tensor of shape (n, ...)
        The input of the model, or of its submodule.
    """

    function: Callable[[Tensor], Tensor]
    point: Tensor


@dataclass(frozen=True)
class LocalMap:
    """A model made ready for differentiation at batches of inputs.

    Parameters
    ----------
    model : callable
    at : str or At, optional
    output : callable, optional
        Picks the tensor of outputs from what the model returns.
    callee : str
        The public function in whose name errors are raised.

    Attributes
    ----------
    vmappable : bool
        Whether a block of vectors may go through ``torch.func.vmap``.
    random : bool
        Whether dropout is active.
    sizes : dict
        What :func:`bytes_per_sample` returned, by the kind of
        input.
    """

    model: Model
    at: str | At | None = None
    output: Callable[[Any], Tensor] | None = None
    callee: str = "local_affine"
    vmappable: bool = field(init=False)
    random: bool = field(init=False)
    sizes: dict[Any, tuple[int, int]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        require_kind(
            callable(self.model), self.callee, "model", "callable",
            describe(self.model), remedy_for(self.model),
        )  # fmt: skip
        object.__setattr__(self, "model", unwrap(self.model))
        if isinstance(self.at, str):
            object.__setattr__(self, "at", At(self.at))
        refuse_mixing(self.model, self.callee)
        object.__setattr__(self, "random", _warn_of_dropout(self.model, self.callee))
        object.__setattr__(self, "vmappable", not has_recurrence(self.model))

    def on(self, x: Tensor) -> PointMap:
        """Return the map and its point for one batch of model inputs."""
        if x.is_inference() and not torch.is_inference_mode_enabled():
            x = x.clone()  # autograd may keep the copy, but not the original
        if not x.is_contiguous():
            x = x.clone()  # entries of an expanded tensor share their memory
        if self.at is None:
            self.require_floating(x)
            return PointMap(self.run, x)
        return self._from_submodule(x)

    def require_floating(self, x: Tensor) -> None:
        """Refuse integer inputs, naming the embedding from which to measure."""
        names = [n for n, m in named_modules(self.model) if isinstance(m, nn.Embedding)]
        hint = f"at={names[0]!r}" if names else "at='name of a later submodule'"
        require_kind(
            x.is_floating_point(),
            self.callee,
            "x",
            "floating point to have a Jacobian",
            x,
            f"For tokens, measure the map from their embeddings: {hint}.",
        )

    def run(self, x: Tensor) -> Tensor:
        """Return the outputs, (n, k), of model inputs."""
        # The copy keeps layers that work in place off the caller's tensor.
        if self.vmappable:
            return self._flat_output(self.model(x.clone()), len(x))
        with recurrence_with_derivatives():
            return self._flat_output(self.model(x.clone()), len(x))

    def _flat_output(self, result: Any, n: int) -> Tensor:
        if self.output is not None:
            result = self.output(result)
        require_kind(
            isinstance(result, Tensor),
            self.callee,
            "the model's output",
            "one tensor",
            f"a {type(result).__name__}",
            TORCH_ONLY
            if hasattr(result, "__array__")  # of NumPy, JAX and others
            else "Pass output=, which picks the tensor: output=lambda o: o[0].",
        )
        require_kind(
            result.is_floating_point(),
            self.callee,
            "the model's output",
            "of real floating point numbers",
            result,
        )
        require(
            result.ndim >= 1 and len(result) == n,
            self.callee,
            "the model's output",
            f"one row for each sample, of shape ({n}, ...) for {n} of them",
            result,
            "Keep the batch dimension: no squeeze() without a dim, and no tensor on "
            "the model that has a row for each sample of another batch.",
        )
        return result.unsqueeze(1) if result.ndim == 1 else result.flatten(1)

    def location(self, x: Tensor) -> Location:
        """Return where ``at`` is, without its token, for inputs like ``x``."""
        assert isinstance(self.at, At)
        return batched_location(self.model, self.at, x, self.callee)

    def _from_submodule(self, x: Tensor) -> PointMap:
        at, location = self.at, self.location(x)
        assert isinstance(at, At)
        with torch.no_grad(), attention_with_derivatives(), frozen_randomness():
            whole = location.read(lambda: self.model(x.clone()))
        point = token_of(whole, at, self.callee).detach()

        def function(h: Tensor) -> Tensor:
            def change(_: Tensor) -> Tensor:
                token = at.token
                # The other tokens are those of the first pass, held fixed.
                return h.clone() if token is None else insert_token(whole, token, h)

            with location.replacing(change):
                return self.run(x)

        return PointMap(function, point)


class AutogradMap:
    """The derivative of a recorded pass, by plain autograd.

    Parameters
    ----------
    output : Tensor of shape (n, ...)
    points : Tensor of shape (n, ...)
        Tensors of the output's graph.
    around : callable, optional
        Returns a context for each backward pass.
    unconnected : callable, optional
        Returns the error to be raised where no graph leads from the output to the
        points; by default it is torch's.
    """

    def __init__(
        self,
        output: Tensor,
        *points: Tensor,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
        unconnected: Callable[[], Exception] | None = None,
    ) -> None:
        self.output, self._points = output, points
        self._around, self._unconnected = around, unconnected
        # A zero cotangent and its pull-back: what push-forwards go through.
        self._linear: tuple[Tensor, Tensor] | None = None

    @classmethod
    def record(
        cls,
        function: Callable[..., Tensor],
        *points: Tensor,
        unconnected: Callable[[], Exception] | None = None,
    ) -> AutogradMap:
        """Return the derivative of a function at points, after one pass."""
        with torch.inference_mode(False), torch.enable_grad():
            leaves = [point.detach().clone().requires_grad_() for point in points]
            return cls(function(*leaves), *leaves, unconnected=unconnected)

    def pull(self, cotangent: Tensor, *, create_graph: bool = True) -> Tensor:
        """Return ``J^T v`` at the first of the points."""
        return self.pull_all(cotangent, create_graph=create_graph)[0]

    def pull_all(
        self, cotangent: Tensor, *, create_graph: bool = True, again: bool = True
    ) -> tuple[Tensor, ...]:
        """Return ``J^T v`` at each point; without ``again`` the graph is given up."""
        unconnected = self._unconnected
        if unconnected is not None and not self.output.requires_grad:
            raise unconnected()
        with self._around():
            found = torch.autograd.grad(
                self.output,
                self._points,
                cotangent,
                retain_graph=again,
                create_graph=create_graph,
                allow_unused=unconnected is not None,
            )
        if unconnected is not None and any(part is None for part in found):
            raise unconnected()
        return found

    def push(self, tangent: Tensor) -> Tensor:
        """Return ``J u`` of the one point, as a constant.

        v -> J^T v is linear, so its own pull-back is u -> J u, whatever v. Only the
        number: what torch makes of the derivative of a push-forward, by forward mode
        or by pulling back twice, is wrong for some layers (nn.LayerNorm, torch 2.9).
        """
        if self._linear is None:
            cotangent = torch.zeros_like(self.output, requires_grad=True)
            self._linear = cotangent, self.pull(cotangent)
        cotangent, pulled = self._linear
        if not pulled.requires_grad:  # a step function: it has a derivative, zero
            return torch.zeros_like(self.output)
        with self._around():
            (pushed,) = torch.autograd.grad(
                pulled, cotangent, tangent, retain_graph=True, allow_unused=True
            )
        return torch.zeros_like(self.output) if pushed is None else pushed.detach()


class FunctionalMap:
    """The derivative of a pure function, by ``torch.func``.

    Usable inside ``torch.func.vmap`` and ``grad`` and inside ``torch.compile``.

    Parameters
    ----------
    function : callable
        Maps the points to outputs (n, ...); with ``has_aux`` also to something else.
    points : Tensor of shape (n, ...)
    has_aux : bool, default=False
    """

    def __init__(
        self, function: Callable[..., Any], *points: Tensor, has_aux: bool = False
    ) -> None:
        self.output: Tensor
        self.output, self._pullback, *aux = vjp(function, *points, has_aux=has_aux)
        self.aux: Any = aux[0] if has_aux else None
        self._pushforward: Callable[..., tuple[Tensor]] | None = None

    def pull(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T v`` at the first of the points."""
        return self._pullback(cotangent)[0]

    def pull_all(
        self, cotangent: Tensor, *, create_graph: bool | None = None
    ) -> tuple[Tensor, ...]:
        """Return ``J^T v`` at each of the points."""
        return self._pullback(cotangent, create_graph=create_graph)

    def push(self, tangent: Tensor) -> Tensor:
        """Return ``J u`` of the one point, as a constant: see :class:`AutogradMap`."""
        if self._pushforward is None:
            start = torch.zeros_like(self.output)
            _, self._pushforward, *_ = vjp(self.pull, start)
        return self._pushforward(tangent)[0].detach()


class LinearMap:
    """The products ``J u`` and ``J^T v`` of a map at each of n points.

    Built on ``torch.func``, so it works under ``no_grad``; of ``inference_mode`` see
    :func:`~normalign._torch_compat.outside_inference_mode`. A model that ``torch.func``
    refuses (an ``autograd.Function`` of the older style, activation checkpointing) is
    differentiated by plain autograd instead, one vector at a time, and the result
    carries no graph.

    Parameters
    ----------
    function : callable
        Takes a tensor like each of the points and returns the outputs, ``(n, k)``;
        with ``has_aux`` also something else.
    points : Tensor of shape (n, ...)
        One, or several that the function adds to or replaces tensors with.
    vmappable : bool
        Whether a block of vectors may go through ``vmap``; else they go one by one.
    at_once : int, optional
        Most vectors that go through together, of however many are given.
    has_aux : bool, default=False

    Attributes
    ----------
    input : Tensor of shape (n, d)
        The first of the points.
    output : Tensor of shape (n, k)
    aux
        What else the function returned.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *points: Tensor,
        vmappable: bool = True,
        at_once: int | None = None,
        has_aux: bool = False,
    ) -> None:
        self._function, self._points = function, points
        self._vmappable, self._at_once = vmappable, at_once
        self.input = points[0].flatten(1)
        self._pull_one: Callable[[Tensor], tuple[Tensor, ...]]
        self.aux: Any = None
        with attention_with_derivatives(), frozen_randomness():
            try:
                functional = FunctionalMap(function, *points, has_aux=has_aux)
            except RuntimeError as error:
                refused = any(words in str(error) for words in REFUSED_BY_FUNC)
                if not refused or has_aux:
                    raise
                recorded = AutogradMap.record(function, *points)
                self.output = recorded.output.detach()
                self._pull_one = lambda v: recorded.pull_all(v, create_graph=False)
                self._vmappable = self._has_forward_mode = False
            else:
                self.output, self.aux = functional.output, functional.aux
                # A graph of the derivative itself is wanted only if something upstream
                # is being trained; it doubles the memory.
                graph = self.output.requires_grad
                self._pull_one = lambda v: functional.pull_all(v, create_graph=graph)
                # A flag: a method kept here would be a circle, and keep the graph.
                self._has_forward_mode = True

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of points, outputs and inputs, ``(n, k, d)``."""
        return len(self.input), self.output.shape[1], self.input.shape[1]

    def pull(self, cotangents: Tensor) -> Tensor:
        """Return ``J^T v`` for a block of cotangents, (b, n, k) -> (b, n, d)."""
        return self.pull_all(cotangents)[0]

    def pull_all(self, cotangents: Tensor) -> list[Tensor]:
        """Return ``J_i^T v`` of each point i, (b, n, k) -> (b, n, d_i)."""
        cotangents = cotangents.to(self.output)
        with attention_with_derivatives(), outside_autocast(cotangents.device):
            pulled = self._block(self._pull_one, cotangents, vmappable=True)
        return [part.flatten(2) for part in pulled]

    def push(self, tangents: Tensor) -> Tensor:
        """Return ``J u`` for a block of tangents, (b, n, d) -> (b, n, k)."""
        (point,) = self._points
        tangents = tangents.to(point).unflatten(2, point.shape[1:])
        with attention_with_derivatives():
            if self._has_forward_mode:
                try:
                    return self._block(self._forward_mode, tangents, vmappable=True)
                except NotImplementedError:  # an operator without a forward-mode rule
                    self._has_forward_mode = False
                except RuntimeError as error:  # normalisation on channels last
                    if "view size is not compatible" not in str(error):
                        raise
                    self._has_forward_mode = False
            return self._block(self._double_backward, tangents, vmappable=False)

    def _block(
        self, product: Callable[[Tensor], Any], vectors: Tensor, *, vmappable: bool
    ) -> Any:
        if self._at_once is not None and len(vectors) > self._at_once:
            parts = vectors.split(self._at_once)
            found = [self._block(product, part, vmappable=vmappable) for part in parts]
            return tree_map(lambda *blocks: torch.cat(blocks), *found)
        if vmappable and self._vmappable and len(vectors) > 1:
            try:
                return vmap(product, randomness="same")(vectors)
            except RuntimeError as error:
                if not any(words in str(error) for words in REFUSED_BY_VMAP):
                    raise
                self._vmappable = False
        found = [product(v) for v in vectors]
        return tree_map(lambda *rows: torch.stack(rows), *found)

    def _forward_mode(self, tangent: Tensor) -> Tensor:
        with forward_mode(), frozen_randomness():
            return jvp(self._function, self._points, (tangent,))[1]

    def _double_backward(self, tangent: Tensor) -> Tensor:
        with torch.inference_mode(False), torch.enable_grad(), frozen_randomness():
            return AutogradMap.record(self._function, *self._points).push(
                tangent.clone()
            )


@dataclass(frozen=True)
class ChunkPlan:
    """The pieces in which a batch is worked through.

    Attributes
    ----------
    samples : int
        Samples in one piece.
    vectors : int
        Vectors (cotangents or tangents) that go through the model at once, per sample.
    """

    samples: int
    vectors: int

    def pieces(self, n: int) -> Iterator[slice]:
        """Yield the slices that cover ``range(n)``."""
        for start in range(0, n, self.samples):
            yield slice(start, min(start + self.samples, n))


def default_budget(device: torch.device) -> int:
    """Return the working memory: 1 GiB, or two fifths of what a GPU has free."""
    if device.type == "cuda":
        return int(0.4 * torch.cuda.mem_get_info(device)[0])
    return GIB


def plan_chunks(
    local_map: LocalMap,
    x: Tensor,
    *,
    chunk_size: ChunkSize,
    memory_budget: int | None,
    n_vectors: int,
    kept_per_sample: int,
) -> ChunkPlan:
    """Return a plan under which working memory stays within the budget.

    Parameters
    ----------
    n_vectors : int
        How many vectors are wanted for each sample.
    kept_per_sample : int
        Bytes of results held per sample while its piece is worked on.
    """
    callee = local_map.callee
    if chunk_size is None:
        return ChunkPlan(max(len(x), 1), n_vectors)
    if chunk_size != "auto":
        valid = isinstance(chunk_size, int) and not isinstance(chunk_size, bool)
        require(
            valid and chunk_size > 0,
            callee,
            "chunk_size",
            "a positive integer, 'auto' or None",
            repr(chunk_size),
        )
    if memory_budget is None:
        memory_budget = default_budget(x.device)
    require(memory_budget > 0, callee, "memory_budget", "positive", memory_budget)
    saved, largest = bytes_per_sample(local_map, x)
    # While one vector passes backward, a few tensors like the largest activation are
    # alive: gradients of a layer's output and input, of a shortcut, the reordered
    # copies of the kernels.
    per_vector = 6 * largest
    vectors = n_vectors
    while (
        vectors > 1 and saved + kept_per_sample + vectors * per_vector > memory_budget
    ):
        vectors = (vectors + 1) // 2
    per_sample = saved + kept_per_sample + vectors * per_vector
    samples = max(1, int(memory_budget // max(per_sample, 1)))
    fits = WORKING_SET.get(x.device.type, 64 * 2**20)
    if x.device.type == "cpu":  # a GPU gains from more samples, a CPU loses its caches
        samples = min(samples, max(1, fits // largest))
    if chunk_size != "auto":  # the samples are settled, what goes through is not
        samples = chunk_size
    resident = max(min(samples, len(x)) * largest, 1)
    vectors = min(vectors, max(1, fits // resident))
    return ChunkPlan(samples, vectors)


def bytes_per_sample(local_map: LocalMap, x: Tensor) -> tuple[int, int]:
    """Return the bytes that autograd keeps for one sample, in all and at the largest.

    What does not grow with the batch (weights that are kept for the backward pass)
    drops out by taking the difference of two samples and one.
    """
    if len(x) == 0:
        return 1, 1
    kind = (x.shape[1:], x.dtype, x.device)
    if kind not in local_map.sizes:
        local_map.sizes[kind] = _measured_bytes(local_map, x)
    return local_map.sizes[kind]


def _measured_bytes(local_map: LocalMap, x: Tensor) -> tuple[int, int]:
    one = _saved_bytes(local_map, x[:1])
    two = _saved_bytes(local_map, x[:1].expand(2, *x.shape[1:]).clone())
    if not one or not two:
        guess = 64 * x[:1].numel() * x.element_size()
        return guess, guess
    growth = max(sum(two) - sum(one), 1)
    if len(one) != len(two):
        return growth, growth
    return growth, max(max(b - a for a, b in zip(one, two, strict=True)), 1)


def _saved_bytes(local_map: LocalMap, x: Tensor) -> list[int]:
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        start = tensor.data_ptr()  # also that of a view of some of the entries
        sizes[start] = max(size, sizes.get(start, 0))
        # An operation that keeps its own output would keep itself, and all before it.
        return tensor.detach()

    with (
        torch.inference_mode(False),
        attention_with_derivatives(),
        frozen_randomness(),
    ):
        with torch.no_grad():
            point_map = local_map.on(x.clone())
        point = point_map.point.detach().clone().requires_grad_()
        with (
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(note, lambda t: t),
        ):
            try:
                output = point_map.function(point)
            except RuntimeError as error:
                # Weights made inside inference_mode cannot be saved for backward;
                # torch.func still differentiates through them.
                if "inference" not in str(error).lower():
                    raise
                return []
    note(output)
    note(point)
    return list(sizes.values())


def remedy_for(model: Any) -> str:
    """Say what to pass in place of an object that is no function of tensors.

    Examples
    --------
    >>> remedy_for(3)
    ''
    """
    if isinstance(getattr(model, "module_", None), nn.Module):  # skorch
        return "Pass the torch module that it has trained: net.module_."
    if not hasattr(model, "predict"):
        return ""
    if type(model).__module__.partition(".")[0] == "normalign":
        return "Pass normalign.estimators.as_torch(model), once it is fitted."
    return (
        "Pass normalign.estimators.as_torch(model): it supports linear models, "
        "multi-layer perceptrons, support vector machines, kernel ridge and pipelines "
        "of them. Trees, forests and neighbours are constant in pieces: they have no "
        "Jacobian."
    )


def rounding(dtype: torch.dtype) -> float:
    """Return what a sum of many products may be off by, relative, in a precision.

    A thousand units of the last place, and no more than a few percent: half precision
    is rough, but not without meaning.
    """
    return min(1e3 * torch.finfo(dtype).eps, 0.04)


def refuse_mixing(
    model: Model, callee: str, remedy: str = "Call model.eval() first."
) -> None:
    """Refuse layers that take statistics over the batch: they mix the samples."""
    for name, module in named_modules(model):
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            label = f"{type(module).__name__} {name!r}"
            require(
                not module.training,
                callee,
                "model",
                "in evaluation mode, so that samples do not mix",
                f"{label} in training mode",
                remedy,
            )
            require(
                module.running_mean is not None,
                callee,
                "model",
                "a function of each sample alone",
                f"{label} without running statistics",
                "Build it with track_running_stats=True, or use GroupNorm.",
            )


def _warn_of_dropout(model: Model, callee: str) -> bool:
    """Warn that active dropout makes the network a random one; return whether."""
    for name, module in named_modules(model):
        dropout = isinstance(module, nn.modules.dropout._DropoutNd)
        if dropout and module.training and module.p > 0:
            warnings.warn(
                f"{callee}: {type(module).__name__} {name!r} is in training mode: what "
                "is measured is one random sub-network for each chunk of samples. "
                "Call model.eval() to measure the whole network.",
                stacklevel=5,
            )
            return True
    return False
