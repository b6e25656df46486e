"""What compiled code and tensors make of near points is the same."""

import numpy as np
import pytest
import torch

from normalign.estimators import RFMRegressor
from normalign.kernels import Gaussian, Laplace
from tests.kernels.cases import metric, points

pytest.importorskip("numba")

from normalign.kernels.compiled.expansion import sums_of_sides
from normalign.kernels.compiled.layout import in_strips, whole
from normalign.kernels.compiled.near import mend_near
from normalign.kernels.compiled.tile import columns


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 7, 40, 90])
def test_a_strip_is_mended_as_a_tile_is(dtype, n):
    x = points(n, 5).to(dtype)
    x[n // 2 :] = x[: n - n // 2] + 1e-4 * points(n - n // 2, 5, seed=1).to(dtype)
    kernel = Laplace(2.0)
    sides = kernel.sides(x, metric("full", 5).to(dtype))
    wanted = kernel._squared_(sides, sides, x.new_empty(n, n))
    w = columns(dtype.itemsize)
    span = whole(n, w)

    def strips(table):
        padded = np.zeros((7, span), table.numpy().dtype)
        padded[:, :n] = table.numpy().T
        return in_strips(padded, w)

    images, own = strips(sides.left), strips(sides.right)
    found = np.zeros((n, span), images.dtype)
    found[:, :n] = (sides.left @ sides.right.T).numpy()
    for strip in range(span // w):
        part = np.ascontiguousarray(found[:, strip * w : (strip + 1) * w]).reshape(-1)
        mend_near(images, own, own, images, 7, 5, part, 0, (0, n), strip)
        found[:, strip * w : (strip + 1) * w] = part.reshape(n, w)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(
        torch.from_numpy(found[:, :n]), wanted, rtol=1e4 * eps, atol=0
    )


def test_distances_that_rounding_makes_negative_are_none():
    x = torch.stack([torch.ones(7), torch.arange(7)], 1).float()
    rounded = torch.tensor([1.0, -1e-7])  # a metric that rounding left indefinite
    sides = Laplace(1.0).sides(x, rounded)
    one = torch.ones(7, 1)
    for _, sums in sums_of_sides(sides, sides, one, Laplace(1.0), slopes=False):
        assert (sums == 7).all()


@pytest.mark.parametrize("slopes", [False, True])
def test_sums_at_points_near_centers_keep_their_digits(slopes):
    x, table = points(50, 3), points(60, 2, seed=2)
    z = points(60, 3, seed=1)
    z[:50] = x + 1e-6 * points(50, 3, seed=3)
    kernel, seen = Laplace(2.0), metric("full", 3)
    rows, others = kernel.sides(x, seen), kernel.sides(z, seen)
    found = torch.cat(
        [
            sums.clone()
            for _, sums in sums_of_sides(rows, others, table, kernel, slopes=slopes)
        ]
    )
    apart = x[:, None] - z
    lengths = ((apart @ seen) * apart).sum(2).sqrt() / 2.0
    values = torch.exp(-lengths)
    wanted = (values / lengths if slopes else values) @ table
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kernel", [Laplace(1.0), Gaussian(1.0)], ids=repr)
def test_values_of_rows_that_are_near_beside_a_large_column_are_of_their_distance(
    kernel,
):
    x = points(80, 4).float()
    x[:, 0] = 1e7 * (torch.arange(80) % 3)
    table = points(80, 2, seed=1).float()
    sides = kernel.sides(x, None)
    found = torch.empty(80, 2)
    for rows, sums in sums_of_sides(sides, sides, table, kernel, slopes=False):
        found[rows] = sums
    apart = (x[:, None] - x).double().square().sum(2)
    values = kernel._profile_(apart)
    wanted = (values @ table.double()).float()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["laplace", "gaussian"])
def test_machines_take_rows_that_differ_by_less_than_rounding_for_duplicates(
    kernel, dtype
):
    same = points(30, 4).numpy()
    same[1], same[:, 3] = same[0], 0
    apart = same.copy()
    apart[1, 3] = 1e-3 * np.finfo(dtype).eps
    y = points(30, 2, seed=1).numpy()
    machine = RFMRegressor(
        kernel=kernel, dtype=dtype, bandwidth=2.0, ridge=0.1, n_iter=3
    )
    wanted = machine.fit(same, y).predict(same)
    np.testing.assert_allclose(
        machine.fit(apart, y).predict(apart), wanted, atol=1e5 * np.finfo(dtype).eps
    )
