"""What is attacked: a model, its samples, and the loss to be raised there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normalign._errors import require, require_kind
from normalign._linear_map import ChunkPlan, ChunkSize, LocalMap, remedy_for
from normalign._torch_compat import frozen_randomness
from normalign.robustness.losses import Aim, Loss, aim_at
from normalign.robustness.routes import Autograd, ClosedForm, Route, has_closed_form

__all__ = ["Found", "Target", "preserve_state", "require_model"]


@contextlib.contextmanager
def preserve_state() -> Iterator[None]:
    """Leave grad mode and the global random state as they are outside."""
    with torch.inference_mode(False), torch.no_grad(), frozen_randomness():
        yield


def require_model(callee: str, model: Any) -> None:
    """Refuse what is no classifier, or neither a function nor brings gradients."""
    name = type(model).__name__
    require_kind(
        not _is_regressor(model), callee, "model", "a classifier", name,
        "An attack breaks labels, which numbers are not: bin the targets, and fit a "
        "classifier.",
    )  # fmt: skip
    remedy = remedy_for(model)
    if "as_torch" in remedy:
        remedy += " Labels are then positions in model.classes_."
    if hasattr(model, "steps"):
        remedy = (
            "Of a pipeline attack the last step, at what it sees: "
            f"{callee}(pipeline[-1], pipeline[:-1].transform(x), y, ...)."
        )
    require_kind(
        callable(model) or has_closed_form(model), callee, "model",
        "callable, or with a method pull_back", name, remedy,
    )  # fmt: skip
    classes = getattr(model, "classes_", None)
    several = isinstance(classes, list) and any(np.ndim(one) > 0 for one in classes)
    require(
        not several, callee, "model", "a classifier with one label per sample",
        f"a {name} with several", "Fit one classifier per label.",
    )  # fmt: skip


def _is_regressor(model: Any) -> bool:
    """Whether an estimator says of itself, as scikit-learn's do, that it is one."""
    tags = getattr(model, "__sklearn_tags__", None)
    if tags is None or isinstance(model, type):
        return False
    return tags().estimator_type == "regressor"


@dataclass(frozen=True)
class Found:
    """Where an attack has come, for every row.

    Parameters
    ----------
    points : Tensor of shape (n, ...)
    losses : Tensor of shape (n,)
    broken : bool Tensor of shape (n,)
    """

    points: Tensor
    losses: Tensor
    broken: Tensor

    @classmethod
    def of(cls, points: Tensor, aim: Aim, outputs: Tensor) -> Found:
        """Judge points by their outputs."""
        losses, right = aim.losses(outputs), aim.right(outputs)
        return cls(points, losses.to(points.device), ~right.to(points.device))

    def or_worse(self, other: Found) -> Found:
        """Return the worse of two for each row: broken first, then by the loss."""
        higher = other.losses > self.losses
        worse = torch.where(other.broken == self.broken, higher, other.broken)
        mask = worse.view(-1, *[1] * (self.points.ndim - 1))
        return Found(
            torch.where(mask, other.points, self.points),
            torch.where(worse, other.losses, self.losses),
            self.broken | other.broken,
        )


@dataclass(frozen=True)
class Target:
    """A model seen from its samples; every method works a piece at a time.

    Parameters
    ----------
    route : Route
    x : Tensor of shape (n, ...)
    aim : Aim
    clean : Found
        What the model makes of x itself.
    plan : ChunkPlan
    """

    route: Route
    x: Tensor
    aim: Aim
    clean: Found
    plan: ChunkPlan

    @classmethod
    def of(
        cls,
        callee: str,
        model: Any,
        local_map: LocalMap | None,
        x: Any,
        y: Any,
        *,
        loss: Loss,
        chunk_size: ChunkSize,
    ) -> Target:
        """Check model, inputs and labels, and run the model once on all samples."""
        closed = local_map is None
        route = ClosedForm(model, callee) if closed else Autograd(local_map)
        x, y = route.enter(x, y)
        x = x.detach()
        finite = bool(torch.isfinite(x).all())
        remedy = "Fill in or drop what is missing: it would count as broken."
        require(finite, callee, "x", "finite", "NaN or infinity", remedy)
        x = x.clone() if x.is_inference() else x  # autograd may keep the copy
        plan = route.plan(x, chunk_size)
        outputs = _outputs(route, x, plan)
        aim = aim_at(callee, loss, y, outputs)
        return cls(route, x, aim, Found.of(x, aim, outputs), plan)

    def broken_at(self, points: Tensor) -> Tensor:
        """Return whether each sample is wrong at its point, (n,)."""
        outputs = _outputs(self.route, points, self.plan)
        return ~self.aim.right(outputs).to(points.device)

    def gradients(self) -> Tensor:
        """Return the loss's gradients at x, up to a positive factor for each row."""
        parts = [torch.zeros_like(self.x[:0])]
        for piece in self.plan.pieces(len(self.x)):
            aim = self.aim.rows(piece)
            parts.append(
                self.route.pull_back(
                    self.x[piece], lambda z, rows, aim=aim: aim.rows(rows).slope(z)
                )[1]
            )
        return torch.cat(parts)


def _outputs(route: Route, x: Tensor, plan: ChunkPlan) -> Tensor:
    parts = [route.outputs(x[rows]) for rows in plan.pieces(len(x))]
    return torch.cat(parts) if parts else route.outputs(x)
