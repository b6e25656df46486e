import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import skops.io
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import config_context
from sklearn.base import clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from normalign.estimators import (
    RFAMClassifier,
    RFAMClassifierCV,
    RFAMRegressor,
    RFAMRegressorCV,
    RFMClassifier,
    RFMRegressor,
    as_torch,
)
from normalign.geometry import local_affine
from tests.estimators.samples import (
    CLASSIFIERS,
    CODES,
    ESTIMATORS,
    FRESH,
    NUMBERS,
    REGRESSORS,
    WORDS,
    N,
    X,
    answers,
)


@parametrize_with_checks([kind() for kind in ESTIMATORS])
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)


@pytest.mark.full
@parametrize_with_checks(
    [RFAMClassifier(max_leaf_size=10), RFMRegressor(max_leaf_size=10)]
)
def test_scikit_learn_finds_nothing_wrong_with_machines_of_parts(estimator, check):
    check(estimator)


@given(
    st.sampled_from(ESTIMATORS),
    st.lists(st.integers(0, 3), min_size=12, max_size=12),
    st.integers(0, 2**31),
)
def test_weights_are_repetitions(kind, weights, seed):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(12, 3))
    y = np.arange(12) % 3 if kind in CLASSIFIERS else rng.normal(size=12)
    weights = np.array(weights)
    if len(np.unique(y[weights > 0])) < 2:
        return
    weighted = kind().fit(table, y, sample_weight=weights)
    repeated = kind().fit(table.repeat(weights, axis=0), y.repeat(weights))
    name = "predict_proba" if kind in CLASSIFIERS else "predict"
    fresh = rng.normal(size=(6, 3))
    # the condition of K + ridge, about 1e5, times the rounding of six solves
    np.testing.assert_allclose(
        getattr(weighted, name)(fresh), getattr(repeated, name)(fresh), atol=1e-8
    )
    np.testing.assert_allclose(weighted.metric_, repeated.metric_, atol=1e-8)
    np.testing.assert_allclose(
        weighted.feature_importances_, repeated.feature_importances_, atol=1e-8
    )


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_fractional_weights_scale_the_ridge(kind):
    y = answers(kind)
    halved = kind(n_iter=0).fit(X, y, sample_weight=np.full(N, 0.5))
    doubled = kind(n_iter=0, ridge=2e-3).fit(X, y)
    np.testing.assert_allclose(halved.dual_coef_, doubled.dual_coef_, rtol=1e-8)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_it_stands_in_pipelines_searches_and_cross_validation(kind):
    y = answers(kind)
    name = kind.__name__.lower()
    pipeline = make_pipeline(StandardScaler(), kind(n_iter=1))
    search = GridSearchCV(pipeline, {f"{name}__ridge": [1e-3, 10.0]}, cv=3)
    search.fit(100 * X, y)
    assert search.best_params_ == {f"{name}__ridge": 1e-3}
    assert cross_val_score(pipeline, X, y, cv=3).mean() > 0.5
    assert clone(search.best_estimator_).get_params() is not None


