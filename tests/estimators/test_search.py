"""Small tables to search over, and the same search by a plain loop."""

from __future__ import annotations

import pickle
import warnings
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import (
    accuracy_score,
    get_scorer,
    log_loss,
    make_scorer,
    r2_score,
)
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from normalign.estimators import RFAMClassifier, RFAMRegressor, _jobs, _search, as_torch
from normalign.estimators._search import (
    RFAMClassifierCV,
    RFAMRegressorCV,
    best_candidate,
    rounds_left,
    score_trajectory,
    shuffled_folds,
    shuffled_split,
)

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(90, 3))
NUMBERS = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.3 * RANDOM.normal(size=90)
WORDS = np.array(["ant", "bee", "cat"])[np.digitize(NUMBERS, [-0.5, 0.5])]
WEIGHTS = RANDOM.integers(1, 4, size=90).astype(float)
SMALL = {"ridges": (1.0, 0.01), "identity_weights": (0.0, 1.0), "n_iter": 2}
KINDS = [(RFAMClassifierCV, RFAMClassifier), (RFAMRegressorCV, RFAMRegressor)]


def answers(kind):
    return WORDS if kind in (RFAMClassifier, RFAMClassifierCV) else NUMBERS


def plain_loop(plain, splits, y, weights=None, scorer=None, **fixed):
    """Mean scores by a triple loop over fresh fits."""
    found = {}
    for weight in SMALL["identity_weights"]:
        for ridge in SMALL["ridges"]:
            for n_iter in range(SMALL["n_iter"] + 1):
                scores = []
                for train, test in splits:
                    machine = plain(
                        ridge=ridge, identity_weight=weight, n_iter=n_iter, **fixed
                    )
                    part = None if weights is None else weights[train]
                    machine.fit(X[train], y[train], part)
                    if scorer is None:
                        mass = None if weights is None else weights[test]
                        scores.append(machine.score(X[test], y[test], mass))
                    else:
                        scores.append(scorer(machine, X[test], y[test]))
                found[ridge, weight, n_iter] = np.array(scores)
    return found


