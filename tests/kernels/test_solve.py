"""Solvers end to end: direct, in float64 after all, with jitter, without a matrix."""

import warnings

import pytest
import torch

from normalign.kernels import Gaussian, Laplace, Solver, iterative, kernel_matrix
from normalign.kernels import solve as module
from normalign.kernels.solve import System, solve
from tests.kernels.cases import DOUBLE, KERNELS, metric, points


def system(n=40, d=4, ridge=1e-2, dtype=DOUBLE, kernel=None, weights=None):
    x = points(n, d, dtype=dtype)
    x = x - x.mean(0)
    ridges = torch.full((n,), ridge, dtype=dtype)
    if weights is not None:
        ridges = ridges / weights
    return System(x, kernel or Laplace(3.0), metric("full", d).to(dtype), ridges)


def dense(problem):
    matrix = kernel_matrix(
        problem.points, problem.points, problem.kernel, metric=problem.metric
    )
    return matrix + torch.diag(problem.ridges)


@pytest.mark.parametrize("name", ["auto", "cholesky", "cg"])
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_every_solver_solves_the_system(name, kernel):
    weights = points(40, 1, seed=5)[:, 0].abs() + 0.5
    problem = system(kernel=kernel, weights=weights)
    y = points(40, 3, seed=1)
    found = solve(problem, y, Solver(name, tolerance=1e-12, rank=10))
    assert torch.allclose(dense(problem) @ found.coef, y, atol=1e-8)
    rows = torch.tensor([0, 7, 39])
    inverse = torch.linalg.inv(dense(problem)).diagonal()[rows]
    loose = 0.05 if name == "cg" else 1e-9  # conjugate gradients stop early there
    assert torch.allclose(found.inverse_diagonal(rows), inverse, rtol=loose)
    assert found.solved.converged
    assert found.solved.jitter == 0


def test_little_memory_means_conjugate_gradients():
    y = points(40, 1)
    assert solve(system(), y, Solver(memory_limit=1 << 40)).solved.solver == "cholesky"
    few = solve(system(), y, Solver(memory_limit=8000))
    assert few.solved.solver == "cg"
    assert few.solved.residual <= 1e-4


def test_a_cholesky_that_does_not_fit_is_refused_with_remedies():
    with pytest.raises(ValueError, match="memory_limit must be at least") as told:
        solve(system(), points(40, 1), Solver("cholesky", memory_limit=8000))
    for remedy in ("max_leaf_size", 'solver="cg"', "raise memory_limit"):
        assert remedy in str(told.value)


def near_duplicates(dtype):
    """Rows so near each other that float32 cannot tell that the matrix is definite."""
    x = points(30, 2, dtype=dtype)
    close = torch.cat([x, x + 1e-4, x - 1e-4])
    ridges = torch.full((90,), 1e-7, dtype=dtype)
    smooth = Laplace(20.0, exponent=2.0)
    return System(close - close.mean(0), smooth, torch.ones(2, dtype=dtype), ridges)


def test_where_float32_fails_float64_takes_over_and_says_so():
    y = points(90, 1, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = solve(near_duplicates(torch.float32), y, Solver())
    assert found.solved.dtype == DOUBLE
    assert found.solved.jitter == 0
    # and stays: what large coefficients sum to would be lost in float32
    assert found.coef.dtype == DOUBLE
    wide = near_duplicates(torch.float32).to(DOUBLE)
    assert torch.allclose(dense(wide) @ found.coef, y.double(), atol=1e-6)


def test_coefficients_too_large_for_float32_are_noticed_or_told():
    problem = system(n=600, d=2, ridge=1e-4, dtype=torch.float32, kernel=Gaussian(3.0))
    y = points(600, 1, seed=3, dtype=torch.float32)
    found = solve(problem, y, Solver())
    assert found.solved.dtype == found.coef.dtype == DOUBLE
    needed = module.direct_bytes(600, dtype=torch.float32, device=y.device)
    kept = solve(problem, y, Solver(memory_limit=needed))
    assert "rounding in float32 moves outputs by" in kept.solved.caution
    assert kept.coef.dtype == torch.float32
    easy = system(n=600, d=8, ridge=1e-2, dtype=torch.float32)
    assert solve(easy, y, Solver()).solved.dtype == torch.float32


def test_where_float64_does_not_fit_or_fails_a_jitter_is_added_and_told():
    problem = near_duplicates(torch.float32)
    needed = module.direct_bytes(90, dtype=torch.float32, device=problem.points.device)
    y = points(90, 1, dtype=torch.float32)
    found = solve(problem, y, Solver(memory_limit=needed))
    assert "not positive definite in float32; added" in found.solved.caution
    assert found.solved.jitter > 0
    assert bool(torch.isfinite(found.coef).all())
    exact = near_duplicates(DOUBLE)
    exact.ridges.zero_()
    found = solve(exact, points(90, 1), Solver())
    assert "not positive definite in float64; added" in found.solved.caution
    assert found.solved.jitter > 0


def test_a_matrix_that_nothing_can_help_is_an_error():
    problem = system(n=5)
    problem.points[0] = float("nan")
    with pytest.raises(ValueError, match="solve: x must be finite"):
        solve(problem, points(5, 1), Solver())


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
    _, _, residual = iterative.conjugate_gradients(
        lambda v: product @ v, b, lambda r: r, 1e-8, 5
    )
    assert residual <= 1


def test_targets_of_zero_are_solved_by_zeros():
    found = solve(system(), torch.zeros(40, 2, dtype=DOUBLE), Solver("cg"))
    assert torch.equal(found.coef, torch.zeros(40, 2, dtype=DOUBLE))


def test_the_rank_follows_the_memory():
    problem, y = system(), points(40, 1)
    roomy = iterative._rank(problem, y, Solver(), 1 << 40)
    tight = iterative._rank(problem, y, Solver(), 10_000)
    assert roomy == 40
    assert 1 <= tight < 40


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "lu"}, "name must be"),
        ({"memory_limit": 0}, "memory_limit must be"),
        ({"tolerance": -1.0}, "tolerance must be positive"),
        ({"max_steps": 0}, "max_steps must be 1 or more"),
        ({"rank": 0}, "rank must be an integer of 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        Solver(**settings)


def test_conjugate_gradients_give_up_one_table_before_they_make_another():
    problem, y = system(n=80), points(80, 2)
    first = solve(problem, y, Solver("cg"))
    rows = torch.arange(5)
    assert first.inverse_diagonal(rows).shape == (5,)
    solve(problem, y, Solver("cg"), spare=first.spare)
    with pytest.raises(RuntimeError, match="the next solve"):
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
