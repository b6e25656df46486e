"""Compiled solutions: what :mod:`normalign.kernels.direct` asks for on a processor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normalign.kernels.compiled import profile_of
from normalign.kernels.compiled.factor import (
    blocks_of,
    forward_substitute,
    rows_at_once,
)
from normalign.kernels.compiled.learning import is_usable, learn, learn_phases
from normalign.kernels.compiled.machine import recur, solve, solve_phases
from normalign.kernels.compiled.memory import Memory
from normalign.kernels.compiled.team import team_size, together
from normalign.kernels.digits import mean_squares
from normalign.kernels.functions import Kernel
from normalign.kernels.system import OVERWRITTEN, Solved, Spare

__all__ = ["CompiledSolution", "Problem", "last_of", "solved"]

# Operations of one call, which nobody can interrupt: a fraction of a second.
_AT_ONCE = 4e10
_ASIDE = 1 << 22  # bytes of columns that are solved for at a time


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
    keeps : bool, default=True
        Whether slopes may have memory beside the matrix.
    spare : Spare, optional
        Overwritten, if it is the memory of an earlier problem with these points, and
        let go if not.
    """

    def __init__(
        self, points: Tensor, kernel: Kernel, metric: Tensor | None, ridges: Tensor,
        y: Tensor, *, keeps: bool = True, spare: Spare | None = None,
    ) -> None:  # fmt: skip
        (n, self.d), self.k = points.shape, y.shape[1]
        if isinstance(spare, Memory) and spare.holds(points, self.k):
            self.memory = spare
        else:
            if spare is not None:
                spare.release()
            self.memory = Memory(points, self.k, team_size(n), keeps)
        self.dtype = self.memory.dtype
        self.kernel, self.profile = kernel, profile_of(kernel)
        self.full = metric is not None and metric.ndim == 2
        self.through = np.ones(self.d, self.dtype) if metric is None else _array(metric)
        self.scale = 1 / kernel.bandwidth**2
        self.ridges, self.targets = _array(ridges), _array(y)
        with np.errstate(over="ignore"):  # to infinity, which is never trusted
            self.shares = (1 / mean_squares(y, ridges).numpy()).astype(self.dtype)

    def number(self, value: float) -> Any:
        """A number in the precision of the points; infinity, if it is beyond that.

        Nothing comes of that but NaN, of which it is known what to do.
        """
        with np.errstate(over="ignore"):
            return self.dtype.type(value)

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


