"""Candidates of a search: which are allowed, how they did, which one is best."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np

from normalign._checks import require, require_kind
from normalign.estimators.trajectories import Trajectory

__all__ = ["best_candidate", "check_candidates", "results_table"]

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
        several = isinstance(given, Iterable) and not isinstance(given, str)
        require_kind(several, callee, name, "a sequence of numbers", given)
        values = list(given)
        require(len(values) > 0, callee, name, "not empty", given)
        require_kind(
            all(isinstance(v, Real) and not isinstance(v, bool) for v in values),
            callee, name, "a sequence of numbers", given,
        )  # fmt: skip
        fits = [
            0 < value < math.inf if name == "ridges" else 0 <= value <= 1
            for value in map(float, values)
        ]
        require(all(fits), callee, name, rule, repr(given))


def results_table(
    pairs: list[tuple[float, float]], found: list[Trajectory], n_folds: int, n_iter: int
) -> dict[str, Any]:
    """Results as GridSearchCV names them; scores that there was no time for are NaN.

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
    worse = np.where(np.isnan(mean), -np.inf, mean)
    return {
        "params": params,
        **{
            f"param_{name}": np.array([one[name] for one in params])
            for name in params[0]
        },
        **{f"split{i}_test_score": scores[:, i].copy() for i in range(n_folds)},
        "mean_test_score": mean,
        "std_test_score": scores.std(axis=1),
        "rank_test_score": 1 + (worse[:, None] < worse - EQUAL).sum(axis=1),
        "mean_fit_time": seconds.mean(axis=1),
        "std_fit_time": seconds.std(axis=1),
    }


def best_candidate(results: dict[str, Any]) -> int:
    """Return the index of the best candidate.

    Of equals the one with the largest ridge, then the fewest iterations, then the
    identity weight nearest to 1.

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
