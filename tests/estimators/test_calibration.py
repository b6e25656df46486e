import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss

from normalign.estimators import RFMClassifier
from normalign.estimators._predict import probabilities, temperature
from tests.estimators.samples import CODES, FRESH, WORDS, X


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
    machine = RFMClassifier().fit(X, WORDS)
    rng = np.random.default_rng(5)
    fresh = rng.normal(size=(300, 4))
    numbers = np.sin(2 * fresh[:, 0]) + 0.3 * fresh[:, 1]
    reference = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1]
    codes = np.digitize(numbers, np.quantile(reference, [1 / 3, 2 / 3]))
    found = log_loss(codes, machine.predict_proba(fresh), labels=[0, 1, 2])
    clipped = machine.decision_function(fresh).clip(1e-3)
    clipped /= clipped.sum(axis=1, keepdims=True)
    assert found < 0.8 * np.log(3)
    assert found < log_loss(codes, clipped, labels=[0, 1, 2])


def test_the_temperature_comes_from_machines_without_each_row():
    settings = {"n_iter": 0, "center": False}
    machine = RFMClassifier(**settings).fit(X, WORDS)
    left_out = []
    for i in range(len(X)):
        others = np.arange(len(X)) != i
        part = RFMClassifier(**settings).fit(X[others], WORDS[others])
        left_out.append(part.decision_function(X[[i]])[0])
    wanted = temperature(np.array(left_out), np.eye(3)[CODES])
    assert machine.temperature_ == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("labels", [WORDS, WORDS == "ant"])
def test_the_likeliest_class_is_the_predicted_one(labels):
    machine = RFMClassifier().fit(X, labels)
    likeliest = machine.classes_[machine.predict_proba(FRESH).argmax(axis=1)]
    np.testing.assert_array_equal(likeliest, machine.predict(FRESH))


def test_who_is_strict_about_underflow_gets_the_same_probabilities():
    wanted = RFMClassifier(n_iter=1).fit(X, WORDS).predict_proba(X)
    with np.errstate(all="raise"):
        found = RFMClassifier(n_iter=1).fit(X, WORDS).predict_proba(X)
    np.testing.assert_array_equal(found, wanted)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(probabilities(np.eye(2), 1e4), np.eye(2))
