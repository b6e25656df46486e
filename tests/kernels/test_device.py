"""The same machines on a CUDA device."""

import pytest
import torch

from normalign.kernels import Solver, agop, recursions
from normalign.kernels import triangle as module
from tests.kernels.cases import DOUBLE, KERNELS, metric, points

pytestmark = pytest.mark.cuda


def last(x, y, kernel, seen, solver):
    settings = {"kernel": kernel, "ridge": 1e-2, "metric": seen, "n_iter": 2}
    (*_, one) = recursions(x, y, solver=solver, **settings)
    return one


@pytest.mark.parametrize("name", ["cholesky", "cg"])
@pytest.mark.parametrize("kind", ["diagonal", "full"])
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_a_device_gives_the_same_machine(kernel, kind, name, monkeypatch):
    monkeypatch.setattr(module, "_DEVICE_WIDTH", 64)
    monkeypatch.setattr(module, "_DEVICE_SQUARE", 32)
    x, y, seen = points(300, 5), points(300, 3, seed=1), metric(kind, 5)
    solver = Solver(name, tolerance=1e-12, rank=50)
    host = last(x, y, kernel, seen, solver)
    there = last(x.cuda(), y.cuda(), kernel, seen.cuda(), solver)
    assert torch.allclose(there.machine.metric.cpu(), host.machine.metric, atol=1e-8)
    fresh = points(20, 5, seed=2)
    assert torch.allclose(there.machine(fresh.cuda()).cpu(), host.machine(fresh))
    moved = there.machine.to("cpu")
    assert torch.allclose(moved.jacobian(fresh), host.machine.jacobian(fresh))
    rows = torch.arange(5)
    assert torch.allclose(
        there.left_out(rows.cuda()).cpu(), host.left_out(rows), atol=1e-6
    )


@pytest.mark.parametrize("form", ["gradients", "pairs"])
def test_both_sums_of_gradients_work_there(form):
    x, coef = points(200, 4).cuda(), points(200, 6, seed=1).cuda()
    found = agop(x, x, coef, KERNELS[0], form=form)
    host = agop(x.cpu(), x.cpu(), coef.cpu(), KERNELS[0], form=form)
    assert found.dtype == DOUBLE
    assert torch.allclose(found.cpu(), host, rtol=1e-9)
