"""Conjugate gradients, which need no matrix: what they find, and what they say."""

import pytest
import torch

from normalign.kernels import Gaussian, Laplace, Solver, System, _iterative
from normalign.kernels._memory import Needs
from normalign.kernels._solve import solve
from tests.kernels.cases import DOUBLE, KERNELS, dense, points, system


def hard(dtype=torch.float32):
    """A smooth kernel and a small ridge: coefficients are large, and cancel."""
    return system(n=400, d=2, ridge=1e-4, dtype=dtype, kernel=Gaussian(3.0))


def true_residual(problem, coef, y):
    left = y.double() - dense(problem.to(DOUBLE)) @ coef.double()
    return float((left.norm(dim=0) / y.double().norm(dim=0)).max())


def test_convergence_is_told_by_the_true_residual():
    problem, y = hard(), points(400, 2, seed=3, dtype=torch.float32)
    found = solve(problem, y, Solver("cg", tolerance=1e-6))
    assert found.solved.converged
    assert found.solved.residual == pytest.approx(
        true_residual(problem, found.coef, y), rel=0.1
    )
    assert found.solved.residual <= 1e-6


def test_coefficients_too_large_for_float32_stay_float64_or_are_told():
    problem, y = hard(), points(400, 2, seed=3, dtype=torch.float32)
    found = solve(problem, y, Solver("cg"))
    assert found.coef.dtype == found.solved.dtype == DOUBLE
    assert found.solved.caution == ""
    tight = Needs.of(problem, 2).iterative(1)
    assert tight < Needs.of(problem, 2, DOUBLE).iterative(1)
    kept = solve(problem, y, Solver("cg", memory_limit=tight))
    assert kept.coef.dtype == torch.float32
    assert "rounding in float32 moves outputs by about" in kept.solved.caution
    easy = system(n=400, d=8, ridge=1e-1, dtype=torch.float32)
    assert solve(easy, y, Solver("cg")).coef.dtype == torch.float32


def test_one_output_that_loses_its_digits_counts():
    problem, rough = hard(), points(400, 1, seed=3, dtype=torch.float32)
    y = torch.cat([1e6 * problem.points.sum(1, keepdim=True), rough], 1)
    found = solve(problem, y, Solver("cg"))
    assert found.coef.dtype == DOUBLE
    told = found.solved.residual
    assert told == pytest.approx(true_residual(problem, found.coef, y), rel=0.2)


def test_too_few_steps_are_told():
    found = solve(
        system(n=80, ridge=1e-6), points(80, 2),
        Solver("cg", max_steps=2, rank=5, tolerance=1e-12),
    )  # fmt: skip
    assert "stopped after 2 steps" in found.solved.caution
    assert not found.solved.converged
    assert found.solved.steps == 2


def test_the_preconditioner_saves_steps():
    problem, y = system(n=200, d=2, ridge=1e-3), points(200, 1)
    steps = {
        rank: solve(problem, y, Solver("cg", rank=rank, tolerance=1e-8)).solved.steps
        for rank in (1, 100)
    }
    assert steps[100] < steps[1] / 3


@pytest.mark.usefixtures("half_by_default")
def test_the_preconditioner_does_not_depend_on_a_default_dtype():
    problem = system(n=3000, d=1)  # half precision counts to 2048
    y = points(3000, 1)
    found = _iterative._preconditioner(problem, 20, "solve")(y)
    torch.set_default_dtype(torch.float32)
    assert torch.equal(found, _iterative._preconditioner(problem, 20, "solve")(y))


@pytest.mark.parametrize("ridge", [1e-3, 0.1])
def test_a_crowded_plane_in_float32_still_has_a_preconditioner(ridge):
    problem = system(n=1500, d=2, ridge=ridge, dtype=torch.float32, kernel=KERNELS[4])
    y = points(1500, 1, dtype=torch.float32)
    found = solve(problem, y, Solver("cg", rank=1000, tolerance=1e-3))
    assert found.solved.converged
    left = dense(problem.to(DOUBLE)) @ found.coef.double() - y.double()
    assert float(left.norm() / y.norm()) < 1e-2


