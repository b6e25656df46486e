"""One forward pass of a model and the products with its Jacobian at that point.

Every estimator is written once, over :class:`LocalPass`. :class:`EagerPass` runs a
model as it is, with plain autograd; :class:`FunctionalPass` has the same for pure
functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from normalign._errors import complaint, require, require_kind
from normalign._hooks import Location
from normalign._linear_map import TORCH_ONLY, AutogradMap, FunctionalMap
from normalign._torch_compat import attention_with_derivatives
from normalign.regularizers._second_order import LeanOperations, lean_operations

__all__ = [
    "Cut",
    "EagerPass",
    "FunctionalPass",
    "LocalPass",
    "check_output",
]


class Pullable(Protocol):
    """A map at a batch of points: its value, and products with its transpose.

    All products are per sample and differentiable in the parameters of the map.
    """

    @property
    def output(self) -> Tensor:
        """The values of the map, (n, ...)."""
        ...

    def pull(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T v``, shaped like the points, for v shaped like the output."""
        ...


class LocalPass(Pullable, Protocol):
    """A map at a batch of points, and its derivative both ways.

    Where ``push_has_graph`` is there and false, push-forwards are constants.
    """

    @property
    def point(self) -> Tensor:
        """The points, (n, ...)."""
        ...

    def push(self, tangent: Tensor) -> Tensor:
        """Return ``J u``, shaped like the output, for u shaped like the points."""
        ...

    def output_after(self, step: Tensor) -> Tensor:
        """Return the values at the points plus a step."""
        ...


