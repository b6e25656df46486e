"""A table and its answers, ready for Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from normalign._errors import require
from normalign.estimators.scale.look import Look
from normalign.estimators.scale.placement import Frame, power_of_two
from normalign.estimators.tables.targets import Answers

__all__ = [
    "LeftOut",
    "Problem",
    "Score",
    "Validation",
    "held_out_rows",
    "same_rows",
]

# Targets may be that large: coefficients are larger by the size of 1 / ridge.
_LARGEST_TARGET = 1e250


@dataclass(frozen=True)
class Score:
    """How good outputs are: the share of right classes, or the explained variance.

    Called with outputs and targets as a machine of the problem has them (shifted and
    scaled) and weights; higher is better. Several label columns, or targets, are
    averaged.

    Parameters
    ----------
    sizes : tuple of int
        Classes of each label column; empty for numbers.
    intercept : ndarray of shape (k,)
        What was taken off the targets, in their scaled units.

    Examples
    --------
    >>> score = Score((2,), np.zeros(2))
    >>> score(torch.tensor([[0.9, 0.2]]), torch.tensor([[0.0, 1.0]]), torch.ones(1))
    0.0
    """

    sizes: tuple[int, ...]
    intercept: np.ndarray

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> float:
        """Return the score."""
        share = weights.double() / weights.double().sum()
        if not self.sizes:
            return _explained(outputs.double(), targets.double(), share)
        place = {"dtype": outputs.dtype, "device": outputs.device}
        shift = torch.tensor(self.intercept, **place)
        blocks = zip(
            (outputs + shift).split(self.sizes, 1),
            (targets + shift).split(self.sizes, 1),
            strict=True,
        )
        right = [(f.argmax(1) == y.argmax(1)).double() @ share for f, y in blocks]
        return float(torch.stack(right).mean())


def _explained(outputs: Tensor, targets: Tensor, share: Tensor) -> float:
    """R squared; a target that is constant here counts as one of variance one."""
    error = share @ (outputs - targets).square()
    variance = share @ (targets - share @ targets).square()
    # A mean of equal numbers may be off by rounding, their range is not.
    varies = (variance > 0) & (targets.amax(0) > targets.amin(0))
    ratio = error / torch.where(varies, variance, torch.ones_like(variance))
    return float((1 - ratio).mean())


class LeftOut(NamedTuple):
    """What machines fitted without a training row answer there.

    ``outputs`` and ``targets``, as a machine of the problem has them, of shape (r, k);
    ``weights`` of shape (r,), or None for ones.
    """

    outputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray | None


@dataclass(frozen=True)
class Validation:
    """Rows kept apart, by which iterations of a machine are judged.

    Parameters
    ----------
    x, y, weights : ndarray of shape (n, d), (n, k) and (n,)
        As the machine sees them.
    score : callable
        ``score(outputs, targets, weights)``, higher is better.
    """

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    score: Callable[[Tensor, Tensor, Tensor], float]

    def __call__(self, machine: Any) -> float:
        """The score of a machine, whole or in parts."""
        x, y, weights = (
            torch.tensor(part, dtype=machine.dtype, device=machine.device)
            for part in (self.x, self.y, self.weights)
        )
        return self.score(machine(x), y, weights)


@dataclass(frozen=True)
class Problem:
    """Rows of positive weight with their answers, and where they are computed with.

    Parameters
    ----------
    table : ndarray of shape (n, d)
        As the caller gave it.
    inside : ndarray of shape (n, d)
        The table in its frame, in float64; rounded where it is computed with.
    answers : Answers
    weights : ndarray of shape (n,), optional
        Positive.
    frame : Frame
        In which the kernel sees the table.
    dtype, device
        Of the computation.
    center : bool
        Whether the mean answer is taken off first. That happens in float64, like the
        shift of the table, so that single precision sees small numbers only.
    """

    table: np.ndarray
    inside: np.ndarray
    answers: Answers
    weights: np.ndarray | None
    frame: Frame
    dtype: torch.dtype
    device: torch.device
    center: bool

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.table)

    @property
    def k(self) -> int:
        """Outputs."""
        return self.answers.columns.shape[1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Classes of each label column; empty for numbers."""
        return self.answers.sizes

    @cached_property
    def intercept(self) -> np.ndarray:
        """The mean answer, or zeros; that of equal numbers is the number."""
        columns = self.answers.columns
        if not self.center:
            return np.zeros(self.k)
        if self.weights is None:
            mean = columns.sum(axis=0) / self.n
        else:
            weights = self.weights / self.weights.max()
            mean = np.average(columns, axis=0, weights=weights)
        return mean if self.sizes else _without_rounding(mean, columns)

    @cached_property
    def target_unit(self) -> float:
        """A power of two by which answers are divided to be of the size of one."""
        return 1.0 if self.sizes else power_of_two(self._largest_target)

    @property
    def is_constant(self) -> bool:
        """Whether there is nothing to fit besides the intercept."""
        return not self.sizes and self._largest_target == 0

    @cached_property
    def _largest_target(self) -> float:
        return float(self._target_sizes.max())

    @cached_property
    def _target_sizes(self) -> np.ndarray:
        return np.abs(self.answers.columns - self.intercept).max(axis=0)

    @property
    def target_share(self) -> float:
        """Size of the smallest target that varies at all, beside the largest.

        All targets are divided by one number, because the metric learns from the sum
        of their squared gradients.
        """
        sizes = self._target_sizes[self._target_sizes > 0]
        return float(sizes.min() / sizes.max()) if len(sizes) else 1.0

    def require_sizes(self, callee: str) -> None:
        """Complain about a table, or targets, too large or small to compute with."""
        self.frame.require_size(callee)
        largest = float(np.abs(self.answers.columns).max())
        require(
            largest <= _LARGEST_TARGET, callee, "y",
            f"of absolute values up to {_LARGEST_TARGET:g}, so that coefficients are "
            "finite", f"{largest:.1g}", "Divide the targets by a constant.",
        )  # fmt: skip

    @property
    def score(self) -> Score:
        """How outputs of this problem's machines are judged."""
        return Score(self.sizes, self.intercept / self.target_unit)

    def targets(self) -> np.ndarray:
        """The answers as the machine is fitted to them."""
        return self._shifted(self.answers.columns)

    def _shifted(self, columns: np.ndarray) -> np.ndarray:
        return (columns - self.intercept) / self.target_unit

    def validation(self, held: Problem) -> Validation:
        """Rows kept apart, as machines of this problem see and are scored on them."""
        weights = np.ones(held.n) if held.weights is None else held.weights
        targets = self._shifted(held.answers.columns)
        return Validation(held.inside, targets, weights, self.score)

    def rows(self, chosen: np.ndarray) -> Problem:
        """The problem of some rows, in the same frame; a mask or indices."""
        codes = self.answers.codes
        answers = replace(
            self.answers,
            columns=self.answers.columns[chosen],
            codes=None if codes is None else codes[chosen],
        )
        weights = None if self.weights is None else self.weights[chosen]
        return replace(
            self,
            table=self.table[chosen],
            inside=self.inside[chosen],
            answers=answers,
            weights=weights,
        )

    def answered(
        self, left_out: LeftOut
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Outputs of machines without a row, in the caller's units; their truth; mass.

        Classes are in units of their own, so that nothing is to be scaled.
        """
        shift = self.intercept
        return left_out.outputs + shift, left_out.targets + shift, left_out.weights

    def sample(self, most: int) -> np.ndarray:
        """Indices of all rows, or of that many; the same ones in every fit."""
        return same_rows(self.n, most)

    def in_precision(self, dtype: torch.dtype) -> Problem:
        """The same problem for a computation in another precision."""
        same = object.__new__(type(self))
        vars(same).update(vars(self), dtype=dtype)  # with all that was found out
        return same

    @cached_property
    def look(self) -> Look:
        """How far some of its rows are apart."""
        return Look.at(self.inside)

    def variances(self) -> np.ndarray:
        """The variance of each column in its frame."""
        inside, weights = self.inside, self.weights
        if weights is None:
            apart = inside - inside.sum(axis=0) / len(inside)
            return np.einsum("ij,ij->j", apart, apart) / len(inside)
        mean = np.average(inside, axis=0, weights=weights)
        return np.average((inside - mean) ** 2, axis=0, weights=weights)


def _without_rounding(mean: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The mean, exact for columns of one number: else they would seem to vary."""
    first, rounding = columns[0], len(columns) * 2.0**-50
    for middle, number in zip(mean.tolist(), first.tolist(), strict=True):
        if abs(middle - number) <= rounding * abs(number):
            return np.where((columns == first).all(axis=0), first, mean)
    return mean


def same_rows(n: int, most: int) -> np.ndarray:
    """Indices of all of n rows, or of that many, sorted; always the same ones.

    They look drawn at random, because every so-manieth row of a table may be of one
    class.

    Examples
    --------
    >>> same_rows(3, 5)
    array([0, 1, 2])
    """
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).permutation(n)[:most])