class CompiledSolution:
    """A solved problem whose factor and slopes stand in its memory.

    Attributes
    ----------
    coef : Tensor of shape (n, k)
    solved : Solved
    spare : Memory
        For the next solve to overwrite.
    pivot : float
        The smallest; not positive, or NaN, where the matrix was not definite.
    """

    def __init__(self, problem: Problem, answers: np.ndarray, pivot: float) -> None:
        self.coef = torch.from_numpy(problem.memory.coef(answers))
        self.solved = Solved("cholesky", self.coef.dtype)
        self.spare: Spare = problem.memory
        self.pivot = pivot
        self._problem, self._answers = problem, answers
        self._forgotten = False

    def forget(self) -> None:
        """Take no more questions about the inverse."""
        self._forgotten = True

    def next_metric(self, weights: Tensor | None) -> Tensor | None:
        """The metric that the machine learns; the present one, if that is nothing.

        None if gradients have no squares in this precision.
        """
        problem, memory, answers = self._problem, self._problem.memory, self._answers
        metric, roots = problem.metric(), problem.roots(weights)
        status = np.zeros(3, problem.dtype)
        # before the members ask for them
        sums, at_once = memory.sums(problem.full), memory.layout.at_once
        together(
            lambda members, flags: learn(
                memory.points, memory.images, problem.profile, answers, roots,
                memory.slopes, memory.starts, metric, problem.full, problem.d,
                problem.k, at_once, *sums, status, 0, members, flags,
            ),
            memory.members,
            learn_phases(problem.k, at_once),
        )  # fmt: skip
        lost = not is_usable(status[2]) and bool(self.coef.any())
        return None if lost else problem.table(metric)

    def inverse_diagonal(self, rows: Tensor) -> Tensor:
        r"""Entries of the diagonal of the inverse.

        Sums of squares of the columns of :math:`U^{-\top}`, which are zero above
        their row: so those of neighbouring rows are made together.
        """
        if self._forgotten:
            raise RuntimeError(OVERWRITTEN)
        memory, layout = self._problem.memory, self._problem.memory.layout
        order = np.argsort(rows.numpy())
        ordered = rows.numpy()[order]
        found = np.empty(len(ordered), memory.dtype)
        strip = layout.rows * layout.width * layout.itemsize
        count = max(_ASIDE // strip, memory.members) * layout.width
        for start in range(0, len(ordered), count):
            part = slice(start, start + count)
            found[part] = self._squared(ordered[part])
        return torch.from_numpy(found[np.argsort(order)])

    def _squared(self, rows: np.ndarray) -> np.ndarray:
        """The same for rows in order, all of them at once."""
        memory, layout = self._problem.memory, self._problem.memory.layout
        places, firsts = np.arange(len(rows)), rows[:: layout.width].astype(np.int64)
        table = np.zeros((len(firsts), layout.rows, layout.width), memory.dtype)
        table[places // layout.width, rows, places % layout.width] = 1
        flat = table.reshape(-1)
        together(
            lambda members, flags: forward_substitute(
                memory.square, memory.starts, layout.n, flat, layout.rows, firsts, 0,
                members, flags,
            ),
            memory.members,
            1,
        )  # fmt: skip
        inside = table[:, : layout.n]
        return np.einsum("srw,srw->sw", inside, inside).reshape(-1)[: len(rows)]


def solved(problem: Problem) -> CompiledSolution:
    """Solve a system on a processor."""
    memory, metric, n = problem.memory, problem.metric(), len(problem.ridges)
    answers, status = memory.answers(), np.empty(3, problem.dtype)
    scale = problem.number(problem.scale)
    for some in _calls(n):
        definite = together(
            lambda members, flags, some=some: solve(
                memory.points, metric, problem.full, scale, problem.profile,
                problem.ridges, problem.targets, problem.shares, memory.images,
                memory.square, memory.slopes, memory.starts, memory.aside, answers,
                status, problem.d, some, 0, members, flags,
            ),
            memory.members,
            solve_phases(n),
        )  # fmt: skip
        if not definite:
            return CompiledSolution(problem, answers, -1.0)
    return CompiledSolution(problem, answers, float(status[0]))


def _calls(n: int) -> Iterator[tuple[int, int]]:
    """Blocks of a factor, as many at a time as take a fraction of a second."""
    size, begin, work = rows_at_once(n), 0, 0.0
    for block in range(blocks_of(n)):
        work += 2.0 * size * (block + 1) * size * (n - block * size)
        if work > _AT_ONCE:
            yield begin, block + 1
            begin, work = block + 1, 0.0
    if begin < blocks_of(n):
        yield begin, blocks_of(n)


def last_of(
    problem: Problem, n_iter: int, weights: Tensor | None,
    *, least: float, most: float,
) -> tuple[CompiledSolution, Tensor] | None:  # fmt: skip
    """The last solution of a recursion and its metric, in one go.

    Parameters
    ----------
    n_iter : int
        Updates of the metric.
    least, most : float
        The smallest pivot, and the largest sum of squared coefficients of an output
        over the mean square of its targets, that are trusted.

    Returns
    -------
    tuple or None
        None as soon as an iteration cannot be trusted: they are then to be made one by
        one.
    """
    memory, dtype, n = problem.memory, problem.dtype, len(problem.ridges)
    answers, status = memory.answers(), np.empty((n_iter + 1, 3), dtype)
    metric, roots = problem.metric(), problem.roots(weights)
    scale, blocks = problem.number(problem.scale), (0, blocks_of(n))
    sums, at_once = memory.sums(problem.full), memory.layout.at_once
    fine = together(
        lambda members, flags: recur(
            memory.points, metric, problem.full, scale, problem.profile, problem.ridges,
            problem.targets, problem.shares, roots, memory.images, memory.square,
            memory.slopes, memory.starts, memory.aside, answers, *sums, status, least,
            most, problem.d, at_once, blocks, 0, members, flags,
        ),
        memory.members,
        (n_iter + 1) * (solve_phases(n) + learn_phases(problem.k, at_once)),
    )  # fmt: skip
    if not fine:
        return None
    pivot = float(status[-1, 0])
    return CompiledSolution(problem, answers, pivot), problem.table(metric)
