"""The pass of a model as it is: any module, hooks and wrappers, plain autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from normalign._errors import require, require_kind
from normalign.geometry.quirks import TORCH_ONLY, attention_with_derivatives
from normalign.regularizers.passes import Pullable, SameDraws
from normalign.regularizers.places import Place
from normalign.regularizers.second_order import LeanOperations, lean_operations

__all__ = ["EagerPass", "check_output"]


class EagerPass:
    """A model as it is at a batch of points, by plain autograd.

    Hooks, checkpointing and data-parallel wrappers work as they always do. One forward
    pass serves the output, every pull-back and every push-forward, which pulls back
    twice. Only a finite step runs the model again, from the buffers and the random
    state of the first pass, and leaves no trace in them; what else a model counts or
    keeps, it counts twice.

    Parameters
    ----------
    model : callable
        Maps ``x`` to outputs (n, ...), each sample on its own.
    x : Tensor of shape (n, ...)
        Not changed, and need not require a gradient.
    callee : str
        The public function in whose name errors are raised.
    place : Place, optional
        Where inside the model the map begins, or where it is cut in two.
    cut : bool, default=False
        The place is a cut: the map begins at ``x``.
    once : bool, default=False
        There will be no finite step: the random state need not be kept.
    verify : bool, default=True
        Look whether everything passes through the cut.
    """

    push_has_graph = False

    def __init__(
        self,
        model: Callable[..., Any],
        x: Tensor,
        *,
        callee: str,
        place: Place | None = None,
        cut: bool = False,
        once: bool = False,
        verify: bool = True,
    ) -> None:
        self._model, self._callee, self._verify = model, callee, verify
        # Autograd may keep the copy of an inference tensor, but not the original.
        self._x = x.clone() if x.is_inference() else x
        wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
        self._bare: Callable[..., Any] = model.module if wrapped else model
        self._place = place
        self._inside = place is not None and not cut
        self._same_draws = None if once else SameDraws(x.device)
        self._buffers: _Buffers | None = None if once else _Buffers(self._bare)
        self._output: Tensor | None = None
        self._start: Tensor | None = None  # what pull-backs are taken to
        self._hidden: Tensor | None = None  # the tensor at the place
        self._beyond: Any = None  # the graph's node just after the place
        self._made: Tensor | None = None  # a leaf that is not the caller's
        self._lean: LeanOperations | None = None
        # A zero cotangent and its pull-back: what push-forwards go through.
        self._linear: tuple[Tensor, Tensor] | None = None

    @property
    def point(self) -> Tensor:
        """The points, (n, ...)."""
        if not self._inside:
            return self._x
        self._ready()
        assert self._hidden is not None
        return self._hidden.detach() if self._hidden is self._made else self._hidden

    @property
    def output(self) -> Tensor:
        """What the model returns, (n, ...)."""
        return self._ready() if self._output is None else self._output

    def pull(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T v``, with its graph, shaped like the points."""
        output = self._ready()
        assert self._start is not None
        return self.pulled(output, self._start, cotangent)

    def push(self, tangent: Tensor) -> Tensor:
        """Return ``J u`` as a constant, shaped like the output."""
        # v -> J^T v is linear, so its own pull-back is u -> J u, whatever v. Only the
        # number: what torch makes of the derivative of a push-forward, by forward mode
        # or by pulling back twice, is wrong for some layers (nn.LayerNorm).
        output, start = self._ready(), self._start
        assert start is not None
        assert self._lean is not None
        if self._linear is None:
            cotangent = torch.zeros_like(output, requires_grad=True)
            self._linear = cotangent, self.pulled(output, start, cotangent)
        cotangent, pulled = self._linear
        if not pulled.requires_grad:  # a step function: it has a derivative, zero
            return torch.zeros_like(output)
        with self._lean.pulling():
            (pushed,) = torch.autograd.grad(
                pulled, cotangent, tangent, retain_graph=True, allow_unused=True
            )
        return torch.zeros_like(output) if pushed is None else pushed.detach()

    def moved(self, step: Tensor) -> Tensor:
        """Return what the model makes of the points plus a step."""
        self._ready()
        assert self._buffers is not None
        # In place on a copy, for the memory layout of the first pass: by it dropout
        # deals out the random numbers.
        point = self.point.clone().add_(step)
        change = (lambda _: point) if self._inside else None
        entry = self._x.clone() if self._inside else point
        with self._surroundings(), self._watched(change), self._buffers.again():
            # Bare: the wrapper has told its reducer of the first pass, once is enough.
            return self._bare(entry)

    def reached(self, value: Tensor) -> list[Tensor]:
        """Return the leaves that a gradient of ``value`` reaches, but for our own.

        ``value.requires_grad`` is not enough: the pull-back through a frozen ReLU
        network has a graph, but only back to the input.
        """
        nodes = (node for node in _nodes(value) if hasattr(node, "variable"))
        leaves: list[Tensor] = [node.variable for node in nodes]
        return [leaf for leaf in leaves if leaf is not self._made]

    def halves(self) -> tuple[Pullable, Pullable]:
        """Return the parts before and after the cut."""
        output, start, hidden = self._ready(), self._start, self._hidden
        assert start is not None
        assert hidden is not None
        whole = not self._verify or not _goes_around(output, self._beyond, start)
        require(
            whole,
            self._callee,
            "at",
            "a cut that everything passes through",
            "a submodule that a connection goes around",
            "Name one whose input is all that the rest of the model sees.",
        )
        return _Part(self, start, hidden), _Part(self, hidden, output)

    def pulled(self, output: Tensor, start: Tensor, cotangent: Tensor) -> Tensor:
        """Return a pull-back between two tensors of the pass, with its graph."""
        assert self._lean is not None
        with self._lean.pulling():
            (pulled,) = torch.autograd.grad(
                output, start, cotangent, create_graph=True, allow_unused=True
            )
        rule, got = "a function of x", "outputs that ignore x"
        require(pulled is not None, self._callee, "model", rule, got)
        return pulled

    def _ready(self) -> Tensor:
        """Run the model, once, with a graph back to the points; return its output."""
        if self._start is not None:
            assert self._output is not None
            return self._output
        with self._surroundings(), contextlib.ExitStack() as layers:
            if not self._inside:
                self._begin(self._x, layers)
            # The copy: a first layer may work in place.
            entry = (self._x if self._start is None else self._start).clone()
            with self._watched(lambda hidden: self._keep(hidden, layers)):
                self._output = self._model(entry)
        check_output(self._output, self._x, self._callee)
        assert self._output is not None
        rule, got = "differentiable in x", "outputs without a graph"
        remedy = "Nothing inside it may detach, or run under torch.no_grad()."
        graph = self._output.requires_grad
        require(graph, self._callee, "model", rule, got, remedy)
        return self._output

    def _begin(self, point: Tensor, layers: contextlib.ExitStack) -> Tensor:
        """Take pull-backs to this tensor, or to a leaf in its stead."""
        if not point.requires_grad:
            point = self._made = point.detach().requires_grad_()
        self._start = point
        # No gradient is wanted in a leaf that nobody knows of.
        lean = lean_operations(point, point_gradient=self._made is None)
        self._lean = layers.enter_context(lean)
        return point

    def _keep(self, hidden: Tensor, layers: contextlib.ExitStack) -> Tensor:
        self._hidden = self._begin(hidden, layers) if self._inside else hidden
        onward = self._hidden.clone()
        self._beyond = onward.grad_fn
        return onward

    def _watched(self, change: Callable[[Tensor], Tensor] | None) -> Any:
        if self._place is None or change is None:
            return contextlib.nullcontext()
        return self._place.replaced(change)

    @contextlib.contextmanager
    def _surroundings(self) -> Iterator[None]:
        with attention_with_derivatives():
            if self._same_draws is None:
                yield
                return
            with self._same_draws():
                yield


