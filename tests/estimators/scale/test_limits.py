"""What is looked at before a fit: quick looks must not say more than long ones."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.exceptions import DataConversionWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from normalign.estimators import (
    RFAMClassifier,
    RFAMClassifierCV,
    RFMClassifier,
    RFMRegressor,
)
from normalign.estimators._fit import two_seeds
from normalign.estimators._inputs import check_features
from normalign.estimators._search import RFAMRegressorCV
from tests.estimators.samples import CODES, NUMBERS, N, X


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
