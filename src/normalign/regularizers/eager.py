"""The pass of a model as it is: any module, hooks and wrappers, plain autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp

from normalign._checks import require, require_kind
from normalign.geometry.quirks import attention_with_derivatives
from normalign.regularizers.passes import Pullable, SameDraws
from normalign.regularizers.places import Place
from normalign.regularizers.second_order import LeanOperations, lean_operations

__all__ = ["EagerPass"]


class EagerPass:
    """A model as it is at a batch of points, by plain autograd.

    Hooks, checkpointing and data-parallel wrappers work as they always do. One forward
    pass serves the output and every pull-back. A push-forward runs the model again with
    forward-mode derivatives and the same dropout masks; where forward mode does not
    work (an operation without a rule, activation checkpointing) it pulls back twice.

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
        There will be no second pass: the random state need not be kept.
    forward_mode : bool, default=True
        Whether push-forwards try forward mode first.
    verify : bool, default=True
        Look for a parameter that the derivatives depend on, and whether push-forwards
        can be differentiated.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        x: Tensor,
        *,
        callee: str,
        place: Place | None = None,
        cut: bool = False,
        once: bool = False,
        forward_mode: bool = True,
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
        self._output: Tensor | None = None
        self._start: Tensor | None = None  # what pull-backs are taken to
        self._hidden: Tensor | None = None  # the tensor at the place
        self._beyond: Any = None  # the graph's node just after the place
        self._made: Tensor | None = None  # a leaf that is not the caller's
        self._lean: LeanOperations | None = None
        self.forward_mode = forward_mode

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
        pulled = self.pulled(output, self._start, cotangent)
        self._check_gradient(pulled)
        return pulled

    def push(self, tangent: Tensor) -> Tensor:
        """Return ``J u``, with its graph; the first pass also gives the output."""
        if self.forward_mode:
            try:
                return self._by_forward_mode(tangent)
            except torch.OutOfMemoryError:
                raise
            # An operation without a forward-mode rule (or without one that can itself
            # be differentiated), an autograd.Function of the older style, a checkpoint.
            # What is wrong with the model itself comes up again below.
            except RuntimeError:
                self.forward_mode = False
                self._output = None if self._start is None else self._output
        return self._twice_pulled(tangent)

    def moved(self, step: Tensor) -> Tensor:
        """Return what the model makes of the points plus a step."""
        self._ready()
        output = self._again(self.point + step)
        self._check_gradient(output)
        return output

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
        parts = _Part(self, start, hidden), _Part(self, hidden, output)
        if self._verify:  # one of the two may be without parameters
            self._check_gradient(*(p.pull(torch.ones_like(p.output)) for p in parts))
        return parts

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
        _check_output(self._output, self._x, self._callee)
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

    def _again(self, point: Tensor) -> Tensor:
        """Run the model once more, from another point."""
        change = (lambda _: point) if self._inside else None
        entry = self._x.clone() if self._inside else point
        with self._surroundings(), self._watched(change):
            # Bare: the wrapper has told its reducer of the first pass, once is enough.
            return self._bare(entry)

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

    def _by_forward_mode(self, tangent: Tensor) -> Tensor:
        if self._inside or self._bare is not self._model:
            self._ready()

        def function(point: Tensor) -> Tensor:
            output = self._again(point.clone())  # a first layer may work in place
            _check_output(output, self._x, self._callee)
            return output

        output, pushed, *_ = jvp(function, (self.point,), (tangent,))
        self._output = output if self._output is None else self._output
        self._check_gradient(pushed)
        if self._verify and isinstance(self._model, nn.Module):
            trained = [p for p in self._model.parameters() if p.requires_grad]
            torch.autograd.grad(
                pushed.sum(), trained, retain_graph=True, allow_unused=True
            )
        return pushed

    def _twice_pulled(self, tangent: Tensor) -> Tensor:
        # v -> J^T v is linear, so its own pull-back is u -> J u, whatever v.
        output, start = self._ready(), self._start
        assert start is not None
        cotangent = torch.zeros_like(output, requires_grad=True)
        pulled = self.pulled(output, start, cotangent)
        (pushed,) = torch.autograd.grad(pulled, cotangent, tangent, create_graph=True)
        self._check_gradient(pushed, beside=cotangent)
        return pushed

    def _check_gradient(self, *values: Tensor, beside: Tensor | None = None) -> None:
        """Refuse derivatives without a parameter in any graph: no silent nothing."""
        ours = (self._made, beside)
        require(
            not self._verify or any(_reaches_a_leaf(v, ours) for v in values),
            self._callee,
            "model",
            "differentiable in its parameters through its Jacobian",
            "a Jacobian that depends on none",
            "Check that some have requires_grad=True and that nothing detaches them.",
        )


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


def _reaches_a_leaf(value: Tensor, ignored: tuple[Tensor | None, ...]) -> bool:
    """Say whether a gradient of ``value`` reaches any leaf but the ignored ones.

    ``value.requires_grad`` is not enough: the pull-back through a frozen ReLU network
    has a graph, but only back to the input.
    """
    leaves = (getattr(node, "variable", None) for node in _nodes(value))
    return any(all(leaf is not one for one in (None, *ignored)) for leaf in leaves)


def _goes_around(output: Tensor, barrier: Any, start: Tensor) -> bool:
    """Say whether ``output`` depends on ``start`` by a way without the barrier."""
    return any(
        node is start.grad_fn if start.grad_fn else node.variable is start
        for node in _nodes(output, barrier)
        if start.grad_fn or hasattr(node, "variable")
    )


def _check_output(output: Any, x: Tensor, callee: str) -> None:
    tensor = isinstance(output, Tensor)
    require_kind(tensor, callee, "model", "a function into tensors", output)
    per_sample = output.ndim >= 2 and len(output) == len(x)
    rule = f"a function into tensors of shape (n, ...) with n = {len(x)}"
    require(per_sample, callee, "model", rule, output)