class _Part:
    """What lies between two tensors of a pass."""

    def __init__(self, whole: EagerPass, start: Tensor, output: Tensor) -> None:
        self._whole, self._start, self.output = whole, start, output

    def pull(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T v``, with its graph."""
        return self._whole.pulled(self.output, self._start, cotangent)


def _nodes(value: Tensor, barrier: Any = None) -> Iterator[Any]:
    """Yield the nodes of a tensor's graph, from it to the leaves."""
    stack, seen = [value.grad_fn], {barrier}
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(parent for parent, _ in node.next_functions)


class _Buffers:
    """The buffers of a module before a pass, for another pass to start from."""

    def __init__(self, model: Callable[..., Any]) -> None:
        modules = list(model.modules()) if isinstance(model, nn.Module) else []
        self._modules = modules
        self._before = _cloned([dict(module._buffers) for module in modules])

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Let a pass inside read and change copies; what the module holds is kept."""
        now = [dict(module._buffers) for module in self._modules]
        for module, copies in zip(self._modules, _cloned(self._before), strict=True):
            module._buffers.update(copies)
        try:
            yield
        finally:
            for module, held in zip(self._modules, now, strict=True):
                module._buffers.clear()
                module._buffers.update(held)


Held = dict[str, Tensor | None]


def _cloned(tables: list[Held]) -> list[Held]:
    """Return copies of buffers; one that two modules share stays one."""
    copies: dict[int, Tensor] = {}
    found: list[Held] = []
    for table in tables:
        # A lazy module's have no numbers before its first pass.
        ready = {k: b for k, b in table.items() if b is not None and not is_lazy(b)}
        for buffer in ready.values():
            copies.setdefault(id(buffer), buffer.clone())
        found.append({name: copies[id(buffer)] for name, buffer in ready.items()})
    return found


def _goes_around(output: Tensor, barrier: Any, start: Tensor) -> bool:
    """Say whether ``output`` depends on ``start`` by a way without the barrier."""
    return any(
        node is start.grad_fn if start.grad_fn else node.variable is start
        for node in _nodes(output, barrier)
        if start.grad_fn or hasattr(node, "variable")
    )


def check_output(output: Any, x: Tensor, callee: str) -> None:
    """Refuse outputs that have no real numbers for each sample."""
    tensor = isinstance(output, Tensor)
    remedy = TORCH_ONLY if hasattr(output, "__array__") else ""
    require_kind(tensor, callee, "model", "a function into tensors", output, remedy)
    if not output.is_floating_point():
        rule, remedy = "a function into floating point tensors", ""
        if output.is_complex():
            remedy = "Let it return real numbers, such as torch.view_as_real(output)."
        require_kind(False, callee, "model", rule, output, remedy)
    per_sample = output.ndim >= 2 and len(output) == len(x)
    rule = f"a function into tensors of shape (n, ...) with n = {len(x)}"
    require(per_sample, callee, "model", rule, output)
