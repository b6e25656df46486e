"""Factors: in float64 after all, with jitter, and by whom they are made."""

import warnings

import pytest
import torch

from normalign.kernels import Gaussian, Laplace, Solver, System
from normalign.kernels._memory import Needs
from normalign.kernels._solve import solve
from tests.kernels.cases import DOUBLE, dense, points, system


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
    kept = solve(problem, y, Solver(memory_limit=Needs.of(problem, 1).direct))
    assert "rounding in float32 moves outputs by" in kept.solved.caution
    assert kept.coef.dtype == torch.float32
    easy = system(n=600, d=8, ridge=1e-2, dtype=torch.float32)
    assert solve(easy, y, Solver()).solved.dtype == torch.float32


def test_a_large_target_does_not_hide_what_another_has_lost():
    problem = system(n=600, d=2, ridge=1e-4, dtype=torch.float32, kernel=Gaussian(3.0))
    smooth = 1e6 * problem.points.sum(1, keepdim=True)
    rough = points(600, 1, seed=3, dtype=torch.float32)
    found = solve(problem, torch.cat([smooth, rough], 1), Solver())
    assert found.coef.dtype == DOUBLE


def test_rows_of_next_to_no_weight_do_not_hide_what_others_have_lost():
    problem = system(n=600, d=2, ridge=1e-4, dtype=torch.float32, kernel=Gaussian(3.0))
    y = points(600, 1, seed=3, dtype=torch.float32)
    problem.ridges[:30] = 1e5  # of weight 1e-9
    y[:30] = 1e4
    assert solve(problem, y, Solver()).coef.dtype == DOUBLE


def test_digits_that_float64_has_lost_are_told():
    problem = system(n=60, d=2, ridge=1e-13, kernel=Gaussian(3.0))
    found = solve(problem, points(60, 1, seed=3), Solver())
    assert "rounding in float64 moves outputs by about" in found.solved.caution
    fine = system(n=60, d=2, ridge=1e-6, kernel=Gaussian(3.0))
    assert solve(fine, points(60, 1, seed=3), Solver()).solved.caution == ""


def test_where_float64_does_not_fit_or_fails_a_jitter_is_added_and_told():
    problem = near_duplicates(torch.float32)
    y = points(90, 1, dtype=torch.float32)
    found = solve(problem, y, Solver(memory_limit=Needs.of(problem, 1).direct))
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
    with pytest.raises(ValueError, match=r"^solve: rows must be finite"):
        solve(problem, points(5, 1), Solver())
