"""Kernels: values against their definitions, exactness at duplicates, bandwidths."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels import (
    Gaussian,
    Laplace,
    ProductLaplace,
    kernel_matrix,
)
from tests.kernels.cases import DOUBLE, KERNELS, METRICS, metric, naive_kernel, points

ids = repr


@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("kernel", KERNELS, ids=ids)
def test_values_are_those_of_the_definition(kernel, kind):
    x, z, seen = points(7, 4), points(5, 4, seed=1), metric(kind, 4)
    found = kernel_matrix(x, z, kernel, metric=seen)
    assert torch.allclose(found, naive_kernel(x, z, kernel, seen), atol=1e-13)


@pytest.mark.parametrize("kernel", KERNELS, ids=ids)
def test_float32_values_are_right_to_the_root_of_its_precision(kernel):
    x = points(60, 5)
    exact = naive_kernel(x, x, kernel)
    found = kernel_matrix(x.float(), x.float(), kernel)
    # the distance of near neighbours comes out of a cancellation
    assert torch.allclose(found.double(), exact, atol=3e-4)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("kernel", KERNELS, ids=ids)
@given(
    d=st.integers(1, 40), scale=st.integers(-6, 6), seed=st.integers(0, 10**6),
    offset=st.sampled_from([0.0, 1.0, 100.0]),
)  # fmt: skip
def test_a_point_and_its_duplicates_are_at_distance_zero(
    kernel, dtype, d, scale, seed, offset
):
    x = 10.0**scale * (points(6, d, seed=seed, dtype=dtype) + offset)
    twice = torch.cat([x, x])
    seen = metric("full", d, seed=seed).to(dtype)
    found = kernel_matrix(twice, twice, kernel, metric=seen)
    assert bool((found[:6, 6:].diagonal() == 1).all())
    assert bool((found.diagonal() == 1).all())
    assert bool((found <= 1).all())


@given(seed=st.integers(0, 10**6), shift=st.floats(-50, 50))
def test_a_shift_of_all_points_changes_nothing(seed, shift):
    x = points(5, 3, seed=seed)
    kernel = Laplace(2.0)
    moved = kernel_matrix(x + shift, x + shift, kernel)
    assert torch.allclose(moved, kernel_matrix(x, x, kernel), atol=1e-6)


def test_an_outlier_does_not_blur_the_others():
    x = points(6, 3, dtype=torch.float32)
    far = torch.cat([x, torch.full((1, 3), 1e6)])
    found = kernel_matrix(far, far, Laplace(2.0))[:6, :6]
    exact = naive_kernel(x.double(), x.double(), Laplace(2.0)).float()
    assert torch.allclose(found, exact, atol=1e-5)


def test_exponent_two_is_a_gaussian():
    x = points(6, 3)
    smooth = kernel_matrix(x, x, Laplace(2.0, exponent=2.0))
    bell = kernel_matrix(x, x, Gaussian(2.0 / math.sqrt(2)))
    assert torch.allclose(smooth, bell, atol=1e-14)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.inf, math.nan, 1e-200, 1e200])
def test_a_bandwidth_that_is_no_length_is_refused(bandwidth):
    with pytest.raises(ValueError, match="Laplace: bandwidth must be positive"):
        Laplace(bandwidth)


@pytest.mark.parametrize("exponent", [0.0, 2.1])
def test_an_exponent_without_a_positive_definite_kernel_is_refused(exponent):
    with pytest.raises(ValueError, match="exponent must be in"):
        Laplace(exponent=exponent)


def test_shapes_that_do_not_fit_are_refused_by_name():
    x = points(3, 2)
    with pytest.raises(ValueError, match="z must be of shape"):
        kernel_matrix(x, points(3, 4), Laplace())
    with pytest.raises(ValueError, match="metric must be of shape"):
        kernel_matrix(x, x, Laplace(), metric=torch.ones(3, dtype=DOUBLE))
    with pytest.raises(TypeError, match="x must be a float32 or float64 tensor"):
        kernel_matrix(torch.ones(2, 2, dtype=torch.int64), x, Laplace())
    with pytest.raises(ValueError, match="z must be float64 on cpu, like x"):
        kernel_matrix(x, x.float(), Laplace())
    with pytest.raises(TypeError, match="kernel must be a Kernel"):
        kernel_matrix(x, x, "laplace")
    with pytest.raises(ValueError, match=r"without requires_grad.*as_torch"):
        kernel_matrix(x.clone().requires_grad_(), x, Laplace())
    with pytest.raises(TypeError, match="bandwidth must be a number"):
        Laplace("wide")


@pytest.mark.parametrize("d", [1, 9, 11, 40])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_where_a_point_is_placed_does_not_depend_on_its_row(d, dtype):
    # in a product of matrices it does, on some processors
    x, kernel = points(37, d, dtype=dtype), ProductLaplace(2.5)
    seen = metric("full", d).to(dtype)
    placed = kernel.placed(torch.cat([x, x]), seen)
    assert torch.equal(placed[:37], placed[37:])
    assert torch.equal(kernel.placed(x.flip(0), seen).flip(0), placed[:37])
