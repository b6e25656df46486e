"""What workers do for a partitioned machine: solve one leaf, or find one cut.

A job is told everything by value (numpy arrays in, numpy arrays out), so its answer
does not depend on which worker runs it, or when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normalign.estimators.leaves import Recipe, shared_threads, solver_report
from normalign.kernels import Machine, agop, normalised, recursions

__all__ = ["CutJob", "PartJob", "SolvedPart", "cut_axes", "solve_part"]

# Axes that a cut may choose from, best first: the metric's own, then random ones,
# which tell apart any two rows that differ at all.
_OWN_AXES = 8
_RANDOM_AXES = 3


@dataclass(frozen=True)
class PartJob:
    """A leaf at one iteration: its rows, the metric of all leaves, what is asked.

    Parameters
    ----------
    recipe : Recipe
        With the kernel of this iteration.
    x, y, weights
        Rows of the leaf; weights may be None.
    metric : array of shape (d, d) or (d,)
    gradients_at : array of int
        Rows whose gradients count for the next metric.
    shares : array
        How much each of these counts: its weight times its gate.
    left_out : array of int
        Rows whose leave-one-out outputs are wanted.
    n_jobs : int
        Workers at one time.
    """

    recipe: Recipe
    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None
    metric: np.ndarray
    gradients_at: np.ndarray
    shares: np.ndarray
    left_out: np.ndarray
    n_jobs: int


@dataclass(frozen=True)
class SolvedPart:
    """Coefficients of a leaf, and its part of the sum of gradient outer products."""

    coef: np.ndarray
    outer: np.ndarray
    left_out: np.ndarray
    solved: dict[str, Any]


def solve_part(job: PartJob) -> SolvedPart:
    """Solve a leaf in the given metric."""
    with shared_threads(job.n_jobs):
        recipe = job.recipe
        x, metric = recipe.tensor(job.x), recipe.tensor(job.metric)
        (iteration,) = recursions(
            x,
            recipe.tensor(job.y),
            kernel=recipe.kernel,
            ridge=recipe.ridge,
            metric=metric,
            n_iter=0,
            weights=None if job.weights is None else recipe.tensor(job.weights),
            solver=recipe.solver,
        )
        machine = iteration.machine
        outer = torch.zeros_like(metric)
        if len(job.gradients_at):
            at = torch.tensor(job.gradients_at, device=x.device)
            shares = recipe.tensor(job.shares)
            outer = shares.sum() * _gradient_outer(machine, x[at], shares)
        left_out = np.zeros((0, len(machine.intercept)))
        if len(job.left_out):
            rows = torch.tensor(job.left_out, device=x.device)
            left_out = iteration.left_out(rows).cpu().double().numpy()
        return SolvedPart(
            machine.coef.cpu().numpy(),
            outer.cpu().double().numpy(),
            left_out,
            solver_report(iteration),
        )


@dataclass(frozen=True)
class CutJob:
    """A sample of a node's rows, from which the axes of its cut are learned."""

    recipe: Recipe
    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    seed: int
    n_jobs: int


def cut_axes(job: CutJob) -> np.ndarray:
    """Directions along which a node may be cut, best first, one per row.

    The axes of the gradient outer product of a machine on the node's sample, by
    decreasing eigenvalue, then a few random directions seen through it.
    """
    with shared_threads(job.n_jobs):
        recipe = job.recipe
        x, weights = recipe.tensor(job.x), recipe.tensor(job.weights)
        y = recipe.tensor(job.y)
        *_, last = recipe.iterations(x, y, weights, job.seed)
        metric = _gradient_outer(last.machine, x, weights)
        usable = bool(torch.isfinite(metric).all()) and bool(metric.any())
        return _axes(metric if usable else last.machine.metric, job.seed)


def _gradient_outer(machine: Machine, x: Tensor, weights: Tensor) -> Tensor:
    return agop(
        x,
        machine.centers,
        machine.coef,
        machine.kernel,
        metric=machine.metric,
        weights=weights,
        diagonal=machine.metric.ndim == 1,
    )


def _axes(metric: Tensor, seed: int) -> np.ndarray:
    metric = normalised(metric).cpu().double()
    if metric.ndim == 1:
        metric = torch.diag(metric)
    values, vectors = torch.linalg.eigh(metric)
    own = vectors.flip(1)[:, :_OWN_AXES].T
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(_RANDOM_AXES, len(metric), generator=generator).double()
    # The last random axis ignores the metric: rows may differ only where it is 0.
    seen = noise[:-1] @ (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    axes = torch.cat([own, seen, noise[-1:]])
    axes = axes / axes.norm(dim=1, keepdim=True).clamp(min=1e-300)
    # An eigenvector's sign is arbitrary; left and right must not be.
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return torch.where(largest < 0, -axes, axes).numpy()
