"""Small tables, whose square and slopes are held: the machines stay the same."""

import pytest
import torch

from normalign.kernels import Solver, recursions
from normalign.kernels import _tiles as tiles
from normalign.kernels import _triangle as module
from normalign.kernels._expansion import gradients_of_slopes, raw_gradients
from normalign.kernels._functions import Radial
from tests.kernels.cases import DOUBLE, KERNELS, metric, points

RADIAL = [kernel for kernel in KERNELS if isinstance(kernel, Radial)]


@pytest.fixture(params=[1 << 17, 40 * 70], ids=["one tile", "many tiles"])
def tile(request, monkeypatch):
    monkeypatch.setattr(tiles, "_SQUARE_TILE", request.param)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_a_table_held_whole_gives_the_machine_of_panels(
    kernel, kind, weighted, monkeypatch
):
    x, y, seen = points(70, 5), points(70, 3, seed=1), metric(kind, 5)
    x[11] = x[3]  # a duplicate, at which slopes vanish
    weights = points(70, 1, seed=2)[:, 0].abs() + 0.1 if weighted else None
    settings = {
        "kernel": kernel, "ridge": 1e-2, "metric": seen, "n_iter": 3,
        "weights": weights,
    }  # fmt: skip
    monkeypatch.setattr(module, "_WHOLE_ATONCE", 20)
    monkeypatch.setattr(module, "_WHOLE_STRIP", 16)
    found = [step.machine for step in recursions(x, y, **settings)]
    monkeypatch.setattr(module, "_CPU_SMALL", 0)
    wanted = [step.machine for step in recursions(x, y, **settings)]
    for one, other in zip(found, wanted, strict=True):
        # rounding of sums in another order, grown by three solves
        torch.testing.assert_close(one.coef, other.coef, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(one.metric, other.metric, rtol=1e-8, atol=1e-8)


def test_left_out_outputs_come_from_a_square_too(monkeypatch):
    x, y = points(60, 4), points(60, 2, seed=1)
    settings = {
        "kernel": KERNELS[0], "ridge": 1e-2, "metric": metric("full", 4), "n_iter": 1,
    }  # fmt: skip
    rows = torch.arange(0, 60, 7)
    found = [step.left_out(rows) for step in recursions(x, y, **settings)]
    monkeypatch.setattr(module, "_CPU_SMALL", 0)
    wanted = [step.left_out(rows) for step in recursions(x, y, **settings)]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_a_small_limit_of_memory_keeps_to_the_triangle():
    n, limits = 1200, {}
    x, y = points(n, 3), points(n, 1, seed=1)
    # tiles and one triangle fit into 22 MB, a square of 11.5 MB and its slopes do not
    for limit in (22_000_000, None):
        settings = {"kernel": KERNELS[0], "ridge": 1e-2, "metric": metric("full", 3)}
        solver = Solver("cholesky", memory_limit=limit)
        (step,) = recursions(x, y, n_iter=0, solver=solver, **settings)
        limits[limit] = step
    assert len(limits[22_000_000]._solution.triangle.panels) > 1
    assert len(limits[None]._solution.triangle.panels) == 1
    small, large = (step.machine.coef for step in limits.values())
    torch.testing.assert_close(small, large, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_values_and_slopes_together_are_those_made_apart(kernel):
    x = points(40, 4)
    x[7] = x[2]
    sides = kernel.sides(x, metric("full", 4))
    values, slopes, alone, scratch = (x.new_empty(40, 40) for _ in range(4))
    kernel.values_and_slopes_(sides, sides, values, slopes)
    torch.testing.assert_close(values, kernel.values_(sides, sides, alone))
    torch.testing.assert_close(slopes, kernel.slopes_(sides, sides, alone, scratch))
    assert not slopes.diagonal().any()
    assert slopes[2, 7] == slopes[7, 2] == 0


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_gradients_need_the_lower_half_of_slopes_only(kernel):
    x, coef, seen = points(70, 4), points(70, 3, seed=1), metric("full", 4)
    sides = kernel.sides(x, seen)
    slopes, scratch = x.new_empty(70, 70), x.new_empty(70, 70)
    kernel.slopes_(sides, sides, slopes, scratch)
    for rows in tiles.square_spans(70):
        slopes[rows, rows.stop :] = torch.nan
    found = torch.cat([part for _, part in gradients_of_slopes(x, coef, slopes)])
    both = sides, sides
    wanted = torch.cat([part for _, part in raw_gradients(x, x, coef, kernel, both)])
    assert found.dtype == DOUBLE
    torch.testing.assert_close(found, wanted)
