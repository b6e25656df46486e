import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels.compiled.layout import Layout
from normalign.kernels.compiled.products import (
    BLOCK,
    DEPTH,
    multiply,
    multiply_strip,
    multiply_symmetric,
    subtract_strip,
)
from normalign.kernels.compiled.tile import HEIGHT, columns
from tests.kernels.compiled.strips import (
    from_strips,
    from_triangle,
    in_strips,
    in_triangle,
)

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def whole(count, unit):
    return -(-count // unit) * unit


def near(found, wanted, depth):
    # a sum of that many products of numbers of the size of one
    bound = 4 * np.finfo(found.dtype).eps * depth
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)


def test_sizes_fit_into_each_other():
    for itemsize in (4, 8):
        assert columns(itemsize) % HEIGHT == 0
        assert BLOCK % columns(itemsize) == 0
    assert DEPTH % HEIGHT == 0


@DTYPES
@given(
    m=st.integers(1, 70), n=st.integers(1, 70), depth=st.integers(1, 2 * DEPTH + 9),
    seed=st.integers(0, 10**6),
)  # fmt: skip
def test_a_product_is_that_of_matrices(dtype, m, n, depth, seed):
    random = np.random.default_rng(seed)
    a, b = (random.uniform(-1, 1, (depth, q)).astype(dtype) for q in (m, n))
    rows, w = whole(m, HEIGHT), columns(np.dtype(dtype).itemsize)
    wanted = a.T.astype(float) @ b.astype(float)

    target = in_strips(np.full((m, n), np.nan, dtype), rows)
    for top in range(0, m, BLOCK):
        for strip in range(whole(n, w) // w):
            block = (top, min(top + BLOCK, m))
            multiply_strip(
                in_strips(a), in_strips(b), depth, target, strip * rows * w, depth,
                block, strip,
            )  # fmt: skip
    near(from_strips(target, rows, (m, n)), wanted, depth)

    wide = (whole(m, w), whole(n, w))
    left, right = (padded(t, (depth, q)) for t, q in zip((a, b), wide, strict=True))
    target = np.full((rows, wide[1]), np.nan, dtype)
    for fresh in (True, False):
        for start in range(0, n, w):
            multiply(
                fresh, left.reshape(-1), wide[0], right.reshape(-1), start, wide[1],
                target.reshape(-1), start, wide[1], depth, (0, m),
            )  # fmt: skip
        near(target[:m, :n], wanted if fresh else 2 * wanted, 2 * depth)


def padded(table, shape):
    out = np.zeros(shape, table.dtype)
    out[: table.shape[0], : table.shape[1]] = table
    return out


@DTYPES
@given(
    top=st.integers(0, 2 * DEPTH // BLOCK + 2), size=st.integers(1, BLOCK),
    n=st.integers(1, 40), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_rows_are_brought_up_to_date_by_those_above(dtype, top, size, n, seed):
    random = np.random.default_rng(seed)
    top *= BLOCK
    table = random.uniform(-1, 1, (top + size, top + size + n)).astype(dtype)
    layout = Layout(top + size, 1, n, np.dtype(dtype).itemsize)
    square, block = in_triangle(table, layout), (top, top + size)
    for strip in range(top // layout.width, len(layout.starts) - 1):
        subtract_strip(square, layout.starts, top, block, strip)
    exact = table.astype(float)
    wanted = exact[top:, top:] - exact[:top, top : top + size].T @ exact[:top, top:]
    found = from_triangle(square, layout, table.shape)
    # on the diagonal squares are summed, which do not cancel: their sum is as large as
    # a third of their number, and so is each rounding of it
    near(found[top:, top:], wanted, (top + 1) * max(top, 1) ** 0.5)
    held = ~np.isnan(found[:top])
    np.testing.assert_array_equal(found[:top][held], table[:top][held])


@DTYPES
@given(
    n=st.integers(1, 2 * DEPTH + 70), k=st.integers(1, 40), seed=st.integers(0, 10**6)
)
def test_a_symmetric_table_needs_its_upper_half_only(dtype, n, k, seed):
    random = np.random.default_rng(seed)
    full = random.uniform(-1, 1, (n, n)).astype(dtype)
    full = np.triu(full) + np.triu(full, 1).T
    i, j = np.indices((n, n))
    held = np.where(j // BLOCK < i // BLOCK, np.nan, full).astype(dtype)
    b, rows = random.uniform(-1, 1, (n, k)).astype(dtype), whole(n, HEIGHT)
    w = columns(b.itemsize)
    step, layout = whole(k, w) + 3, Layout(n, 1, 1, b.itemsize)
    slopes, right = in_triangle(held, layout), padded(b, (n, step)).reshape(-1)
    target = np.full((rows, step), np.nan, dtype)
    for top in range(0, n, BLOCK):
        for strip in range(whole(k, w) // w):
            block = (top, min(top + BLOCK, n))
            multiply_symmetric(
                slopes, layout.starts, n, right, target.reshape(-1), step, block, strip
            )
    near(target[:n, :k], full.astype(float) @ b, n)