@pytest.mark.parametrize("kind", REGRESSORS)
def test_several_targets_share_a_metric_and_keep_their_shape(kind):
    targets = np.stack([NUMBERS, X[:, 2], np.full(N, 3.0)], axis=1)
    machine = kind(n_iter=2).fit(X, targets)
    assert machine.predict(FRESH).shape == (15, 3)
    assert machine.jacobian(FRESH).shape == (15, 3, 4)
    np.testing.assert_allclose(machine.predict(FRESH)[:, 2], 3.0)
    assert kind().fit(X, targets[:, :1]).predict(FRESH).shape == (15, 1)
    apart = kind(n_iter=0).fit(X, targets).predict(FRESH)[:, 1]
    alone = kind(n_iter=0).fit(X, targets[:, 1]).predict(FRESH)
    np.testing.assert_allclose(apart, alone, rtol=1e-9)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_several_label_columns_are_answered_as_trees_answer_them(kind):
    labels = np.stack([WORDS, np.where(X[:, 2] > 0, "up", "down")], axis=1)
    tree = RandomForestClassifier(n_estimators=2).fit(X, labels)
    machine = kind(n_iter=1).fit(X, labels)
    assert [list(c) for c in machine.classes_] == [list(c) for c in tree.classes_]
    assert machine.predict(FRESH).shape == tree.predict(FRESH).shape == (15, 2)
    found = machine.predict_proba(FRESH)
    assert [p.shape for p in found] == [p.shape for p in tree.predict_proba(FRESH)]
    for j in range(2):
        likeliest = machine.classes_[j][found[j].argmax(axis=1)]
        np.testing.assert_array_equal(likeliest, machine.predict(FRESH)[:, j])
    assert machine.jacobian(FRESH).shape == (15, 5, 4)
    assert not hasattr(machine, "decision_function")
    assert not hasattr(tree, "decision_function")
    # of one column alone it is there again
    assert machine.fit(X, WORDS).decision_function(FRESH).shape == (15, 3)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_two_classes_have_one_decision_value_whose_sign_decides(kind):
    machine = kind().fit(X, NUMBERS > 0)
    decision = machine.decision_function(FRESH)
    assert decision.shape == (15,)
    np.testing.assert_array_equal(machine.predict(FRESH), decision > 0)
    jacobian = machine.jacobian(FRESH)
    assert jacobian.shape == (15, 2, 4)
    # with centred indicators the two outputs sum to one everywhere
    np.testing.assert_allclose(jacobian.sum(axis=1), 0, atol=1e-9)


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("max_leaf_size", [None, 25])
def test_the_state_is_plain_and_survives_pickling_copying_and_skops(
    kind, max_leaf_size
):
    machine = kind(n_iter=1, max_leaf_size=max_leaf_size, random_state=0)
    machine.fit(pd.DataFrame(X, columns=list("abcd")), answers(kind))
    fresh = pd.DataFrame(FRESH, columns=list("abcd"))
    wanted = machine.predict(fresh)
    dumped = skops.io.dumps(machine)
    strange = skops.io.get_untrusted_types(data=dumped)
    assert strange == [f"{kind.__module__}.{kind.__name__}"]
    for again in (
        pickle.loads(pickle.dumps(machine)),
        copy.deepcopy(machine),
        skops.io.loads(dumped, trusted=strange),
    ):
        assert not any(isinstance(v, torch.Tensor) for v in vars(again).values())
        np.testing.assert_array_equal(again.predict(fresh), wanted)
        np.testing.assert_array_equal(again.jacobian(fresh), machine.jacobian(fresh))
        assert list(again.feature_names_in_) == list("abcd")


def test_a_machine_from_a_gpu_answers_on_a_machine_without_one():
    machine = RFMClassifier().fit(X, WORDS)
    state = pickle.loads(pickle.dumps(machine))
    if not torch.cuda.is_available():
        state.device_ = "cuda:0"
    np.testing.assert_allclose(state.predict_proba(FRESH), machine.predict_proba(FRESH))


@pytest.mark.parametrize("kind", [*ESTIMATORS, RFAMClassifierCV, RFAMRegressorCV])
def test_wrong_calls_are_refused_in_the_name_of_the_class_that_was_called(kind):
    words = rf"^{kind.__name__}\.__init__\(\) got an unexpected .*'width'"
    with pytest.raises(TypeError, match=words):
        kind(width=1.0)
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.__init__\(\) takes 1"):
        kind("laplace")
    with pytest.raises(ValueError, match=rf"'width' for estimator {kind.__name__}\("):
        kind().set_params(width=1.0)
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.fit\(\) missing .*'y'"):
        kind().fit(X)
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.predict\(\) got an"):
        kind().predict(X, return_std=True)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_subclass_may_have_a_constructor_of_its_own(kind):
    class Narrow(kind):
        def __init__(self, *, ridge=0.5, note=""):
            super().__init__(ridge=ridge, bandwidth=2.0, n_iter=1)
            self.note = note

    machine = clone(Narrow(note="mine")).fit(X, answers(kind))
    plain = kind(ridge=0.5, bandwidth=2.0, n_iter=1).fit(X, answers(kind))
    np.testing.assert_array_equal(machine.predict(FRESH), plain.predict(FRESH))
    assert set(machine.get_params()) == {"ridge", "note"}


def test_a_parameter_of_a_subclass_may_end_like_what_is_learned():
    class Other(RFMRegressor):
        def __init__(self, *, lambda_=0.5):
            super().__init__(ridge=lambda_, n_iter=0)
            self.lambda_ = lambda_

    machine = Other().fit(X, NUMBERS)
    machine.fit(X[:, :2], NUMBERS)
    assert clone(machine).lambda_ == machine.lambda_ == 0.5


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_an_unfitted_machine_says_so(kind):
    for name in ("predict", "jacobian"):
        with pytest.raises(NotFittedError):
            getattr(kind(), name)(FRESH)


