"""The map whose local geometry is measured: a whole model, or a part of one.

The rest of the folder sees a plain function of a batch. Which tensor is its input
(``at=``) and which its output is settled here; what is peculiar about models, in
`quirks.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from normalign._errors import describe, require, require_kind
from normalign.geometry.quirks import (
    TORCH_ONLY,
    Model,
    attention_with_derivatives,
    frozen_randomness,
    has_recurrence,
    in_this_thread,
    named_modules,
    recurrence_with_derivatives,
    refuse_mixing,
    remedy_for,
    unwrapped,
    warn_of_dropout,
)

__all__ = ["At", "LocalMap", "PointMap"]


@dataclass(frozen=True)
class At:
    """A place inside a model: the input of one of its submodules.

    The measured map goes from that tensor to the model's output, everything else that
    reaches the output held fixed. A submodule whose input is not floating point (an
    embedding) stands for its own output instead.

    Parameters
    ----------
    name : str
        Dotted name, as in ``model.named_modules()``.
    call : int, optional
        Which call, for a submodule that runs several times in one forward pass.
    argument : int or str, optional
        Which argument, for a submodule that takes several floating tensors.
    token : int, optional
        One position of a ``(n, tokens, features)`` input; the others are held fixed.
        By default the map starts from all of them.

    Examples
    --------
    >>> At("blocks.0", token=-1)
    At(name='blocks.0', call=None, argument=None, token=-1)
    """

    name: str
    call: int | None = None
    argument: int | str | None = None
    token: int | None = None


@dataclass(frozen=True)
class PointMap:
    """A batch of points and the function whose geometry is measured there.

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
        What :func:`normalign.geometry.chunks.bytes_per_sample` returned, by the kind of
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
        object.__setattr__(self, "model", unwrapped(self.model))
        if isinstance(self.at, str):
            object.__setattr__(self, "at", At(self.at))
        refuse_mixing(self.model, self.callee)
        object.__setattr__(self, "random", warn_of_dropout(self.model, self.callee))
        object.__setattr__(self, "vmappable", not has_recurrence(self.model))

    def on(self, x: Tensor) -> PointMap:
        """Return the map and its point for one batch of model inputs."""
        if x.is_inference() and not torch.is_inference_mode_enabled():
            x = x.clone()  # autograd may keep the copy, but not the original
        if not x.is_contiguous():
            x = x.clone()  # entries of an expanded tensor share their memory
        if self.at is None:
            self.require_floating(x)
            return PointMap(self._run, x)
        return self._from_submodule(x, self._submodule())

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

    def _run(self, x: Tensor) -> Tensor:
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

    def _submodule(self) -> nn.Module:
        assert isinstance(self.at, At)
        require_kind(
            isinstance(self.model, nn.Module),
            self.callee,
            "model",
            "an nn.Module when at= names a submodule",
            self.model,
        )
        modules = dict(named_modules(self.model))
        near = [n for n in modules if n and self.at.name.split(".")[-1] in n]
        names = near or [n for n, _ in self.model.named_children()]  # pyright: ignore
        require(
            self.at.name in modules,
            self.callee,
            "at",
            "the name of a submodule",
            repr(self.at.name),
            f"Some of its names: {', '.join(names[:8])}."
            if names
            else "This model has no submodules.",
        )
        return modules[self.at.name]

    def _from_submodule(self, x: Tensor, module: nn.Module) -> PointMap:
        """Run the model once to see the submodule's input, then by substitution."""
        at = self.at
        assert isinstance(at, At)
        call, slot = self._place(x, module)
        args, kwargs, out = self._calls(x, module)[call]
        whole = _argument(args, kwargs, out, slot)
        point = _token_of(whole, at, self.callee).detach()

        def function(h: Tensor) -> Tensor:
            def value() -> Tensor:
                if at.token is None:
                    return h.clone()
                position = at.token % whole.shape[1]
                before, after = whole[:, :position], whole[:, position + 1 :]
                return torch.cat([before, h.unsqueeze(1), after], 1)

            with substituted(module, call, slot, value):
                return self._run(x)

        return PointMap(function, point)

    def _place(self, x: Tensor, module: nn.Module) -> tuple[int, int | str | None]:
        """Return which call, and which of its arguments, is the map's input.

        Two and three copies of one sample tell the tensor that grows with the batch
        from masks and weights that happen to have its size.
        """
        at = self.at
        assert isinstance(at, At)
        one = x[:1] if len(x) else x.new_zeros(1, *x.shape[1:])
        two, three = (self._calls(one.expand(n, *x.shape[1:]), module) for n in (2, 3))
        call = _chosen_call(at, len(two), self.callee)
        slot = _chosen_slot(at, two[call][:2], three[call][:2], self.callee)
        tensors = [_argument(*calls[call], slot) for calls in (two, three)]
        batched = all(
            isinstance(t, Tensor) and t.is_floating_point() and t.ndim > 1
            for t in tensors
        ) and [len(t) for t in tensors] == [2, 3]
        require(
            batched,
            self.callee,
            "at",
            "a submodule whose input is one floating tensor with the batch first",
            f"{at.name!r}, which takes {describe(tensors[0])} for two samples",
            "Name a submodule before or after it, or another argument of it.",
        )
        return call, slot

    def _calls(self, x: Tensor, module: nn.Module) -> list[tuple[Any, Any, Any]]:
        """Return arguments and result of every call of a submodule in one pass."""
        # Copies, taken before and after the call: later layers may work in place.
        inputs: list[tuple[Any, Any]] = []
        outputs: list[Any] = []
        before = module.register_forward_pre_hook(
            in_this_thread(
                lambda _, args, kwargs: inputs.append((_copied(args), _copied(kwargs)))
            ),
            with_kwargs=True,
        )
        after = module.register_forward_hook(
            in_this_thread(lambda _, args, out: outputs.append(_copied(out)))
        )
        with (
            before,
            after,
            torch.no_grad(),
            attention_with_derivatives(),
            frozen_randomness(),
        ):
            self.model(x.clone())
        return [(*pair, out) for pair, out in zip(inputs, outputs, strict=True)]