def agree(machine, found):
    """Compare every score, the choice and its score with the plain loop's."""
    results = machine.cv_results_
    for index, params in enumerate(results["params"]):
        expected = found[params["ridge"], params["identity_weight"], params["n_iter"]]
        ours = [
            results[f"split{fold}_test_score"][index] for fold in range(len(expected))
        ]
        # The same machines and the same formulas; R squared is summed otherwise.
        np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(results["mean_test_score"][index], expected.mean())
    best = max(value.mean() for value in found.values())
    assert machine.best_score_ == pytest.approx(best, abs=1e-10)
    equals = [key for key, value in found.items() if value.mean() > best - 1e-10]
    ridge, weight, n_iter = min(equals, key=lambda key: (-key[0], key[2], 1 - key[1]))
    assert (machine.ridge_, machine.identity_weight_, machine.n_iter_) == (
        ridge,
        weight,
        n_iter,
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


@pytest.mark.parametrize("kind", [RFAMClassifierCV, RFAMRegressorCV])
@pytest.mark.parametrize("cv", [2, 0.3, KFold(2), "pairs"])
def test_every_kind_of_cv_works(kind, cv):
    cv = [(np.arange(60), np.arange(60, 90))] if cv == "pairs" else cv
    machine = kind(**SMALL, cv=cv, random_state=0).fit(X, answers(kind))
    assert machine.n_splits_ == (2 if cv == 2 or isinstance(cv, KFold) else 1)
    assert len(machine.cv_results_["mean_test_score"]) == 12
    assert machine.best_score_ > 0.3


@pytest.mark.parametrize("kind", [RFAMClassifierCV, RFAMRegressorCV])
def test_no_cv_is_five_folds_shuffled_and_stratified(kind):
    order = np.argsort(answers(kind), kind="stable")  # as tables often come
    table, y = X[order], answers(kind)[order]
    none = kind(**SMALL, cv=None, random_state=0).fit(table, y)
    five = kind(**SMALL, cv=5, random_state=0).fit(table, y)
    assert none.n_splits_ == 5
    np.testing.assert_array_equal(
        none.cv_results_["mean_test_score"], five.cv_results_["mean_test_score"]
    )


class Halves:
    """A splitter that remembers what it saw, and divides by the first column."""

    def split(self, table, y=None, groups=None):
        self.table, self.y = table, y
        column = np.asarray(table)[:, 0]
        low = column <= np.median(column)
        yield np.flatnonzero(low), np.flatnonzero(~low)
        yield ~low, low  # masks do, too

    def get_n_splits(self, *_):
        return 2


@pytest.mark.parametrize("kind", [RFAMClassifierCV, RFAMRegressorCV])
def test_a_splitter_sees_the_table_and_the_answers(kind):
    halves = Halves()
    weights = np.where(np.arange(90) < 80, 1.0, 0.0)
    machine = kind(**SMALL, cv=halves, random_state=0).fit(X, answers(kind), weights)
    assert machine.n_splits_ == 2
    np.testing.assert_array_equal(halves.table, X)
    np.testing.assert_array_equal(halves.y, answers(kind))


def test_a_splitter_sees_the_columns_of_a_frame_by_name():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    halves, frame = Halves(), pandas.DataFrame(X, columns=["a", "b", "c"])
    RFAMRegressorCV(**SMALL, cv=halves).fit(frame, NUMBERS)
    assert halves.table is frame


def test_what_a_splitter_of_scikit_learn_refuses_is_refused():
    machine = RFAMRegressorCV(**SMALL, cv=StratifiedKFold(3))
    words = "^RFAMRegressorCV: cv must be .*, got one that says: .*continuous"
    with pytest.raises(ValueError, match=words) as caught:
        machine.fit(X, NUMBERS)
    assert isinstance(caught.value.__cause__, ValueError)
    RFAMClassifierCV(**SMALL, cv=StratifiedKFold(3)).fit(X, WORDS)


def test_label_columns_are_stratified_by_their_combinations():
    two = np.stack([WORDS.astype(object), (X[:, 1] > 0).astype(object)], axis=1)
    machine = RFAMClassifierCV(**SMALL, cv=StratifiedKFold(2)).fit(X, two)
    assert machine.n_splits_ == 2


@pytest.mark.parametrize(
    ("cv", "error", "words"),
    [
        (GroupKFold(3), ValueError, "'groups' parameter .* pass the list of splits"),
        (KFold, TypeError, "got one that says"),
        ([1, 2], TypeError, "got one that says: cannot unpack"),
        (np.array(3), ValueError, "a number of folds, a share, a splitter"),
        ([([0, 1], [90])], ValueError, "row numbers below 90 .*, got rows 90 to 90"),
        ([([0, -91], [1])], ValueError, "got rows -91 to 0"),
        ([([0, 1], [])], ValueError, "row numbers below 90 .* of shape"),
        ([([[0, 1]], [2])], ValueError, "row numbers below 90 .* of shape"),
        ([([0.5, 1.5], [2])], TypeError, "row numbers .* Pass integers"),
        ([([True, False], [2])], TypeError, "row numbers .* Pass integers"),
        ([([[0], [1, 2]], [2])], ValueError, "got one that says"),
    ],
)
def test_splits_that_cannot_be_taken_are_refused_in_the_house_form(cv, error, words):
    machine = RFAMRegressorCV(**SMALL, cv=cv)
    with pytest.raises(error, match=f"^RFAMRegressorCV: cv must be .*{words}"):
        machine.fit(X, NUMBERS)


def test_groups_are_given_as_splits():
    splits = list(GroupKFold(3).split(X, groups=np.arange(90) // 10))
    machine = RFAMRegressorCV(**SMALL, cv=splits).fit(X, NUMBERS)
    assert machine.n_splits_ == 3


def test_folds_are_stratified_and_cover_every_row_once():
    groups = np.repeat([0, 1, 2], [50, 7, 2])
    folds = shuffled_folds(5, n=59, groups=groups, seed=0)
    assert np.sort(np.concatenate([test for _, test in folds])).tolist() == list(
        range(59)
    )
    for train, test in folds:
        assert np.intersect1d(train, test).size == 0
        assert 9 <= (groups[test] == 0).sum() <= 11
        assert 1 <= (groups[test] == 1).sum() <= 2


def test_a_validation_split_has_the_share_of_every_class():
    groups = np.repeat([0, 1], [80, 20])
    train, test = shuffled_split(0.25, n=100, groups=groups, seed=0)
    assert np.bincount(groups[test]).tolist() == [20, 5]
    assert len(train) == 75
    again = shuffled_split(0.25, n=100, groups=groups, seed=1)[1]
    assert again.tolist() != test.tolist()


def test_a_class_with_one_row_does_not_stop_the_search():
    y = np.array(["common"] * 45 + ["other"] * 44 + ["rare"])
    machine = RFAMClassifierCV(**SMALL, cv=3, random_state=0).fit(X, y)
    assert machine.classes_.tolist() == ["common", "other", "rare"]
    assert np.isfinite(machine.cv_results_["mean_test_score"]).all()


def test_folds_that_would_be_fitted_to_one_class_are_left_out():
    y = np.array(["common"] * 89 + ["rare"])
    machine = RFAMClassifierCV(**SMALL, cv=3, random_state=0).fit(X, y)
    assert machine.n_splits_ == 2


def test_rows_without_weight_are_in_no_fold():
    weights = np.where(np.arange(90) < 60, 1.0, 0.0)
    spoiled = NUMBERS + 100 * (weights == 0)
    one = RFAMRegressorCV(**SMALL, cv=3, random_state=0).fit(X, spoiled, weights)
    other = RFAMRegressorCV(**SMALL, cv=3, random_state=0).fit(X[:60], NUMBERS[:60])
    np.testing.assert_allclose(
        one.cv_results_["mean_test_score"],
        other.cv_results_["mean_test_score"],
        rtol=1e-9,
    )


def test_a_number_of_folds_beyond_all_bounds_is_one_for_each_row():
    few = slice(0, 8)
    machine = RFAMRegressorCV(**SMALL, cv=10**400).fit(X[few], NUMBERS[few])
    assert machine.n_splits_ == 8


def test_one_row_cannot_be_divided():
    with pytest.raises(ValueError, match="at least two rows"):
        RFAMRegressorCV().fit([[1.0]], [1.0])


@pytest.mark.parametrize("scoring", ["neg_log_loss", "balanced_accuracy"])
def test_any_scorer_sees_what_a_fresh_fit_would_show_it(scoring):
    splits = list(StratifiedKFold(2).split(X, WORDS))
    machine = RFAMClassifierCV(**SMALL, cv=splits, scoring=scoring, random_state=0)
    machine.fit(X, WORDS)
    scorer = get_scorer(scoring)
    found = plain_loop(RFAMClassifier, splits, WORDS, scorer=scorer, random_state=0)
    agree(machine, found)


def test_probabilities_by_conjugate_gradients_are_scored_as_of_fresh_fits():
    splits = list(KFold(10).split(X))  # 81 rows, of which 64 are left out one by one
    fixed = {"solver": "cg", "random_state": 0}
    machine = RFAMClassifierCV(
        **{**SMALL, "ridges": (1.0,)}, cv=splits[:1], scoring="neg_log_loss", **fixed
    )
    machine.fit(X, WORDS)
    train, test = splits[0]
    scorer = get_scorer("neg_log_loss")
    for params, score in zip(
        machine.cv_results_["params"],
        machine.cv_results_["mean_test_score"],
        strict=True,
    ):
        plain = RFAMClassifier(**params, **fixed).fit(X[train], WORDS[train])
        # conjugate gradients end within their tolerance
        assert score == pytest.approx(scorer(plain, X[test], WORDS[test]), rel=1e-6)


def test_a_scoring_function_sees_the_rows_of_a_frame():
    frame = pd.DataFrame(X, columns=["price", "size", "rooms"])
    weights = np.arange(90) % 3  # every third row is none

    def paid(machine, x, y, sample_weight=None):
        assert x.index.to_numpy() % 3 @ np.ones(len(x)) == sample_weight.sum()
        return float(x["price"][machine.predict(x) == y].sum())

    settings = {**SMALL, "cv": 2, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of names that a machine has not seen
        machine = RFAMClassifierCV(**settings, scoring=paid)
        machine.fit(frame, WORDS, weights)
    assert np.isfinite(machine.best_score_)


def test_a_scoring_function_of_ones_own_is_used():
    def size_of_error(machine, x, y):
        return -float(np.abs(machine.predict(x) - y).max())

    splits = list(KFold(2).split(X))
    machine = RFAMRegressorCV(**SMALL, cv=splits, scoring=size_of_error, random_state=0)
    machine.fit(X, NUMBERS)
    found = plain_loop(
        RFAMRegressor, splits, NUMBERS, scorer=size_of_error, random_state=0
    )
    agree(machine, found)


def test_single_rows_are_scored_by_the_variance_of_all():
    table, y = X[:15], NUMBERS[:15]
    machine = RFAMRegressorCV(
        ridges=(0.1,), identity_weights=(1.0,), n_iter=0, cv=15, random_state=0
    ).fit(table, y)
    errors = []
    for row in range(15):
        rest = np.arange(15) != row
        other = RFAMRegressor(**machine.best_params_).fit(table[rest], y[rest])
        errors.append((other.predict(table[[row]])[0] - y[row]) ** 2)
    assert machine.best_score_ == pytest.approx(1 - np.mean(errors) / y.var())


@pytest.mark.parametrize("scoring", ["neg_log_loss", "roc_auc_ovr"])
def test_a_class_that_a_scorer_cannot_do_without_is_spoken_of(scoring):
    y = np.array(["common"] * 45 + ["other"] * 43 + ["rare"] * 2)
    machine = RFAMClassifierCV(**SMALL, cv=5, scoring=scoring, random_state=0)
    words = r"^RFAMClassifierCV: scoring must be .*, got one that says: .*fewer folds"
    with warnings.catch_warnings():
        # what the ROC curve cannot be made of is a warning and NaN
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        with pytest.raises(ValueError, match=words):
            machine.fit(X, y)


@pytest.mark.parametrize(
    ("scoring", "error"),
    [
        ("roc_auc", ValueError),
        ("precision", ValueError),
        (lambda machine, x, y: "good", ValueError),
        (lambda machine, x, y: {"score": 1.0}, TypeError),
        (lambda machine, x: 1.0, TypeError),
    ],
    ids=["roc_auc", "precision", "text", "dict", "two arguments"],
)
@pytest.mark.parametrize("columns", [1, 2])
def test_no_class_is_said_to_be_missing_where_none_is(scoring, error, columns):
    y = WORDS if columns == 1 else np.stack([WORDS, WORDS[::-1]], axis=1)
    machine = RFAMClassifierCV(**SMALL, cv=2, scoring=scoring, random_state=0)
    words = r"^RFAMClassifierCV: scoring must be .* one that says: .*[^.]\. Call it"
    with pytest.raises(error, match=words) as caught:
        machine.fit(X, y)
    assert "fewer folds" not in str(caught.value)


@pytest.mark.parametrize(
    "scoring", ["neg_log_loss", lambda machine, x, y: machine.accuracy]
)
def test_what_a_machine_does_not_have_for_a_scorer_is_said_in_the_house_form(scoring):
    machine = RFAMRegressorCV(**SMALL, cv=2, scoring=scoring)
    words = "^RFAMRegressorCV: scoring must .*one that says: '?RFAMRegressor'? .* att"
    with pytest.raises(ValueError, match=words):
        machine.fit(X, NUMBERS)


@pytest.mark.parametrize(
    "scoring", ["neg_max_error", lambda machine, x, y: 0.0], ids=["name", "callable"]
)
def test_a_scorer_that_takes_no_weights_is_refused_with_weights(scoring):
    machine = RFAMRegressorCV(**SMALL, cv=2, scoring=scoring)
    words = "RFAMRegressorCV: scoring must be a scorer that takes sample_weight"
    with pytest.raises(TypeError, match=words):
        machine.fit(X, NUMBERS, WEIGHTS)


def test_probabilities_in_parts_are_scored_as_of_fresh_fits():
    splits = list(KFold(2).split(X))
    fixed = {"max_leaf_size": 20, "random_state": 0}
    machine = RFAMClassifierCV(**SMALL, cv=splits, scoring="neg_log_loss", **fixed)
    machine.fit(X, WORDS)
    scorer = get_scorer("neg_log_loss")
    agree(machine, plain_loop(RFAMClassifier, splits, WORDS, scorer=scorer, **fixed))


def test_several_outputs_are_scored_on_average():
    two = np.stack([WORDS, np.where(X[:, 1] > 0, "up", "down")], axis=1)
    splits = list(KFold(2).split(X))
    machine = RFAMClassifierCV(**SMALL, cv=splits, random_state=0).fit(X, two)
    assert machine.predict(X).shape == (90, 2)
    params = machine.best_params_
    scores = []
    for train, test in splits:
        found = RFAMClassifier(**params).fit(X[train], two[train]).predict(X[test])
        scores.append(
            np.mean([accuracy_score(two[test][:, j], found[:, j]) for j in (0, 1)])
        )
    assert machine.best_score_ == pytest.approx(np.mean(scores))
    numbers = np.stack([NUMBERS, X[:, 1]], axis=1)
    machine = RFAMRegressorCV(**SMALL, cv=splits, random_state=0).fit(X, numbers)
    params = machine.best_params_
    scores = [
        r2_score(
            numbers[test],
            RFAMRegressor(**params).fit(X[train], numbers[train]).predict(X[test]),
        )
        for train, test in splits
    ]
    assert machine.best_score_ == pytest.approx(np.mean(scores))


class Broken(Exception):
    """An error of the caller's own."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("price"), "KeyError: 'price'"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (IndexError(), "IndexError"),
        (RuntimeError("no."), "RuntimeError: no"),
        (Broken("mine"), "Broken: mine"),
        (AssertionError(), "AssertionError"),
    ],
    ids=lambda given: type(given).__name__,
)
@pytest.mark.parametrize("where", ["scoring", "cv"])
def test_whatever_the_callers_own_code_raises_is_told_in_the_house_form(
    error, words, where
):
    class Splitter(KFold):
        def split(self, *_):
            raise error

    def scorer(machine, x, y):
        raise error

    own = {"scoring": scorer} if where == "scoring" else {"cv": Splitter(2)}
    machine = RFAMRegressorCV(**{**SMALL, "cv": 2, **own})
    before = dict(vars(machine))
    words = rf"^RFAMRegressorCV: {where} must be .*, got one that says: {words}\."
    with pytest.raises(ValueError, match=words) as caught:
        machine.fit(X, NUMBERS)
    assert caught.value.__cause__ is error
    assert vars(machine) == before


@pytest.mark.parametrize("framed", [False, True])
def test_a_scorer_may_write_to_what_it_is_handed(framed):
    def careful(machine, x, y, sample_weight):
        return r2_score(y, machine.predict(x), sample_weight=sample_weight)

    def careless(machine, x, y, sample_weight):
        score = careful(machine, x, y, sample_weight)
        y[:] = 0.0
        sample_weight[:] = 1.0
        if framed:
            x.loc[:, :] = 0.0
        else:
            x[:] = 0.0
        return score

    table = pd.DataFrame(X, columns=["a", "b", "c"]) if framed else X.copy()
    found, wanted = (
        RFAMRegressorCV(**SMALL, cv=2, scoring=scoring, random_state=0)
        .fit(table, NUMBERS, WEIGHTS)
        .cv_results_["mean_test_score"]
        for scoring in (careless, careful)
    )
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(table, X)


def test_a_metric_made_a_scorer_may_write_to_its_arguments():
    def careless(y, found):
        score = r2_score(y, found)
        y[:] = 0.0
        return score

    found, wanted = (
        RFAMRegressorCV(**SMALL, cv=2, scoring=make_scorer(metric), random_state=0)
        .fit(X, NUMBERS)
        .cv_results_["mean_test_score"]
        for metric in (careless, r2_score)
    )
    np.testing.assert_array_equal(found, wanted)


def test_a_scorer_is_handed_a_machine_as_a_fit_that_ended_there_leaves_it():
    seen = []

    def looks(machine, x, y):
        plain = RFAMClassifier(**machine.get_params()).fit(machine.X_fit_, known[0])
        assert machine.n_iter_ == machine.n_iter == plain.n_iter_
        for name in ("metric_", "dual_coef_", "feature_importances_", "intercept_"):
            np.testing.assert_allclose(
                getattr(machine, name), getattr(plain, name), rtol=1e-7, atol=1e-9
            )
        learned = [name for name in vars(plain) if name.endswith("_")]
        assert all(hasattr(machine, name) for name in learned)
        np.testing.assert_allclose(
            as_torch(machine)(torch.as_tensor(x)), plain.decision_function(x), atol=1e-7
        )
        again = pickle.loads(pickle.dumps(machine))
        np.testing.assert_allclose(again.predict_proba(x), plain.predict_proba(x))
        copied = clone(machine).fit(x, y)
        assert np.isfinite(copied.temperature_)
        seen.append(machine.n_iter_)
        return machine.score(x, y) - 0.01 * machine.n_iter_

    half = np.arange(len(X)) % 2 == 0
    known = [WORDS[half]]
    RFAMClassifierCV(
        ridges=(0.1,), identity_weights=(0.3,), n_iter=2, scoring=looks,
        cv=[(np.flatnonzero(half), np.flatnonzero(~half))],
    ).fit(X, WORDS)  # fmt: skip
    assert seen == [0, 1, 2]


@pytest.mark.parametrize(
    "scoring", ["neg_log_loss", lambda machine, x, y: -machine.jacobian(x).std()]
)
def test_it_scores_as_it_was_told_to_choose(scoring):
    machine = RFAMClassifierCV(**SMALL, cv=2, random_state=0, scoring=scoring)
    machine.fit(X, WORDS)
    plain = RFAMClassifier(**machine.best_params_).fit(X, WORDS)
    wanted = -plain.jacobian(X).std()
    if isinstance(scoring, str):
        wanted = -log_loss(WORDS, plain.predict_proba(X))
    assert machine.score(X, WORDS) == pytest.approx(wanted, rel=1e-6)
    default = RFAMClassifierCV(**SMALL, cv=2, random_state=0).fit(X, WORDS)
    assert default.score(X, WORDS) == (default.predict(X) == WORDS).mean()


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