def test_integer_and_boolean_labels_come_back_as_they_were():
    assert RFMClassifier().fit(X, CODES).predict(FRESH).dtype == CODES.dtype
    assert RFMClassifier().fit(X, CODES > 1).predict(FRESH).dtype == bool
    assert RFMClassifier().fit(X, pd.Series(WORDS)).predict(FRESH)[0] in WORDS


@pytest.mark.parametrize("labels", [CODES > 1, CODES, CODES.astype(float), WORDS])
def test_labels_that_are_objects_are_fitted_and_scored_as_what_they_are(labels):
    plain = RFMClassifier(n_iter=0).fit(X, labels)
    objects = labels.astype(object)
    machine = RFMClassifier(n_iter=0).fit(X, objects)
    assert machine.score(X, objects) == plain.score(X, labels)
    np.testing.assert_array_equal(machine.predict(FRESH), plain.predict(FRESH))


@pytest.mark.parametrize(
    "labels",
    [
        np.stack([CODES, CODES + 1], axis=1),
        np.stack([WORDS, WORDS], axis=1),
        pd.DataFrame({"a": WORDS, "b": CODES, "c": CODES > 0}),
    ],
    ids=["integers", "texts", "mixed"],
)
def test_several_label_columns_have_no_accuracy_but_indicators_do(labels):
    machine = RFMClassifier(n_iter=0).fit(X, labels)
    words = r"^RFMClassifier: y must be one column of .*, got . label columns. Comp"
    with pytest.raises(ValueError, match=words):
        machine.score(X, labels)
    ones = (np.asarray(CODES)[:, None] == [0, 1]).astype(int)
    assert 0 < RFMClassifier(n_iter=0).fit(X, ones).score(X, ones) <= 1


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize(
    ("y", "words"),
    [
        (None, "given, got None"),
        (np.zeros(3), "as long as X, which has 60 rows, got 3 targets"),
        (np.full(N, np.nan), "got 60 "),
        (np.full(N, 1j), "got an array of complex128"),
    ],
    ids=["None", "short", "missing", "complex"],
)
def test_answers_that_cannot_be_scored_are_refused_in_the_house_form(kind, y, words):
    machine = kind(n_iter=0).fit(X, answers(kind))
    with pytest.raises(ValueError, match=f"^{kind.__name__}: y must be .*{words}"):
        machine.score(X, y)


@pytest.mark.parametrize(
    "labels",
    [
        1e20 * CODES,
        CODES.astype("M8[D]"),
        CODES.astype("m8[s]"),
        CODES.astype(">i4"),
        CODES[:, None],
        WORDS.astype(object),
    ],
    ids=["large", "dates", "durations", "foreign", "column", "texts"],
)
@pytest.mark.filterwarnings("ignore:A column-vector y")
def test_what_can_be_fitted_can_be_scored(labels):
    machine = RFMClassifier(n_iter=0, ridge=1.0).fit(X, labels)
    right = machine.predict(X) == labels.ravel()
    assert machine.score(X, labels) == right.mean()
    assert 0 < right.mean() < 1
    weights = np.arange(N) + 1.0
    assert machine.score(X, labels, weights) == np.average(right, weights=weights)
    assert machine.score(torch.as_tensor(X), labels) == right.mean()
    assert machine.score(X[~right], labels[~right]) == 0.0


def test_accuracies_are_those_of_scikit_learn():
    ones = (CODES[:, None] == [0, 1]).astype(int)
    weights = np.arange(N) + 1.0
    for labels in (WORDS, CODES > 1, ones):
        machine = RFMClassifier(n_iter=0, ridge=1.0).fit(X, labels)
        for mass in (None, weights):
            wanted = accuracy_score(labels, machine.predict(X), sample_weight=mass)
            assert machine.score(X, labels, mass) == pytest.approx(wanted, rel=1e-15)


@pytest.mark.parametrize(
    ("fitted", "asked"),
    [(WORDS, CODES), (CODES, WORDS), (CODES > 1, CODES.astype("M8[D]"))],
    ids=["texts", "integers", "booleans"],
)
def test_labels_of_another_kind_are_not_scored_as_wrong(fitted, asked):
    machine = RFMClassifier(n_iter=0).fit(X, fitted)
    words = "^RFMClassifier: y must be labels like those of fit, got a"
    with pytest.raises(ValueError, match=words):
        machine.score(X, asked)
    with pytest.raises(ValueError, match=words):
        machine.score(X, (CODES[:, None] == [0, 1]).astype(int))