@pytest.mark.parametrize("rank", [50, 500])
@pytest.mark.parametrize("d", [3, 10])
def test_conjugate_gradients_converge_in_float32_as_they_do_in_float64(d, rank):
    single = system(n=1200, d=d, ridge=1e-3, dtype=torch.float32, kernel=Laplace(10.0))
    y = torch.sin(single.points[:, :1]) + 0.1 * points(1200, 1, dtype=torch.float32)
    found = solve(single, y, Solver("cg", rank=rank))
    assert found.solved.converged
    wanted = torch.linalg.solve(dense(single.to(DOUBLE)), y.double())
    outputs = dense(single.to(DOUBLE)) - torch.diag(single.ridges.double())
    apart = (outputs @ (found.coef.double() - wanted)).abs().max()
    assert float(apart) < 2e-2


def test_a_ridge_that_has_no_inverse_is_an_error_not_a_loop():
    problem = system(n=30, ridge=1e-320)
    with pytest.raises(ValueError, match="ridge must be large enough"):
        solve(problem, points(30, 1), Solver("cg", rank=10))


def test_the_best_iterate_is_returned_and_never_worse_than_zero():
    product = torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=DOUBLE)  # not definite
    b = torch.ones(2, 1, dtype=DOUBLE)
    _, _, residual = _iterative.conjugate_gradients(
        lambda v: product @ v, b, lambda r: r, 1e-8, 5
    )
    assert residual <= 1


def test_targets_of_zero_are_solved_by_zeros():
    found = solve(system(), torch.zeros(40, 2, dtype=DOUBLE), Solver("cg"))
    assert torch.equal(found.coef, torch.zeros(40, 2, dtype=DOUBLE))


def test_the_rank_follows_the_memory():
    needs = Needs.of(system(), 1)
    roomy = _iterative._rank(needs, Solver(), 1 << 40)
    tight = _iterative._rank(needs, Solver(), needs.iterative(20))
    assert roomy == 40
    assert tight == 20
    assert _iterative._rank(needs, Solver(), 1) == 1


def test_conjugate_gradients_give_up_one_table_before_they_make_another():
    problem, y = system(n=80), points(80, 2)
    first = solve(problem, y, Solver("cg"))
    rows = torch.arange(5)
    assert first.inverse_diagonal(rows).shape == (5,)
    solve(problem, y, Solver("cg"), spare=first.spare)
    with pytest.raises(RuntimeError, match="until the next iteration"):
        first.inverse_diagonal(rows)


def test_the_inverse_is_made_column_by_column_where_memory_is_short():
    problem, y = system(n=80), points(80, 2)
    rows = torch.arange(0, 80, 3)
    wide, narrow = (
        solve(problem, y, Solver("cg", memory_limit=limit, rank=5))
        for limit in (10**7, 8 * 80 * 24)
    )
    assert narrow._at_once < len(rows) < wide._at_once
    apart = wide.inverse_diagonal(rows) - narrow.inverse_diagonal(rows)
    assert float(apart.abs().max()) < 0.1 * float(wide.inverse_diagonal(rows).max())


def test_a_ridge_for_which_no_step_helps_is_refused():
    problem = System(
        torch.tensor([[0.0], [0.0], [1.0]], dtype=DOUBLE), Laplace(1.0), None,
        torch.full((3,), 1e-30, dtype=DOUBLE),
    )  # fmt: skip
    y = torch.tensor([[-2.0], [1.0], [1.0]], dtype=DOUBLE)
    with pytest.raises(ValueError, match=r"ridge must be large enough .* got 1\.0e-30"):
        solve(problem, y, Solver("cg"))


def test_a_diagonal_of_the_inverse_without_progress_is_refused(monkeypatch):
    found = solve(system(n=30), points(30, 1), Solver("cg"))
    monkeypatch.setattr(
        _iterative, "conjugate_gradients", lambda _, b, *rest, **more: (0 * b, 100, 1.0)
    )
    with pytest.raises(ValueError, match="solve: ridge must be large enough"):
        found.inverse_diagonal(torch.arange(3))
