"""Ridge, iteration and identity weight of an RFAM, chosen by cross-validation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from inspect import signature
from numbers import Integral, Real
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.metrics import check_scoring, get_scorer
from sklearn.model_selection import check_cv
from sklearn.utils import check_random_state
from tqdm import tqdm

from normalign._errors import as_float, complaint, describe
from normalign.estimators._fit import (
    CALIBRATION_ROWS,
    Problem,
    Score,
    SingleFit,
    leave_one_out,
    select_rows,
    single_fit,
    two_seeds,
)
from normalign.estimators._inputs import (
    Origin,
    Targets,
    check_features,
    check_parameters,
    check_weights,
    in_pandas,
    plain_labels,
    plain_numbers,
    side_by_side,
    split_blocks,
    warn_caller,
)
from normalign.estimators._jobs import (
    Clock,
    Pace,
    jobs_at_once,
    memory_share,
    parallel,
    shared_threads,
)
from normalign.estimators._partition import PartitionedFit, partitioned_iterations
from normalign.estimators._predict import machine_bandwidth
from normalign.estimators._rfm import (
    RFAMClassifier,
    RFAMRegressor,
    report_own_name,
    unchanged_on_failure,
)
from normalign.kernels._system import RidgeTooSmall

Split = tuple[np.ndarray, np.ndarray]

# What None means, as in scikit-learn; but shuffled, like every number of folds here.
_FOLDS = 5


@dataclass(frozen=True)
class Fold:
    """Rows to fit on and rows to score on, each (x, y, weights).

    ``shown`` is what a caller's own scorer sees of the latter, if not x: a DataFrame.
    """

    train: tuple[np.ndarray, np.ndarray, np.ndarray | None]
    test: tuple[np.ndarray, np.ndarray, np.ndarray | None]
    shown: Any = None


def shuffled_folds(
    n_folds: int, *, n: int, groups: np.ndarray | None, seed: int
) -> list[Split]:
    """Split rows into folds at random, with the same share of every group in each.

    Rows are shuffled, sorted by group and dealt out like cards, so a group with fewer
    rows than folds is no special case.

    Parameters
    ----------
    n_folds : int
        At most n.
    groups : array of int of shape (n,), optional
    seed : int

    Returns
    -------
    list of (train, test)
        Sorted row numbers.

    Examples
    --------
    >>> folds = shuffled_folds(2, n=4, groups=np.array([0, 0, 1, 1]), seed=0)
    >>> [len(test) for _, test in folds]
    [2, 2]
    """
    owner = np.empty(n, dtype=int)
    owner[_shuffle(n, groups, seed)] = np.arange(n) % n_folds
    return [
        (np.flatnonzero(owner != fold), np.flatnonzero(owner == fold))
        for fold in range(n_folds)
    ]


def shuffled_split(
    share: float, *, n: int, groups: np.ndarray | None, seed: int
) -> Split:
    """Keep a share of the rows apart at random, the same of every group.

    Parameters
    ----------
    share : float
        Of rows to score on; at least one row is on each side.
    groups : array of int of shape (n,), optional
    seed : int

    Examples
    --------
    >>> [len(rows) for rows in shuffled_split(0.3, n=10, groups=None, seed=0)]
    [7, 3]
    """
    count = min(max(round(share * n), 1), n - 1)
    places = np.floor((np.arange(count) + 0.5) * n / count).astype(int)
    apart = np.zeros(n, dtype=bool)
    apart[_shuffle(n, groups, seed)[places]] = True
    return np.flatnonzero(~apart), np.flatnonzero(apart)


def _shuffle(n: int, groups: np.ndarray | None, seed: int) -> np.ndarray:
    """Rows at random, group after group."""
    order = np.random.default_rng(seed).permutation(n)
    if groups is None:
        return order
    return order[np.argsort(groups[order], kind="stable")]


def select_splits(
    callee: str,
    cv: Any,
    given: tuple[Any, Any],
    alive: np.ndarray,
    targets: Targets,
    seed: int,
) -> list[Split]:
    """Rows to fit and to score on, counted among the rows of positive weight.

    Parts without rows to score on, or without two classes (where there are classes)
    to fit, are left out.

    Parameters
    ----------
    cv : int, float, splitter, list of splits or None
        Number of folds (None: 5); share of one validation split; or what scikit-learn
        takes.
    given : (X, y)
        All rows, for a splitter to look at.
    alive : array of int
        Rows of positive weight.
    targets : Targets
        Of the rows of positive weight.
    seed : int
    """
    labels = None if targets.codes is None else _combinations(targets.codes)
    cv = _FOLDS if cv is None else cv
    is_count = isinstance(cv, Integral)
    if isinstance(cv, Real) and not isinstance(cv, bool):
        number = as_float(cv)
        if not (number >= 2 if is_count else 0 < number < 1):
            raise ValueError(
                f"{callee}: cv must be at least 2 folds, a share between 0 and 1, "
                f"or a splitter, got {describe(cv)}."
            )
        settings = {"n": len(alive), "groups": labels, "seed": seed}
        if is_count:
            splits = shuffled_folds(int(min(number, len(alive))), **settings)
        else:
            splits = [shuffled_split(number, **settings)]
    else:
        splits = _given_splits(callee, cv, given, alive, targets)
    codes = targets.codes
    usable = [
        (train, test)
        for train, test in splits
        if len(test)
        and len(train)
        and (codes is None or all(np.ptp(column[train]) for column in codes.T))
    ]
    if not usable:
        raise ValueError(
            f"{callee}: cv must be such that rows of two classes, or any, are left "
            f"to fit and to score on, got {len(splits)} splits without."
        )
    return usable


def _combinations(codes: np.ndarray) -> np.ndarray:
    """One number for each combination of labels."""
    _, numbers = np.unique(codes, axis=0, return_inverse=True)
    return numbers.ravel()


def _given_splits(
    callee: str, cv: Any, given: tuple[Any, Any], alive: np.ndarray, targets: Targets
) -> list[Split]:
    rule = "a number of folds, a share, a splitter or a list of splits"
    if isinstance(cv, Iterator):
        raise TypeError(
            f"{callee}: cv must be {rule}, got a {type(cv).__name__}. It can be "
            "read only once, and would be empty in a second fit: pass list(cv)."
        )
    try:
        splitter: Any = check_cv(cv)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{callee}: cv must be {rule}, got {describe(cv)}.") from error
    table, y = given
    n, shown = len(table), _splitter_targets(callee, y, targets)
    try:
        divided = [
            (np.asarray(train), np.asarray(test))
            for train, test in splitter.split(table, shown)
        ]
    except Exception as error:  # a splitter is the caller's code
        kind = TypeError if isinstance(error, TypeError) else ValueError
        rule = "a splitter, or splits, by which these rows can be divided"
        said = f"one that says: {error_text(error)}"
        remedy = "For groups pass the list of splits." if "group" in said else ""
        raise kind(complaint(callee, "cv", rule, said, remedy)) from error
    place = np.full(n, -1)
    place[alive] = np.arange(len(alive))
    splits = []
    for train, test in divided:
        numbers = (place[_row_numbers(callee, rows, n)] for rows in (train, test))
        splits.append(tuple(rows[rows >= 0] for rows in numbers))
    return splits


def error_text(error: Exception) -> str:
    """What an error of the caller's own code says; one of few words by its name, too.

    Examples
    --------
    >>> error_text(KeyError("price")), error_text(ValueError("Too few rows."))
    ("KeyError: 'price'", 'Too few rows')
    """
    text = str(error).rstrip(".")
    if isinstance(error, AttributeError | TypeError | ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _splitter_targets(callee: str, y: Any, targets: Targets) -> np.ndarray:
    """Targets of all rows, as a splitter sees them.

    Several label columns are numbered by their combinations, so that what stratifies
    by one column stratifies by them.
    """
    if targets.codes is None:
        return plain_numbers(callee, y)
    labels = plain_labels(callee, y)
    if targets.flat:
        return labels.ravel()
    codes = [np.unique(column, return_inverse=True)[1] for column in labels.T]
    return _combinations(np.stack(codes, axis=1))


def _row_numbers(callee: str, rows: np.ndarray, n: int) -> np.ndarray:
    """One side of a split that was given: row numbers, or a mask."""
    if rows.dtype.kind == "b" and rows.shape == (n,):
        rows = np.flatnonzero(rows)
    rule = f"splits with row numbers below {n} on both sides"
    # an empty list is one of floats to numpy, but not of a wrong kind
    if rows.size != 0 and rows.dtype.kind not in "iu":
        raise TypeError(
            f"{callee}: cv must be {rule}, got {describe(rows)}. Pass integers, or "
            "a mask of all rows."
        )
    if rows.ndim != 1 or rows.size == 0:
        raise ValueError(f"{callee}: cv must be {rule}, got {describe(rows)}.")
    least, most = int(rows.min()), int(rows.max())
    if -n > least or most >= n:
        raise ValueError(f"{callee}: cv must be {rule}, got rows {least} to {most}.")
    return rows


class _ClassifierAtIteration(RFAMClassifier):
    """A classifier as a fit that stopped at some iteration would have left it.

    A caller's own scorer gets it. It can be copied, pickled and fitted again; only the
    temperature, which costs about as much as a solve, is made on first use.
    """

    _left_out: Callable[[], tuple[Any, ...]]

    @cached_property
    def temperature_(self) -> Any:
        """The factor of ``predict_proba``, as a plain fit would learn it."""
        return self._temperature(*self._left_out())

    def __getstate__(self) -> dict[str, Any]:
        """The state with a temperature, and without the function that makes it."""
        if hasattr(self, "_left_out"):
            _ = self.temperature_
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_left_out"}


# Errors name the class that the caller knows.
_ClassifierAtIteration.__name__ = RFAMClassifier.__name__


class Step(NamedTuple):
    """One iteration: its machine, its fit and its leave-one-out outputs."""

    machine: Any
    fit: Callable[[], SingleFit | PartitionedFit]
    left_out: Callable[[], Any]


class DefaultScore:
    """Accuracy, or R squared."""

    def __init__(self, fold: Fold, problem: Problem) -> None:
        self.problem, (self.x, y, weights) = problem, fold.test
        self.mass = np.ones(len(self.x)) if weights is None else weights
        self.truth = y.reshape(len(y), -1)
        self.unit = None if problem.sizes else _deviation(fold).reshape(-1)
        if problem.sizes:
            self.truth = _codes(problem.targets.classes, self.truth)

    def __call__(self, step: Step) -> float:
        """The score of a machine."""
        problem, machine = self.problem, step.machine
        bandwidth = machine_bandwidth(machine)
        scaled = problem.scaling.apply(self.x, machine.dtype, bandwidth=bandwidth)
        outputs = machine(torch.as_tensor(scaled, device=machine.device))
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
class ScorerOnCopies:
    """A caller's own scorer: what it writes to must not be the next candidate's."""

    scorer: Callable[..., Any]

    def __call__(self, estimator: Any, X: Any, y: np.ndarray, **more: Any) -> Any:
        """Score as the caller does."""
        copies = {name: value.copy() for name, value in more.items()}
        return self.scorer(estimator, X.copy(), y.copy(), **copies)


class CustomScore:
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
        kind: Any = _ClassifierAtIteration if problem.sizes else RFAMRegressor
        self.view = kind(**parameters)
        table, y, _ = fold.train
        self.view._targets(y, len(table), None)
        self.view.n_features_in_ = table.shape[1]
        if fold.shown is not None:  # with names of columns
            check_features(self.view, fold.shown, reset=True)

    def __call__(self, step: Step) -> float:
        """The score of a machine."""
        view, problem = copy(self.view), self.problem
        fit = step.fit()
        view.set_params(n_iter=fit.report.n_iter)
        view._store(problem, fit)
        view._machine = [(step.machine, problem.target_unit)]
        if problem.sizes:
            view._left_out = lambda: problem.in_caller_units(step.left_out())
        x, y, weights = self.fold.test
        more = {} if weights is None else {"sample_weight": weights}
        shown = x if self.fold.shown is None else self.fold.shown
        try:
            return float(self.scorer(view, shown, y, **more))
        except RidgeTooSmall:
            raise
        except Exception as error:  # a scorer is the caller's code
            raise self._scorer_error(error) from error

    def _scorer_error(self, error: Exception) -> Exception:
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
        said = f"one that says: {error_text(error)}"
        return kind(complaint(self.callee, "scoring", rule, said, remedy))


def _deviation(fold: Fold) -> np.ndarray:
    """Standard deviation of each target over the rows on both sides of a split.

    In these units a squared error has a size that does not depend on the caller's:
    where a single row, or rows with one target value, are scored, they have no variance
    to compare it with.
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


