import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from normalign.estimators.placement import (
    Frame,
    chosen_device,
    chosen_dtype,
    power_of_two,
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
    inside = Frame.around(table).enter(table, torch.float64)
    # the middle of a range of a few rounding errors is off by one of them
    wide = np.ptp(table / 2, axis=0) > 1e-12 * np.abs(table / 2).max(axis=0)
    assert (np.abs(inside) <= 2).all()
    assert (np.abs(inside[:, wide]) <= 1 + 1e-3).all()


def test_repeated_and_reordered_rows_have_the_very_same_frame():
    table = np.random.default_rng(0).normal(size=(9, 3))
    first, second = Frame.around(table), Frame.around(np.repeat(table, 3, axis=0)[::-1])
    np.testing.assert_array_equal(first.location, second.location)
    assert first.unit == second.unit


def test_rows_far_away_come_nearer_but_stay_far():
    frame = Frame.around(np.array([[0.0], [1.0]]))
    for dtype in (torch.float32, torch.float64):
        inside = frame.enter(np.array([[1e308], [-1e308]]), dtype)
        assert np.isfinite(inside).all()
        assert (np.abs(inside) >= 1e15).all()
        assert inside.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_the_weight_of_the_identity_follows_the_unit(weight):
    table = 37.0 * np.random.default_rng(0).normal(size=(20, 3))
    frame = Frame.around(table)
    inner = frame.identity_weight(weight)
    covariance = np.cov(frame.enter(table, torch.float64).T)
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
    assert chosen_dtype("fit", name, n, spread=spread) is wanted


@pytest.mark.parametrize(("name", "spread"), [("float32", 1e20), ("auto", 1e130)])
def test_a_spread_that_no_precision_holds_is_refused(name, spread):
    with pytest.raises(ValueError, match="fit: X must be on a scale near the bandwid"):
        chosen_dtype("fit", name, 10, spread=spread)


def test_devices_are_taken_by_name_or_where_the_table_is():
    assert chosen_device("fit", "cpu", 10**6) == torch.device("cpu")
    assert chosen_device("fit", torch.device("cpu"), 10) == torch.device("cpu")
    assert chosen_device("fit", "auto", 10) == torch.device("cpu")
    there = torch.device("cuda", 0)
    assert chosen_device("fit", "auto", 10, given=there) == there
    with pytest.raises(ValueError, match="fit: device must be"):
        chosen_device("fit", "nowhere", 10)
    with pytest.raises(ValueError, match="fit: device must be"):
        chosen_device("fit", 3.5, 10)
