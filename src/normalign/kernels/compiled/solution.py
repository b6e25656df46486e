"""Compiled solutions: what :mod:`normalign.kernels.solve` asks for small tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normalign.kernels.compiled.machine import (
    LEARN_PHASES,
    learn,
    recur,
    solve,
    solve_phases,
)
from normalign.kernels.compiled.memory import Memory
from normalign.kernels.compiled.profiles import GAUSSIAN, LAPLACE
from normalign.kernels.compiled.team import team_size, together
from normalign.kernels.functions import Gaussian, Kernel, Laplace

__all__ = ["Factored", "Problem", "factored", "last_of", "profile_of"]


def profile_of(kernel: Kernel) -> int | None:
    """The number of a kernel's profile, if there is compiled code for it."""
    if isinstance(kernel, Laplace) and kernel.exponent == 1:
        return LAPLACE
    return GAUSSIAN if isinstance(kernel, Gaussian) else None


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().numpy())


class Problem:
    """A system and its targets, as compiled code takes them.

    Parameters
    ----------
    points, ridges, y : Tensor of shape (n, d), (n,) and (n, k)
        Centred points, what is added to the diagonal, the targets.
    kernel : Kernel
        One that has a profile here.
    metric : Tensor of shape (d, d) or (d,), optional
    spare : object
        Overwritten, if it is the memory of an earlier problem with these points.
    """

    def __init__(
        self, points: Tensor, kernel: Kernel, metric: Tensor | None, ridges: Tensor,
        y: Tensor, spare: object = None,
    ) -> None:  # fmt: skip
        (n, self.d), self.k = points.shape, y.shape[1]
        if isinstance(spare, Memory) and spare.holds(points, self.k):
            self.memory = spare
        else:
            self.memory = Memory(points, self.k, team_size(n))
        self.dtype = self.memory.points.dtype
        self.kernel, self.profile = kernel, profile_of(kernel)
        self.full = metric is not None and metric.ndim == 2
        self.through = np.ones(self.d, self.dtype) if metric is None else _array(metric)
        self.scale = 1 / kernel.bandwidth**2
        self.noise = np.finfo(self.dtype).eps * (4 + math.sqrt(self.d))
        self.ridges, self.targets = _array(ridges), _array(y)

    def number(self, value: float) -> Any:
        """A number in the precision of the points."""
        return self.dtype.type(value)

    def share(self, mass: float) -> Any:
        """The factor of an average of gradients' outer products."""
        return self.number(self.scale * self.scale / mass)

    def roots(self, weights: Tensor | None) -> np.ndarray:
        """Roots of how often rows count."""
        if weights is None:
            return np.ones(len(self.ridges), self.dtype)
        return _array(weights.sqrt())

    def metric(self) -> np.ndarray:
        """The metric as compiled code takes it, to be overwritten."""
        return self.memory.metric(self.through)

    def table(self, flat: np.ndarray) -> Tensor:
        """A metric as it is stored elsewhere."""
        if not self.full:
            return torch.from_numpy(flat)
        return torch.from_numpy(flat.reshape(self.d, -1)[:, : self.d].copy())


class Factored:
    """A solved problem whose factor and slopes stand in its memory.

    Attributes
    ----------
    coef : Tensor of shape (n, k)
    pivot : float
        The smallest; not positive, or NaN, where the matrix was not definite.
    """

    def __init__(self, problem: Problem, answers: np.ndarray, pivot: float) -> None:
        self.problem, self.pivot = problem, pivot
        self._answers = answers
        self.coef = torch.from_numpy(problem.memory.coef(answers))

    def next_metric(self, weights: Tensor | None, mass: float) -> Tensor:
        """The metric that the machine learns; the present one if gradients vanish."""
        problem, memory, answers = self.problem, self.problem.memory, self._answers
        metric, roots = problem.metric(), problem.roots(weights)
        share, sums = problem.share(mass), memory.sums(problem.full)  # of all members
        together(
            lambda members, flags: learn(
                memory.points, answers, roots, memory.slopes, memory.rows,
                memory.strips, metric, problem.full, share, problem.d, problem.k,
                *sums, 0, members, flags,
            ),
            memory.members,
            LEARN_PHASES,
        )  # fmt: skip
        return problem.table(metric)

    def factor(self) -> Tensor:
        """The upper factor, copied out of its strips."""
        n, memory = len(self.coef), self.problem.memory
        table = memory.from_strips(memory.square, n, n)
        return torch.from_numpy(np.ascontiguousarray(table))


def factored(problem: Problem) -> Factored:
    """Solve a small system on a processor."""
    memory, metric = problem.memory, problem.metric()
    answers, status = memory.answers(), np.empty(2, problem.dtype)
    scale, noise = problem.number(problem.scale), problem.number(problem.noise)
    definite = together(
        lambda members, flags: solve(
            memory.points, metric, problem.full, scale, noise, problem.profile,
            problem.ridges, problem.targets, memory.images, memory.square,
            memory.slopes, memory.aside, answers, status, problem.d, memory.rows,
            memory.strips, 0, members, flags,
        ),
        memory.members,
        solve_phases(len(problem.ridges)),
    )  # fmt: skip
    return Factored(problem, answers, float(status[0]) if definite else -1.0)


def last_of(
    problem: Problem, n_iter: int, weights: Tensor | None, mass: float,
    *, least: float, most: float,
) -> tuple[Factored, Tensor] | None:  # fmt: skip
    """The last solution of a recursion and its metric, in one go.

    Parameters
    ----------
    n_iter : int
        Updates of the metric.
    least, most : float
        The smallest pivot, and the largest sum of squared coefficients of an output,
        that are trusted.

    Returns
    -------
    tuple or None
        None as soon as an iteration cannot be trusted: they are then to be made one by
        one.
    """
    memory, dtype, n = problem.memory, problem.dtype, len(problem.ridges)
    answers, status = memory.answers(), np.empty((n_iter + 1, 2), dtype)
    metric, roots = problem.metric(), problem.roots(weights)
    scale, noise, share = (
        problem.number(problem.scale), problem.number(problem.noise),
        problem.share(mass),
    )  # fmt: skip
    sums = memory.sums(problem.full)
    fine = together(
        lambda members, flags: recur(
            memory.points, metric, problem.full, scale, share, noise,
            problem.profile, problem.ridges, problem.targets, roots, memory.images,
            memory.square, memory.slopes, memory.aside, answers, *sums, status, least,
            most, problem.d, memory.rows, memory.strips, 0, members, flags,
        ),
        memory.members,
        (n_iter + 1) * (solve_phases(n) + LEARN_PHASES),
    )  # fmt: skip
    if not fine:
        return None
    return Factored(problem, answers, float(status[-1, 0])), problem.table(metric)
