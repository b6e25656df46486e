import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, r2_score

from normalign.estimators._fit import Problem, Score, select_rows, validation_rows
from normalign.estimators._inputs import label_targets, numbers
from normalign.estimators._scaling import Scaling

RNG = np.random.default_rng(0)


def problem(targets, weights=None, center=True):
    table = RNG.normal(size=(len(targets.columns), 3))
    scaling = Scaling.of(table)
    return Problem(
        table, scaling.apply(table, torch.float64), targets, weights, scaling,
        torch.float64, torch.device("cpu"), center,
    )  # fmt: skip


def test_the_score_of_classes_is_their_weighted_accuracy():
    labels, weights = RNG.integers(0, 3, size=40), RNG.uniform(1, 3, size=40)
    given_to = problem(label_targets("fit", labels), weights)
    outputs = RNG.normal(size=(40, 3))
    found = given_to.score(
        torch.as_tensor(outputs - given_to.intercept),
        torch.as_tensor(given_to.scaled_targets()),
        torch.as_tensor(weights),
    )
    wanted = accuracy_score(labels, outputs.argmax(axis=1), sample_weight=weights)
    assert found == pytest.approx(wanted)


def test_the_score_of_numbers_is_their_weighted_r_squared():
    targets, weights = RNG.normal(5, 2, size=(40, 2)), RNG.uniform(1, 3, size=40)
    given_to = problem(numbers("fit", targets), weights)
    outputs = targets + RNG.normal(size=(40, 2))
    shifted = (outputs - given_to.intercept) / given_to.target_unit
    found = given_to.score(
        torch.as_tensor(shifted),
        torch.as_tensor(given_to.scaled_targets()),
        torch.as_tensor(weights),
    )
    wanted = r2_score(targets, outputs, sample_weight=weights)
    assert found == pytest.approx(wanted)


def test_a_constant_target_is_scored_as_one_of_unit_variance():
    score, constant = Score((), np.zeros(1)), torch.zeros(3, 1)
    assert score(constant, constant, torch.ones(3)) == 1
    assert score(constant + 2, constant, torch.ones(3)) == pytest.approx(-3)


@given(st.integers(0, 2**31), st.floats(0.1, 0.9), st.integers(2, 5))
def test_rows_are_kept_apart_from_every_class_by_its_share(seed, fraction, k):
    labels = np.random.default_rng(seed).permutation(np.arange(30 * k) % k)
    apart = validation_rows(
        "fit", problem(label_targets("fit", labels)), fraction, seed
    )
    counts = np.bincount(labels[apart], minlength=k)
    # a systematic sample misses its share by less than a row at either end
    assert (np.abs(counts - 30 * fraction) <= 2).all()
    assert abs(apart.sum() - len(labels) * fraction) <= 1


@given(st.integers(0, 2**31), st.integers(30, 60))
def test_every_class_of_every_label_column_keeps_a_row_for_training(seed, n):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, size=(n, 3))
    labels[:2] = [[0, 0, 0], [1, 1, 1]]  # never one class
    apart = validation_rows("fit", problem(label_targets("fit", labels)), 0.5, seed)
    assert 0 < apart.sum() < n
    for column in labels.T:
        assert set(column) == set(column[~apart])


@given(st.integers(0, 2**31), st.integers(2, 9), st.sampled_from([1e-9, 0.2, 0.999]))
def test_of_however_few_rows_some_are_kept_apart_whatever_the_seed(seed, n, fraction):
    apart = validation_rows("fit", problem(numbers("fit", np.ones(n))), fraction, seed)
    assert 0 < apart.sum() < n
    labels = [0, *range(n)]  # one row to spare, or the other
    apart = validation_rows(
        "fit", problem(label_targets("fit", labels)), fraction, seed
    )
    assert apart.sum() == 1
    assert apart[:2].any()


def test_a_row_kept_apart_is_the_only_one_of_none_of_its_classes():
    labels = np.array([[0, 0], [0, 1], [1, 1], [1, 1], [2, 2]])
    for seed in range(20):
        apart = validation_rows(
            "fit", problem(label_targets("fit", labels)), 1e-9, seed
        )
        assert np.flatnonzero(apart)[0] in (1, 2, 3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("answers", [numbers("", [1.0]), label_targets("", [0, 1, 2])])
def test_too_few_rows_to_keep_any_apart_are_refused(answers, seed):
    for fraction in (1e-9, 0.5, 0.999):
        with pytest.raises(ValueError, match="rows remain on both sides"):
            validation_rows("fit", problem(answers), fraction, seed)


def test_targets_whose_coefficients_would_be_infinite_are_refused():
    problem(numbers("fit", [1e250, 0.0])).require_sizes("fit")
    with pytest.raises(ValueError, match="fit: y must be of absolute values up to"):
        problem(numbers("fit", [1e308, -1e308])).require_sizes("fit")


def test_the_smallest_target_that_varies_is_measured_by_the_largest():
    targets = np.array([[1.0, 5.0, 3e-20], [-1.0, 5.0, -1e-20]])
    assert problem(numbers("fit", targets)).target_share == pytest.approx(2e-20)
    assert problem(numbers("fit", targets[:, 1])).target_share == 1


@pytest.mark.parametrize("weights", [None, np.linspace(0.1, 1.7, 300)])
def test_the_mean_of_equal_targets_is_exact_and_they_do_not_vary(weights):
    targets = np.stack([np.full(300, 0.1), np.arange(300.0), np.zeros(300)], axis=1)
    given_to = problem(numbers("fit", targets), weights)
    assert given_to.intercept[0] == 0.1
    mean = np.average(targets, axis=0, weights=weights)
    np.testing.assert_allclose(given_to.intercept, mean, rtol=1e-12)
    assert not given_to.scaled_targets()[:, [0, 2]].any()
    assert given_to.target_share == 1


def test_the_mean_target_is_finite_whatever_the_weights():
    weights = np.array([1e200, 3e200])
    huge = problem(numbers("fit", [1e240, -1e240]), weights)
    np.testing.assert_allclose(huge.intercept, -5e239)


def test_rows_of_a_problem_keep_its_scaling():
    whole = problem(label_targets("fit", [0, 1] * 5), np.arange(1.0, 11.0))
    part = whole.rows(np.array([1, 4]))
    assert part.scaling is whole.scaling
    np.testing.assert_array_equal(part.scaled, whole.scaled[[1, 4]])
    np.testing.assert_array_equal(part.weights, [2.0, 5.0])
    np.testing.assert_array_equal(part.targets.codes, [[1], [0]])
    assert part.sizes == (2,)


def test_a_sample_is_all_rows_if_they_are_few():
    whole = problem(numbers("fit", np.arange(10.0)))
    np.testing.assert_array_equal(select_rows(whole.n, 10), np.arange(10))


def test_a_sample_is_the_same_every_time_and_no_comb():
    whole = problem(numbers("fit", np.arange(999.0)))
    some = select_rows(whole.n, 500)
    assert len(set(some)) == 500
    np.testing.assert_array_equal(some, select_rows(whole.n, 500))
    # evenly spaced rows would all be even, and of one class if classes alternate
    assert 0.4 < (some % 2).mean() < 0.6