def test_label_columns_of_different_kinds_come_back_as_they_were():
    labels = pd.DataFrame({"code": CODES, "word": WORDS})
    machine = RFMClassifier(n_iter=0, ridge=1e-6).fit(X, labels)
    found = machine.predict(X)
    assert found.tolist() == labels.to_numpy().tolist()
    assert {type(value) for value in found[:, 0]} == {int}


def test_parts_may_be_of_one_row():
    machine = RFMRegressor(max_leaf_size=1, n_iter=0, random_state=0)
    assert machine.fit(X[:12], NUMBERS[:12]).score(X[:12], NUMBERS[:12]) > 0.99


def test_one_against_the_rest_has_a_torch_form_too():
    fitted = OneVsRestClassifier(RFMClassifier(n_iter=1)).fit(X, WORDS)
    found = as_torch(fitted)(torch.as_tensor(FRESH)).detach()
    np.testing.assert_allclose(found, fitted.decision_function(FRESH), atol=1e-7)


@pytest.mark.parametrize("kernel", ["laplace", "gaussian", "product_laplace"])
@pytest.mark.parametrize("diagonal", [False, True])
def test_a_machine_of_parts_has_a_torch_form_too(kernel, diagonal):
    fitted = RFAMClassifier(
        kernel=kernel, diagonal=diagonal, max_leaf_size=25, n_iter=1, random_state=0
    ).fit(5 * X + 2, WORDS)
    rows = 5 * FRESH + 2
    gates = [len(visit.rows) for visit in fitted._model()[0].tree.visits(
        torch.as_tensor((rows - fitted.location_) / fitted.unit_))]  # fmt: skip
    assert sum(gates) > len(rows)  # some are inside of bands
    found = local_affine(as_torch(fitted), torch.as_tensor(rows))
    np.testing.assert_allclose(found.output, fitted.decision_function(rows), atol=1e-7)
    np.testing.assert_allclose(found.jacobian, fitted.jacobian(rows), atol=1e-6)


def test_a_table_that_cannot_be_cut_has_a_torch_form_too():
    same = np.ones((12, 2))
    fitted = RFMRegressor(max_leaf_size=5).fit(same, NUMBERS[:12])
    assert len(fitted.leaves_["offsets"]) == 2
    found = as_torch(fitted)(torch.as_tensor(same[:2]))[:, 0]
    np.testing.assert_allclose(found, fitted.predict(same[:2]), atol=1e-7)


def test_a_machine_of_several_labels_has_no_torch_form():
    labels = np.stack([WORDS, WORDS], axis=1)
    with pytest.raises(ValueError, match="one label per sample"):
        as_torch(RFMClassifier(n_iter=0).fit(X, labels))


def test_a_scaler_and_a_machine_become_one_torch_module():
    pipeline = make_pipeline(StandardScaler(), RFAMRegressor(kernel="product_laplace"))
    pipeline.fit(5 * X + 2, NUMBERS)
    found = as_torch(pipeline)(torch.as_tensor(5 * FRESH + 2))
    np.testing.assert_allclose(found[:, 0], pipeline.predict(5 * FRESH + 2), atol=1e-8)


def test_sample_weights_reach_a_machine_through_metadata_routing():
    with config_context(enable_metadata_routing=True):
        machine = RFMRegressor(n_iter=0).set_fit_request(sample_weight=True)
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        pipeline = make_pipeline(scaler, machine)
        first = pipeline.fit(X, NUMBERS, sample_weight=np.arange(N) < 30)
    assert len(first[-1].X_fit_) == 30


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"solver": "cg"},
        {"kernel": "product_laplace"},
        {"bandwidth_rule": "median", "bandwidth": 1.0},
        {"validation_fraction": 0.2, "random_state": 0},
        {"max_leaf_size": 20, "random_state": 0},
        {"max_leaf_size": 20, "validation_fraction": 0.2, "random_state": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [RFMClassifier, RFMRegressor])
def test_a_default_device_of_torch_is_none_of_ours(kind, settings):
    y = WORDS if kind is RFMClassifier else NUMBERS
    wanted = kind(n_iter=1, **settings).fit(X, y).jacobian(FRESH)
    with torch.device("meta"):  # which keeps no values, so that nothing may go there
        machine = kind(n_iter=1, **settings).fit(X, y)
        machine.predict(FRESH)
        found = machine.jacobian(FRESH)
        placed = machine.transform(FRESH)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(placed, machine.transform(FRESH))
