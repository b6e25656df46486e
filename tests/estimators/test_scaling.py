import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial.distance import pdist

from normalign.estimators._scaling import (
    DistanceSample,
    Scaling,
    power_of_two,
    rounding_share,
    select_device,
    select_dtype,
)


@given(st.floats(1e-300, 1e300))
def test_the_power_of_two_is_the_next_one(size):
    found = power_of_two(size)
    assert found / 2 < size <= found
    assert math.frexp(found)[0] == 0.5


@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 6), st.integers(1, 4)),
        elements=st.floats(-1e300, 1e300),
    )
)
def test_a_table_lies_in_the_unit_cube_of_its_frame(table):
    inside = Scaling.of(table).apply(table, torch.float64)
    assert (np.abs(inside) <= 1).all()


def test_repeated_and_reordered_rows_have_the_very_same_frame():
    table = np.random.default_rng(0).normal(size=(9, 3))
    first, second = Scaling.of(table), Scaling.of(np.repeat(table, 3, axis=0)[::-1])
    np.testing.assert_array_equal(first.location, second.location)
    assert first.unit == second.unit


@given(st.integers(0, 2**31), st.integers(1, 8))
def test_a_weight_is_a_repetition_for_the_frame_too(seed, n):
    rng = np.random.default_rng(seed)
    table, weights = rng.integers(0, 4, size=(n, 2)) / 3, rng.integers(1, 4, size=n)
    weighted = Scaling.of(table, weights.astype(float))
    repeated = Scaling.of(table.repeat(weights, axis=0))
    np.testing.assert_array_equal(weighted.location, repeated.location)
    assert weighted.unit == repeated.unit


def test_an_outlier_does_not_move_the_origin():
    table = np.random.default_rng(0).normal(size=(101, 2))
    before = Scaling.of(table).location
    table[table[:, 0].argmax(), 0] = 1e8
    np.testing.assert_array_equal(Scaling.of(table).location, before)


def test_the_share_of_rounding_is_that_of_rows_beside_small_distances():
    table = np.random.default_rng(0).normal(size=(200, 5))
    squares = ((table[:, None] - table) ** 2).sum(-1)[np.triu_indices(200, 1)]
    ratio = (table**2).sum(1).max() / np.quantile(squares, 0.1)
    noise = 2.0**-23 * (4 + 5**0.5)
    found = rounding_share(table, torch.float32)
    assert found == pytest.approx(noise * ratio**0.5)
    assert rounding_share(0 * table, torch.float32) == 0
    far = np.concatenate([1e-200 * table, np.ones((1, 5))])
    assert rounding_share(far, torch.float64) == math.inf


def test_single_precision_is_left_where_it_would_do_harm():
    def chosen(name, **more):
        return select_dtype("fit", name, 2000, spread=1.0, **more)

    assert chosen("auto", noise=4e-5, target_share=1e-11) is torch.float32
    assert chosen("auto", noise=3.1e-4) is torch.float64
    assert chosen("auto", target_share=1e-13) is torch.float64
    assert chosen("float32", noise=1.0) is torch.float32  # as told, with a warning
    with pytest.raises(ValueError, match="without rows beside which"):
        chosen("float64", noise=math.inf)
    for name, share in (("float32", 1e-13), ("auto", 1e-141)):
        with pytest.raises(ValueError, match="fit: y must be columns within"):
            chosen(name, target_share=share)


def test_rows_far_away_come_nearer_but_stay_far():
    frame = Scaling.of(np.array([[0.0], [1.0]]))
    for dtype in (torch.float32, torch.float64):
        inside = frame.apply(np.array([[1e308], [-1e308]]), dtype)
        assert np.isfinite(inside).all()
        assert (np.abs(inside) >= 1e15).all()
        assert inside.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_the_weight_of_the_identity_follows_the_unit(weight):
    table = 37.0 * np.random.default_rng(0).normal(size=(20, 3))
    frame = Scaling.of(table)
    inner = frame.identity_weight(weight)
    covariance = np.cov(frame.apply(table, torch.float64).T)
    blend = (1 - inner) * covariance + inner * np.eye(3)
    wanted = (1 - weight) * np.cov(table.T) + weight * np.eye(3)
    np.testing.assert_allclose(blend / np.trace(blend), wanted / np.trace(wanted))


@pytest.mark.parametrize(
    ("name", "n", "spread", "wanted"),
    [
        ("auto", 1000, 1.0, torch.float64),
        ("auto", 1001, 1.0, torch.float32),
        ("auto", 1001, 1e20, torch.float64),
        ("auto", 1001, 1e-20, torch.float64),
        ("float32", 10, 1.0, torch.float32),
        ("float64", 10**6, 1.0, torch.float64),
    ],
)
def test_the_precision_is_what_rows_and_spread_call_for(name, n, spread, wanted):
    assert select_dtype("fit", name, n, spread=spread) is wanted


@pytest.mark.parametrize(("name", "spread"), [("float32", 1e20), ("auto", 1e130)])
def test_a_spread_that_no_precision_holds_is_refused(name, spread):
    with pytest.raises(ValueError, match="fit: X must be on a scale near the bandwid"):
        select_dtype("fit", name, 10, spread=spread)


def test_devices_are_taken_by_name_or_where_the_table_is():
    assert select_device("fit", "cpu", 10**6) == torch.device("cpu")
    assert select_device("fit", torch.device("cpu"), 10) == torch.device("cpu")
    assert select_device("fit", "auto", 10) == torch.device("cpu")
    there = torch.device("cuda", 0)
    assert select_device("fit", "auto", 10, given=there) == there
    with pytest.raises(ValueError, match="fit: device must be"):
        select_device("fit", "nowhere", 10)
    with pytest.raises(ValueError, match="fit: device must be"):
        select_device("fit", 3.5, 10)


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