@contextlib.contextmanager
def substituted(
    module: nn.Module, call: int, slot: int | str | None, value: Callable[[], Tensor]
) -> Iterator[None]:
    """Replace one argument (or, with no slot, the output) of one call of a module."""
    seen = 0

    def count() -> bool:
        nonlocal seen
        seen += 1
        return seen - 1 == call

    def replace_input(_: nn.Module, args: Any, kwargs: Any) -> Any:
        if not count():
            return None
        if isinstance(slot, str):
            return args, {**kwargs, slot: value()}
        return (*args[:slot], value(), *args[slot + 1 :]), kwargs  # pyright: ignore

    def replace_output(_: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        return value() if count() else None

    if slot is None:
        hook = in_this_thread(replace_output)
        handle = module.register_forward_hook(hook, with_kwargs=True)
    else:
        hook = in_this_thread(replace_input)
        handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    with handle:
        yield


def _chosen_call(at: At, n_calls: int, callee: str) -> int:
    require(
        n_calls > 0,
        callee,
        "at",
        "a submodule that runs in the forward pass",
        f"{at.name!r}, which did not run",
        "Name a module that the model calls (not one whose weights it reads).",
    )
    call = 0 if at.call is None and n_calls == 1 else at.call
    require(
        call is not None,
        callee,
        "at",
        "one call of a submodule",
        f"{at.name!r}, which ran {n_calls} times",
        f"Choose one: at=At({at.name!r}, call=0), up to call={n_calls - 1}.",
    )
    assert call is not None
    require(
        -n_calls <= call < n_calls,
        callee,
        "at.call",
        f"between {-n_calls} and {n_calls - 1}",
        call,
    )
    return call % n_calls


def _copied(value: Any) -> Any:
    return tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, value)


def _argument(args: Any, kwargs: Any, out: Any, slot: int | str | None) -> Any:
    if slot is None:
        return out
    return kwargs[slot] if isinstance(slot, str) else args[slot]


def _chosen_slot(
    at: At, two: tuple[Any, Any], three: tuple[Any, Any], callee: str
) -> int | str | None:
    """Return the argument's position or keyword; None stands for the output.

    ``two`` and ``three`` are the arguments of the same call for as many samples.
    """
    given, again = (
        {**dict(enumerate(args)), **kwargs} for args, kwargs in (two, three)
    )
    if at.argument is not None:
        require(
            at.argument in given,
            callee,
            "at.argument",
            f"one of {list(given)} for {at.name!r}",
            repr(at.argument),
        )
        return at.argument
    floating = [
        key
        for key, value in given.items()
        if isinstance(value, Tensor)
        and value.is_floating_point()
        and value.shape != again[key].shape
    ]
    require(
        len(floating) <= 1,
        callee,
        "at",
        "a submodule with one floating tensor as its input",
        f"{at.name!r}, which takes {len(floating)}",
        f"Choose one: at=At({at.name!r}, argument={floating[0]!r})."
        if floating
        else "",
    )
    if not floating:
        whole = [v for v in given.values() if isinstance(v, Tensor)]
        require(
            bool(whole) and not any(v.is_floating_point() for v in whole),
            callee,
            "at",
            "a submodule with a floating tensor as its input, or whole numbers alone",
            f"{at.name!r}, which takes {', '.join(map(describe, given.values()))}",
            "Name a submodule before or after it.",
        )
        return None
    return floating[0]


def _token_of(whole: Tensor, at: At, callee: str) -> Tensor:
    if at.token is None:
        return whole
    require(
        whole.ndim >= 3 and -whole.shape[1] <= at.token < whole.shape[1],
        callee,
        "at.token",
        f"a position of the input of {at.name!r}, whose shape is {tuple(whole.shape)}",
        at.token,
    )
    return whole[:, at.token]
