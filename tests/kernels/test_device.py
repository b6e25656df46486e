"""The same machines on a CUDA device."""

import pytest
import torch

from normalign.kernels import Solver, agop, recursions
from normalign.kernels import triangle as module
from normalign.kernels.precision import Factor, subtract_product_
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
    monkeypatch.setattr(module, "_DEVICE_STRIP", 24)
    x, y, seen = points(300, 5), points(300, 3, seed=1), metric(kind, 5)
    solver = Solver(name, tolerance=1e-12, rank=50)
    host = last(x, y, kernel, seen, solver)
    there = last(x.cuda(), y.cuda(), kernel, seen.cuda(), solver)
    assert torch.allclose(there.machine.metric.cpu(), host.machine.metric, atol=1e-8)
    fresh = points(20, 5, seed=2)
    assert torch.allclose(there.machine(fresh.cuda()).cpu(), host.machine(fresh))
    moved = there.machine.to("cpu")
    assert torch.allclose(moved.jacobian(fresh), host.machine.jacobian(fresh))
    if name == "cholesky":  # conjugate gradients give left-out outputs roughly
        rows = torch.arange(5)
        outside = there.left_out(rows.cuda()).cpu()
        assert torch.allclose(outside, host.left_out(rows), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("small", [0, 10**6])
@pytest.mark.parametrize("strip", [256, 1024])
def test_every_way_of_factorising_solves_the_system(
    strip, small, ahead, dtype, monkeypatch
):
    monkeypatch.setattr(module, "_DEVICE_STRIP", strip)
    monkeypatch.setattr(module, "_DEVICE_AHEAD", ahead)
    monkeypatch.setattr(module, "_DEVICE_SMALL", small)
    x, y = (points(5000, k, seed=k, dtype=dtype).cuda() for k in (6, 3))
    settings = {"kernel": KERNELS[0], "ridge": 1e-2, "metric": torch.eye(6).to(x)}
    for step in recursions(x, y, n_iter=2, **settings):
        machine = step.machine.to(dtype=DOUBLE)
        missing = machine(x.double()) + 1e-2 * machine.coef - y
        # a condition of 5000 / 0.01, and the rounding of each precision
        assert missing.norm() < 5e5 * torch.finfo(dtype).eps * y.norm()


@pytest.mark.parametrize("form", ["gradients", "pairs"])
def test_both_sums_of_gradients_work_there(form):
    x, coef = points(200, 4).cuda(), points(200, 6, seed=1).cuda()
    found = agop(x, x, coef, KERNELS[0], form=form)
    host = agop(x.cpu(), x.cpu(), coef.cpu(), KERNELS[0], form=form)
    assert found.dtype == DOUBLE
    assert torch.allclose(found.cpu(), host, rtol=1e-9)


def test_three_products_on_tensor_cores_are_as_accurate_as_one_in_float32():
    panel = points(3000, 256, dtype=torch.float32).cuda()
    wanted = -panel.double() @ panel[:256].double().T
    found = torch.zeros(3000, 256, device="cuda")
    rows = Factor(panel)
    assert len(rows.parts) == 2
    subtract_product_(found, rows, rows[:256])
    plain = -panel @ panel[:256].T
    scale = wanted.abs().max()
    error, plain_error = (
        float((one.double() - wanted).abs().max() / scale) for one in (found, plain)
    )
    assert error < 4 * max(plain_error, 1e-6)


def test_a_program_that_allows_tf32_gets_the_same_machine_and_keeps_its_setting():
    x, y = (points(2000, 5, seed=s, dtype=torch.float32).cuda() for s in (0, 1))
    settings = {
        "kernel": KERNELS[0], "ridge": 1e-2, "metric": torch.eye(5).cuda(), "n_iter": 1,
    }  # fmt: skip
    (*_, strict) = recursions(x, y, **settings)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        (*_, lax) = recursions(x, y, **settings)
        assert torch.equal(lax.machine(x), strict.machine(x))
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
