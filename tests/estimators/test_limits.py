"""What is looked at before a fit: quick looks must not say more than long ones."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from normalign.estimators import RFMRegressor
from normalign.estimators.arrays import checked_features
from normalign.estimators.base import two_seeds
from normalign.estimators.limits import Look


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 40),
    same=st.floats(0, 1),
    log_bandwidth=st.floats(-6, 8),
)
def test_a_quick_look_at_distances_never_overlooks_a_wrong_bandwidth(
    seed, n, same, log_bandwidth
):
    rng, bandwidth = np.random.default_rng(seed), 10**log_bandwidth
    rows = rng.uniform(-1, 1, size=(n, 3))
    rows[rng.uniform(size=n) < same] = rows[0]
    apart = pdist(rows)
    if Look.at(rows).tells(bandwidth):
        assert 1e-4 <= np.median(apart[apart > 0]) / bandwidth <= 100


def test_a_quick_look_is_enough_for_ordinary_tables():
    rows = np.random.default_rng(0).uniform(-1, 1, size=(64, 20))
    assert Look.at(rows).tells(1.0)


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_plain_table_is_read_as_scikit_learn_reads_it(dtype):
    table = np.arange(6, dtype=dtype).reshape(3, 2)
    plain, listed = RFMRegressor(), RFMRegressor()
    plain.feature_names_in_ = np.array(["a", "b"], dtype=object)
    found = checked_features(plain, table, reset=True)
    wanted = checked_features(listed, table.tolist(), reset=True)
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == dtype
    assert plain.n_features_in_ == listed.n_features_in_ == 2
    assert not hasattr(plain, "feature_names_in_")


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (3,), (1, 2, 2)])
def test_tables_without_a_shape_are_refused_as_before(shape):
    with pytest.raises(ValueError, match=r"array|sample|feature"):
        checked_features(RFMRegressor(), np.zeros(shape), reset=True)


def test_seeds_of_a_number_are_what_its_generator_draws():
    wanted = tuple(np.random.RandomState(7).randint(2**31 - 1, size=2))
    for state in (7, np.int64(7), np.random.RandomState(7)):
        assert two_seeds(state) == wanted
    assert two_seeds(7) == wanted  # remembered, not drawn on
    assert two_seeds(None) != two_seeds(None)
    assert all(0 <= seed < 2**31 for seed in two_seeds(None))
