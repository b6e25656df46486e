from __future__ import annotations

import pickle
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import (
    log_loss,
    r2_score,
)
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from normalign.estimators import RFAMClassifier, _jobs, _search
from normalign.estimators._search import (
    RFAMClassifierCV,
    RFAMRegressorCV,
    rounds_left,
    score_trajectory,
)
from tests.estimators.search.cases import (
    KINDS,
    NUMBERS,
    SMALL,
    WEIGHTS,
    WORDS,
    X,
    agree,
    answers,
    plain_loop,
)


@pytest.mark.parametrize(("kind", "plain"), KINDS)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_selection_agrees_with_a_loop_over_fresh_fits(kind, plain, weights):
    y = answers(kind)
    splits = list(KFold(3, shuffle=True, random_state=1).split(X))
    machine = kind(**SMALL, cv=splits, random_state=0).fit(X, y, weights)
    agree(machine, plain_loop(plain, splits, y, weights, random_state=0))
    assert machine.n_splits_ == 3
    refit = plain(**machine.best_params_, random_state=0).fit(X, y, weights)
    np.testing.assert_array_equal(machine.predict(X), refit.predict(X))
    np.testing.assert_array_equal(machine.metric_, refit.metric_)


@pytest.mark.parametrize("unit", [1e-12, 1e-3, 1e3, 1e12])
@pytest.mark.parametrize("cv", [7, 20])
def test_the_units_of_the_targets_do_not_matter_to_the_choice(unit, cv):
    table, y = X[:21], NUMBERS[:21]
    cv = [([j for j in range(21) if j not in rows], rows) for rows in parts(cv)]
    plain = RFAMRegressorCV(**SMALL, cv=cv, random_state=0).fit(table, y)
    scaled = clone(plain).fit(table, unit * y)
    assert scaled.best_params_ == plain.best_params_
    np.testing.assert_allclose(
        scaled.cv_results_["mean_test_score"],
        plain.cv_results_["mean_test_score"],
        rtol=1e-7,  # the condition of K + ridge times the rounding of the unit
    )


def parts(n_parts):
    """Rows of parts of one row each, and of a last one with all that are left."""
    return [[j] for j in range(n_parts - 1)] + [list(range(n_parts - 1, 21))]


def test_complaints_about_a_single_fold_are_made_in_the_name_of_the_search():
    # without its first row this table is too small for any unit
    table = np.array([[1.0], [1e-250], *[[0.0]] * 6])
    words = "^RFAMRegressorCV: X must be spread over"
    with pytest.raises(ValueError, match=words):
        RFAMRegressorCV(**SMALL, cv=KFold(8)).fit(table, np.arange(8.0))


@pytest.mark.parametrize(("kind", "plain"), KINDS)
def test_a_subclass_with_a_constructor_of_its_own_is_searched_with_its_parameters(
    kind, plain
):
    class Narrow(kind):
        def __init__(self, *, random_state=0, note=""):
            super().__init__(**SMALL, cv=2, bandwidth=2.0, random_state=random_state)
            self.note = note

    machine = clone(Narrow(note="mine")).fit(X, answers(kind))
    refit = plain(**machine.best_params_, bandwidth=2.0).fit(X, answers(kind))
    np.testing.assert_array_equal(machine.predict(X), refit.predict(X))


def test_label_columns_of_different_kinds_are_searched_over():
    two = np.stack([WORDS.astype(object), (X[:, 1] > 0).astype(object)], axis=1)
    machine = RFAMClassifierCV(**SMALL, cv=2, random_state=0).fit(X, two)
    assert machine.best_score_ > 0.5
    assert [part.dtype.kind for part in machine.classes_] == ["O", "b"]


@pytest.mark.parametrize(("kind", "plain"), KINDS)
def test_machines_in_parts_are_selected_in_the_same_way(kind, plain):
    y = answers(kind)
    splits = list(KFold(2).split(X))
    fixed = {"max_leaf_size": 20, "random_state": 0}
    machine = kind(**SMALL, cv=splits, **fixed).fit(X, y)
    agree(machine, plain_loop(plain, splits, y, **fixed))
    assert "leaves_" in vars(machine)


@pytest.mark.parametrize("kind", [RFAMClassifierCV, RFAMRegressorCV])
def test_a_time_limit_already_past_still_gives_a_machine(kind):
    machine = kind(**SMALL, cv=2, random_state=0, time_limit_s=1e-9)
    machine.fit(X, answers(kind))
    scored = np.isfinite(machine.cv_results_["mean_test_score"])
    assert scored.tolist() == [True] + [False] * 11
    assert machine.best_params_ == {"ridge": 1.0, "identity_weight": 0.0, "n_iter": 0}
    assert machine.n_iter_ == 0
    assert len(machine.predict(X)) == 90


