"""The iterations of one machine on one fold, each scored where it was not fitted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from normalign.estimators.partition.partitioned import partitioned_iterations
from normalign.estimators.problem import Problem
from normalign.estimators.rfam import RFAMClassifier, RFAMRegressor
from normalign.estimators.search.folds import Fold
from normalign.estimators.search.judges import AskedScore, Step, UsualScore
from normalign.estimators.seeds import two_seeds
from normalign.estimators.tables.arrays import Origin
from normalign.estimators.whole import CALIBRATION_ROWS, kept, left_out
from normalign.estimators.workers import Clock, Pace, shared_threads
from normalign.kernels._system import RidgeTooSmall

__all__ = [
    "Trajectory",
    "TrajectoryJob",
    "rounds_left",
    "scored_trajectory",
]


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
    """Scores of iterations 0, 1, ... and the seconds until each of them.

    ``failure`` is the error that ended it, if there was one; its score is NaN.
    """

    scores: list[float]
    seconds: list[float]
    failure: RidgeTooSmall | None = None


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
            judge = UsualScore(job.fold, problem)
        else:
            judge = AskedScore(
                job.fold, problem, job.scorer, job.parameters, job.callee
            )
        try:
            for step in _steps(plain, problem):
                seconds.append(time.monotonic() - started)
                scores.append(judge(step))
                if not pace.another():
                    break
        except RidgeTooSmall as error:  # the other candidates have other ridges
            return Trajectory([*scores, math.nan], seconds, error)
        return Trajectory(scores, seconds)


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