@dataclass(frozen=True)
class TrajectoryJob:
    """One fold and one candidate, for a worker.

    ``parameters`` are those of the plain estimator, ``callee`` the name in its errors.
    A job that is ``needed`` is done even after the deadline, as far as iteration 0.
    ``rounds`` counts the jobs that a worker does, this one first, until the candidate
    has been scored on all folds. They have the same time each: an iteration counts only
    where all folds came to it.
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
def _subclass(kind: type, name: str) -> Any:
    """A subclass whose errors name the estimator that the caller knows."""
    return type(name, (kind,), {})


def score_trajectory(job: TrajectoryJob) -> Trajectory:
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
        plain = _subclass(kind, job.callee)(**job.parameters)
        table, y, weights = job.fold.train
        targets = plain._targets(y, len(table), None)
        problem = plain._problem(table, targets, weights, Origin())
        if job.scorer is None:
            score = DefaultScore(job.fold, problem)
        else:
            score = CustomScore(
                job.fold, problem, job.scorer, job.parameters, job.callee
            )
        try:
            for step in _steps(plain, problem):
                seconds.append(time.monotonic() - started)
                scores.append(score(step))
                if not pace.another():
                    break
        except RidgeTooSmall as error:  # the other candidates have other ridges
            return Trajectory([*scores, math.nan], seconds, error)
        return Trajectory(scores, seconds)


def _steps(plain: Any, problem: Problem) -> Iterator[Step]:
    """All iterations on a problem, as one system or in parts."""
    recipe, (_, seed) = plain._recipe(problem), two_seeds(plain.random_state)
    x, y, weights = problem.scaled, problem.scaled_targets(), problem.weights
    most = plain._leaf_size(problem)
    if most is None:
        leave_out = select_rows(problem.n, CALIBRATION_ROWS)
        for iteration in recipe.iterations(x, y, weights, seed):
            yield Step(
                iteration.machine,
                partial(single_fit, iteration),
                partial(leave_one_out, iteration, leave_out, y, weights),
            )
        return
    for part in partitioned_iterations(
        x, y, weights, recipe=recipe, max_leaf_size=most, n_jobs=1, seed=seed,
        n_left_out=CALIBRATION_ROWS if problem.sizes else 0,
    ):  # fmt: skip
        machine = part.machine(dtype=recipe.dtype, device=recipe.device)
        yield Step(machine, lambda at=part: at, lambda at=part: at.left_out)


# Of these some can be read only once and would be empty in a second fit, some have no
# order, and some are no numbers.
_NO_SEQUENCES = str | bytes | bytearray | Iterator | Mapping | Set
# Scores nearer than that are equal: sums of the same numbers in another order.
EQUAL = 1e-10


def check_candidates(estimator: Any) -> None:
    """Refuse ridges and identity weights that no machine can have."""
    callee = type(estimator).__name__
    for name, rule in (
        ("ridges", "positive and finite"),
        ("identity_weights", "in [0, 1]"),
    ):
        given: Any = getattr(estimator, name)
        several = isinstance(given, Iterable) and not isinstance(given, _NO_SEQUENCES)
        several = several and getattr(given, "ndim", 1) == 1
        kind, shown = "a sequence of numbers", describe(given)
        if not several:
            raise TypeError(
                f"{callee}: {name} must be {kind}, got {shown}. Pass a list."
            )
        values = list(given)
        if not values:
            raise ValueError(f"{callee}: {name} must be not empty, got {shown}.")
        numbers = all(isinstance(v, Real) and not isinstance(v, bool) for v in values)
        if not numbers:
            raise TypeError(f"{callee}: {name} must be {kind}, got {shown}.")
        for value in values:
            number = as_float(value)
            fits = 0 < number < math.inf if name == "ridges" else 0 <= number <= 1
            if not fits:
                raise ValueError(
                    f"{callee}: {name} must be {rule}, got {describe(value)} among "
                    "them."
                )


def results_table(
    pairs: list[tuple[float, float]], found: list[Trajectory], n_folds: int, n_iter: int
) -> dict[str, Any]:
    """Results as GridSearchCV names them; scores that there was no time for are NaN.

    NaN ranks last, behind minus infinity.

    Parameters
    ----------
    pairs : list of (ridge, identity weight)
    found : list of Trajectory
        Pair after pair, fold after fold.
    n_folds : int
    n_iter : int

    Returns
    -------
    dict of str to array
        One entry per pair and iteration; ``params`` is a list of dicts.
    """
    shape = len(pairs), n_folds, n_iter + 1
    scores, seconds = np.full(shape, np.nan), np.full(shape, np.nan)
    for place, trajectory in zip(np.ndindex(shape[:2]), found, strict=True):
        scores[place][: len(trajectory.scores)] = trajectory.scores
        seconds[place][: len(trajectory.seconds)] = trajectory.seconds
    # One row per candidate (pair, iteration), one column per fold.
    scores = scores.transpose(0, 2, 1).reshape(-1, n_folds)
    seconds = seconds.transpose(0, 2, 1).reshape(-1, n_folds)
    params = [
        {"ridge": ridge, "identity_weight": weight, "n_iter": index}
        for ridge, weight in pairs
        for index in range(n_iter + 1)
    ]
    mean = scores.mean(axis=1)
    missing = np.isnan(mean)
    with np.errstate(invalid="ignore"):  # infinite scores have no deviation
        deviation = scores.std(axis=1)
    better = (mean[:, None] < mean - EQUAL) | (missing[:, None] & ~missing)
    return {
        "params": params,
        **{
            f"param_{name}": np.array([one[name] for one in params])
            for name in params[0]
        },
        **{f"split{i}_test_score": scores[:, i].copy() for i in range(n_folds)},
        "mean_test_score": mean,
        "std_test_score": deviation,
        "rank_test_score": 1 + better.sum(axis=1),
        "mean_fit_time": seconds.mean(axis=1),
        "std_fit_time": seconds.std(axis=1),
    }


def check_scores(callee: str, results: dict[str, Any], found: list[Trajectory]) -> None:
    """Raise if no candidate has a score, warn if some scores are not finite.

    Parameters
    ----------
    results : dict
        From :func:`results_table`; NaN there may also mean that time was up.
    found : list of Trajectory
    """
    scored = not np.isnan(results["mean_test_score"]).all()
    failure = next((one.failure for one in found if one.failure), None)
    if failure and not scored:
        raise failure
    if not scored:
        raise ValueError(
            f"{callee}: scoring must be such that a candidate has a score on every "
            "split, got NaN for all of them. Look at what the scorer "
            "does with rows of a single split."
        )
    broken = sum((~np.isfinite(one.scores)).sum() for one in found)
    if broken:
        warn_caller(
            f"{callee}: {broken} test scores are not finite; a candidate with NaN is "
            "never chosen. See cv_results_.",
        )


def best_candidate(results: dict[str, Any]) -> int:
    """Return the index of the best candidate.

    Of equals the one with the largest ridge, then the fewest iterations, then the
    identity weight nearest to 1. One without a score is never the best while
    another has one.

    Examples
    --------
    >>> best_candidate({"rank_test_score": np.array([1, 1, 3]),
    ...                 "param_ridge": np.array([0.1, 1.0, 9.0]),
    ...                 "param_n_iter": np.array([0, 2, 0]),
    ...                 "param_identity_weight": np.ones(3)})
    1
    """
    (first,) = np.nonzero(results["rank_test_score"] == 1)
    return min(
        (int(index) for index in first),
        key=lambda index: (
            -results["param_ridge"][index],
            results["param_n_iter"][index],
            1 - results["param_identity_weight"][index],
        ),
    )


# The last of the time is for the fit on all rows.
_SEARCH_SHARE = 0.75


class _Search:
    """Search over trajectories, then a plain fit whose state becomes one's own."""

    _plain: type

    def __init__(
        self,
        *,
        ridges: Sequence[float] = (10.0, 1.0, 0.1, 0.01, 0.001),
        identity_weights: Sequence[float] = (0.0, 0.01, 0.1, 1.0),
        n_iter: int = 5,
        cv: Any = 5,
        scoring: Any = None,
        kernel: str = "laplace",
        exponent: float = 1.0,
        bandwidth: float = 10.0,
        bandwidth_rule: str = "fixed",
        diagonal: bool = False,
        center: bool = True,
        solver: str = "auto",
        device: Any = "auto",
        dtype: str = "auto",
        memory_limit: int | None = None,
        max_leaf_size: int | str | None = "auto",
        time_limit_s: float | None = None,
        agop_samples: int = 20_000,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.ridges = ridges
        self.identity_weights = identity_weights
        self.n_iter = n_iter
        self.cv = cv
        self.scoring = scoring
        self.kernel = kernel
        self.exponent = exponent
        self.bandwidth = bandwidth
        self.bandwidth_rule = bandwidth_rule
        self.diagonal = diagonal
        self.center = center
        self.solver = solver
        self.device = device
        self.dtype = dtype
        self.memory_limit = memory_limit
        self.max_leaf_size = max_leaf_size
        self.time_limit_s = time_limit_s
        self.agop_samples = agop_samples
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Choose the parameters, then fit to all rows with them.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Numbers, without missing ones: numpy, DataFrame, torch, any array API.
        y : array-like of shape (n,) or (n, o)
            Targets; several columns are several outputs.
        sample_weight : array-like of shape (n,), optional
            Weights act as repetitions, in fits and in scores.

        Returns
        -------
        self
            If anything fails, or is interrupted, the estimator stays as it was.
        """
        estimator: Any = self
        with unchanged_on_failure(estimator):
            check_candidates(estimator)
            own = {"time_limit_s": self.time_limit_s, "verbose": self.verbose}
            check_parameters(self._fresh(**own))
            limit = self.time_limit_s
            clock = Clock.within(limit and _SEARCH_SHARE * float(limit))
            seed = _seed(self.random_state)
            plain = self._fresh(random_state=seed)
            estimator._reset()
            folds = self._folds(plain, X, y, sample_weight, seed)
            device = Origin.of(X).device
            if str(device).startswith("cuda") and str(self.device) == "auto":
                plain.set_params(device=str(device))
            results = self._results(plain, folds, clock)
            best = best_candidate(results)
            chosen = results["params"][best]
            plain.set_params(**chosen, device=self.device).fit(X, y, sample_weight)
            vars(estimator).update(
                (name, value)
                for name, value in vars(plain).items()
                if name.endswith("_") or name == "_machine"
            )
            self.cv_results_ = results
            self.best_index_, self.best_params_ = best, chosen
            self.best_score_ = float(results["mean_test_score"][best])
            self.ridge_ = chosen["ridge"]
            self.identity_weight_ = chosen["identity_weight"]
            self.n_splits_ = len(folds)
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the score on rows and their targets by which candidates were compared.

        That is `scoring`, as in scikit-learn's searches; by default accuracy, or R
        squared.
        """
        machine: Any = super()
        if self.scoring is None:
            return machine.score(X, y, sample_weight)
        scorer = _scorer(type(self).__name__, self._fresh(), self.scoring)
        more = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(scorer(self, X, y, **more))

    def _fresh(self, **changes: Any) -> Any:
        """A plain estimator with the parameters that are not searched over."""
        # Of a subclass with a constructor of its own, too, whose parameters are others.
        wanted = signature(self._plain).parameters
        shared = {name: value for name, value in vars(self).items() if name in wanted}
        kind = _subclass(self._plain, type(self).__name__)
        return kind(**{**shared, "time_limit_s": None, "verbose": 0, **changes})

    def _folds(
        self, plain: Any, X: Any, y: Any, sample_weight: Any, seed: int
    ) -> list[Fold]:
        callee = type(self).__name__
        table = check_features(self, X, reset=True)
        weights = check_weights(callee, sample_weight, len(table))
        used = None if weights is None else weights > 0
        targets = plain._targets(y, len(table), used)
        alive = np.arange(len(table)) if used is None else np.flatnonzero(used)
        if len(alive) <= 1:
            raise ValueError(
                f"{callee}: X must be of at least two rows to be divided, got "
                f"{len(alive)} sample."
            )
        # a splitter may use names of columns, which only a frame has
        given = (X if hasattr(X, "columns") else table), y
        splits = select_splits(callee, self.cv, given, alive, targets, seed)
        table, truth = table[alive], _plain_targets(targets)
        mass = None if weights is None else weights[alive]
        # The fit to all rows must not fail after the search.
        plain._require_memory(plain._problem(table, targets, mass, Origin.of(X)))

        def part(rows: np.ndarray) -> Any:
            return table[rows], truth[rows], None if mass is None else mass[rows]

        frame: Any = in_pandas(callee, X) if callable(self.scoring) else None
        if not hasattr(frame, "iloc"):
            return [Fold(part(train), part(test)) for train, test in splits]
        return [
            Fold(part(train), part(test), frame.iloc[alive[test]])
            for train, test in splits
        ]

    def _results(self, plain: Any, folds: list[Fold], clock: Clock) -> dict[str, Any]:
        classes = issubclass(self._plain, RFAMClassifier)
        callee, scorer = type(self).__name__, None
        if self.scoring is not None:
            scorer = _scorer(callee, plain, self.scoring)
        pairs = [
            (float(ridge), float(weight))
            for weight in self.identity_weights
            for ridge in self.ridges
        ]
        at_once = min(jobs_at_once(self.n_jobs), len(pairs) * len(folds))
        clock = replace(clock, n_jobs=at_once)
        shared = plain.get_params(deep=False)
        shared["memory_limit"] = self._share(plain, folds, at_once)
        jobs = [
            TrajectoryJob(
                classes,
                shared | {"ridge": ridge, "identity_weight": weight},
                fold,
                scorer,
                callee,
                needed=number == 0,
                rounds=rounds_left(number * len(folds) + place, len(folds), at_once),
                clock=clock,
            )
            for number, (ridge, weight) in enumerate(pairs)
            for place, fold in enumerate(folds)
        ]
        bar = tqdm(
            parallel(score_trajectory, jobs, self.n_jobs),
            total=len(jobs),
            desc=callee,
            disable=not self.verbose,
        )
        found = list(bar)
        results = results_table(pairs, found, len(folds), int(self.n_iter))
        check_scores(callee, results, found)
        return results

    def _share(self, plain: Any, folds: list[Fold], n_jobs: int) -> int | None:
        """The memory limit of one of that many jobs; their largest fold fits it."""
        table, y, weights = max((fold.train for fold in folds), key=lambda p: len(p[0]))
        targets = plain._targets(y, len(table), None)
        problem = plain._problem(table, targets, weights, Origin())
        plain._require_memory(problem, n_jobs)
        return memory_share(plain._limit(), n_jobs, problem.device)


def _scorer(callee: str, plain: Any, scoring: Any) -> Any:
    rule = "one name of scikit-learn's, or a callable of (estimator, X, y)"
    if not isinstance(scoring, str) and not callable(scoring):
        raise TypeError(f"{callee}: scoring must be {rule}, got {scoring!r}.")
    try:
        if isinstance(scoring, str):
            return get_scorer(scoring)
        checked: Any = check_scoring(plain, scoring=scoring)
        return ScorerOnCopies(checked)
    except ValueError as error:
        remedy = "See sklearn.metrics.get_scorer_names()."
        if not isinstance(scoring, str):
            remedy = "Make a scorer of a metric by sklearn.metrics.make_scorer."
        raise ValueError(
            complaint(callee, "scoring", rule, repr(scoring), remedy)
        ) from error


def _seed(random_state: Any) -> int:
    """An integer random state as it is, or one drawn from it for all fits."""
    if isinstance(random_state, Integral):
        return int(random_state)
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    return int(check_random_state(random_state).randint(2**31 - 1))


def _plain_targets(targets: Targets) -> np.ndarray:
    """Labels or numbers in the shape in which they were given."""
    if targets.codes is None:
        return targets.columns[:, 0] if targets.flat else targets.columns
    columns = [
        classes[codes]
        for classes, codes in zip(targets.classes, targets.codes.T, strict=True)
    ]
    return columns[0] if targets.flat else side_by_side(columns)


@report_own_name
class RFAMClassifierCV(_Search, RFAMClassifier):  # type: ignore[misc]
    r"""Classifier that chooses its own ridge, iteration and identity weight.

    An :class:`RFAMClassifier`, tuned: for every fold, ridge and identity weight
    Algorithm 1 runs once, and each of its iterations is scored on the rows left out.
    The candidate with the best mean score is fitted to all rows. Machines, scores and
    choice are those of a loop over plain estimators, at the cost of one fit instead of
    ``n_iter + 1`` for every fold, ridge and identity weight. Of equal
    candidates the one with the largest ridge wins, then with the fewest iterations,
    then with the identity weight nearest to 1.

    To keep the paper's initial metric pass ``identity_weights=(0.0,)``.

    Parameters
    ----------
    ridges : sequence of float, default=(10.0, 1.0, 0.1, 0.01, 0.001)
        Those of the paper's experiments.
    identity_weights : sequence of float in [0, 1], default=(0.0, 0.01, 0.1, 1.0)
        0 is the covariance alone, 1 an RFM.
    n_iter : int, default=5
        Iterations 0 to `n_iter` are candidates.
    cv : int, float, splitter, list of splits or None, default=5
        Number of shuffled, stratified folds, 5 for None; or the share of rows in one
        validation split; or what scikit-learn takes for `cv` (for groups pass the list
        of splits). A splitter sees X, y and rows of weight zero; of several label
        columns it sees the number of their combination.
    scoring : str or callable, optional
        As in scikit-learn; by default accuracy, the mean over label columns. Weights
        are passed on to it, so it must take them if there are any. A callable sees
        rows of a frame as such. A candidate with a score of NaN is never chosen.
    time_limit_s : float, optional
        After three quarters of it no trajectory and no iteration is begun, and the
        best candidate that was scored on all folds is fitted. The folds of a pair of
        ridge and identity weight have the same share of the time left. The first pair
        is always scored, as far as iteration 0.
    n_jobs : int, optional
        Workers of joblib; folds and candidates are independent. Those that work at
        one time share `memory_limit`, or what is free.
    random_state : int, RandomState or None, default=None
        For folds, and handed to every fit. None: other folds in each search.
    kernel, exponent, bandwidth, bandwidth_rule, diagonal, center, solver, device, \
    dtype, memory_limit, max_leaf_size, agop_samples, verbose
        As in :class:`~normalign.estimators.RFMClassifier`.

    Attributes
    ----------
    ridge_, identity_weight_, n_iter_ : float, float, int
        What was chosen.
    best_params_ : dict
        The same by name.
    best_score_, best_index_ : float, int
        Mean score of the candidate chosen, and its place in `cv_results_`.
    cv_results_ : dict of str to ndarray
        One entry per candidate, named as in ``GridSearchCV``; NaN where there was no
        time. ``mean_fit_time`` is the time until that iteration.
    n_splits_ : int
        Folds used: those without two classes to fit are not.
    metric_, dual_coef_, X_fit_, feature_importances_ and all others
        Of the machine fitted to all rows, as in :class:`RFAMClassifier`.

    Examples
    --------
    >>> X = [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0]]
    >>> y = ["low"] * 4 + ["high"] * 4
    >>> machine = RFAMClassifierCV(cv=4, random_state=0).fit(X, y)
    >>> machine.predict([[0.5], [6.5]])
    array(['low', 'high'], dtype='<U4')
    """

    _plain = RFAMClassifier


@report_own_name
class RFAMRegressorCV(_Search, RFAMRegressor):  # type: ignore[misc]
    r"""Regressor that chooses its own ridge, iteration and identity weight.

    An :class:`RFAMRegressor`, tuned as :class:`RFAMClassifierCV` tunes a classifier.

    Parameters
    ----------
    cv : int, float, splitter, list of splits or None, default=5
        Number of shuffled folds, 5 for None; or the share of rows in one validation
        split; or what scikit-learn takes for `cv` (for groups pass the list of splits).
        A splitter sees X, y and rows of weight zero.
    scoring : str or callable, optional
        As in scikit-learn; by default R squared. Weights are passed on to it, so it
        must take them if there are any. A callable sees rows of a frame as such. A
        candidate with a score of NaN is never chosen. By default a split
        with one target value is scored by 1 minus its squared error over the variance
        of all targets.
    ridges, identity_weights, n_iter, time_limit_s, n_jobs, random_state
        As in :class:`RFAMClassifierCV`.
    kernel, exponent, bandwidth, bandwidth_rule, diagonal, center, solver, device, \
    dtype, memory_limit, max_leaf_size, agop_samples, verbose
        As in :class:`~normalign.estimators.RFMRegressor`.

    Attributes
    ----------
    ridge_, identity_weight_, n_iter_, best_params_, best_score_, best_index_, \
    cv_results_, n_splits_
        As in :class:`RFAMClassifierCV`.
    metric_, dual_coef_, X_fit_, feature_importances_ and all others
        Of the machine fitted to all rows, as in :class:`RFAMRegressor`.

    Examples
    --------
    >>> X = [[0.0], [1.0], [2.0], [3.0]]
    >>> machine = RFAMRegressorCV(cv=2, random_state=0).fit(X, [1.0, 1.0, 1.0, 1.0])
    >>> machine.ridge_, machine.n_iter_  # all candidates are equal
    (10.0, 0)
    """

    _plain = RFAMRegressor
