"""Outputs and Jacobians of expansions: sums, central differences, tiles."""

import pytest
import torch

from normalign.kernels import expansion, expansion_jacobian, gradients, tiles
from tests.kernels.cases import (
    KERNELS,
    METRICS,
    metric,
    naive_jacobian,
    naive_kernel,
    points,
)


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "_CPU_TILE", (3, 4))


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_outputs_are_the_sum_of_the_definition(kernel, kind):
    x, centers, coef = points(8, 3), points(11, 3, seed=1), points(11, 2, seed=2)
    seen = metric(kind, 3)
    found = expansion(x, centers, coef, kernel, metric=seen)
    assert torch.allclose(found, naive_kernel(x, centers, kernel, seen) @ coef)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("outputs", [1, 1 << 24])
@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_jacobians_are_those_of_central_differences(kernel, kind, outputs, monkeypatch):
    monkeypatch.setattr(gradients, "_COLUMNS", outputs)
    x, centers, coef = points(8, 3), points(11, 3, seed=1), points(11, 2, seed=2)
    seen = metric(kind, 3)
    found = expansion_jacobian(x, centers, coef, kernel, metric=seen)
    wanted = naive_jacobian(x, centers, coef, kernel, seen)
    assert found.shape == (8, 2, 3)
    # differences of step 1e-6 of a function with second derivatives of order one
    assert torch.allclose(found, wanted, atol=1e-7)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_a_center_and_its_duplicates_contribute_nothing_at_it(kernel):
    centers, coef = points(6, 3), points(6, 2, seed=1)
    doubled = torch.cat([centers, centers[:1]])
    heavy = torch.cat([coef, 1e6 * coef[:1]])
    found = expansion_jacobian(centers[:1], doubled, heavy, kernel)
    alone = expansion_jacobian(centers[:1], centers[1:], coef[1:], kernel)
    assert torch.allclose(found, alone, rtol=1e-9, atol=1e-9)


def test_other_kernels_are_refused():
    with pytest.raises(TypeError, match="kernel must be Radial or ProductLaplace"):
        next(
            gradients.raw_gradients(
                points(2, 2), points(2, 2), points(2, 1), object(), (None, None)
            )
        )
