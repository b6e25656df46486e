"""Many ridges at once: the same coefficients as one at a time."""

import pytest
import torch

from normalign.kernels import Solver
from normalign.kernels.ridges import ridge_path, shared_is_cheaper
from normalign.kernels.solve import solve
from normalign.kernels.system import System
from tests.kernels.cases import DOUBLE, KERNELS, metric, points

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


def test_float32_comes_back_as_float32():
    x = points(20, 3, dtype=torch.float32)
    system = System(x, KERNELS[0], None, torch.ones(20))
    for coef, solved in ridge_path(system, x, RIDGES):
        assert coef.dtype == torch.float32
        assert solved.dtype == DOUBLE


def test_large_tables_take_a_factor_for_each():
    assert shared_is_cheaper(50, 5)
    assert not shared_is_cheaper(50, 1)
    assert not shared_is_cheaper(2500, 5)
    assert shared_is_cheaper(2500, 50)
    assert shared_is_cheaper(50, 5, quick=True)
    assert not shared_is_cheaper(200, 5, quick=True)
    assert shared_is_cheaper(2500, 50, quick=True)
