"""Solvers end to end, and conjugate gradients, which need no matrix."""

import pytest
import torch

from normalign.kernels import Laplace, Solver, iterative
from normalign.kernels.memory import Needs
from normalign.kernels.solve import solve, solve_last
from tests.kernels.cases import DOUBLE, KERNELS, dense, points, system


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


@pytest.mark.parametrize("n", [1000, 3000])
def test_a_long_recursion_is_made_in_calls_that_can_be_interrupted(n, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "normalign.kernels.solve.compiled_room", lambda *a, **b: asked.append(1)
    )
    settings = {"n_iter": 5, "weights": None}
    assert solve_last(system(n), points(n, 1), Solver(), **settings) is None
    assert len(asked) == (n == 1000)


def test_a_cholesky_that_does_not_fit_is_refused_with_remedies():
    with pytest.raises(ValueError, match="memory_limit must be at least") as told:
        solve(system(), points(40, 1), Solver("cholesky", memory_limit=8000))
    for remedy in ("max_leaf_size", 'solver="cg"', "raise memory_limit"):
        assert remedy in str(told.value)


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
    found = iterative._preconditioner(problem, 20, "solve")(y)
    torch.set_default_dtype(torch.float32)
    assert torch.equal(found, iterative._preconditioner(problem, 20, "solve")(y))


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
    needs = Needs.of(system(), 1)
    roomy = iterative._rank(needs, Solver(), 1 << 40)
    tight = iterative._rank(needs, Solver(), needs.iterative(20))
    assert roomy == 40
    assert tight == 20
    assert iterative._rank(needs, Solver(), 1) == 1


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
