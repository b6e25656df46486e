"""Solvers end to end, and who is chosen."""

import pytest
import torch

from normalign.kernels import Solver
from normalign.kernels._solve import solve
from tests.kernels.cases import KERNELS, dense, points, system


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
