"""Outputs and Jacobians of expansions: sums, central differences, tiles."""

import pytest
import torch

from normalign.kernels import (
    Columns,
    agop,
    expansion,
    expansion_jacobian,
    gradients,
    pull_back,
)
from normalign.kernels import (
    _tiles as tiles,
)
from tests.kernels.cases import (
    DOUBLE,
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


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_rows_that_differ_by_less_than_rounding_count_as_duplicates(kernel, dtype):
    eps = torch.finfo(dtype).eps
    same = points(12, 6).to(dtype)
    same[1], same[:, 5] = same[0], 0  # the median of a column of zeros is exact
    apart = same.clone()
    apart[1, 5] = 1e-3 * eps
    coef = points(12, 2, seed=1).to(dtype)
    far = points(3, 6, seed=2).to(dtype)

    def answers(centers):
        x = torch.cat([centers, far])
        columns = Columns.of(centers, coef, kernel, metric=None)
        yield expansion_jacobian(x, centers, coef, kernel)
        yield pull_back(x, columns, lambda outputs, _: torch.ones_like(outputs))[1]
        for form in ["gradients", "pairs"][: 1 if "Product" in repr(kernel) else 2]:
            yield agop(x, centers, coef, kernel, form=form)

    for found, wanted in zip(answers(apart), answers(same), strict=True):
        if "Product" in repr(kernel):  # its gradient is bounded: of each axis a sign
            assert found.abs().max() <= 10 * wanted.abs().max()
        else:
            torch.testing.assert_close(found, wanted, rtol=1e3 * eps, atol=1e3 * eps)


def test_other_kernels_are_refused():
    with pytest.raises(TypeError, match="kernel must be Radial or ProductLaplace"):
        next(
            gradients.raw_gradients(
                points(2, 2), points(2, 2), points(2, 1), object(), (None, None)
            )
        )
