"""How a machine does on the rows of a fold that it was not fitted to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from normalign._errors import complaint
from normalign.estimators.fitted import machine_bandwidth
from normalign.estimators.partition.blended import Partitioned
from normalign.estimators.problem import Problem, Score
from normalign.estimators.search import views
from normalign.estimators.search.folds import Fold, words_of
from normalign.estimators.tables.arrays import checked_features
from normalign.estimators.tables.targets import split_blocks
from normalign.estimators.whole import WholeFit
from normalign.kernels._system import RidgeTooSmall

__all__ = ["AskedScore", "OnCopies", "Step", "UsualScore"]


class Step(NamedTuple):
    """A machine of the recursion, how it would be kept, and rows left out of it."""

    machine: Any
    fit: Callable[[], WholeFit | Partitioned]
    left_out: Callable[[], Any]


class UsualScore:
    """Accuracy, or R squared."""

    def __init__(self, fold: Fold, problem: Problem) -> None:
        self.problem, (self.x, y, weights) = problem, fold.test
        self.mass = np.ones(len(self.x)) if weights is None else weights
        self.truth = y.reshape(len(y), -1)
        self.unit = None if problem.sizes else _deviation(fold).reshape(-1)
        if problem.sizes:
            self.truth = _codes(problem.answers.classes, self.truth)

    def __call__(self, step: Step) -> float:
        """The score of a machine."""
        problem, machine = self.problem, step.machine
        bandwidth = machine_bandwidth(machine)
        inside = problem.frame.enter(self.x, machine.dtype, bandwidth=bandwidth)
        outputs = machine(torch.as_tensor(inside, device=machine.device))
        found = outputs.cpu().double().numpy() * problem.target_unit + problem.intercept
        if self.unit is None:
            blocks = split_blocks(found, problem.sizes)
            labels = np.stack([block.argmax(axis=1) for block in blocks], axis=1)
            right = (labels == self.truth).mean(axis=1)
            return float(np.average(right, weights=self.mass))
        score = Score((), np.zeros(found.shape[1]))
        parts = found / self.unit, self.truth / self.unit, self.mass
        return score(*(torch.tensor(part, device="cpu") for part in parts))


def _codes(classes: Sequence[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Places of labels among the classes of the training rows; -1 for others."""
    columns = []
    for known, column in zip(classes, labels.T, strict=True):
        place = {label: code for code, label in enumerate(known.tolist())}
        columns.append([place.get(label, -1) for label in column.tolist()])
    return np.array(columns).T


@dataclass(frozen=True)
class OnCopies:
    """A caller's own scorer: what it writes to must not be the next candidate's."""

    scorer: Callable[..., Any]

    def __call__(self, estimator: Any, X: Any, y: np.ndarray, **more: Any) -> Any:
        """Score as the caller does."""
        copies = {name: value.copy() for name, value in more.items()}
        return self.scorer(estimator, X.copy(), y.copy(), **copies)


class AskedScore:
    """What a caller's own scorer says of a machine."""

    def __init__(
        self,
        fold: Fold,
        problem: Problem,
        scorer: Callable[..., Any],
        parameters: dict[str, Any],
        callee: str,
    ) -> None:
        self.fold, self.problem, self.scorer = fold, problem, scorer
        self.callee = callee
        kind: Any = views.RFAMClassifier if problem.sizes else views.RFAMRegressor
        self.view = kind(**parameters)
        table, y, _ = fold.train
        self.view._answers(y, len(table), None)
        self.view.n_features_in_ = table.shape[1]
        if fold.shown is not None:  # with names of columns
            checked_features(self.view, fold.shown, reset=True)

    def __call__(self, step: Step) -> float:
        """The score of a machine."""
        view, problem = copy(self.view), self.problem
        fit = step.fit()
        view.set_params(n_iter=fit.report.n_iter)
        view._keep(problem, fit)
        view._machine = [(step.machine, problem.target_unit)]
        if problem.sizes:
            view._left_out = lambda: problem.answered(step.left_out())
        x, y, weights = self.fold.test
        more = {} if weights is None else {"sample_weight": weights}
        shown = x if self.fold.shown is None else self.fold.shown
        try:
            return float(self.scorer(view, shown, y, **more))
        except RidgeTooSmall:
            raise
        except Exception as error:  # a scorer is the caller's code
            raise self._in_our_words(error) from error

    def _in_our_words(self, error: Exception) -> Exception:
        rule = "a scorer that gives one number for every split"
        remedy = "Call it on a machine fitted to that split to see why."
        if self.fold.test[2] is not None and "sample_weight" in str(error):
            rule = "a scorer that takes sample_weight, because weights are given"
            remedy = "Give it an argument sample_weight=None."
        elif self.problem.sizes and _lacks_a_class(self.fold):
            remedy = (
                "A class with fewer rows than folds is missing on one side of some "
                "split: take fewer folds, or merge rare classes."
            )
        kind = TypeError if isinstance(error, TypeError) else ValueError
        said = f"one that says: {words_of(error)}"
        return kind(complaint(self.callee, "scoring", rule, said, remedy))


def _deviation(fold: Fold) -> np.ndarray:
    """Standard deviation of each target over the rows on both sides of a split.

    In these units a squared error has a size that does not depend on the caller's:
    where a single row, or rows with one answer, are scored, they have no variance to
    compare it with.
    """
    y = np.concatenate([fold.train[1], fold.test[1]])
    masses = [fold.train[2], fold.test[2]]
    mass = None if masses[0] is None else np.concatenate(masses)  # type: ignore[arg-type]
    largest = np.abs(y).max(axis=0)
    largest = np.where(largest > 0, largest, 1.0)
    relative = y / largest
    mean = np.average(relative, axis=0, weights=mass)
    variance = np.average((relative - mean) ** 2, axis=0, weights=mass)
    return np.where(variance > 0, np.sqrt(variance) * largest, largest)


def _lacks_a_class(fold: Fold) -> bool:
    """Whether a class, in any label column, is on one side of a split only."""
    sides = [y.reshape(len(y), -1).T.tolist() for _, y, _ in (fold.train, fold.test)]
    return any(set(one) != set(other) for one, other in zip(*sides, strict=True))
