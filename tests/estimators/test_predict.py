"""The learned distance for other models: `transform`, and frames made of it."""

from __future__ import annotations

import pickle
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import cdist
from sklearn import config_context
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import normalign as na
from normalign.estimators import (
    RFAMClassifier,
    RFAMClassifierCV,
    RFAMRegressor,
    RFMClassifier,
    RFMRegressor,
    as_torch,
)
from normalign.estimators._predict import probabilities, temperature
from normalign.kernels import KERNELS, kernel_matrix
from normalign.robustness import masking_report, minimal_radius, pgd
from tests.estimators.samples import CODES, FRESH, WORDS
from tests.estimators.samples import X as SAMPLE_X

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)) + np.array([0.0, 5.0, -3.0, 100.0])
Y = np.sign(X[:, 0] * (X[:, 1] - 5))
NAMES = ["a", "b", "c", "d"]
FRAME = pd.DataFrame(X, columns=NAMES, index=range(100, 160))


@pytest.mark.parametrize("kernel", ["laplace", "gaussian", "product_laplace"])
@pytest.mark.parametrize(
    "settings", [{}, {"diagonal": True}, {"max_leaf_size": 40}, {"n_iter": 0}]
)
def test_plain_distances_of_the_placed_are_those_of_the_kernel(kernel, settings):
    machine = RFMRegressor(kernel=kernel, dtype="float64", random_state=0, **settings)
    placed = machine.fit(X, Y).transform(X)
    bandwidth = machine.bandwidth_
    flat = "cityblock" if kernel == "product_laplace" else "euclidean"
    apart = cdist(placed, placed, flat) / bandwidth
    expected = np.exp(-(apart**2) / 2 if kernel == "gaussian" else -apart)
    points = torch.tensor(X - machine.location_)
    found = kernel_matrix(
        points, points, KERNELS[kernel](bandwidth=bandwidth),
        metric=torch.tensor(machine.metric_, dtype=torch.float64),
    ).numpy()  # fmt: skip
    # roots of squares: half of the digits, where rows are near each other
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_columns_are_stretched_by_what_matters():
    machine = RFAMClassifier(diagonal=True).fit(X, Y)
    spread = machine.transform(X).std(axis=0)
    np.testing.assert_allclose(
        spread**2 / (spread**2).sum(), machine.feature_importances_, rtol=1e-6
    )


def test_frames_come_back_with_their_names_and_rows():
    machine = RFAMClassifier().set_output(transform="pandas").fit(FRAME, Y)
    found = machine.transform(FRAME)
    assert list(found.columns) == NAMES
    assert found.index.equals(FRAME.index)
    assert isinstance(machine.predict(FRAME), np.ndarray)  # of answers nothing is said
    with config_context(transform_output="pandas"):
        assert isinstance(RFAMClassifier().fit_transform(FRAME, Y), pd.DataFrame)
    assert isinstance(RFAMClassifier().fit_transform(FRAME, Y), np.ndarray)


def test_a_whole_pipeline_makes_frames_and_still_answers():
    mixed = FRAME.assign(word=np.where(Y > 0, "up", "down"), flag=X[:, 2] > -3)
    pipeline = na.make_tabular_pipeline(RFAMClassifier())
    plain = pipeline.fit(mixed, Y).predict(mixed)
    pipeline.set_output(transform="pandas").fit(mixed, Y)
    np.testing.assert_array_equal(pipeline.predict(mixed), plain)
    names = list(pipeline[:-1].get_feature_names_out())
    assert list(pipeline["machine"].feature_names_in_) == names
    found = pipeline.transform(mixed)
    assert isinstance(found, pd.DataFrame)
    assert list(found.columns) == names


def test_tensors_and_precisions_come_back_as_they_were():
    machine = RFAMClassifier().fit(X, Y)
    single = machine.transform(torch.tensor(X, dtype=torch.float32))
    assert isinstance(single, torch.Tensor)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), machine.transform(X), atol=1e-4)