@pytest.fixture
def seconds(monkeypatch):
    """A clock that goes on only when it is told to, for search and jobs."""
    told = SimpleNamespace(now=0.0)
    clock = SimpleNamespace(monotonic=lambda: told.now)
    for module in (_jobs, _search):
        monkeypatch.setattr(module, "time", clock)
    return told


@pytest.mark.parametrize(
    # of 40 s the search has 30: 6 for each of five folds, iterations 0 to 5
    ("limit", "iterations"), [(40.0, 6), (20.0, 3), (1e-9, 1), (1000.0, 21)]
)  # fmt: skip
def test_the_folds_of_a_candidate_have_the_same_time(seconds, limit, iterations):
    def takes_a_second(machine, x, y):
        seconds.now += 1
        return 0.0

    machine = RFAMRegressorCV(
        **{**SMALL, "n_iter": 20}, cv=5, scoring=takes_a_second, random_state=0,
        time_limit_s=limit,
    ).fit(X[:30], NUMBERS[:30])  # fmt: skip
    scored = [
        int(np.isfinite(machine.cv_results_[f"split{fold}_test_score"][:21]).sum())
        for fold in range(5)
    ]
    assert scored == [iterations] * 5


def test_folds_at_one_time_have_the_time_of_their_rounds():
    assert [rounds_left(job, 5, 1) for job in range(10)] == [5, 4, 3, 2, 1] * 2
    assert [rounds_left(job, 5, 4) for job in range(5)] == [2, 2, 2, 2, 1]
    assert [rounds_left(job, 5, 8) for job in range(10)] == [1] * 5 + [2] * 3 + [1] * 2


def test_an_interrupted_search_leaves_the_estimator_as_it_was(monkeypatch):
    machine = RFAMRegressorCV(**SMALL, cv=2, random_state=0)
    calls = []

    def interrupted(job):
        calls.append(job)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(job)

    original = _search.score_trajectory
    monkeypatch.setattr(_search, "score_trajectory", interrupted)
    before = dict(vars(machine))
    with pytest.raises(KeyboardInterrupt):
        machine.fit(X, NUMBERS)
    assert vars(machine) == before
    monkeypatch.undo()
    fitted = machine.fit(X, NUMBERS).predict(X)
    calls.clear()
    monkeypatch.setattr(_search, "score_trajectory", interrupted)
    with pytest.raises(KeyboardInterrupt):
        machine.fit(X[:, :2], NUMBERS)
    np.testing.assert_array_equal(machine.predict(X), fitted)


def test_workers_do_not_change_the_choice():
    alone = RFAMClassifierCV(**SMALL, cv=2, random_state=0).fit(X, WORDS)
    with joblib.parallel_config("threading"):
        together = clone(alone).set_params(n_jobs=2).fit(X, WORDS)
    assert together.best_params_ == alone.best_params_
    np.testing.assert_allclose(
        together.cv_results_["mean_test_score"], alone.cv_results_["mean_test_score"]
    )


@pytest.mark.parametrize(
    ("n_jobs", "limit", "share"),
    [(1, 10**8, 10**8), (2, 10**8, 10**8 // 2), (64, 10**8, 10**8 // 8),
     (1, None, None), (2, None, 1 << 30)],
)  # fmt: skip
def test_workers_at_one_time_share_the_memory(monkeypatch, n_jobs, limit, share):
    allowed = []

    def watched(job):
        allowed.append(job.parameters["memory_limit"])
        return score_trajectory(job)

    monkeypatch.setattr(_search, "score_trajectory", watched)
    monkeypatch.setattr(_jobs, "available_bytes", lambda device: 2 << 30)
    machine = RFAMRegressorCV(**SMALL, cv=2, n_jobs=n_jobs, memory_limit=limit)
    with joblib.parallel_config("threading"):
        machine.fit(X, NUMBERS)
    assert allowed == [share] * 8
    assert machine.memory_limit == limit


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        # 90 rows in float64: a triangle, tiles that fill it, copies of the data
        (
            {"solver": "cholesky", "memory_limit": 10**4},
            "fit 90 rows and [0-9]+ columns by cholesky, got",
        ),
        ({"memory_limit": 10**3}, "fit 90 rows and [0-9]+ columns by cg, got"),
        (
            {"solver": "cholesky", "memory_limit": 10**6, "n_jobs": 8},
            "fit 45 rows and [0-9]+ columns by cholesky, 8 times at once, got 1 MB. "
            "Set fewer n_jobs",
        ),
    ],
)
def test_too_little_memory_is_told_before_the_search(monkeypatch, changes, words):
    monkeypatch.setattr(_search, "parallel", None)
    machine = RFAMRegressorCV(**SMALL, cv=2, **changes)
    words = f"^RFAMRegressorCV: memory_limit must be at least .* MB to {words}"
    with joblib.parallel_config("threading"), pytest.raises(ValueError, match=words):
        machine.fit(X, NUMBERS)


