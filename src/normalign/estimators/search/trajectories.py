"""The iterations of one machine on one fold, each scored where it was not fitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch

from normalign._checks import complaint
from normalign.estimators.fitted import machine_bandwidth
from normalign.estimators.partition.blended import Partitioned
from normalign.estimators.partition.partitioned import partitioned_iterations
from normalign.estimators.problem import Problem, Score
from normalign.estimators.rfam import RFAMClassifier, RFAMRegressor
from normalign.estimators.search import views
from normalign.estimators.seeds import two_seeds
from normalign.estimators.tables.arrays import Origin, checked_features
from normalign.estimators.tables.targets import split_blocks
from normalign.estimators.whole import CALIBRATION_ROWS, WholeFit, kept, left_out
from normalign.estimators.workers import Clock, Pace, shared_threads

__all__ = [
    "Fold",
    "Trajectory",
    "TrajectoryJob",
    "rounds_left",
    "scored_trajectory",
]


@dataclass(frozen=True)
class Fold:
    """Rows to fit on and rows to score on, each (x, y, weights).

    ``shown`` is what a caller's own scorer sees of the latter, if not x: a frame.
    """

    train: tuple[np.ndarray, np.ndarray, np.ndarray | None]
    test: tuple[np.ndarray, np.ndarray, np.ndarray | None]
    shown: Any = None


@dataclass(frozen=True)
class TrajectoryJob:
    """One fold and one candidate, for a worker.

    Parameters
    ----------
    classes : bool
        Whether answers are labels.
    parameters : dict
        Of the plain estimator, with the largest ``n_iter``.
    fold : Fold
    scorer : callable, optional
        ``scorer(estimator, X, y)``; by default accuracy or R squared.
    callee : str
        In whose name complaints are made.
    needed : bool
        To be done even after the deadline, as far as iteration 0.
    rounds : int
        Jobs that a worker does, this one first, until the candidate has been scored
        on all folds. They have the same time each: an iteration counts only where all
        folds came to it.
    clock : Clock
    """

    classes: bool
    parameters: dict[str, Any]
    fold: Fold
    scorer: Callable[..., float] | None
    callee: str
    needed: bool
    rounds: int
    clock: Clock


@dataclass(frozen=True)
class Trajectory:
    """Scores of iterations 0, 1, ... and the seconds until each of them."""

    scores: list[float]
    seconds: list[float]


def rounds_left(job: int, n_folds: int, n_jobs: int) -> int:
    """Rounds of that many jobs at once until the last fold of a job's candidate.

    Examples
    --------
    >>> [rounds_left(job, n_folds=5, n_jobs=4) for job in range(5)]
    [2, 2, 2, 2, 1]
    """
    last = job - job % n_folds + n_folds - 1
    return last // n_jobs - job // n_jobs + 1


@lru_cache(maxsize=16)
def _named(kind: type, name: str) -> Any:
    """A machine that complains under a name that the caller knows."""
    return type(name, (kind,), {})


def scored_trajectory(job: TrajectoryJob) -> Trajectory:
    """Run the recursion of a plain estimator on a fold and score every iteration.

    The machines are those that fresh fits with ``n_iter`` of 0, 1, ... would make: the
    recursion does not know how long it will go on.
    """
    with shared_threads(job.clock.n_jobs):
        scores: list[float] = []
        seconds: list[float] = []
        started, budget = time.monotonic(), job.clock.budget() / job.rounds
        if budget == 0 and not job.needed:
            return Trajectory(scores, seconds)
        pace = Pace(budget)
        kind = RFAMClassifier if job.classes else RFAMRegressor
        plain = _named(kind, job.callee)(**job.parameters)
        table, y, weights = job.fold.train
        answers = plain._answers(y, len(table), None)
        problem = plain._problem(table, answers, weights, Origin())
        if job.scorer is None:
            judge = Judge(job, plain, problem)
        else:
            judge = Asking(job, job.scorer, problem)
        for step in _steps(plain, problem):
            seconds.append(time.monotonic() - started)
            scores.append(judge(step))
            if not pace.another():
                break
        return Trajectory(scores, seconds)


class Step(NamedTuple):
    """A machine of the recursion, and how it would be kept."""

    machine: Any
    fit: Callable[[], WholeFit | Partitioned]
    left_out: Callable[[], Any]


def _steps(plain: Any, problem: Problem) -> Iterator[Step]:
    """The machines of all iterations on a problem, whole or in parts."""
    recipe, (_, seed) = plain._recipe(problem), two_seeds(plain.random_state)
    x, y, weights = problem.inside, problem.targets(), problem.weights
    most = plain._leaf_size(problem)
    if most is None:
        asked = problem.sample(CALIBRATION_ROWS)
        for iteration in recipe.iterations(x, y, weights, seed):
            yield Step(
                iteration.machine,
                partial(kept, iteration),
                partial(left_out, iteration, asked, y, weights),
            )
        return
    for part in partitioned_iterations(
        x, y, weights, recipe=recipe, max_leaf_size=most, n_jobs=1, seed=seed,
        n_left_out=CALIBRATION_ROWS if problem.sizes else 0,
    ):  # fmt: skip
        machine = part.machine(dtype=recipe.dtype, device=recipe.device)
        yield Step(machine, lambda at=part: at, lambda at=part: at.left_out)


class Judge:
    """Accuracy, or R squared, on the rows of a fold that were not fitted."""

    def __init__(self, job: TrajectoryJob, plain: Any, problem: Problem) -> None:
        x, y, weights = job.fold.test
        self.problem, self.x = problem, x
        self.mass = np.ones(len(x)) if weights is None else weights
        self.truth, self.unit = y.reshape(len(x), -1), None
        if job.classes:
            self.truth = _codes(plain._classes, self.truth)
        else:
            self.unit = _deviation(job.fold).reshape(-1)

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


def _codes(classes: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Places of labels among the classes of the training rows; -1 for others."""
    columns = []
    for known, column in zip(classes, labels.T, strict=True):
        place = {label: code for code, label in enumerate(known.tolist())}
        columns.append([place.get(label, -1) for label in column.tolist()])
    return np.array(columns).T