def test_neighbours_see_what_the_machine_has_learned():
    rows = RNG.normal(size=(600, 8))
    labels = rows[:, 0] * rows[:, 1] > 0  # six columns are noise
    inside = RFAMClassifierCV(identity_weights=(1.0,), ridges=(0.1,), random_state=0)
    helped = make_pipeline(inside, KNeighborsClassifier(7))
    helped.fit(rows[:400], labels[:400])
    alone = KNeighborsClassifier(7).fit(rows[:400], labels[:400])
    gain = helped.score(rows[400:], labels[400:]) - alone.score(
        rows[400:], labels[400:]
    )
    assert gain > 0.1


def test_an_unfitted_machine_places_nothing():
    with pytest.raises(NotFittedError):
        RFAMClassifier().transform(X)


def drawn(n, k, factor, seed=0):
    """Outputs, and labels drawn from the softmax of a multiple of them."""
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(n, k))
    chances = probabilities(outputs, factor)
    codes = np.array([rng.choice(k, p=row) for row in chances])
    return outputs, codes


@pytest.mark.parametrize("factor", [0.5, 2.0, 8.0])
def test_the_temperature_that_made_the_labels_is_found(factor):
    outputs, codes = drawn(4000, 3, factor)
    # the relative error of a maximum-likelihood factor here is about 2/sqrt(4000)
    found = temperature(outputs, np.eye(3)[codes])
    assert found == pytest.approx(factor, rel=0.15)


def test_it_is_the_minimum_of_the_smoothed_log_loss():
    outputs, codes = drawn(80, 4, 3.0)
    smoothing = 1 / 82
    wanted = (1 - smoothing) * np.eye(4)[codes] + smoothing / 4

    def loss(log_factor):
        return -(wanted * np.log(probabilities(outputs, np.exp(log_factor)))).sum()

    least = minimize_scalar(loss, bounds=(-5, 5), options={"xatol": 1e-10})
    found = temperature(outputs, np.eye(4)[codes])
    # a minimum is flat: half the digits of its value
    assert np.log(found) == pytest.approx(least.x, abs=1e-6)


@given(st.integers(0, 2**31), st.integers(2, 5))
def test_weights_are_repetitions(seed, k):
    rng = np.random.default_rng(seed)
    outputs, codes = rng.normal(size=(12, k)), rng.integers(0, k, size=12)
    weights = rng.integers(1, 4, size=12)
    weighted = temperature(outputs, np.eye(k)[codes], weights=weights)
    repeated = temperature(
        outputs.repeat(weights, axis=0), np.eye(k)[codes.repeat(weights)]
    )
    assert weighted == pytest.approx(repeated, rel=1e-9)


def test_outputs_that_are_wrong_or_equal_get_no_certainty():
    wrong = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert temperature(wrong, wrong[::-1]) == 0.01
    assert temperature(np.ones((3, 2)), np.eye(2)[[0, 1, 1]]) == 1.0


def test_outputs_that_are_right_by_a_hair_are_not_blown_up_without_end():
    assert temperature(1e-9 * np.eye(2), np.eye(2)) == 1e4


def test_few_rows_without_a_mistake_do_not_make_it_sure():
    right = np.eye(2)[[0, 1, 0, 1]]
    sure = probabilities(right, temperature(right, right)).max()
    # Platt's rule: with four rows about (4 + 1) / (4 + 2) and a half of the rest
    assert sure == pytest.approx(1 - 1 / 12, rel=1e-6)


def test_probabilities_are_better_than_shares_and_than_the_outputs_clipped():
    machine = RFMClassifier().fit(SAMPLE_X, WORDS)
    rng = np.random.default_rng(5)
    fresh = rng.normal(size=(300, 4))
    numbers = np.sin(2 * fresh[:, 0]) + 0.3 * fresh[:, 1]
    reference = np.sin(2 * SAMPLE_X[:, 0]) + 0.3 * SAMPLE_X[:, 1]
    codes = np.digitize(numbers, np.quantile(reference, [1 / 3, 2 / 3]))
    found = log_loss(codes, machine.predict_proba(fresh), labels=[0, 1, 2])
    clipped = machine.decision_function(fresh).clip(1e-3)
    clipped /= clipped.sum(axis=1, keepdims=True)
    assert found < 0.8 * np.log(3)
    assert found < log_loss(codes, clipped, labels=[0, 1, 2])


