import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels.compiled.factor import back_substitute, factorise, phases
from normalign.kernels.compiled.products import BLOCK
from normalign.kernels.compiled.team import together
from normalign.kernels.compiled.tile import HEIGHT, columns, vector_lanes
from tests.kernels.compiled.strips import from_strips, in_strips

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def whole(count, unit):
    return -(-count // unit) * unit


def solved(matrix, y, members=1):
    """Factorise and solve; the upper factor and the solution, or None."""
    n, k = y.shape
    rows, dtype = whole(n, HEIGHT), matrix.dtype
    square = in_strips(np.hstack([matrix, y]), rows)
    strips = len(square) // (rows * columns(dtype.itemsize))
    aside = np.empty(whole(n, BLOCK) * BLOCK, dtype)
    definite = together(
        lambda count, flags: factorise(square, rows, strips, n, aside, 0, count, flags),
        members,
        phases(n),
    )
    if not definite:
        return None
    lanes = vector_lanes(dtype.itemsize)
    groups = whole(k, lanes) // lanes
    answers = np.full(groups * rows * lanes, np.nan, dtype)
    for group in range(groups):
        back_substitute(square, rows, n, k, answers, group)
    found = np.concatenate(list(answers.reshape(groups, rows, lanes)), axis=1)
    return np.triu(from_strips(square, rows, (n, n))), found[:n, :k]


def definite(n, seed, dtype):
    root = np.random.default_rng(seed).normal(size=(n, n))
    return (root @ root.T / n + np.eye(n)).astype(dtype)


@DTYPES
@given(n=st.integers(1, 150), k=st.integers(1, 20), seed=st.integers(0, 10**6))
def test_the_factor_and_the_solution_are_lapacks(dtype, n, k, seed):
    matrix = definite(n, seed, dtype)
    y = np.random.default_rng(seed + 1).normal(size=(n, k)).astype(dtype)
    upper, found = solved(np.triu(matrix), y)
    exact = matrix.astype(float)
    bound = 20 * n * np.finfo(dtype).eps
    np.testing.assert_allclose(upper, np.linalg.cholesky(exact).T, atol=bound)
    np.testing.assert_allclose(found, np.linalg.solve(exact, y), atol=bound)


@DTYPES
@pytest.mark.parametrize("members", [2, 3, 5])
def test_it_does_not_matter_how_many_share_the_work(dtype, members):
    matrix = definite(333, 0, dtype)
    y = np.random.default_rng(1).normal(size=(333, 2)).astype(dtype)
    alone, together_ = solved(matrix, y), solved(matrix, y, members)
    for one, other in zip(alone, together_, strict=True):
        np.testing.assert_array_equal(one, other)


@DTYPES
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("row", [0, 7, 8, 40, 99])
@pytest.mark.parametrize("entry", [-1.0, 0.0, np.nan])
def test_what_is_not_definite_is_told(dtype, members, row, entry):
    matrix = definite(100, 0, dtype)
    matrix[row, row] = entry
    assert solved(matrix, np.ones((100, 1), dtype), members) is None
