"""Many ridges at once: the same coefficients as one at a time."""

import numpy as np
import pytest
import torch

from normalign.kernels import Gaussian, Solver, kernel_matrix
from normalign.kernels._ridges import ridge_path, shared_is_cheaper
from normalign.kernels._solve import solve
from normalign.kernels._system import System
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