@pytest.mark.parametrize(
    ("changes", "scale", "words"),
    [({}, 1e305, "X must be spread over"), ({"device": "none"}, 1.0, "device must be")],
)
def test_complaints_are_made_in_the_name_of_the_search(changes, scale, words):
    with pytest.raises(ValueError, match=f"^RFAMRegressorCV: {words}"):
        RFAMRegressorCV(**SMALL, **changes).fit(scale * X, NUMBERS)


def test_weights_count_as_repetitions_in_fits_and_scores():
    whole = WEIGHTS.astype(int)
    splits = list(KFold(3).split(X))
    owner = np.arange(90).repeat(whole)
    repeated = [
        (np.flatnonzero(np.isin(owner, train)), np.flatnonzero(np.isin(owner, test)))
        for train, test in splits
    ]
    one = RFAMRegressorCV(**SMALL, cv=splits, random_state=0).fit(X, NUMBERS, WEIGHTS)
    other = RFAMRegressorCV(**SMALL, cv=repeated, random_state=0)
    other.fit(X.repeat(whole, 0), NUMBERS.repeat(whole))
    np.testing.assert_allclose(
        one.cv_results_["mean_test_score"], other.cv_results_["mean_test_score"],
        rtol=1e-7,  # rows of weight two and pairs of rows are conditioned differently
    )  # fmt: skip
    assert one.best_params_ == other.best_params_


def test_it_is_an_rfam_that_pickles_clones_and_sits_in_pipelines():
    machine = RFAMClassifierCV(**SMALL, cv=2, random_state=0)
    assert isinstance(machine, RFAMClassifier)
    pipeline = make_pipeline(StandardScaler(), machine).fit(X, WORDS)
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.predict_proba(X), pipeline.predict_proba(X))
    assert log_loss(WORDS, again.predict_proba(X)) < np.log(3)
    fresh = clone(pipeline)
    assert fresh[-1].get_params()["ridges"] == SMALL["ridges"]
    assert machine.jacobian(X[:5]).shape == (5, 3, 3)
    assert machine.feature_importances_.sum() == pytest.approx(1)