def test_the_temperature_comes_from_machines_without_each_row():
    settings = {"n_iter": 0, "center": False}
    machine = RFMClassifier(**settings).fit(SAMPLE_X, WORDS)
    left_out = []
    for i in range(len(SAMPLE_X)):
        others = np.arange(len(SAMPLE_X)) != i
        part = RFMClassifier(**settings).fit(SAMPLE_X[others], WORDS[others])
        left_out.append(part.decision_function(SAMPLE_X[[i]])[0])
    wanted = temperature(np.array(left_out), np.eye(3)[CODES])
    assert machine.temperature_ == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("labels", [WORDS, WORDS == "ant"])
def test_the_likeliest_class_is_the_predicted_one(labels):
    machine = RFMClassifier().fit(SAMPLE_X, labels)
    likeliest = machine.classes_[machine.predict_proba(FRESH).argmax(axis=1)]
    np.testing.assert_array_equal(likeliest, machine.predict(FRESH))


def test_who_is_strict_about_underflow_gets_the_same_probabilities():
    wanted = RFMClassifier(n_iter=1).fit(SAMPLE_X, WORDS).predict_proba(SAMPLE_X)
    with np.errstate(all="raise"):
        found = RFMClassifier(n_iter=1).fit(SAMPLE_X, WORDS).predict_proba(SAMPLE_X)
    np.testing.assert_array_equal(found, wanted)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(probabilities(np.eye(2), 1e4), np.eye(2))


PULL_BACK_NAMES = np.array(["ant", "bee", "cat"])


def table(n=90, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)) * [1, 10, 0.1, 1] + 5


def classes(X, k=3):
    return np.digitize(X[:, 0], [5.0, 5.7][: k - 1])


def fitted(k=3, **settings):
    X = table()
    model = RFAMClassifier(identity_weight=0.5, n_iter=1, dtype="float64", **settings)
    return model.fit(X, PULL_BACK_NAMES[classes(X, k)]), X


def new_rows(n=7):
    return torch.from_numpy(table(n, seed=1))


def weighted(values):
    """A cotangent that differs from row to row, and knows which rows it is asked."""
    return lambda outputs, rows: values[rows] * outputs


@pytest.mark.parametrize("k", [2, 3])
def test_outputs_and_gradients_are_those_of_predictions_and_jacobians(k):
    model, _ = fitted(k)
    x = new_rows()
    fixed = torch.linspace(-1, 1, 7 * k, dtype=torch.float64).view(7, k)
    outputs, gradient = model.pull_back(x, weighted(fixed))
    assert outputs.shape == (7, k)
    assert np.array_equal(
        model.classes_[outputs.argmax(1).numpy()], model.predict(x.numpy())
    )
    jacobian = torch.as_tensor(model.jacobian(x.numpy()))
    expected = torch.einsum("nkd,nk->nd", jacobian, fixed * outputs)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)


def test_two_classes_are_two_outputs_whose_difference_decides():
    model, _ = fitted(2)
    x = new_rows()
    outputs, _ = model.pull_back(x, lambda found, rows: found)
    decided = torch.as_tensor(model.decision_function(x.numpy()))
    torch.testing.assert_close(outputs[:, 1] - outputs[:, 0], decided)


def test_the_gradient_is_in_the_callers_units():
    # By central differences, whose error is a thousandth of the widest column's step.
    model, _ = fitted()
    x, step = new_rows(), 1e-5

    def total(points):
        return model.pull_back(points, lambda found, _: found)[0].square().sum(1) / 2

    _, gradient = model.pull_back(x, lambda found, rows: found)
    for axis in range(4):
        shift = step * torch.eye(4, dtype=torch.float64)[axis]
        slope = (total(x + shift) - total(x - shift)) / (2 * step)
        torch.testing.assert_close(gradient[:, axis], slope, rtol=1e-4, atol=1e-6)


