import numpy as np
import pytest

from normalign.kernels.compiled import GAUSSIAN, LAPLACE
from normalign.kernels.compiled.profiles import _exponential, profile_row

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def profiled(profile, squares):
    values, slopes = squares.copy(), np.full_like(squares, np.nan)
    profile_row(profile, values, slopes)
    return values, slopes


@DTYPES
def test_values_and_slopes_are_those_of_the_formulas(dtype):
    squares = np.concatenate([10.0 ** np.linspace(-12, 3, 4001), [1e-30, 5e3]])
    squares = squares.astype(dtype)
    exact = squares.astype(float)
    tolerance = 8 * np.finfo(dtype).eps  # of the root, the exponential, the quotient
    values, slopes = profiled(LAPLACE, squares)
    wanted = np.exp(-np.sqrt(exact))
    # the exponential grows the rounding of its argument by that argument
    bound = tolerance * (1 + np.sqrt(exact))
    assert (np.abs(values - wanted) <= bound * wanted).all()
    assert (np.abs(slopes - wanted / np.sqrt(exact)) <= bound * slopes).all()
    small = squares[squares < 100]
    values, slopes = profiled(GAUSSIAN, small)
    wanted = np.exp(-small.astype(float) / 2)
    assert (np.abs(values - wanted) <= tolerance * (1 + small) * wanted).all()
    np.testing.assert_array_equal(slopes, values)


@DTYPES
@pytest.mark.parametrize("profile", [LAPLACE, GAUSSIAN])
def test_at_no_distance_the_value_is_one_and_the_slope_zero(dtype, profile):
    values, slopes = profiled(profile, np.zeros(21, dtype))
    assert (values == 1).all()
    assert (slopes == 0).all()


@DTYPES
@pytest.mark.parametrize("profile", [LAPLACE, GAUSSIAN])
def test_what_is_negative_has_the_value_of_its_size_and_no_slope(dtype, profile):
    squared = np.array([1e-9, 0.3, 5.0] * 7, dtype)
    values, slopes = profiled(profile, -squared)
    np.testing.assert_array_equal(values, profiled(profile, squared)[0])
    assert (slopes == 0).all()


@DTYPES
@pytest.mark.parametrize("profile", [LAPLACE, GAUSSIAN])
def test_far_away_nothing_is_left_and_what_is_no_number_stays_none(dtype, profile):
    far = np.array([np.inf, np.finfo(dtype).max, 1e6, np.nan] * 9, dtype)
    values, slopes = profiled(profile, far)
    none = np.isnan(far)
    assert np.isnan(values[none]).all()
    # the smallest number of full precision, or a little more
    assert (values[~none] < 2 * np.finfo(dtype).tiny * 1e2).all()
    assert (slopes[~none] < 2 * np.finfo(dtype).tiny * 1e2).all()


def test_in_python_the_exponential_is_the_usual_one():
    assert _exponential(-1.0) == pytest.approx(np.exp(-1.0))
