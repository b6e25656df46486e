import numpy as np
import pytest

from normalign.kernels.compiled.compiling import compiled
from normalign.kernels.compiled.tile import lanes, vector_lanes
from normalign.kernels.compiled.vectors import (
    clear,
    copy,
    everywhere,
    fused,
    least,
    read,
    write,
)

DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@compiled
def combined(x, y, out, number):
    """Every operation that there is, on all of two arrays."""
    factor = everywhere(number)
    for p in range(0, len(x), lanes(x)):
        a, b = read(x, p), read(y, p)
        write(out, p, fused(a, b, factor) + least(a, b) * b - a)


@DTYPES
def test_operations_on_vectors_are_those_on_their_numbers(dtype):
    count = 5 * vector_lanes(np.dtype(dtype).itemsize)
    random = np.random.default_rng(0)
    x, y = (random.integers(-9, 9, count).astype(dtype) for _ in range(2))
    out = np.empty_like(x)
    combined(x, y, out, dtype(7))
    np.testing.assert_array_equal(out, x * y + 7 + np.minimum(x, y) * y - x)


@DTYPES
def test_runs_are_cleared_and_copied_from_any_place(dtype):
    size = vector_lanes(np.dtype(dtype).itemsize)
    x, y = np.arange(5.0 * size).astype(dtype), np.full(5 * size, -1, dtype)
    copy(x, y, 3, size + 1, 2 * size)
    np.testing.assert_array_equal(y[size + 1 : 3 * size + 1], x[3 : 3 + 2 * size])
    assert (y[: size + 1] == -1).all()
    assert (y[3 * size + 1 :] == -1).all()
    clear(y, 1, size)
    assert (y[1 : size + 1] == 0).all()
    assert (y[0], y[-1]) == (-1, -1)
