"""The same machines on a CUDA device."""

import math

import pytest
import torch

from normalign.kernels import (
    Laplace,
    Solver,
    _precision,
    _triangle,
    agop,
    kernel_matrix,
    recursions,
)
from normalign.kernels._precision import Factor, multiply_, subtract_product_
from normalign.kernels.cuda import kernels_for
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
    monkeypatch.setattr(_triangle, "_DEVICE_WIDTH", 64)
    monkeypatch.setattr(_triangle, "_DEVICE_STRIP", 24)
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
    monkeypatch.setattr(_triangle, "_DEVICE_STRIP", strip)
    monkeypatch.setattr(_triangle, "_DEVICE_AHEAD", ahead)
    monkeypatch.setattr(_triangle, "_DEVICE_SMALL", small)
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


@pytest.fixture
def without_kernels(monkeypatch):
    for user in (_triangle, _precision):
        monkeypatch.setattr(user, "kernels_for", lambda tensor: None)


def test_the_kernels_can_be_had_and_only_for_float32():
    assert kernels_for(torch.zeros(1, device="cuda")) is not None
    assert kernels_for(torch.zeros(1, device="cuda", dtype=DOUBLE)) is None
    assert kernels_for(torch.zeros(1)) is None


@pytest.mark.parametrize("ahead", [False, True])
def test_without_kernels_the_library_solves_the_system(
    ahead, without_kernels, monkeypatch
):
    monkeypatch.setattr(_triangle, "_DEVICE_AHEAD", ahead)
    x, y = (points(3000, k, seed=k, dtype=torch.float32).cuda() for k in (6, 3))
    settings = {"kernel": KERNELS[0], "ridge": 1e-2, "metric": torch.eye(6).to(x)}
    (step,) = recursions(x, y, n_iter=0, **settings)
    machine = step.machine.to(dtype=DOUBLE)
    missing = machine(x.double()) + 1e-2 * machine.coef - y
    assert missing.norm() < 5e5 * torch.finfo(torch.float32).eps * y.norm()


def definite(n, pitch):
    """A definite float32 matrix in rows of a given pitch, and the same in float64."""
    x = points(n, 5)
    matrix = torch.exp(-torch.cdist(x, x) / 5) + 0.1 * torch.eye(n, dtype=DOUBLE)
    held = torch.full((n, pitch), 1e3, device="cuda")
    # what stands above the diagonal must not matter
    held[:, :n] = (matrix.tril() + 1e3 * torch.ones_like(matrix).triu(1)).float()
    return held[:, :n], matrix


@pytest.mark.parametrize("pitch", [1024, 1027])
@pytest.mark.parametrize("n", [1, 7, 32, 33, 127, 128, 129, 161, 300, 391, 512, 1024])
def test_a_block_and_its_inverse_are_those_of_the_library(n, pitch):
    block, matrix = definite(n, pitch)
    inverse, (failure,), cut = _triangle.factorise_and_invert_(block, 1024)
    assert not failure
    factor = torch.linalg.cholesky(matrix)
    found, inverse = block.tril().double().cpu(), inverse.double().cpu()
    assert (found - factor).norm() < 1e-5 * factor.norm()
    assert (inverse @ found - torch.eye(n, dtype=DOUBLE)).norm() < 1e-6 * n
    assert not inverse.triu(1).any()
    if n % 4:
        assert cut is None
    else:
        high, low, again = (part.double().cpu() for part in cut.split(n))
        assert torch.equal(high, again)
        assert (high + low - inverse.T).norm() < 1e-6 * inverse.norm()


def test_a_block_comes_out_the_same_every_time():
    block, _ = definite(1024, 1024)
    first = block.clone()
    inverse = _triangle.factorise_and_invert_(first, 1024).inverse
    for _ in range(20):
        again = block.clone()
        assert torch.equal(
            _triangle.factorise_and_invert_(again, 1024).inverse, inverse
        )
        assert torch.equal(again.tril(), first.tril())


@pytest.mark.parametrize("value", [-1.0, 0.0, float("nan")])
@pytest.mark.parametrize("place", [0, 31, 32, 127, 128, 640, 999])
def test_a_block_that_is_not_definite_is_reported_there(place, value):
    matrix = torch.eye(1000, device="cuda")
    matrix[place, place] = value
    assert any(_triangle.factorise_and_invert_(matrix, 1024).failures)


def test_products_in_half_precision_are_as_accurate_as_in_float32():
    panel = points(3000, 256, dtype=torch.float32).cuda()
    panel[:, ::3] *= 1e-3  # entries of different sizes
    largest = float(panel.abs().max())
    rows = Factor(panel, largest)
    assert [part.dtype for part in rows.parts] == [torch.float16]
    found = torch.ones(2900, 256, device="cuda")
    subtract_product_(found, rows[100:], rows[:256])
    wanted = 1 - panel[100:].double() @ panel[:256].double().T
    plain = 1 - panel[100:] @ panel[:256].T
    scale = wanted.abs().max()
    error, plain_error = (
        float((one.double() - wanted).abs().max() / scale) for one in (found, plain)
    )
    assert error < 4 * max(plain_error, 1e-6)


