"""Compiled expansions are those of tensors, at any number of rows and columns."""

import sys

import pytest
import torch

from normalign.kernels import (
    Columns,
    Gaussian,
    Laplace,
    agop,
    expansion,
    gradients,
    pull_back,
)
from normalign.kernels.compiled import expansion as compiled_expansion
from normalign.kernels.compiled import team
from normalign.kernels.compiled.expansion import sums_of_sides
from tests.kernels.cases import DOUBLE, metric, naive_kernel, points

# a function of the package has the name of the module
pulling = sys.modules["normalign.kernels._pull_back"]
KERNELS = pytest.mark.parametrize("kernel", [Laplace(2.0), Gaussian(3.0)], ids=repr)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
SHAPES = [(1, 1, 1, 1), (5, 300, 4, 2), (130, 33, 3, 17), (257, 520, 11, 40)]


@pytest.fixture(params=[1, 3], ids=["alone", "three"])
def _members(request, monkeypatch):
    monkeypatch.setattr(team.torch, "get_num_threads", lambda: request.param)


@pytest.fixture
def _always(monkeypatch):
    monkeypatch.setattr(gradients, "_MANY", 0)


def summed(left, right, table, kernel, slopes):
    parts = sums_of_sides(left, right, table, kernel, slopes=slopes)
    return torch.cat([sums.clone() for _, sums in parts])


@pytest.mark.usefixtures("_members")
@DTYPES
@pytest.mark.parametrize("slopes", [True, False])
@pytest.mark.parametrize(("n", "m", "d", "c"), SHAPES)
@KERNELS
def test_sums_are_products_with_the_matrix(kernel, n, m, d, c, slopes, dtype):
    x, z = points(n, d, dtype=dtype), points(m, d, seed=1, dtype=dtype)
    z[: min(n, m) // 2] = x[: min(n, m) // 2]  # where slopes are zero
    table = points(m, c, seed=2, dtype=dtype)
    seen = metric("full", d).to(dtype)
    left, right = kernel.sides(x - 2, seen), kernel.sides(z - 2, seen)
    tile, scratch = x.new_empty(n, m), x.new_empty(n, m)
    if slopes:
        kernel.slopes_(left, right, tile, scratch)
    else:
        kernel.values_(left, right, tile)
    wanted = tile.double() @ table.double()
    near = 1e-11 if dtype == DOUBLE else 3e-4
    size = float(wanted.abs().max()) + 1
    found = summed(left, right, table, kernel, slopes)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=near * size)


@pytest.mark.usefixtures("_members")
def test_rows_come_in_calls_that_can_be_interrupted(monkeypatch):
    kernel, seen = Laplace(2.0), metric("full", 3)
    left, right = (kernel.sides(points(n, 3), seen) for n in (700, 90))
    table = points(90, 2, seed=2)
    wanted = summed(left, right, table, kernel, False)
    monkeypatch.setattr(compiled_expansion, "_AT_ONCE", 1)
    spans = [
        rows for rows, _ in sums_of_sides(left, right, table, kernel, slopes=False)
    ]
    assert len(spans) == 6
    assert torch.equal(summed(left, right, table, kernel, False), wanted)


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("kind", ["identity", "diagonal", "full"])
@KERNELS
def test_outputs_are_those_of_the_definition(kernel, kind):
    x, z, coef = points(40, 3), points(25, 3, seed=1), points(25, 2, seed=2)
    found = expansion(x, z, coef, kernel, metric=metric(kind, 3))
    wanted = naive_kernel(x, z, kernel, metric(kind, 3)) @ coef
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    assert expansion(x[:0], z, coef, kernel).shape == (0, 2)


@pytest.mark.parametrize("weighted", [False, True])
@KERNELS
def test_the_metric_that_is_learned_is_the_same_by_tensors(
    kernel, weighted, monkeypatch
):
    x, coef, seen = points(300, 4), points(300, 3, seed=2), metric("full", 4)
    weights = points(300, 1, seed=3)[:, 0].abs() + 0.1 if weighted else None
    settings = {"metric": seen, "weights": weights, "form": "gradients"}
    wanted = agop(x, x, coef, kernel, **settings)
    monkeypatch.setattr(gradients, "_MANY", 0)
    found = agop(x, x, coef, kernel, **settings)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_few_values_load_no_compiled_code():
    one, many = torch.ones(10, 4), torch.ones(1 << 20, 4)
    assert not gradients.is_for_compiled(one, one, Laplace())
    assert gradients.is_for_compiled(one, many, Laplace())
    assert not gradients.is_for_compiled(one, many, Laplace(exponent=0.5))


@pytest.mark.usefixtures("_members")
@DTYPES
@pytest.mark.parametrize("kind", ["identity", "diagonal", "full"])
@pytest.mark.parametrize("k", [1, 2, 19])
@KERNELS
def test_one_gradient_at_each_row_is_that_of_tensors(
    kernel, k, kind, dtype, monkeypatch
):
    x, z = points(150, 3, dtype=dtype), points(300, 3, seed=1, dtype=dtype)
    z[:20] = x[:20]
    seen = metric(kind, 3)
    columns = Columns.of(
        z, points(300, k, seed=2, dtype=dtype), kernel,
        metric=None if seen is None else seen.to(dtype),
    )  # fmt: skip
    asked = []

    def cotangent(outputs, rows):
        asked.append(rows)
        return torch.cos(outputs)

    wanted = pull_back(x, columns, cotangent)
    asked.clear()
    monkeypatch.setattr(gradients, "_MANY", 0)
    monkeypatch.setattr(pulling, "_COMPILED_ROWS", 130)
    found = pull_back(x, columns, cotangent)
    assert [(rows.start, rows.stop) for rows in asked] == [(0, 130), (130, 150)]
    near = 1e-10 if dtype == DOUBLE else 1e-3
    for one, other in zip(found, wanted, strict=True):
        size = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=near * size)
