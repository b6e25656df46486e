import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels.compiled.factor import (
    back_substitute,
    blocks_of,
    factorise,
    forward_substitute,
    phases,
    rows_at_once,
)
from normalign.kernels.compiled.layout import Layout
from normalign.kernels.compiled.team import together
from tests.kernels.compiled.strips import (
    from_strips,
    from_triangle,
    in_strips,
    in_triangle,
)

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def factorised(matrix, y, members=1, calls=1):
    """The factor in strips, targets behind it, and its layout; None if indefinite."""
    n, k = y.shape
    layout = Layout(n, 1, k, matrix.itemsize)
    square = in_triangle(np.hstack([matrix, y]), layout)
    aside = np.empty(rows_at_once(n) ** 2, matrix.dtype)
    edges = np.linspace(0, blocks_of(n), calls + 1).astype(int)
    for some in itertools.pairwise(map(int, edges)):
        if some[0] == some[1]:
            continue
        definite = together(
            lambda count, flags, some=some: factorise(
                square, layout.starts, n, aside, some, 0, count, flags
            ),
            members,
            phases(n),
        )
        if not definite:
            return None
    return square, layout


def solved(matrix, y, members=1, calls=1):
    """Factorise and solve; the upper factor and the solution, or None."""
    n, k = y.shape
    found = factorised(matrix, y, members, calls)
    if found is None:
        return None
    square, layout = found
    rows, lanes = layout.rows, layout.lanes
    answers = np.full(layout.groups * rows * lanes, np.nan, matrix.dtype)
    for group in range(layout.groups):
        back_substitute(square, layout.starts, rows, n, k, answers, group)
    table = np.concatenate(list(answers.reshape(layout.groups, rows, lanes)), axis=1)
    return np.triu(from_triangle(square, layout, (n, n))), table[:n, :k]


def definite(n, seed, dtype):
    root = np.random.default_rng(seed).normal(size=(n, n))
    return (root @ root.T / n + np.eye(n)).astype(dtype)


@DTYPES
@given(n=st.integers(1, 150), k=st.integers(1, 20), seed=st.integers(0, 10**6))
def test_the_factor_and_the_solution_are_lapacks(dtype, n, k, seed):
    matrix = definite(n, seed, dtype)
    y = np.random.default_rng(seed + 1).normal(size=(n, k)).astype(dtype)
    held = np.where(np.tri(n, k=-1, dtype=bool), np.nan, matrix)  # nobody looks there
    upper, found = solved(held, y)
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


@DTYPES
@pytest.mark.parametrize("n", [2000, 2047, 2049, 2185])
def test_a_large_matrix_has_larger_blocks_and_may_take_several_calls(dtype, n):
    matrix = definite(n, 0, dtype)
    y = np.random.default_rng(1).normal(size=(n, 3)).astype(dtype)
    upper, found = solved(matrix, y, 2)
    exact = matrix.astype(float)
    bound = 2 * n * np.finfo(dtype).eps
    np.testing.assert_allclose(upper, np.linalg.cholesky(exact).T, atol=bound)
    np.testing.assert_allclose(found, np.linalg.solve(exact, y), atol=bound)
    for one, other in zip(solved(matrix, y, 3, calls=5), (upper, found), strict=True):
        np.testing.assert_array_equal(one, other)


@DTYPES
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize(
    ("n", "first"), [(1, 0), (9, 3), (77, 0), (150, 149), (300, 40)]
)
def test_columns_are_divided_by_the_factor(dtype, members, n, first):
    matrix = definite(n, 0, dtype)
    square, layout = factorised(matrix, np.ones((n, 2), dtype))
    count = layout.width + 3
    table = np.random.default_rng(1).normal(size=(n, count)).astype(dtype)
    table[:first] = 0
    flat, firsts = in_strips(table, layout.rows), np.array([first, first])
    together(
        lambda some, flags: forward_substitute(
            square, layout.starts, n, flat, layout.rows, firsts, 0, some, flags
        ),
        members,
        1,
    )
    lower = np.linalg.cholesky(matrix.astype(float))
    np.testing.assert_allclose(
        from_strips(flat, layout.rows, (n, count)),
        np.linalg.solve(lower, table),
        atol=20 * n * np.finfo(dtype).eps,
    )