def held_out_rows(
    callee: str, problem: Problem, fraction: float, seed: int
) -> np.ndarray:
    """Choose rows to be kept apart: a mask, the same share of every class.

    Where there are several label columns, of every combination of labels. Every class
    keeps at least one row for training. Of however few rows one at least is kept apart,
    and one is not.

    Raises
    ------
    ValueError
        If there is no row to spare: a single one, or the only one of a class each.
    """
    random = np.random.default_rng(seed)
    order = shuffled = random.permutation(problem.n)
    codes = problem.answers.codes
    if codes is not None:
        _, groups = np.unique(codes, axis=0, return_inverse=True)
        order = order[np.argsort(groups.ravel()[order], kind="stable")]
    # Through the classes one after the other, every so-manieth row.
    steps = np.floor(np.arange(1, problem.n + 1) * fraction + random.uniform())
    chosen = np.zeros(problem.n, dtype=bool)
    chosen[order[np.diff(steps, prepend=0.0) > 0]] = True
    for column in () if codes is None else codes.T:
        for group in np.setdiff1d(column, column[~chosen]):
            chosen[np.flatnonzero(column == group)[0]] = False
    if chosen.all():
        chosen[shuffled[0]] = False
    if not chosen.any():
        # whether a share of few rows is a row must not be a matter of luck
        chosen[shuffled[_spare(problem)[shuffled]][:1]] = True
    require(
        bool(chosen.any()), callee, "validation_fraction",
        "such that rows remain on both sides",
        f"{fraction} of {problem.n} rows", "Set it to None for so few rows.",
    )  # fmt: skip
    return chosen


def _spare(problem: Problem) -> np.ndarray:
    """Rows without which there are others, of each of their classes."""
    spare = np.full(problem.n, problem.n > 1)
    codes = problem.answers.codes
    for column in () if codes is None else codes.T:
        spare &= np.bincount(column)[column] > 1
    return spare
