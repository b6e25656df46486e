"""The iterations of one machine on one fold, each scored where it was not fitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from normalign._checks import complaint
from normalign.estimators.base import two_seeds
from normalign.estimators.partition.partitioned import partitioned_iterations
from normalign.estimators.problem import Problem, Score
from normalign.estimators.rfam import RFAMClassifier, RFAMRegressor
from normalign.estimators.search.folds import words_of
from normalign.estimators.tables.arrays import Origin, checked_features
from normalign.estimators.whole import CALIBRATION_ROWS, left_out
from normalign.estimators.workers import Clock, Pace, shared_threads

__all__ = [
    "Fold",
    "OnCopies",
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
class OnCopies:
    """A caller's own scorer: what it writes to must not be the next candidate's."""

    scorer: Callable[..., Any]

    def __call__(self, estimator: Any, X: Any, y: np.ndarray, **more: Any) -> Any:
        """Score as the caller does."""
        copies = {name: value.copy() for name, value in more.items()}
        return self.scorer(estimator, X.copy(), y.copy(), **copies)


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


class _ClassifierView(RFAMClassifier):
    """A classifier at some iteration; its temperature is made only if asked for."""

    _left_out: Callable[[], tuple[Any, ...]]

    @property
    def temperature_(self) -> Any:
        """The factor of ``predict_proba``, as a plain fit would learn it."""
        return self._temperature(*self._left_out())


@lru_cache(maxsize=16)
def _named(kind: type, name: str) -> Any:
    """A view that complains, and is shown to scorers, under a name the caller knows."""
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
        for view in _views(job):
            seconds.append(time.monotonic() - started)
            scores.append(_score(view, job))
            if not pace.another():
                break
        return Trajectory(scores, seconds)


def _views(job: TrajectoryJob) -> Iterator[Any]:
    """The estimator after each iteration, fitted as far as scoring needs it."""
    kind = _ClassifierView if job.classes else RFAMRegressor
    view = _named(kind, job.callee)(**job.parameters)
    table, y, weights = job.fold.train
    answers = view._answers(y, len(table), None)
    problem = view._problem(table, answers, weights, Origin())
    view.n_features_in_ = table.shape[1]
    if job.fold.shown is not None:  # with names of columns
        checked_features(view, job.fold.shown, reset=True)
    view.location_, view.unit_ = problem.frame.location, problem.frame.unit
    view.dtype_ = str(problem.dtype).removeprefix("torch.")
    view.device_, view.intercept_ = str(problem.device), problem.intercept
    most = job.parameters["max_leaf_size"]
    whole = most is None or problem.n <= most
    for machine, without in (_whole if whole else _parts)(view, problem):
        view._machine, view._left_out = [(machine, problem.target_unit)], without
        yield view


def _whole(view: Any, problem: Problem) -> Iterator[tuple[Any, Callable]]:
    recipe, (_, seed) = view._recipe(problem), two_seeds(view.random_state)
    rows_given = problem.inside, problem.targets(), problem.weights
    for iteration in recipe.iterations(*rows_given, seed):

        def without(at: Any = iteration) -> tuple[Any, ...]:
            rows, outputs = left_out(at, problem.sample(CALIBRATION_ROWS))
            mass = None if problem.weights is None else problem.weights[rows]
            return outputs + problem.intercept, problem.answers.columns[rows], mass

        yield iteration.machine, without


def _parts(view: Any, problem: Problem) -> Iterator[tuple[Any, Callable]]:
    recipe, (_, seed) = view._recipe(problem), two_seeds(view.random_state)
    steps = partitioned_iterations(
        problem.inside,
        problem.targets(),
        problem.weights,
        recipe=recipe,
        max_leaf_size=int(view.max_leaf_size),
        n_left_out=CALIBRATION_ROWS if problem.sizes else 0,
        n_jobs=1,
        seed=seed,
    )
    for part in steps:

        def without(at: Any = part.left_out) -> tuple[Any, ...]:
            shift = problem.intercept
            return at.outputs + shift, at.targets + shift, at.weights

        yield part.machine(dtype=recipe.dtype, device=recipe.device), without


def _score(view: Any, job: TrajectoryJob) -> float:
    x, y, weights = job.fold.test
    if job.scorer is not None:
        return _asked(job.scorer, view, job)
    found = view.predict(x).reshape(len(x), -1)
    truth = y.reshape(len(x), -1)
    mass = np.ones(len(x)) if weights is None else weights
    if job.classes:
        return float(np.average((found == truth).mean(axis=1), weights=mass))
    unit = _deviation(job.fold).reshape(-1)
    score = Score((), np.zeros(truth.shape[1]))
    return score(
        *(
            torch.tensor(part, device="cpu")
            for part in (found / unit, truth / unit, mass)
        )
    )


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
    except Exception as error:  # a scorer is the caller's code
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
        said = f"one that says: {words_of(error)}"
        raise kind(complaint(job.callee, "scoring", rule, said, remedy)) from error


def _lacks_a_class(fold: Fold) -> bool:
    """Whether a class, in any label column, is on one side of a split only."""
    sides = [y.reshape(len(y), -1).T.tolist() for _, y, _ in (fold.train, fold.test)]
    return any(set(one) != set(other) for one, other in zip(*sides, strict=True))
