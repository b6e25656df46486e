"""Squared distances of near points."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels import Laplace
from normalign.kernels._sides import NEAR, recompute_near_
from tests.kernels.cases import metric, points


def exactly(x, z, seen, bandwidth):
    """Squared distances from differences, in float64."""
    apart = x.double()[:, None] - z.double()
    through = apart @ seen.double() if seen.ndim == 2 else apart * seen.double()
    return (apart * through).sum(2) / bandwidth**2


@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [1e-1, 1e-2, 1e-3, 1e-4])
def test_squares_of_small_distances_are_right_to_a_rounding_over_the_distance(
    kind, dtype, share
):
    x = points(30, 4).to(dtype)
    z = x + share * points(30, 4, seed=1).to(dtype)
    seen = metric(kind, 4).to(dtype)
    kernel = Laplace(2.0)
    rows, columns = kernel.sides(x, seen), kernel.sides(z, seen)
    found = kernel._squared_(rows, columns, x.new_empty(30, 30)).double()
    wanted = exactly(x, z, seen, 2.0)
    error = ((found - wanted).abs() / wanted).max()
    eps = torch.finfo(dtype).eps
    # not mended: what the product leaves of a share of the squares
    assert error < max(100 * eps / share, 30 * eps / NEAR[dtype])


@given(seed=st.integers(0, 10**6), n=st.integers(1, 20))
def test_duplicates_are_at_distance_zero_and_nothing_else_is(seed, n):
    x = points(n, 3, seed=seed)
    z = torch.cat([x, x * (1 + 1e-14) + 1e-14])
    kernel, seen = Laplace(), metric("full", 3)
    rows, columns = kernel.sides(x, seen), kernel.sides(z, seen)
    found = kernel._squared_(rows, columns, x.new_empty(n, 2 * n))
    same = (x[:, None] == z).all(2)
    assert (found[same] == 0).all()
    assert (found[~same].abs() > 0).all()


def test_a_tile_is_mended_in_pieces(monkeypatch):
    x = points(50, 3)
    z = x + 1e-6
    kernel = Laplace(2.0)
    rows, columns = kernel.sides(x, None), kernel.sides(z, None)
    whole = recompute_near_(rows.left @ columns.right.T, rows, columns)
    monkeypatch.setattr("normalign.kernels._sides._CPU_ENTRIES", 200)
    monkeypatch.setattr("normalign.kernels._sides._COORDINATES", 9)
    pieces = recompute_near_(rows.left @ columns.right.T, rows, columns)
    assert torch.equal(whole, pieces)


def test_sides_can_be_cut():
    sides = Laplace().sides(points(9, 2), None)
    assert len(sides[2:5]) == 3
    assert torch.equal(sides[torch.tensor([1, 3])].right, sides.right[[1, 3]])