def test_a_regressor_pulls_back_its_targets():
    X = table()
    model = RFAMRegressor(n_iter=1, dtype="float64").fit(X, 1000 * X[:, 0])
    outputs, gradient = model.pull_back(new_rows(), lambda f, _: torch.ones_like(f))
    predicted = torch.as_tensor(model.predict(new_rows().numpy()))
    torch.testing.assert_close(outputs[:, 0], predicted)
    jacobian = torch.as_tensor(model.jacobian(new_rows().numpy()))
    torch.testing.assert_close(gradient, jacobian.view_as(gradient))


def test_a_machine_in_leaves_pulls_back_through_their_blend():
    X = table(400)
    y = PULL_BACK_NAMES[classes(X)]
    model = RFAMClassifier(n_iter=1, max_leaf_size=128, dtype="float64").fit(X, y)
    assert len(model.leaves_["offsets"]) > 2
    x = new_rows()
    fixed = torch.linspace(-1, 1, 21, dtype=torch.float64).view(7, 3)
    outputs, gradient = model.pull_back(x, weighted(fixed))
    assert np.array_equal(
        model.classes_[outputs.argmax(1).numpy()], model.predict(x.numpy())
    )
    jacobian = torch.as_tensor(model.jacobian(x.numpy()))
    expected = torch.einsum("nkd,nk->nd", jacobian, fixed * outputs)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)
    attack = pgd(model, X[:20], y[:20], radii=[0.0])
    assert attack.accuracy == model.score(X[:20], y[:20])


def test_answers_are_float64_whatever_the_precision_of_either():
    X = table()
    model = RFMClassifier(n_iter=0, dtype="float32").fit(X, classes(X))
    seen = []

    def cotangent(outputs, rows):
        seen.append(outputs.dtype)
        return outputs

    found = model.pull_back(new_rows().float(), cotangent)
    assert {part.dtype for part in found} == set(seen) == {torch.float64}


def test_nothing_is_recorded_and_the_rows_are_left_alone():
    model, _ = fitted()
    x = new_rows().requires_grad_()
    before = x.detach().clone()
    outputs, gradient = model.pull_back(x, lambda found, rows: found)
    assert not outputs.requires_grad
    assert not gradient.requires_grad
    assert torch.equal(x, before)
    assert x.grad is None


def test_what_was_fitted_elsewhere_pulls_back_here():
    model, _ = fitted()
    expected = model.pull_back(new_rows(), lambda found, rows: found)
    loaded = pickle.loads(pickle.dumps(model))
    assert not hasattr(loaded, "_machine")
    if not torch.cuda.is_available():
        loaded.device_ = "cuda"  # as if from a machine with one
    found = loaded.pull_back(new_rows(), lambda found, rows: found)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "settings", [{}, {"max_leaf_size": 30}], ids=["whole", "parts"]
)
def test_a_machine_that_is_a_map_of_a_file_answers_without_a_warning(
    tmp_path, settings
):
    model, X = fitted(**settings)
    joblib.dump(model, tmp_path / "model.joblib")
    mapped = joblib.load(tmp_path / "model.joblib", mmap_mode="r")
    assert not mapped.location_.flags.writeable
    frozen = X.copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = mapped.pull_back(new_rows(), lambda found, rows: found)
        as_torch(mapped)(new_rows())
        mapped.jacobian(X)
        pgd(mapped, frozen, model.predict(X), radii=0.1, low=frozen.min(0))
    expected = model.pull_back(new_rows(), lambda found, rows: found)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_an_attack_ends_where_the_estimator_itself_is_wrong():
    model, X = fitted(2)
    y = PULL_BACK_NAMES[classes(X, 2)]
    attack = pgd(model, X, y, radii=[0.5], loss="margin", keep="best")
    wrong = model.predict(attack.points[0].numpy()) != y
    assert np.array_equal(wrong, attack.broken[0].numpy())
    assert wrong.mean() > 0