def test_rows_times_an_inverse_are_as_accurate_as_in_float32():
    block, _ = definite(512, 512)
    inverse, _, cut = _triangle.factorise_and_invert_(block, 1024)
    rows = points(2000, 512, dtype=torch.float32).cuda()
    wanted = rows.double() @ inverse.T.double()
    plain = rows @ inverse.T
    found = multiply_(rows, inverse.T, cut)
    error, plain_error = (
        float((one.double() - wanted).norm() / wanted.norm()) for one in (found, plain)
    )
    assert found.data_ptr() == rows.data_ptr()
    assert error < 4 * max(plain_error, 1e-6)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("n", [1, 6, 300, 1024, 1025, 2500, 5003])
def test_a_solution_is_that_of_the_square(n, k):
    block, matrix = definite(n, n)
    held = _triangle.Triangle(n, dtype=torch.float32, device=block.device)
    for start, panel in zip(held.edges, held.panels, strict=False):
        panel.copy_(block[start:, start : start + panel.shape[1]])
    assert held.factorise_()
    right = points(n, k, seed=1)
    wanted = torch.linalg.solve(matrix, right)
    found = held.solve_(right.float().cuda())
    assert (found.double().cpu() - wanted).norm() < 1e-4 * n**0.5 * wanted.norm()
    assert held._solve_by_kernel_(right.float().cuda()) == (k < 5)


@pytest.mark.parametrize("spread", [1.0, 1e4, 1e9])
def test_weights_of_any_spread_leave_a_system_solved(spread):
    x, y = (points(3000, k, seed=k, dtype=torch.float32).cuda() for k in (6, 2))
    weights = torch.logspace(0, -math.log10(spread), 3000, device="cuda")
    settings = {"kernel": KERNELS[0], "ridge": 1e-2, "metric": torch.eye(6).to(x)}
    (step,) = recursions(x, y, n_iter=0, weights=weights, **settings)
    machine = step.machine.to(dtype=DOUBLE)
    load = 1e-2 / weights.double()[:, None] * machine.coef
    missing = machine(x.double()) + load - y
    assert missing.norm() < 5e5 * torch.finfo(torch.float32).eps * y.norm()


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


def in_one_pass(squared):
    """Laplace values and slopes of numbers that belong to no near points."""
    kernels = kernels_for(squared)
    assert kernels is not None
    rows, columns = (torch.ones(count, 3).cuda() for count in squared.shape)
    settings = (rows, rows), (columns, columns), 0.0
    values = kernels.laplace_values_(squared.clone(), *settings)
    return values, kernels.laplace_slopes_(squared.clone(), *settings)


@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 5), (8, 512), (9, 513), (64, 1), (1, 100_003)]
)
def test_values_and_slopes_in_one_pass_are_those_of_many(shape):
    squares = points(*shape, dtype=torch.float32).square().cuda()
    root = squares.sqrt()
    values, slopes = in_one_pass(squares)
    torch.testing.assert_close(values, torch.exp(-root), rtol=1e-6, atol=0)
    torch.testing.assert_close(slopes, torch.exp(-root) / root, rtol=2e-6, atol=0)


def test_what_is_no_number_stays_none_in_one_pass():
    odd = torch.tensor([[torch.nan, torch.inf, -torch.inf, 0.0]], device="cuda")
    values, slopes = (found[0] for found in in_one_pass(odd))
    assert values.isnan().tolist() == slopes.isnan().tolist() == [True] + [False] * 3
    assert values[1:].tolist() == [0.0, 1.0, 1.0]
    assert slopes[1:].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_near_points_of_a_device_are_as_far_apart_as_on_a_processor(dtype):
    x = points(40, 6, dtype=dtype)
    step = 1e-3 if dtype == torch.float32 else 1e-6
    x[20:] = x[:20] + step * points(20, 6, seed=1, dtype=dtype)
    seen = metric("full", 6).to(dtype)
    for kernel in KERNELS[:2]:
        wanted = kernel.sides(x, seen)
        found = kernel.sides(x.cuda(), seen.cuda())
        far, near = (
            kernel.distances_(sides, sides, sides.left.new_empty(40, 40))
            for sides in (wanted, found)
        )
        torch.testing.assert_close(near.cpu(), far, rtol=1e-3, atol=0)


@pytest.mark.parametrize("exponent", [1.0, 0.7])
def test_kernel_matrices_of_a_device_are_those_of_a_processor(exponent):
    x, kernel = points(300, 5, dtype=torch.float32), Laplace(2.0, exponent=exponent)
    x[7] = x[2]
    seen = metric("full", 5).float()
    found = kernel_matrix(x.cuda(), x.cuda(), kernel, metric=seen.cuda())
    wanted = kernel_matrix(x, x, kernel, metric=seen)
    torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=1e-5)
    assert found[2, 7] == found[7, 2] == 1


@pytest.mark.parametrize("n", [1, 40, 1100])
@pytest.mark.parametrize("own", [torch.float32, torch.float64])
def test_near_points_are_mended_on_a_device_as_on_a_processor(n, own):
    x = points(n, 5, dtype=own)
    z = torch.cat([x + 1e-4, points(30, 5, seed=1, dtype=own), x])
    kernel, seen = Laplace(2.0), metric("full", 5).to(own)
    found, wanted = (
        kernel._squared_(
            kernel.sides(x.to(place), seen.to(place)),
            kernel.sides(z.to(place), seen.to(place)),
            torch.empty(n, len(z), dtype=own, device=place),
        ).cpu()
        for place in ("cuda", "cpu")
    )
    eps = torch.finfo(own).eps
    torch.testing.assert_close(found, wanted, rtol=1e4 * eps, atol=100 * eps)
    assert (found.diagonal(n + 30) == 0).all()  # duplicates