class Asking:
    """What a caller's own scorer says of the machines of a fold."""

    def __init__(
        self, job: TrajectoryJob, scorer: Callable[..., float], problem: Problem
    ) -> None:
        kind: Any = views.RFAMClassifier if job.classes else views.RFAMRegressor
        self.job, self.scorer, self.problem = job, scorer, problem
        self.view = kind(**job.parameters)
        table, y, _ = job.fold.train
        self.view._answers(y, len(table), None)
        self.view.n_features_in_ = table.shape[1]
        if job.fold.shown is not None:  # with names of columns
            checked_features(self.view, job.fold.shown, reset=True)

    def __call__(self, step: Step) -> float:
        """The score of a machine."""
        view, problem = copy(self.view), self.problem
        view.set_params(n_iter=(fit := step.fit()).report.n_iter)
        view._keep(problem, fit)
        view._machine = [(step.machine, problem.target_unit)]
        if self.job.classes:
            view._left_out = lambda: problem.answered(step.left_out())
        return _asked(self.scorer, view, self.job)


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


def _asked(scorer: Callable[..., Any], view: Any, job: TrajectoryJob) -> float:
    """What the caller's scorer says; what it cannot do, in words of the house."""
    x, y, weights = job.fold.test
    more = {} if weights is None else {"sample_weight": weights}
    shown = x if job.fold.shown is None else job.fold.shown
    try:
        return float(scorer(view, shown, y, **more))
    except (AttributeError, TypeError, ValueError) as error:
        rule = "a scorer that gives one number for every split"
        remedy = "Call it on a machine fitted to that split to see why."
        if weights is not None and "sample_weight" in str(error):
            rule = "a scorer that takes sample_weight, because weights are given"
            remedy = "Give it an argument sample_weight=None."
        elif job.classes and _lacks_a_class(job.fold):
            remedy = (
                "A class with fewer rows than folds is missing on one side of some "
                "split: take fewer folds, or merge rare classes."
            )
        kind = TypeError if isinstance(error, TypeError) else ValueError
        said = f"one that says: {str(error).rstrip('.')}"
        raise kind(complaint(job.callee, "scoring", rule, said, remedy)) from error


def _lacks_a_class(fold: Fold) -> bool:
    """Whether a class, in any label column, is on one side of a split only."""
    sides = [y.reshape(len(y), -1).T.tolist() for _, y, _ in (fold.train, fold.test)]
    return any(set(one) != set(other) for one, other in zip(*sides, strict=True))
