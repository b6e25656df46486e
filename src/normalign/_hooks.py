"""Locations inside a model: read or replace the tensor there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from normalign._errors import describe, require, require_kind
from normalign._torch_compat import (
    attention_with_derivatives,
    frozen_randomness,
    unwrap,
)

__all__ = [
    "At",
    "Location",
    "add_hooks",
    "batched_location",
    "insert_token",
    "location_in",
    "middle_of",
    "named_modules",
    "token_of",
]

Model = Callable[..., Any]
Slot = int | str | None


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


class Location:
    """The tensor that one submodule receives, in any forward pass of its model.

    A submodule whose arguments are all whole numbers (an embedding) stands for its own
    output instead.

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
        self._hooks_are_set, self._calls = False, 0

    @contextmanager
    def keep_hooks(self) -> Iterator[None]:
        """Set the hooks on the submodule for several passes inside.

        Hooks cannot be set up inside a compiled function, but they can be called.
        """
        self._hooks_are_set = True
        try:
            with add_hooks([self.module], self._before, self._after, any_thread=True):
                yield
        finally:
            self._hooks_are_set = False

    @contextmanager
    def replacing(self, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Let a pass inside go on with ``change(tensor)`` instead of the tensor here.

        The pass may run under ``torch.func``: only hooks of the submodule are used.
        """
        hooks = (
            nullcontext()
            if self._hooks_are_set
            else add_hooks([self.module], self._before, self._after)
        )
        with hooks:
            self._change, self._calls = change, 0
            try:
                yield
            finally:
                self._change = None
        self._check_calls(self._calls)

    def read(self, run: Callable[[], Any], *, stop: bool = False) -> Tensor:
        """Return the tensor here in the pass that ``run`` makes.

        With ``stop`` the pass ends here, and the number of calls is not checked.
        """
        seen: list[Tensor] = []

        def look(value: Tensor) -> Tensor:
            # The copy: layers that come later may work in place.
            seen.append(value if stop else value.clone())
            if stop:
                raise _ReachedError
            return value

        with suppress(_ReachedError), self.replacing(look):
            run()
        return seen[0]

    def _before(self, _: nn.Module, args: Any, kwargs: Any) -> Any:
        self._calls += 1
        slot = self._slot_here(args, kwargs)
        if slot is None or self._change is None:
            return None
        if isinstance(slot, str):
            return args, {**kwargs, slot: self._apply(kwargs[slot], self._change)}
        new = self._apply(args[slot], self._change)
        return (*args[:slot], new, *args[slot + 1 :]), kwargs

    def _after(self, _: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        here = self._change is not None and self._calls - 1 == (self.at.call or 0)
        if not here or self._slot_here(args, kwargs) is not None:
            return None
        assert self._change is not None
        return self._apply(out, self._change)

    def _slot_here(self, args: Any, kwargs: Any) -> Slot:
        wanted = self._calls - 1 == (self.at.call or 0)
        return self._slot(args, kwargs) if wanted else None

    def _slot(self, args: Any, kwargs: Any) -> Slot:
        """Return the position or keyword of the argument; None stands for the output.

        Of several floating tensors with a row for each sample none is preferred.
        """
        at, given = self.at, {**dict(enumerate(args)), **kwargs}
        if at.argument is not None:
            _check_argument(at, given, self._callee)
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

    def _apply(self, whole: Any, change: Callable[[Tensor], Tensor]) -> Tensor:
        real = isinstance(whole, Tensor) and whole.is_floating_point()
        rule = "a submodule that takes or gives one floating tensor"
        got = f"{self.at.name!r} with {describe(whole)}"
        require_kind(real, self._callee, "at", rule, got)
        if self.at.token is None:
            return change(whole)
        part = change(token_of(whole, self.at, self._callee))
        return insert_token(whole, self.at.token, part)

    def _check_calls(self, calls: int) -> None:
        name, call = self.at.name, self.at.call
        _check_has_run(name, calls, self._callee)
        require(
            calls == 1 if call is None else call < calls,
            self._callee,
            "at",
            "one call of a submodule",
            f"{name!r}, which ran {calls} times",
            f"Choose one: at=At({name!r}, call=0), up to call={calls - 1}.",
        )


class _ReachedError(Exception):
    """Ends a forward pass at the location whose tensor is wanted."""


@contextmanager
def add_hooks(
    modules: Iterable[nn.Module],
    before: Callable[[nn.Module, Any, Any], Any] | None = None,
    after: Callable[[nn.Module, Any, Any, Any], Any] | None = None,
    *,
    any_thread: bool = False,
) -> Iterator[None]:
    """Call functions before and after each call of some modules, in this thread.

    Parameters
    ----------
    modules : iterable of torch.nn.Module
    before : callable, optional
        ``before(module, args, kwargs)`` returns None, or the arguments to go on with.
    after : callable, optional
        ``after(module, args, kwargs, output)`` returns None, or the output to go on
        with.
    any_thread : bool, default=False
        Also in passes of other threads.
    """
    thread = threading.get_ident()

    def here(hook: Callable[..., Any]) -> Callable[..., Any]:
        if any_thread:
            return hook
        return lambda *args: hook(*args) if threading.get_ident() == thread else None

    with ExitStack() as handles:
        for module in modules:
            if before is not None:
                handle = module.register_forward_pre_hook(
                    here(before), with_kwargs=True
                )
                handles.enter_context(handle)
            if after is not None:
                handle = module.register_forward_hook(here(after), with_kwargs=True)
                handles.enter_context(handle)
        yield


def named_modules(model: Model) -> Iterator[tuple[str, nn.Module]]:
    """Yield the named submodules of a module, and nothing for another callable."""
    if isinstance(model, nn.Module):
        yield from model.named_modules()


def location_in(model: Any, at: str | At, callee: str) -> Location:
    """Return the location that ``at`` names in a model, or explain why there is none.

    Examples
    --------
    >>> location_in(nn.Sequential(nn.ReLU(), nn.Tanh()), "1", "GrokAlign").module
    Tanh()
    """
    at = At(at) if isinstance(at, str) else at
    require_kind(isinstance(at, At), callee, "at", "a str or an At", at)
    rule = "at least 0"
    require(at.call is None or at.call >= 0, callee, "at.call", rule, at.call)
    return Location(_submodule(unwrap(model), at.name, callee), at, callee)


def batched_location(model: Any, at: At, x: Tensor, callee: str) -> Location:
    """Return the location of a tensor that has a row for each sample of ``x``.

    Which call and which argument is settled here, by passes of two and three copies
    of one sample: they tell the tensor that grows with the batch from masks and weights
    that happen to have its size. The token of ``at`` is left out.
    """
    module = _submodule(model, at.name, callee)
    one = x[:1] if len(x) else x.new_zeros(1, *x.shape[1:])
    two, three = (
        _recorded_calls(model, one.expand(n, *x.shape[1:]), module) for n in (2, 3)
    )
    call = _chosen_call(at, len(two), callee)
    slot = _chosen_slot(at, two[call][:2], three[call][:2], callee)
    tensors = [_argument(*calls[call], slot) for calls in (two, three)]
    batched = all(
        isinstance(t, Tensor) and t.is_floating_point() and t.ndim > 1 for t in tensors
    ) and [len(t) for t in tensors] == [2, 3]
    require(
        batched,
        callee,
        "at",
        "a submodule whose input is one floating tensor with the batch first",
        f"{at.name!r}, which takes {describe(tensors[0])} for two samples",
        "Name a submodule before or after it, or another argument of it.",
    )
    # Without an argument the location finds whole numbers, and takes the output.
    at = replace(at, call=call, argument=slot, token=None)
    return Location(module, at, callee)


def middle_of(model: Any, callee: str) -> str:
    """Return the name of the submodule before which half of a chain has run.

    Examples
    --------
    >>> middle_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), "f")
    '1'
    """
    inner = unwrap(model)
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


def token_of(whole: Tensor, at: At, callee: str) -> Tensor:
    """Return the token that ``at`` names of a tensor, or all of it."""
    token = at.token
    if token is None:
        return whole
    fits = whole.ndim >= 3 and -whole.shape[1] <= token < whole.shape[1]
    rule = f"a position in the input of {at.name!r}"
    got = f"{token} for shape {tuple(whole.shape)}"
    require(fits, callee, "at.token", rule, got)
    return whole[:, token]


def insert_token(whole: Tensor, token: int, part: Tensor) -> Tensor:
    """Return a tensor with another token at one position."""
    position = token % whole.shape[1]
    before, after = whole[:, :position], whole[:, position + 1 :]
    return torch.cat([before, part.unsqueeze(1), after], 1)


def _submodule(model: Any, name: str, callee: str) -> nn.Module:
    rule = "an nn.Module when at= names a submodule"
    require_kind(isinstance(model, nn.Module), callee, "model", rule, model)
    modules = dict(named_modules(model))
    near = [known for known in modules if known and name.split(".")[-1] in known]
    names = near or [child for child, _ in model.named_children()]
    require(
        name in modules,
        callee,
        "at",
        "the name of a submodule",
        repr(name),
        f"Some of its names: {', '.join(names[:8])}."
        if names
        else "This model has no submodules.",
    )
    return modules[name]


def _recorded_calls(
    model: Model, x: Tensor, module: nn.Module
) -> list[tuple[Any, Any, Any]]:
    """Return arguments and result of every call of a submodule in one pass."""
    inputs: list[tuple[Any, Any]] = []
    outputs: list[Any] = []
    with (
        # Copies, taken before and after the call: later layers may work in place.
        add_hooks(
            [module],
            lambda _, args, kwargs: inputs.append(
                (_copy_tensors(args), _copy_tensors(kwargs))
            ),
            lambda _, args, kwargs, out: outputs.append(_copy_tensors(out)),
        ),
        torch.no_grad(),
        attention_with_derivatives(),
        frozen_randomness(),
    ):
        model(x.clone())
    return [(*pair, out) for pair, out in zip(inputs, outputs, strict=True)]


def _copy_tensors(value: Any) -> Any:
    return tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, value)


def _chosen_call(at: At, n_calls: int, callee: str) -> int:
    _check_has_run(at.name, n_calls, callee)
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


def _check_has_run(name: str, n_calls: int, callee: str) -> None:
    require(
        n_calls > 0,
        callee,
        "at",
        "a submodule that runs in the forward pass",
        f"{name!r}, which did not run",
        "Name a module that the model calls (not one whose weights it reads).",
    )


def _check_argument(at: At, given: dict[Any, Any], callee: str) -> None:
    require(
        at.argument in given,
        callee,
        "at.argument",
        f"one of {list(given)} for {at.name!r}",
        repr(at.argument),
    )


def _argument(args: Any, kwargs: Any, out: Any, slot: Slot) -> Any:
    if slot is None:
        return out
    return kwargs[slot] if isinstance(slot, str) else args[slot]


def _chosen_slot(
    at: At, two: tuple[Any, Any], three: tuple[Any, Any], callee: str
) -> Slot:
    """Return the argument's position or keyword; None stands for the output.

    ``two`` and ``three`` are the arguments of the same call for as many samples.
    """
    given, again = (
        {**dict(enumerate(args)), **kwargs} for args, kwargs in (two, three)
    )
    if at.argument is not None:
        _check_argument(at, given, callee)
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