def test_skops_trusts_what_was_fitted():
    skops = pytest.importorskip("skops.io", reason="skops is not installed")
    machine = RFAMRegressorCV(**SMALL, cv=2, random_state=0).fit(X, NUMBERS)
    stored = skops.dumps(machine)
    unknown = skops.get_untrusted_types(data=stored)
    assert [name for name in unknown if not name.startswith("normalign.")] == []
    again = skops.loads(stored, trusted=unknown)
    np.testing.assert_array_equal(again.predict(X), machine.predict(X))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"ridges": ()}, ValueError, "RFAMRegressorCV: ridges must be not empty"),
        ({"ridges": (0.0,)}, ValueError, "ridges must be positive"),
        ({"ridges": "large"}, TypeError, "ridges must be a sequence of numbers"),
        ({"ridges": 1.0}, TypeError, "ridges must be a sequence of numbers"),
        ({"ridges": iter([1.0])}, TypeError, "ridges must be a sequence of numbers"),
        ({"ridges": np.array(1.0)}, TypeError, "ridges must be a sequence of numbers"),
        ({"scoring": ["r2"]}, TypeError, "RFAMRegressorCV: scoring must be one name"),
        ({"scoring": "r3"}, ValueError, "RFAMRegressorCV: scoring must be .*'r3'"),
        ({"scoring": r2_score}, ValueError, "scoring must be .*make_scorer"),
        ({"scoring": lambda *_: {}}, TypeError, "scoring must be .* one number for"),
        ({"identity_weights": (2.0,)}, ValueError, r"identity_weights must be in \[0"),
        ({"identity_weights": (True,)}, TypeError, "a sequence of numbers"),
        ({"cv": 1}, ValueError, "RFAMRegressorCV: cv must be at least 2 folds"),
        ({"cv": 1.5}, ValueError, "cv must be at least 2 folds"),
        ({"cv": "many"}, ValueError, "cv must be a number of folds"),
        ({"cv": []}, ValueError, "cv must be such that rows"),
        ({"bandwidth": -1.0}, ValueError, "RFAMRegressorCV: bandwidth must be"),
        ({"n_iter": -1}, ValueError, "RFAMRegressorCV: n_iter must be"),
        ({"time_limit_s": 0.0}, ValueError, "RFAMRegressorCV: time_limit_s must be"),
        (
            {"verbose": "loud"},
            TypeError,
            "^RFAMRegressorCV: verbose must .* got 'loud'",
        ),
        (
            {"verbose": np.array([1, 2])},
            TypeError,
            "^RFAMRegressorCV: verbose must be a",
        ),
        ({"verbose": pd.NA}, TypeError, "^RFAMRegressorCV: verbose must .*, got <NA>"),
        ({"ridges": {1.0: "a"}}, TypeError, "sequence of numbers.* Pass a list"),
        ({"ridges": {1.0, 2.0}}, TypeError, "sequence of numbers.* Pass a list"),
        ({"ridges": b"ab"}, TypeError, "sequence of numbers.* Pass a list"),
        ({"identity_weights": {0: 1}.keys()}, TypeError, "numbers.* Pass a list"),
        ({"ridges": (1.0, 10**400)}, ValueError, "positive and finite, got an integer"),
        (
            {"identity_weights": [10**400]},
            ValueError,
            r"in \[0, 1\], got an integer of",
        ),
        ({"bandwidth": 10**400}, ValueError, "RFAMRegressorCV: bandwidth must be in"),
        (
            {"cv": iter([(X, X)])},
            TypeError,
            r"RFAMRegressorCV: cv must .* pass list\(cv",
        ),
        ({"cv": KFold(2).split(X)}, TypeError, r"got a generator\..* pass list\(cv\)"),
    ],
    ids=lambda given: None if isinstance(given, type | str) else str(list(given)),
)
def test_wrong_parameters_are_refused_in_the_house_form(changes, error, words):
    machine = RFAMRegressorCV(**{**SMALL, **changes})
    before = dict(vars(machine))
    with pytest.raises(error, match=words):
        machine.fit(X, NUMBERS)
    assert vars(machine) == before


@pytest.mark.parametrize("kind", [RFAMClassifierCV, RFAMRegressorCV])
def test_the_contract_of_scikit_learn_holds(kind):
    small = {"ridges": (1.0, 0.01), "identity_weights": (0.1,), "n_iter": 1, "cv": 3}
    check_estimator(kind(**small))


@pytest.mark.full
@pytest.mark.parametrize("kind", [RFAMClassifierCV, RFAMRegressorCV])
def test_the_contract_of_scikit_learn_holds_with_all_defaults(kind):
    check_estimator(kind())


@pytest.mark.parametrize("kind", [RFAMClassifierCV, RFAMRegressorCV])
def test_a_default_device_of_torch_is_none_of_ours(kind):
    settings = {**SMALL, "cv": 2, "random_state": 0}
    wanted = kind(**settings).fit(X, answers(kind))
    with torch.device("meta"):  # which keeps no values, so that nothing may go there
        found = kind(**settings).fit(X, answers(kind))
    assert found.best_params_ == wanted.best_params_
    np.testing.assert_array_equal(found.dual_coef_, wanted.dual_coef_)


def test_a_bar_counts_trajectories(capfd):
    RFAMRegressorCV(**SMALL, cv=2, verbose=1).fit(X, NUMBERS)
    told = capfd.readouterr()
    assert told.out == ""
    assert "8/8" in told.err


@pytest.mark.filterwarnings("ignore:.* are not finite", "ignore:.*fewer than")
@pytest.mark.parametrize("scoring", [None, "neg_log_loss"])
def test_a_ridge_too_small_for_conjugate_gradients_loses_to_the_others(scoring):
    x, y = [[0.0]] * 8 + [[1.0]] * 4, [0, 1] * 4 + [1, 1, 1, 0]
    ridges = {"ridges": (1e-30, 1e-3), "solver": "cg", "n_iter": 1, "cv": 2}
    search = RFAMClassifierCV(**ridges, scoring=scoring, random_state=0).fit(x, y)
    assert search.best_params_["ridge"] == 1e-3
    with pytest.raises(ValueError, match="ridge must be large enough for conjugate"):
        search.set_params(ridges=(1e-30,)).fit(x, y)
