"""The last or best machine of a recursion on a whole table."""

import dataclasses
import time
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from normalign.estimators import (
    RFAMClassifier,
    RFAMClassifierCV,
    RFMClassifier,
    RFMRegressor,
)
from normalign.estimators._fit import (
    Problem,
    Recipe,
    Score,
    Validation,
    fit_single,
    select_rows,
    two_seeds,
    validation_rows,
)
from normalign.estimators._inputs import check_features, label_targets, numbers
from normalign.estimators._jobs import Clock
from normalign.estimators._scaling import Scaling
from normalign.estimators._search import RFAMRegressorCV
from normalign.kernels import Laplace, Solver
from tests.estimators.samples import CODES, NUMBERS, N, X, ticking

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


RECIPE = Recipe(kernel=Laplace(bandwidth=5.0), ridge=0.1, n_iter=2)
Y = NUMBERS[:, None]


def test_without_time_there_is_iteration_zero():
    fit = fit_single(RECIPE, X, Y, clock=Clock(time.monotonic() - 1))
    assert fit.report.n_iter == 0
    assert fit.report.cut_short
    np.testing.assert_array_equal(fit.metric, np.eye(X.shape[1]))


def test_with_time_there_is_the_last():
    report = fit_single(RECIPE, X, Y).report
    assert report.n_iter == 2
    assert not report.cut_short


def test_no_iteration_is_begun_that_would_end_too_late(monkeypatch):
    ticking(monkeypatch, seconds=4)
    report = fit_single(RECIPE, X, Y, clock=Clock.within(10)).report
    assert report.n_iter == 1  # at 8 seconds; the next would be at 12
    assert report.cut_short


@pytest.mark.parametrize("best", [0, 1, 2])
def test_the_best_iteration_is_kept_and_all_are_scored(best):
    given = iter(-abs(index - best) for index in range(3))
    validation = Validation(X, Y, np.ones(len(X)), lambda *_: float(next(given)))
    fit = fit_single(RECIPE, X, Y, validation=validation)
    assert fit.report.n_iter == best
    assert len(fit.report.scores) == 3
    alone = fit_single(dataclasses.replace(RECIPE, n_iter=best), X, Y)
    np.testing.assert_allclose(fit.coef, alone.coef, rtol=1e-9, atol=1e-12)


def test_of_equal_iterations_the_first_is_kept():
    validation = Validation(X, Y, np.ones(len(X)), lambda *_: 1.0)
    assert fit_single(RECIPE, X, Y, validation=validation).report.n_iter == 0


def test_rows_are_left_out_of_the_machine_that_is_kept():
    chosen = np.array([3, 40])
    outputs, targets, weights = fit_single(RECIPE, X, Y, leave_out=chosen).left_out
    np.testing.assert_array_equal(targets, Y[chosen])
    assert weights is None
    used = np.arange(len(X)) != 3
    first = dataclasses.replace(RECIPE, n_iter=0)
    without, *_ = fit_single(first, X, Y, leave_out=chosen).left_out
    machine = fit_single(first, X[used], Y[used])
    distances = np.linalg.norm(X[3] - X[used], axis=1)
    np.testing.assert_allclose(without[0], np.exp(-distances / 5) @ machine.coef)
    assert np.abs(outputs - without).max() > 1e-6  # in another metric


def test_conjugate_gradients_leave_out_fewer_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    recipe = dataclasses.replace(RECIPE, solver=Solver("cg"), n_iter=0)
    outputs, targets, _ = fit_single(
        recipe, x, x[:, :1], leave_out=np.arange(200)
    ).left_out
    assert len(outputs) == len(targets) == 64
    rows = np.flatnonzero(np.isin(x[:, 0], targets))
    exact, *_ = fit_single(
        dataclasses.replace(RECIPE, n_iter=0), x, x[:, :1], leave_out=rows
    ).left_out
    np.testing.assert_allclose(outputs, exact, atol=1e-3)


@pytest.mark.parametrize(
    ("bandwidth", "said"),
    [(1e6, "all rows alike"), (1e-3, "no row like another"), (1.0, None)],
)
def test_a_bandwidth_that_tells_no_rows_apart_is_warned_about(bandwidth, said):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    machine = RFMRegressor(bandwidth=bandwidth, n_iter=0)
    if said is not None:
        with pytest.warns(UserWarning, match=said):
            machine.fit(x, y)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        machine.fit(x, y)


@pytest.mark.parametrize("kind", [RFMRegressor, RFAMRegressorCV])
@pytest.mark.parametrize(
    ("changes", "said"),
    [({"bandwidth": 1e6}, "all rows alike"), ({"dtype": "float32"}, "be rounding in")],
)
def test_a_warning_points_at_the_line_that_fits(kind, changes, said):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    if "dtype" in changes:
        x[0] = 1e6
    with pytest.warns(UserWarning, match=said) as caught:
        kind(n_iter=0, **changes).fit(x, y)
    (warning,) = [one for one in caught if said in str(one.message)]
    assert warning.filename == __file__


