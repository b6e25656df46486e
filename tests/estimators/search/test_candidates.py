"""What is chosen, and how results are told."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import (
    r2_score,
)

from normalign.estimators._search import (
    RFAMClassifierCV,
    RFAMRegressorCV,
    best_candidate,
)
from tests.estimators.search.cases import (
    NUMBERS,
    SMALL,
    WORDS,
    X,
)


def sometimes_missing(machine, x, y):
    return np.nan if machine.ridge == 0.01 else r2_score(y, machine.predict(x))


def test_a_candidate_with_a_missing_score_is_never_chosen():
    machine = RFAMRegressorCV(**SMALL, cv=2, scoring=sometimes_missing, random_state=0)
    with pytest.warns(UserWarning, match="RFAMRegressorCV: 12 test scores are not fin"):
        machine.fit(X, NUMBERS)
    assert machine.ridge_ == 1.0
    assert np.isfinite(machine.best_score_)
    missing = np.isnan(machine.cv_results_["mean_test_score"])
    assert missing.sum() == 6
    assert machine.cv_results_["rank_test_score"][missing].tolist() == [7] * 6


def test_minus_infinity_is_a_better_score_than_none():
    def odd(machine, x, y):
        return np.nan if machine.ridge == 1.0 else -np.inf

    machine = RFAMRegressorCV(**SMALL, cv=2, scoring=odd, random_state=0)
    with pytest.warns(UserWarning, match="24 test scores are not finite"):
        machine.fit(X, NUMBERS)
    assert machine.ridge_ == 0.01


def test_a_search_without_any_score_is_refused():
    machine = RFAMRegressorCV(
        **SMALL, cv=2, scoring=lambda machine, x, y: np.nan, random_state=0
    )
    before = dict(vars(machine))
    with pytest.raises(ValueError, match="RFAMRegressorCV: scoring must be such that"):
        machine.fit(X, NUMBERS)
    assert vars(machine) == before


def test_equal_candidates_give_way_to_the_simplest():
    machine = RFAMRegressorCV(cv=2, random_state=0, **{**SMALL, "ridges": (0.1, 5.0)})
    machine.fit(X, np.full(90, 3.0))
    assert machine.best_params_ == {"ridge": 5.0, "identity_weight": 1.0, "n_iter": 0}
    results = {
        "rank_test_score": np.array([1, 1, 1, 1]),
        "param_ridge": np.array([1.0, 1.0, 1.0, 0.1]),
        "param_n_iter": np.array([2, 1, 1, 0]),
        "param_identity_weight": np.array([1.0, 0.0, 0.5, 1.0]),
    }
    assert best_candidate(results) == 2


def test_results_are_named_and_ranked_as_in_a_grid_search():
    machine = RFAMClassifierCV(**SMALL, cv=2, random_state=0).fit(X, WORDS)
    results = machine.cv_results_
    assert len(results["params"]) == 2 * 2 * 3
    assert all(
        isinstance(results[key], np.ndarray) for key in results if key != "params"
    )
    for index, params in enumerate(results["params"]):
        for name, value in params.items():
            assert results[f"param_{name}"][index] == value
    assert results["rank_test_score"][machine.best_index_] == 1
    best = results["mean_test_score"][results["rank_test_score"] == 1]
    assert best.min() == pytest.approx(results["mean_test_score"].max(), abs=1e-10)
    np.testing.assert_allclose(
        results["std_test_score"],
        np.std([results["split0_test_score"], results["split1_test_score"]], axis=0),
    )
    # Iterations of a trajectory follow one another.
    assert (np.diff(results["mean_fit_time"].reshape(-1, 3), axis=1) > 0).all()
