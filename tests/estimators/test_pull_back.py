"""Gradients of fitted machines: what an attack asks of an estimator."""

from __future__ import annotations

import pickle
import warnings

import joblib
import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from normalign.estimators import (
    RFAMClassifier,
    RFAMRegressor,
    RFMClassifier,
    as_torch,
)
from normalign.robustness import masking_report, minimal_radius, pgd

NAMES = np.array(["ant", "bee", "cat"])


def table(n=90, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)) * [1, 10, 0.1, 1] + 5


def classes(X, k=3):
    return np.digitize(X[:, 0], [5.0, 5.7][: k - 1])


def fitted(k=3, **settings):
    X = table()
    model = RFAMClassifier(identity_weight=0.5, n_iter=1, dtype="float64", **settings)
    return model.fit(X, NAMES[classes(X, k)]), X


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
    y = NAMES[classes(X)]
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
    y = NAMES[classes(X, 2)]
    attack = pgd(model, X, y, radii=[0.5], loss="margin", keep="best")
    wrong = model.predict(attack.points[0].numpy()) != y
    assert np.array_equal(wrong, attack.broken[0].numpy())
    assert wrong.mean() > 0


def test_a_pipeline_is_refused_and_its_last_step_taken():
    X = table()
    y = NAMES[classes(X)]
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
    model = LogisticRegression(max_iter=1000).fit(X, NAMES[codes])
    words = (
        r"^pgd: model must be callable, .*, got LogisticRegression\. "
        r"Pass normalign\.estimators\.as_torch\(model\)"
    )
    with pytest.raises(TypeError, match=words):
        pgd(model, X, NAMES[codes], radii=0.1)
    rows = torch.as_tensor(X)
    attack = pgd(as_torch(model), rows, codes, radii=0.1)
    assert attack.accuracy == model.score(X, NAMES[codes])


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
    two = np.stack([NAMES[y], NAMES[1 - y]], axis=1)
    several = RFAMClassifier(n_iter=0).fit(X, two)
    words = f"^{name}: model must be a classifier with one label per sample, got a RFAM"
    with pytest.raises(ValueError, match=words):
        attacked(several, X, two, **size)


def test_an_estimator_without_a_fit_is_refused():
    with pytest.raises(NotFittedError):
        RFAMClassifier().pull_back(new_rows(), lambda found, rows: found)
    with pytest.raises(TypeError, match="has classes_ once it is fitted"):
        pgd(RFAMClassifier(), table(3), NAMES, radii=0.1)


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