@pytest.mark.parametrize("kernel", ["laplace", "gaussian"])
def test_a_group_of_rows_far_away_is_fitted_as_if_it_were_alone(kernel):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    y = np.sin(2 * x[:, 0])
    alone = RFMRegressor(kernel=kernel, center=False, ridge=0.1, n_iter=0)
    wanted = alone.fit(x[:20], y[:20]).predict(x[:20] + 0.1)
    both = x.copy()
    both[:20] += 1e7  # a million bandwidths
    machine = RFMRegressor(**alone.get_params())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*bandwidths apart")
        found = machine.fit(both, y).predict(both[:20] + 0.1)
    np.testing.assert_allclose(found, wanted, atol=1e-7)


@pytest.mark.parametrize("table", [load_breast_cancer, load_wine])
@pytest.mark.parametrize("kind", [RFMClassifier, RFAMClassifier])
def test_columns_in_their_own_units_are_warned_of(table, kind):
    x, labels = table(return_X_y=True)
    with pytest.warns(UserWarning, match=r"no row like another\. .*make_tabular_pip"):
        kind(n_iter=0).fit(x, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind(n_iter=0).fit(StandardScaler().fit_transform(x), labels)


@pytest.mark.parametrize("kind", [RFMClassifier, RFAMClassifierCV])
@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (CODES[:, None], "A column-vector y was passed"),
        (np.arange(N) // 1.5 // 1, "could represent a regression problem"),
    ],
)
def test_labels_are_warned_of_once_at_the_line_that_fits(kind, labels, said):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kind(n_iter=0).fit(X, labels)
    assert [said in str(one.message) for one in caught] == [True]
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "whole",
    [
        lambda: make_pipeline(StandardScaler(), RFMClassifier(n_iter=0)),
        lambda: GridSearchCV(RFMClassifier(n_iter=0), {"ridge": [1.0]}, cv=2),
    ],
    ids=["pipeline", "search"],
)
def test_a_warning_points_at_the_line_that_fits_what_holds_the_machine(whole):
    with pytest.warns(DataConversionWarning) as caught:
        whole().fit(X, pd.DataFrame({"y": CODES}))
    assert {one.filename for one in caught} == {__file__}


def test_a_warning_of_scores_points_at_the_line_that_searches():
    def missing(machine, x, y):
        return np.nan if machine.ridge == 1.0 else 0.0

    machine = RFAMRegressorCV(ridges=(1.0, 0.1), n_iter=0, cv=2, scoring=missing)
    for one in (machine, make_pipeline(StandardScaler(), machine)):
        with pytest.warns(UserWarning, match="not finite") as caught:
            one.fit(X, NUMBERS)
        assert [warning.filename for warning in caught] == [__file__]


def test_folds_with_few_rows_of_many_classes_are_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RFAMClassifierCV(n_iter=0, cv=2).fit(X, np.arange(N) // 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_plain_table_is_read_as_scikit_learn_reads_it(dtype):
    table = np.arange(6, dtype=dtype).reshape(3, 2)
    plain, listed = RFMRegressor(), RFMRegressor()
    plain.feature_names_in_ = np.array(["a", "b"], dtype=object)
    found = check_features(plain, table, reset=True)
    wanted = check_features(listed, table.tolist(), reset=True)
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == dtype
    assert plain.n_features_in_ == listed.n_features_in_ == 2
    assert not hasattr(plain, "feature_names_in_")


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (3,), (1, 2, 2)])
def test_tables_without_a_shape_are_refused_as_before(shape):
    with pytest.raises(ValueError, match=r"array|sample|feature"):
        check_features(RFMRegressor(), np.zeros(shape), reset=True)


def test_seeds_of_a_number_are_what_its_generator_draws():
    wanted = tuple(np.random.RandomState(7).randint(2**31 - 1, size=2))
    for state in (7, np.int64(7), np.random.RandomState(7)):
        assert two_seeds(state) == wanted
    assert two_seeds(7) == wanted  # remembered, not drawn on
    assert two_seeds(None) != two_seeds(None)
    assert all(0 <= seed < 2**31 for seed in two_seeds(None))


@pytest.mark.parametrize("limit", [1e9, np.float32(1e9)])
def test_bytes_may_be_written_as_a_whole_float(limit):
    for settings in ({}, {"max_leaf_size": 30}):
        machine = RFMRegressor(memory_limit=limit, n_iter=1, **settings)
        machine.fit(X, NUMBERS)
        assert machine.get_params()["memory_limit"] is limit
    with pytest.raises(ValueError, match="memory_limit must be at least"):
        RFMRegressor(memory_limit=1e3).fit(X, NUMBERS)


@pytest.mark.parametrize(
    ("settings", "shape", "remedies"),
    [
        ({"solver": "cholesky"}, (90, 3), ["max_leaf_size", 'solver="cg"']),
        ({"solver": "cg", "dtype": "float64"}, (90, 3), ["max_leaf", 'dtype="float32']),
        ({"solver": "cg", "dtype": "float32"}, (90, 3), ["max_leaf", "fewer rows"]),
        ({"dtype": "float32"}, (9, 90), ["diagonal=True", "fewer columns"]),
        ({"dtype": "float32", "diagonal": True}, (9, 90), ["max_leaf", "fewer colu"]),
    ],
)
def test_remedies_are_those_that_are_left(settings, shape, remedies):
    machine = RFMRegressor(memory_limit=1000, **settings)
    with pytest.raises(ValueError, match="memory_limit must be at least") as caught:
        machine.fit(np.ones(shape) * np.arange(shape[1]), np.arange(shape[0]))
    for remedy in (*remedies, "a larger memory_limit"):
        assert remedy in str(caught.value)
