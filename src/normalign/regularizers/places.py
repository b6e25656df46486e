"""Where inside a model a map begins: the input of one of its submodules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from normalign._errors import describe, require, require_kind
from normalign.geometry.local_map import At
from normalign.geometry.quirks import named_modules, unwrapped

__all__ = ["Place", "middle_of", "place_in"]

Slot = int | str | None


class Place:
    """The tensor that one submodule receives, in any forward pass of its model.

    A submodule whose arguments are all whole numbers (an embedding) stands for its own
    output instead, as for :class:`normalign.geometry.local_map.At`.

    Parameters
    ----------
    module : torch.nn.Module
        The submodule.
    at : At
        Which call, which argument, which token of it.
    callee : str
        The public function in whose name errors are raised.
    """

    def __init__(self, module: nn.Module, at: At, callee: str) -> None:
        self.module, self.at, self._callee = module, at, callee
        self._change: Callable[[Tensor], Tensor] | None = None
        self._listening, self._calls = False, 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hook onto the submodule, so that :meth:`replaced` inside need not do it.

        Hooks cannot be set up inside a compiled function, but they can be called.
        """
        first = self.module.register_forward_pre_hook(self._before, with_kwargs=True)
        last = self.module.register_forward_hook(self._after, with_kwargs=True)
        self._listening = True
        try:
            with first, last:
                yield
        finally:
            self._listening = False

    @contextmanager
    def replaced(self, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Let a pass inside go on with ``change(tensor)`` instead of the tensor here.

        The pass may run under ``torch.func``: only hooks of the submodule are used.
        """
        with nullcontext() if self._listening else self.listening():
            self._change, self._calls = change, 0
            try:
                yield
            finally:
                self._change = None
        self._check_calls(self._calls)

    def _before(self, _: nn.Module, args: Any, kwargs: Any) -> Any:
        self._calls += 1
        slot = self._slot_here(args, kwargs)
        if slot is None or self._change is None:
            return None
        if isinstance(slot, str):
            return args, {**kwargs, slot: self._changed(kwargs[slot], self._change)}
        new = self._changed(args[slot], self._change)
        return (*args[:slot], new, *args[slot + 1 :]), kwargs

    def _after(self, _: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        here = self._change is not None and self._calls - 1 == (self.at.call or 0)
        if not here or self._slot_here(args, kwargs) is not None:
            return None
        assert self._change is not None
        return self._changed(out, self._change)

    def _slot_here(self, args: Any, kwargs: Any) -> Slot:
        wanted = self._calls - 1 == (self.at.call or 0)
        return self._slot(args, kwargs) if wanted else None

    def _slot(self, args: Any, kwargs: Any) -> Slot:
        """Return the position or keyword of the argument; None stands for the output.

        Of several floating tensors with a row for each sample none is preferred.
        """
        at, given = self.at, {**dict(enumerate(args)), **kwargs}
        if at.argument is not None:
            names = list(given)
            rule = f"one of {names} for {at.name!r}"
            require(
                at.argument in given, self._callee, "at.argument", rule, at.argument
            )
            return at.argument
        tensors = {key: v for key, v in given.items() if isinstance(v, Tensor)}
        floating = [key for key, v in tensors.items() if v.is_floating_point()]
        if tensors and not floating:
            return None
        require(
            len(floating) == 1,
            self._callee,
            "at",
            "a submodule with one floating tensor as its input",
            f"{at.name!r}, which takes {', '.join(map(describe, given.values()))}",
            f"Choose one: at=At({at.name!r}, argument={floating[0]!r})."
            if floating
            else "Name a submodule before or after it.",
        )
        return floating[0]

    def _changed(self, whole: Any, change: Callable[[Tensor], Tensor]) -> Tensor:
        real = isinstance(whole, Tensor) and whole.is_floating_point()
        rule = "a submodule that takes or gives one floating tensor"
        got = f"{self.at.name!r} with {describe(whole)}"
        require_kind(real, self._callee, "at", rule, got)
        token = self.at.token
        if token is None:
            return change(whole)
        fits = whole.ndim >= 3 and -whole.shape[1] <= token < whole.shape[1]
        rule = f"a position in the input of {self.at.name!r}"
        got = f"{token} for shape {tuple(whole.shape)}"
        require(fits, self._callee, "at.token", rule, got)
        position = token % whole.shape[1]
        part = change(whole[:, position]).unsqueeze(1)
        return torch.cat([whole[:, :position], part, whole[:, position + 1 :]], 1)

    def _check_calls(self, calls: int) -> None:
        name, call = self.at.name, self.at.call
        require(
            calls > 0,
            self._callee,
            "at",
            "a submodule that runs in the forward pass",
            f"{name!r}, which did not run",
            "Name a module that the model calls (not one whose weights it reads).",
        )
        require(
            calls == 1 if call is None else call < calls,
            self._callee,
            "at",
            "one call of a submodule",
            f"{name!r}, which ran {calls} times",
            f"Choose one: at=At({name!r}, call=0), up to call={calls - 1}.",
        )


def place_in(model: Any, at: str | At, callee: str) -> Place:
    """Return the place that ``at`` names inside a model, or explain why there is none.

    Examples
    --------
    >>> place_in(nn.Sequential(nn.ReLU(), nn.Tanh()), "1", "GrokAlign").module
    Tanh()
    """
    at = At(at) if isinstance(at, str) else at
    require_kind(isinstance(at, At), callee, "at", "a str or an At", at)
    rule = "at least 0"
    require(at.call is None or at.call >= 0, callee, "at.call", rule, at.call)
    inner = unwrapped(model)
    rule = "an nn.Module when at= names a submodule"
    require_kind(isinstance(inner, nn.Module), callee, "model", rule, model)
    modules = dict(named_modules(inner))
    near = [name for name in modules if name and at.name.split(".")[-1] in name]
    names = near or [name for name, _ in inner.named_children()]
    require(
        at.name in modules,
        callee,
        "at",
        "the name of a submodule",
        repr(at.name),
        f"Some of its names: {', '.join(names[:8])}."
        if names
        else "This model has no submodules.",
    )
    return Place(modules[at.name], at, callee)


def middle_of(model: Any, callee: str) -> str:
    """Return the name of the submodule before which half of a chain has run.

    Examples
    --------
    >>> middle_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), "f")
    '1'
    """
    inner = unwrapped(model)
    chain = isinstance(inner, nn.Sequential) and len(inner) >= 2
    names = [name for name, _ in named_modules(inner) if name]
    example = repr(names[len(names) // 2]) if names else "'layer'"
    remedy = (
        "Say where to cut: at=, the name of the submodule whose input divides the "
        f"model in two, such as at={example}."
    )
    rule = "an nn.Sequential of at least two modules, or come with at="
    got = type(inner).__name__
    require(chain, callee, "model", rule, f"a model of type {got}", remedy)
    children = [name for name, _ in inner.named_children()]
    return children[len(children) // 2]
