"""What workers do for a partitioned machine: solve one leaf, or find one cut.

A job is told everything by value (numpy arrays in, numpy arrays out), so its answer
does not depend on which worker runs it, or when.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normalign.estimators.recipe import Recipe, Report
from normalign.estimators.workers import shared_threads
from normalign.kernels import Iteration, Machine, agop, normalised
from normalign.kernels._metric import scaled_update

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
        Rows that are to be left out, a unit of weight at a time.
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
    """Coefficients of a leaf, and its part of the sum of gradient outer products.

    Parameters
    ----------
    coef : array of shape (rows, k)
        In float64 where float32 did not do.
    outer : array of the metric's shape
    fitted : array of shape (r, k)
        Outputs at the rows asked for.
    room : array of shape (r,)
        One less the share of a unit of such a row in its own output, its leverage.
    report : Report
    """

    coef: np.ndarray
    outer: np.ndarray
    fitted: np.ndarray
    room: np.ndarray
    report: Report


def solve_part(job: PartJob) -> SolvedPart:
    """Solve a leaf in the given metric."""
    with shared_threads(job.n_jobs):
        recipe = replace(job.recipe, n_iter=0, bandwidth_rule="fixed")
        (iteration,) = recipe.iterations(
            job.x, job.y, job.weights, 0, metric=job.metric
        )
        machine = iteration.machine
        outer = torch.zeros_like(machine.metric)
        if len(job.gradients_at):
            at = torch.tensor(job.gradients_at, device=outer.device)
            outer = _summed(machine, at, job.shares)
        fitted, room = _without_a_unit(iteration, job)
        return SolvedPart(
            machine.coef.cpu().numpy(),
            outer.cpu().double().numpy(),
            fitted,
            room,
            Report.of(iteration),
        )


def _without_a_unit(
    iteration: Iteration, job: PartJob
) -> tuple[np.ndarray, np.ndarray]:
    r"""Outputs at the rows asked for, and the room :math:`1 - h` of a unit there."""
    asked, coef = job.left_out, iteration.machine.coef
    if not len(asked):
        return np.zeros((0, job.y.shape[1])), np.zeros(0)
    mass = 1.0 if job.weights is None else job.weights[asked, None]
    rows = torch.tensor(asked, device=coef.device)
    residuals = job.recipe.ridge / mass * coef[rows].cpu().double().numpy()
    room = iteration.room(rows).cpu().double().numpy()
    return job.y[asked] - residuals, np.minimum(room, 1.0)


def _like(tensor: Tensor, array: np.ndarray) -> Tensor:
    """A copy of an array, which may be a map of a file, in the place of a tensor."""
    return torch.tensor(array, dtype=tensor.dtype, device=tensor.device)


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
        *_, last = recipe.iterations(job.x, job.y, job.weights, job.seed)
        weights = _like(last.machine.coef, job.weights)
        metric = _gradient_outer(last.machine, last.machine.centers, weights)
        usable = bool(torch.isfinite(metric).all()) and bool(metric.any())
        return _axes(metric if usable else last.machine.metric, job.seed)


def _summed(machine: Machine, at: Tensor, shares: np.ndarray) -> Tensor:
    """Gradient outer products at some centers; in float64, if their squares need it."""
    mass = _like(machine.coef, shares)
    outer = mass.sum() * _gradient_outer(machine, machine.centers[at], mass)
    single = machine.dtype != torch.float64
    if single and scaled_update(outer) is None and bool(machine.coef.any()):
        return _summed(machine.to(dtype=torch.float64), at, shares)
    return outer


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
    shape = _RANDOM_AXES, len(metric)
    place: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    noise = torch.randn(shape, generator=generator, **place).double()
    # The last random axis ignores the metric: rows may differ only where it is 0.
    seen = noise[:-1] @ (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    axes = torch.cat([own, seen, noise[-1:]])
    axes = axes / axes.norm(dim=1, keepdim=True).clamp(min=1e-300)
    # An eigenvector's sign is arbitrary; left and right must not be.
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return torch.where(largest < 0, -axes, axes).numpy()
