"""Who scores: what is seen, and what is said of it."""

from __future__ import annotations

import pickle
import warnings

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
from sklearn.model_selection import KFold, StratifiedKFold

from normalign.estimators import RFAMClassifier, RFAMRegressor, as_torch
from normalign.estimators._search import RFAMClassifierCV, RFAMRegressorCV
from tests.estimators.search.cases import (
    NUMBERS,
    SMALL,
    WEIGHTS,
    WORDS,
    X,
    agree,
    plain_loop,
)


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
