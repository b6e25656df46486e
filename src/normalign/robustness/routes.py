"""How gradients are had: by autograd, or by a model's own closed form."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from normalign._errors import complaint, describe, require, require_kind
from normalign._linear_map import (
    AutogradMap,
    ChunkPlan,
    ChunkSize,
    LinearMap,
    LocalMap,
    plan_chunks,
)
from normalign._torch_compat import (
    frozen_randomness,
    has_recurrence,
    recurrence_with_derivatives,
)
from normalign.geometry._jacobian import check_batch
from normalign.geometry._margin import as_labels

__all__ = ["Autograd", "ClosedForm", "Cotangent", "Route", "has_closed_form"]

# From the outputs of some rows, and which rows, to the loss's gradient in the outputs.
Cotangent = Callable[[Tensor, slice], Tensor]


class Route(Protocol):
    """A model as an attack sees it."""

    def enter(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Return inputs and labels as tensors."""
        ...

    def plan(self, x: Tensor, chunk_size: ChunkSize) -> ChunkPlan:
        """Return how many rows go through at once."""
        ...

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs, (n, k)."""
        ...

    def pull_back(self, x: Tensor, cotangent: Cotangent) -> tuple[Tensor, Tensor]:
        """Return outputs, (n, k), and gradients in the inputs, like x."""
        ...


def has_closed_form(model: Any) -> bool:
    """Whether a model brings its own ``pull_back(x, cotangent)``."""
    return callable(getattr(model, "pull_back", None))


class Autograd:
    """A torch module, or another function of a batch, differentiated by autograd.

    Plain reverse mode, for it is first derivatives that are wanted, again and again;
    parameters made under ``inference_mode`` go through ``torch.func``, which alone
    takes them.
    """

    def __init__(self, local_map: LocalMap) -> None:
        self._map = local_map

    def enter(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Return inputs, which are a tensor already, and labels as one."""
        check_batch(x, self._map)
        return x, as_labels(self._map.callee, y)

    def plan(self, x: Tensor, chunk_size: ChunkSize) -> ChunkPlan:
        """Return how many rows go through at once; see :func:`plan_chunks`."""
        kept = 8 * x[:1].numel() * x.element_size()
        return plan_chunks(
            self._map, x, chunk_size=chunk_size, memory_budget=None, n_vectors=1,
            kept_per_sample=kept,
        )  # fmt: skip

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs, (n, k)."""
        with self._same_pass():
            return self._map.on(x).function(x).detach()

    def pull_back(self, x: Tensor, cotangent: Cotangent) -> tuple[Tensor, Tensor]:
        """Return outputs, (n, k), and gradients in the inputs, like x."""
        try:
            return self._reverse(x, cotangent)
        except RuntimeError as error:
            if "inference tensor" not in str(error).lower():
                raise
            linear = LinearMap(*self._map.on(x), vmappable=self._map.vmappable)
            outputs = linear.output.detach()
            gradient = linear.pull(cotangent(outputs, slice(0, len(x)))[None])[0]
            return outputs, gradient.detach().view_as(x)

    def _reverse(self, x: Tensor, cotangent: Cotangent) -> tuple[Tensor, Tensor]:
        with self._same_pass():
            function, point = self._map.on(x)
            recorded = AutogradMap.record(
                function, point, unconnected=self._unconnected_error
            )
            outputs = recorded.output.detach()
            slope = cotangent(outputs, slice(0, len(x)))
            (gradient,) = recorded.pull_all(slope, create_graph=False, again=False)
        return outputs, gradient

    def _unconnected_error(self) -> ValueError:
        return ValueError(
            complaint(
                self._map.callee,
                "model",
                "differentiable in its input",
                "one whose outputs autograd does not connect with x",
                "Remove no_grad() and detach() from its forward pass.",
            )
        )

    @contextlib.contextmanager
    def _same_pass(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._map.random:  # the same sub-network in every pass
                stack.enter_context(frozen_randomness())
            if has_recurrence(self._map.model):  # for the backward pass, too
                stack.enter_context(recurrence_with_derivatives())
            yield


class ClosedForm:
    """A kernel machine, or a fitted estimator, with a pull-back of its own.

    Such models see to their own memory: all rows go to them at once.
    """

    def __init__(self, model: Any, callee: str) -> None:
        self._model: Any = model
        self._callee = callee

    def enter(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Return inputs and labels as tensors; labels as indices into classes."""
        if not isinstance(x, Tensor):
            table = np.asarray(x)
            table = table if table.dtype.kind == "f" else table.astype(np.float64)
            x = torch.tensor(np.ascontiguousarray(table))  # it may be read-only
        require_kind(x.is_floating_point(), self._callee, "x", "of a floating dtype", x)
        require(x.ndim == 2, self._callee, "x", "a table of shape (n, d)", x)
        classes = getattr(self._model, "classes_", None)
        if classes is not None:
            return x, torch.as_tensor(self._indices(y, np.asarray(classes)))
        remedy = "An estimator has classes_ once it is fitted."
        return x, as_labels(self._callee, y, remedy)

    def plan(self, x: Tensor, chunk_size: ChunkSize) -> ChunkPlan:
        """Return how many rows go through at once: all, unless a number is given."""
        if chunk_size is None or chunk_size == "auto":
            return ChunkPlan(2**62, 1)
        valid = isinstance(chunk_size, int) and not isinstance(chunk_size, bool)
        rule = "a positive integer, 'auto' or None"
        fits = valid and chunk_size > 0
        require(fits, self._callee, "chunk_size", rule, repr(chunk_size))
        return ChunkPlan(chunk_size, 1)

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs, (n, k)."""
        model: Any = self._model
        if not callable(model):
            return _columns(model.pull_back(x, lambda z, _: torch.zeros_like(z))[0])
        return _columns(cast(Tensor, model(x)).detach())

    def pull_back(self, x: Tensor, cotangent: Cotangent) -> tuple[Tensor, Tensor]:
        """Return outputs, (n, k), and gradients in the inputs, like x."""

        def slope(outputs: Tensor, rows: slice) -> Tensor:
            return cotangent(_columns(outputs), rows).view_as(outputs)

        outputs, gradient = self._model.pull_back(x, slope)
        return _columns(outputs), gradient.to(x)

    def _indices(self, y: Any, classes: np.ndarray) -> np.ndarray:
        labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
        order = np.argsort(classes, kind="stable")
        place = np.searchsorted(classes, labels, sorter=order).clip(max=len(order) - 1)
        found = order[place]
        unknown = labels[classes[found] != labels]
        require(
            len(unknown) == 0,
            self._callee,
            "y",
            f"labels among the model's classes_, {describe(classes.tolist())}",
            f"{unknown.tolist()[0]!r} among them" if len(unknown) else "",
        )
        return found


def _columns(outputs: Tensor) -> Tensor:
    return outputs[:, None] if outputs.ndim == 1 else outputs