@runtime_checkable
class Cut(Protocol):
    """A map that is cut in two, for the nuclear split."""

    def halves(self) -> tuple[Pullable, Pullable]:
        """Return the parts before and after the cut."""
        ...


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
    location : Location, optional
        Where inside the model the map begins, or where it is cut in two.
    cut : bool, default=False
        The location is a cut: the map begins at ``x``.
    once : bool, default=False
        There will be no finite step: the random state need not be stored.
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
        location: Location | None = None,
        cut: bool = False,
        once: bool = False,
        verify: bool = True,
    ) -> None:
        self._model, self._callee, self._verify = model, callee, verify
        # Autograd may keep the copy of an inference tensor, but not the original.
        self._x = x.clone() if x.is_inference() else x
        wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
        self._bare: Callable[..., Any] = model.module if wrapped else model
        self._location = location
        self._inside = location is not None and not cut
        self._same_draws = None if once else _SameDraws(x.device)
        self._buffers: _Buffers | None = None if once else _Buffers(self._bare)
        self._map: AutogradMap | None = None
        self._start: Tensor | None = None  # what pull-backs are taken to
        self._hidden: Tensor | None = None  # the tensor at the location
        self._beyond: Any = None  # the graph's node just after the location
        self._own_leaf: Tensor | None = None  # a leaf that is not the caller's
        self._lean: LeanOperations | None = None

    @property
    def point(self) -> Tensor:
        """The points, (n, ...)."""
        if not self._inside:
            return self._x
        self._ready()
        hidden = self._hidden
        assert hidden is not None
        return hidden.detach() if hidden is self._own_leaf else hidden

    @property
    def output(self) -> Tensor:
        """What the model returns, (n, ...)."""
        return self._ready().output

    def pull(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T v``, with its graph, shaped like the points."""
        return self._ready().pull(cotangent)

    def push(self, tangent: Tensor) -> Tensor:
        """Return ``J u`` as a constant, shaped like the output."""
        return self._ready().push(tangent)

    def output_after(self, step: Tensor) -> Tensor:
        """Return what the model makes of the points plus a step."""
        self._ready()
        assert self._buffers is not None
        # In place on a copy, for the memory layout of the first pass: by it dropout
        # deals out the random numbers.
        point = self.point.clone().add_(step)
        change = (lambda _: point) if self._inside else None
        entry = self._x.clone() if self._inside else point
        surroundings = _surroundings(self._same_draws)
        with surroundings, self._change_location(change), self._buffers.again():
            # Bare: the wrapper's reducer has seen the first pass, once is enough.
            return self._bare(entry)

    def reached_leaves(self, value: Tensor) -> list[Tensor]:
        """Return the leaves that a gradient of ``value`` reaches, but for our own.

        ``value.requires_grad`` is not enough: the pull-back through a frozen ReLU
        network has a graph, but only back to the input.
        """
        nodes = (node for node in _nodes(value) if hasattr(node, "variable"))
        leaves: list[Tensor] = [node.variable for node in nodes]
        return [leaf for leaf in leaves if leaf is not self._own_leaf]

    def halves(self) -> tuple[Pullable, Pullable]:
        """Return the parts before and after the cut."""
        output, start, hidden = self._ready().output, self._start, self._hidden
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
        return self._map_between(hidden, start), self._map_between(output, hidden)

    def _ready(self) -> AutogradMap:
        """Run the model, once, with a graph back to the points."""
        if self._map is not None:
            return self._map
        with _surroundings(self._same_draws), contextlib.ExitStack() as layers:
            if not self._inside:
                self._begin(self._x, layers)
            # The copy: a first layer may work in place.
            entry = (self._x if self._start is None else self._start).clone()
            with self._change_location(lambda hidden: self._note(hidden, layers)):
                output = self._model(entry)
        check_output(output, self._x, self._callee)
        rule, got = "differentiable in x", "outputs without a graph"
        remedy = "Nothing inside it may detach, or run under torch.no_grad()."
        require(output.requires_grad, self._callee, "model", rule, got, remedy)
        assert self._start is not None
        self._map = self._map_between(output, self._start)
        return self._map

    def _map_between(self, output: Tensor, start: Tensor) -> AutogradMap:
        assert self._lean is not None
        callee, rule, got = self._callee, "a function of x", "outputs that ignore x"
        return AutogradMap(
            output,
            start,
            around=self._lean.pulling,
            unconnected=lambda: ValueError(complaint(callee, "model", rule, got)),
        )

    def _begin(self, point: Tensor, layers: contextlib.ExitStack) -> Tensor:
        """Take pull-backs to this tensor, or to a leaf in its stead."""
        if not point.requires_grad:
            point = self._own_leaf = point.detach().requires_grad_()
        self._start = point
        # No gradient is wanted in a leaf that nobody knows of.
        lean = lean_operations(point, point_gradient=self._own_leaf is None)
        self._lean = layers.enter_context(lean)
        return point

    def _note(self, hidden: Tensor, layers: contextlib.ExitStack) -> Tensor:
        self._hidden = self._begin(hidden, layers) if self._inside else hidden
        onward = self._hidden.clone()
        self._beyond = onward.grad_fn
        return onward

    def _change_location(self, change: Callable[[Tensor], Tensor] | None) -> Any:
        if self._location is None or change is None:
            return contextlib.nullcontext()
        return self._location.replacing(change)


class FunctionalPass:
    """A pure function at a batch of points, by ``torch.func``.

    Usable inside ``torch.func.vmap`` and ``grad`` and inside ``torch.compile``. There
    are no checks: inside a transformation nothing can be looked at. One run of the
    function serves its output, every pull-back and every push-forward. A location costs
    a second run of what comes before it.

    Parameters
    ----------
    function : callable
        Maps ``x`` to outputs (n, ...), each sample on its own.
    x : Tensor of shape (n, ...)
    location : Location, optional
        Where inside the function's module the map begins, or where it is cut in two.
    cut : bool, default=False
        The location is a cut: the map begins at ``x``.
    """

    push_has_graph = False

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        x: Tensor,
        *,
        location: Location | None = None,
        cut: bool = False,
    ) -> None:
        self._compiling = torch.compiler.is_compiling()
        self._whole, self._x, self._location = function, x, location
        self._same_draws = None if self._compiling else _SameDraws(x.device)
        self._map: FunctionalMap | None = None
        self._parts: tuple[FunctionalMap, FunctionalMap] | None = None
        self.point, self._function = x, function
        if location is not None and not cut:
            with self._surroundings():
                self.point = self._hidden(x)
            self._function = self._from_location

    @property
    def output(self) -> Tensor:
        """The values of the function, (n, ...)."""
        return self._ready().output if self._parts is None else self._parts[1].output

    def pull(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T v``, shaped like the points."""
        if self._parts is None:
            return self._ready().pull(cotangent)
        first, second = self._parts
        return first.pull(second.pull(cotangent))

    def push(self, tangent: Tensor) -> Tensor:
        """Return ``J u`` as a constant, shaped like the output."""
        if self._parts is None:
            return self._ready().push(tangent)
        first, second = self._parts
        return second.push(first.push(tangent))

    def output_after(self, step: Tensor) -> Tensor:
        """Return the values at the points plus a step."""
        with self._surroundings():
            return self._function(self.point + step)

    def halves(self) -> tuple[Pullable, Pullable]:
        """Return the parts before and after the cut."""
        with self._surroundings():
            first = FunctionalMap(self._hidden, self._x)
        with self._surroundings():
            self._parts = first, FunctionalMap(self._from_location, first.output)
        return self._parts

    def _ready(self) -> FunctionalMap:
        if self._map is None:
            with self._surroundings():
                self._map = FunctionalMap(self._function, self.point)
        return self._map

    def _surroundings(self) -> Any:
        return (
            contextlib.nullcontext()
            if self._compiling
            else _surroundings(self._same_draws)
        )

    def _hidden(self, x: Tensor) -> Tensor:
        """Return the tensor at the location, running no further than that."""
        assert self._location is not None
        return self._location.read(lambda: self._whole(x), stop=not self._compiling)

    def _from_location(self, hidden: Tensor) -> Tensor:
        assert self._location is not None
        with self._location.replacing(lambda _: hidden):
            return self._whole(self._x)


@contextlib.contextmanager
def _surroundings(same_draws: _SameDraws | None) -> Iterator[None]:
    """Run one pass inside."""
    with attention_with_derivatives():
        if same_draws is None:
            yield
            return
        with same_draws():
            yield


class _SameDraws:
    """The random state of the first pass, given again to every later one.

    Dropout then keeps the same units in all of them. What comes after sees the state
    that the first pass left.
    """

    def __init__(self, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        # A graph that is being captured may not ask for the state; nothing that draws
        # random numbers can be in it either way.
        captured = on_cuda and torch.cuda.is_current_stream_capturing()
        self._devices = [device] if on_cuda and not captured else []
        self._states: list[Tensor] | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Run one pass inside."""
        if self._states is None:
            self._states = self._read()
            yield
            return
        now = self._read()
        self._write(self._states)
        try:
            yield
        finally:
            self._write(now)

    def _read(self) -> list[Tensor]:
        states = [torch.cuda.get_rng_state(device) for device in self._devices]
        return [torch.get_rng_state(), *states]

    def _write(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self._devices, states[1:], strict=True):
            torch.cuda.set_rng_state(state, device)


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
        self._before = _clone_buffers([dict(module._buffers) for module in modules])

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Let a pass inside read and change copies; what the module holds is kept."""
        now = [dict(module._buffers) for module in self._modules]
        for module, copies in zip(
            self._modules, _clone_buffers(self._before), strict=True
        ):
            module._buffers.update(copies)
        try:
            yield
        finally:
            for module, held in zip(self._modules, now, strict=True):
                module._buffers.clear()
                module._buffers.update(held)


Held = dict[str, Tensor | None]


def _clone_buffers(tables: list[Held]) -> list[Held]:
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