def test_a_pipeline_is_refused_and_its_last_step_taken():
    X = table()
    y = PULL_BACK_NAMES[classes(X)]
    pipeline = make_pipeline(StandardScaler(), RFAMClassifier(n_iter=0)).fit(X, y)
    with pytest.raises(TypeError, match=r"got Pipeline\. .*pipeline\[:-1\].transform"):
        pgd(pipeline, X, y, radii=0.1)
    with pytest.raises(
        TypeError, match=r"^masking_report: .* masking_report\(pipeline\["
    ):
        masking_report(pipeline, X, y, radii=0.1)
    seen = pipeline[:-1].transform(X)
    attack = pgd(pipeline[-1], seen, y, radii=0.1)
    assert attack.accuracy == pipeline.score(X, y)


def test_an_estimator_without_gradients_points_to_its_torch_form():
    X = table()
    codes = classes(X)
    model = LogisticRegression(max_iter=1000).fit(X, PULL_BACK_NAMES[codes])
    words = (
        r"^pgd: model must be callable, .*, got LogisticRegression\. "
        r"Pass normalign\.estimators\.as_torch\(model\)"
    )
    with pytest.raises(TypeError, match=words):
        pgd(model, X, PULL_BACK_NAMES[codes], radii=0.1)
    rows = torch.as_tensor(X)
    attack = pgd(as_torch(model), rows, codes, radii=0.1)
    assert attack.accuracy == model.score(X, PULL_BACK_NAMES[codes])


@pytest.mark.parametrize("attacked", [pgd, minimal_radius, masking_report])
def test_an_attack_needs_a_classifier_of_one_label(attacked):
    X = table()
    size = {"max_radius": 1.0} if attacked is minimal_radius else {"radii": 1.0}
    y, name = (X[:, 0] > 5).astype(int), attacked.__name__
    regressors = RFAMRegressor(n_iter=0).fit(X, y), LinearRegression().fit(X, y)
    for model in regressors:
        words = f"^{name}: model must be a classifier, got {type(model).__name__}"
        with pytest.raises(TypeError, match=words):
            attacked(model, X, y, **size)
    two = np.stack([PULL_BACK_NAMES[y], PULL_BACK_NAMES[1 - y]], axis=1)
    several = RFAMClassifier(n_iter=0).fit(X, two)
    words = f"^{name}: model must be a classifier with one label per sample, got a RFAM"
    with pytest.raises(ValueError, match=words):
        attacked(several, X, two, **size)


def test_an_estimator_without_a_fit_is_refused():
    with pytest.raises(NotFittedError):
        RFAMClassifier().pull_back(new_rows(), lambda found, rows: found)
    with pytest.raises(TypeError, match="has classes_ once it is fitted"):
        pgd(RFAMClassifier(), table(3), PULL_BACK_NAMES, radii=0.1)


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (table(3), TypeError, "X must be a floating tensor, got a float64 ndarray"),
        (new_rows().long(), TypeError, "X must be a floating tensor"),
        (new_rows()[:, :2], ValueError, r"X must be of shape \(n, 4\), as in fit"),
        (new_rows()[0], ValueError, r"X must be of shape \(n, 4\)"),
        (new_rows() * torch.nan, ValueError, "X must be finite"),
    ],
)
def test_rows_that_do_not_fit_are_refused(wrong, kind, message):
    model, _ = fitted()
    with pytest.raises(kind, match=f"RFAMClassifier: {message}"):
        model.pull_back(wrong, lambda found, rows: found)


def test_a_cotangent_of_another_shape_is_refused():
    model, _ = fitted()
    with pytest.raises(ValueError, match=r"cotangent must be .* shape, \(7, 3\)"):
        model.pull_back(new_rows(), lambda found, rows: found[:, 0])
