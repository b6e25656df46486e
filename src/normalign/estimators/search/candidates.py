"""Candidates of a search: which are allowed, how they did, which one is best."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from numbers import Real
from typing import Any

import numpy as np

from normalign._errors import as_float, describe, require, require_kind
from normalign.estimators.scale.limits import callers_level
from normalign.estimators.search.trajectories import Trajectory

__all__ = ["best_candidate", "check_candidates", "check_scores", "results_table"]

# Of these some can be read only once and would be empty in a second fit, some have no
# order, and some are no numbers.
_NO_SEQUENCES = str | bytes | bytearray | Iterator | Mapping | Set
# Scores nearer than that are equal: sums of the same numbers in another order.
EQUAL = 1e-10


def check_candidates(estimator: Any) -> None:
    """Complain about ridges and identity weights that no machine can have.

    Raises
    ------
    TypeError
        If they are not sequences of numbers.
    ValueError
        If there are none, or one is out of range.
    """
    callee = type(estimator).__name__
    for name, rule in (
        ("ridges", "positive and finite"),
        ("identity_weights", "in [0, 1]"),
    ):
        given: Any = getattr(estimator, name)
        several = isinstance(given, Iterable) and not isinstance(given, _NO_SEQUENCES)
        several = several and getattr(given, "ndim", 1) == 1
        kind, told = "a sequence of numbers", describe(given)
        require_kind(several, callee, name, kind, told, "Pass a list.")
        values = list(given)
        require(len(values) > 0, callee, name, "not empty", told)
        numbers = all(isinstance(v, Real) and not isinstance(v, bool) for v in values)
        require_kind(numbers, callee, name, kind, told)
        for value in values:
            number = as_float(value)
            fits = 0 < number < math.inf if name == "ridges" else 0 <= number <= 1
            require(fits, callee, name, rule, f"{describe(value)} among them")


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
    """Complain if no candidate has a score, warn if some scores are not finite.

    Parameters
    ----------
    results : dict
        From :func:`results_table`; NaN there may also mean that time was up.
    found : list of Trajectory

    Raises
    ------
    ValueError
        If there is no candidate with a mean score.
    """
    scored = not np.isnan(results["mean_test_score"]).all()
    failure = next((one.failure for one in found if one.failure), None)
    if failure and not scored:
        raise failure
    require(
        scored, callee, "scoring",
        "such that a candidate has a score on every split", "NaN for all of them",
        "Look at what the scorer does with rows of a single split.",
    )  # fmt: skip
    broken = sum((~np.isfinite(one.scores)).sum() for one in found)
    if broken:
        warnings.warn(
            f"{callee}: {broken} test scores are not finite; a candidate with NaN is "
            "never chosen. See cv_results_.",
            UserWarning,
            stacklevel=callers_level(),
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
