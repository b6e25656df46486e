import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial.distance import pdist

from normalign.estimators._scaling import DistanceSample, rounding_share


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
    if DistanceSample.of(rows).are_within(1e-4 * bandwidth, 20 * bandwidth):
        middle = np.median(apart[apart > 0])
        assert middle / bandwidth >= 1e-4
        assert middle * np.sqrt(3) / bandwidth <= 20  # in any metric of trace 3


def test_a_quick_look_is_enough_for_ordinary_tables():
    rows = np.random.default_rng(0).uniform(-1, 1, size=(64, 20))
    assert DistanceSample.of(rows).are_within(1e-4, 20.0)


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 7), st.integers(1, 3)),
        elements=st.sampled_from([0.0, 1e-300, 1e-170, 1e-9, 0.25, 0.5, 1.0])
        | st.floats(-1, 1),
    )
)
def test_rows_that_differ_at_a_glance_have_a_finite_share(table):
    if DistanceSample.of(table).are_distinct():
        assert rounding_share(table, torch.float64) < math.inf


def test_a_glance_is_enough_to_see_that_rows_of_ordinary_tables_differ():
    rng = np.random.default_rng(0)
    assert DistanceSample.of(rng.uniform(-1, 1, size=(1000, 3))).are_distinct()
    assert DistanceSample.of(
        rng.integers(0, 2, size=(300, 5)).astype(float)
    ).are_distinct()
    # one row far from all others, which are the same to six digits
    table = 1e-9 * rng.normal(size=(50, 2))
    table[0] = 1
    assert not DistanceSample.of(table).are_distinct()


def test_a_look_goes_to_the_end_of_a_table():
    for n in (1, 31, 33, 60, 63, 64, 100, 5000):
        table = np.arange(n, dtype=float)[:, None]
        some = DistanceSample.of(table).rows
        assert len(some) <= 32
        assert some[-1, 0] >= n - 1 - n / 16
