"""Ridge, iteration and identity weight of an RFAM, chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.metrics import check_scoring, get_scorer
from sklearn.utils import check_random_state
from tqdm import tqdm

from normalign._errors import complaint, require, require_kind
from normalign.estimators.base import unchanged_on_failure
from normalign.estimators.naming import under_its_own_name
from normalign.estimators.parameters import check_parameters
from normalign.estimators.problem import Problem
from normalign.estimators.rfam import RFAMClassifier, RFAMRegressor
from normalign.estimators.scale.limits import require_memory
from normalign.estimators.search.candidates import (
    best_candidate,
    check_candidates,
    check_scores,
    results_table,
)
from normalign.estimators.search.folds import Fold, chosen_splits
from normalign.estimators.search.judges import OnCopies
from normalign.estimators.search.trajectories import (
    TrajectoryJob,
    rounds_left,
    scored_trajectory,
)
from normalign.estimators.tables.arrays import Origin, checked_features, checked_weights
from normalign.estimators.tables.frames import in_pandas
from normalign.estimators.tables.targets import Answers, side_by_side
from normalign.estimators.workers import Clock, jobs_at_once, memory_share, parallel

__all__ = ["RFAMClassifierCV", "RFAMRegressorCV"]

# The last of the time is for the fit on all rows.
_SEARCH_SHARE = 0.75


class _Selecting:
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
            Answers; several columns are several outputs.
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
            estimator._forget()
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
        """Return the score on rows and their answers by which candidates were judged.

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
        # It complains in the name of the estimator that the caller knows.
        kind = type(type(self).__name__, (self._plain,), {})
        return kind(**{**shared, "time_limit_s": None, "verbose": 0, **changes})

    def _folds(
        self, plain: Any, X: Any, y: Any, sample_weight: Any, seed: int
    ) -> list[Fold]:
        callee = type(self).__name__
        table = checked_features(self, X, reset=True)
        weights = checked_weights(callee, sample_weight, len(table))
        kept = None if weights is None else weights > 0
        answers = plain._answers(y, len(table), kept)
        alive = np.arange(len(table)) if kept is None else np.flatnonzero(kept)
        require(
            len(alive) > 1, callee, "X", "of at least two rows to be divided",
            f"{len(alive)} sample",
        )  # fmt: skip
        # columns by which a splitter may go have names only in a frame
        given = (X if hasattr(X, "columns") else table), y
        splits = chosen_splits(callee, self.cv, given, alive, answers, seed)
        table, truth = table[alive], _plain_answers(answers)
        mass = None if weights is None else weights[alive]
        # What the fit to all rows will be refused for is said before the search.
        _require_memory(plain, plain._problem(table, answers, mass, Origin.of(X)))

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
            parallel(scored_trajectory, jobs, self.n_jobs),
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
        answers = plain._answers(y, len(table), None)
        problem = plain._problem(table, answers, weights, Origin())
        _require_memory(plain, problem, n_jobs)
        return memory_share(plain._limit(), n_jobs, problem.device)


def _require_memory(plain: Any, problem: Problem, n_jobs: int = 1) -> None:
    require_memory(
        type(plain).__name__, problem, kernel=plain.kernel, solver=plain.solver,
        limit=plain._limit(), most=plain._leaf_size(problem),
        diagonal=bool(plain.diagonal), n_jobs=n_jobs,
    )  # fmt: skip


def _scorer(callee: str, plain: Any, scoring: Any) -> Any:
    rule = "one name of scikit-learn's, or a callable of (estimator, X, y)"
    require_kind(
        isinstance(scoring, str) or callable(scoring), callee, "scoring", rule,
        repr(scoring),
    )  # fmt: skip
    try:
        if isinstance(scoring, str):
            return get_scorer(scoring)
        checked: Any = check_scoring(plain, scoring=scoring)
        return OnCopies(checked)
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


def _plain_answers(answers: Answers) -> np.ndarray:
    """Labels or numbers in the shape in which they were given."""
    if answers.codes is None:
        return answers.columns[:, 0] if answers.flat else answers.columns
    columns = [
        classes[codes]
        for classes, codes in zip(answers.classes, answers.codes.T, strict=True)
    ]
    return columns[0] if answers.flat else side_by_side(columns)


@under_its_own_name
class RFAMClassifierCV(_Selecting, RFAMClassifier):  # type: ignore[misc]
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
    bandwidth : float, default=10.0
        Width of the kernel, meant for columns scaled to unit variance.
    device : str, default="auto"
        Any device of torch. "auto": where X is, or the GPU if there is one and there
        are at least 2000 rows.
    max_leaf_size : int, "auto" or None, default="auto"
        Above that many rows, fit overlapping parts of at most that size, with one
        metric, and blend them. Work then grows like the number of rows. "auto": parts
        of 8000 rows above 20000 rows (40000 above 200000 on a GPU). None: never.
    kernel, exponent, bandwidth_rule, diagonal, center, solver, dtype, \
    memory_limit, agop_samples, verbose
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


@under_its_own_name
class RFAMRegressorCV(_Selecting, RFAMRegressor):  # type: ignore[misc]
    r"""Regressor that chooses its own ridge, iteration and identity weight.

    An :class:`RFAMRegressor`, tuned: for every fold, ridge and identity weight
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
        Number of shuffled folds, 5 for None; or the share of rows in one validation
        split; or what scikit-learn takes for `cv` (for groups pass the list of splits).
        A splitter sees X, y and rows of weight zero.
    scoring : str or callable, optional
        As in scikit-learn; by default R squared. Weights are passed on to it, so it
        must take them if there are any. A callable sees rows of a frame as such. A
        candidate with a score of NaN is never chosen. By default a split with one
        answer only is scored by 1 less its squared error in terms of the variance of
        all answers.
    random_state : int, RandomState or None, default=None
        For folds, and handed to every fit. None: other folds in each search.
    bandwidth : float, default=10.0
        Width of the kernel, meant for columns scaled to unit variance.
    device : str, default="auto"
        Any device of torch. "auto": where X is, or the GPU if there is one and there
        are at least 2000 rows.
    max_leaf_size : int, "auto" or None, default="auto"
        Above that many rows, fit overlapping parts of at most that size, with one
        metric, and blend them. Work then grows like the number of rows. "auto": parts
        of 8000 rows above 20000 rows (40000 above 200000 on a GPU). None: never.
    time_limit_s, n_jobs
        As in :class:`RFAMClassifierCV`.
    kernel, exponent, bandwidth_rule, diagonal, center, solver, dtype, \
    memory_limit, agop_samples, verbose
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
