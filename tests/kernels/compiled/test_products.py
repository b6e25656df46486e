import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels.compiled.products import (
    BLOCK,
    DEPTH,
    pack,
    pack_symmetric,
    subtract_strip,
)
from normalign.kernels.compiled.tile import HEIGHT, columns
from tests.kernels.compiled.strips import from_strips, in_strips

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def whole(count, unit):
    return -(-count // unit) * unit


def room(depth, dtype):
    return np.full(BLOCK * depth + HEIGHT * HEIGHT, np.nan, dtype)


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
    start=st.integers(0, 5), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_a_product_is_that_of_matrices(dtype, m, n, depth, start, seed):
    random = np.random.default_rng(seed)
    a, b = (random.uniform(-1, 1, (start + depth, q)).astype(dtype) for q in (m, n))
    c = random.uniform(-1, 1, (m, n)).astype(dtype)
    rows, target = whole(m, HEIGHT), None
    target = in_strips(c, rows)
    place, left, right = room(depth, dtype), in_strips(a), in_strips(b)
    for top in range(0, m, BLOCK):
        block = (top, min(top + BLOCK, m))
        pack(left, start + depth, start, depth, block, place)
        for strip in range(whole(n, columns(c.itemsize)) // columns(c.itemsize)):
            subtract_strip(
                target, rows, right, start + depth, start, depth, block, strip, place
            )
    wanted = c - a[start:].T.astype(float) @ b[start:].astype(float)
    near(from_strips(target, rows, (m, n)), wanted, depth)


@DTYPES
@given(n=st.integers(1, 130), k=st.integers(1, 20), seed=st.integers(0, 10**6))
def test_a_symmetric_table_needs_its_upper_half_only(dtype, n, k, seed):
    random = np.random.default_rng(seed)
    full = random.uniform(-1, 1, (n, n)).astype(dtype)
    full = np.triu(full) + np.triu(full, 1).T
    upper = np.where(np.tri(n, k=-1, dtype=bool), np.nan, full).astype(dtype)
    b, rows = random.uniform(-1, 1, (n, k)).astype(dtype), whole(n, HEIGHT)
    held, right, place = in_strips(upper, rows), in_strips(b), room(n, dtype)
    target = in_strips(np.zeros((n, k), dtype), rows)
    for top in range(0, n, BLOCK):
        block = (top, min(top + BLOCK, n))
        pack_symmetric(held, rows, n, block, place)
        for strip in range(len(target) // (rows * columns(b.itemsize))):
            subtract_strip(target, rows, right, n, 0, n, block, strip, place)
    near(from_strips(target, rows, (n, k)), -full.astype(float) @ b, n)
