"""Solvers: which is used, which precision, small tables, many ridges."""

import warnings

import numpy as np
import pytest
import torch

from normalign.kernels import (
    Gaussian,
    Laplace,
    Solver,
    System,
    _sides,
    _triangle,
    kernel_matrix,
    recursions,
)
from normalign.kernels._expansion import gradients_of_slopes, raw_gradients
from normalign.kernels._functions import Radial
from normalign.kernels._memory import Needs
from normalign.kernels._solve import ridge_path, shared_is_cheaper, solve
from tests.kernels.cases import DOUBLE, KERNELS, dense, metric, points, system


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


RADIAL = [kernel for kernel in KERNELS if isinstance(kernel, Radial)]


@pytest.fixture(params=[1 << 17, 40 * 70], ids=["one tile", "many tiles"])
def tile(request, monkeypatch):
    monkeypatch.setattr(_sides, "_SQUARE_TILE", request.param)


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
    found = [step.machine for step in recursions(x, y, **settings)]
    monkeypatch.setattr(_triangle, "_CPU_SMALL", 0)
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
    monkeypatch.setattr(_triangle, "_CPU_SMALL", 0)
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
    for rows in _sides.square_spans(70):
        slopes[rows, rows.stop :] = torch.nan
    given = x, coef, slopes, kernel, sides
    found = torch.cat([part for _, part in gradients_of_slopes(*given)])
    both = sides, sides
    wanted = torch.cat([part for _, part in raw_gradients(x, x, coef, kernel, both)])
    assert found.dtype == DOUBLE
    torch.testing.assert_close(found, wanted)


RIDGES = [10.0, 1.0, 0.1, 0.01, 0.001]


@pytest.mark.parametrize("name", ["auto", "cholesky"])
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_path_is_its_ridges_one_by_one(kernel, weighted, name):
    x, y = points(30, 3), points(30, 2, seed=1)
    weights = points(30, 1, seed=2)[:, 0].abs() if weighted else torch.ones(30).to(x)
    system = System(x, kernel, metric("full", 3), 1 / weights)
    found = list(ridge_path(system, y, RIDGES, solver=Solver(name)))
    assert len(found) == len(RIDGES)
    for ridge, (coef, solved) in zip(RIDGES, found, strict=True):
        one = System(x, kernel, system.metric, ridge / weights)
        wanted = solve(one, y, Solver("cholesky")).coef
        assert torch.allclose(coef, wanted, atol=1e-8 * float(wanted.abs().max()))
        assert solved.solver == ("eigh" if name == "auto" else "cholesky")


def test_float32_comes_back_as_float32_unless_it_has_lost_its_digits():
    x = points(20, 3, dtype=torch.float32)
    system = System(x, KERNELS[0], None, torch.ones(20))
    for coef, solved in ridge_path(system, x, RIDGES):
        assert coef.dtype == solved.dtype == torch.float32
        assert solved.solver == "eigh"
    smooth = System(1e-3 * x, Gaussian(3.0), None, torch.ones(20))
    (fine, told), (large, kept), (_, lost) = ridge_path(smooth, x, [1.0, 1e-9, 1e-300])
    assert fine.dtype == told.dtype == torch.float32
    assert large.dtype == kept.dtype == DOUBLE
    exact = kernel_matrix(smooth.points.double(), smooth.points.double(), Gaussian(3.0))
    assert torch.allclose(exact @ large + 1e-9 * large, x.double(), atol=1e-5)
    assert lost.jitter > 0
    assert "not positive definite in float64; added" in lost.caution


def test_many_ridges_share_a_decomposition_only_where_it_fits():
    x, many = points(60, 3), [1.0 + i for i in range(50)]
    system = System(x, KERNELS[0], None, torch.ones(60).to(x))
    for limit, name in ((10**6, "eigh"), (10**5, "cg")):
        solver = Solver("auto", memory_limit=limit)
        found = list(ridge_path(system, x[:, :1], many, solver=solver))
        assert {solved.solver for _, solved in found} == {name}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ((1, 2, 3), TypeError, "ridges must be a sequence of numbers, got 3"),
        ((1, 2, [1.0]), TypeError, "system must be a System, got 1"),
        ((None, 2, [1.0]), TypeError, "y must be a float32 or float64 tensor, got 2"),
        ((None, points(3, 1), [1.0]), ValueError, r"y must be of shape \(5, k\)"),
        ((None, points(5, 1), "ab"), TypeError, "ridges must be a sequence of numbers"),
        ((None, points(5, 1), [0.0]), ValueError, "ridges must be positive and finite"),
        (
            (None, points(5, 1), [10**400]),
            ValueError,
            "ridges must be positive and fin",
        ),
    ],
)
def test_what_makes_no_path_is_refused_when_it_is_asked_for(given, error, words):
    system = System(points(5, 2), KERNELS[0], None, torch.ones(5, dtype=DOUBLE))
    system = system if given[0] is None else given[0]
    with pytest.raises(error, match=f"^ridge_path: {words}"):
        ridge_path(system, *given[1:])
    with pytest.raises(
        TypeError, match=r"^ridge_path: solver must be a Solver or None"
    ):
        ridge_path(
            System(points(5, 2), KERNELS[0], None, torch.ones(5, dtype=DOUBLE)),
            points(5, 1), [1.0], solver="cg",
        )  # fmt: skip


def test_ridges_may_be_of_any_library():
    system = System(points(5, 2), KERNELS[0], None, torch.ones(5, dtype=DOUBLE))
    wanted = [coef for coef, _ in ridge_path(system, points(5, 1), [1.0, 0.5])]
    for ridges in (torch.tensor([1.0, 0.5]), np.array([1.0, 0.5]), iter([1.0, 0.5])):
        found = [coef for coef, _ in ridge_path(system, points(5, 1), ridges)]
        assert all(map(torch.equal, found, wanted))


def test_large_tables_take_a_factor_for_each():
    assert shared_is_cheaper(50, 5)
    assert not shared_is_cheaper(50, 1)
    assert not shared_is_cheaper(2500, 5)
    assert shared_is_cheaper(2500, 50)
