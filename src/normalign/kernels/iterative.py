r"""Conjugate gradients for systems whose matrix does not fit into memory.

The kernel matrix is made anew, tile by tile, in every product. What makes few steps
enough is a Nyström preconditioner: from the kernel's columns :math:`K_{nm}` at
:math:`m` random points,

.. math:: P = K_{nm} K_{mm}^{-1} K_{mn} + D, \qquad
          P^{-1} = D^{-1} - D^{-1} K_{nm}
                   (K_{mm} + K_{mn} D^{-1} K_{nm})^{-1} K_{mn} D^{-1}

with :math:`D` the ridge of each row. All outputs share every product.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from normalign.kernels.functions import kernel_matrix
from normalign.kernels.gradients import expansion_of_sides
from normalign.kernels.memory import iterative_bytes
from normalign.kernels.solve import Solved, Solver, System

__all__ = ["IterativeSolution", "solve_iteratively"]

_LARGEST_RANK = 2000


class IterativeSolution:
    """Coefficients by conjugate gradients, and the inverse by more of them."""

    def __init__(
        self, coef: Tensor, solved: Solved, columns: Callable[[Tensor], Tensor]
    ) -> None:
        self.coef = coef
        self.solved = solved
        self._columns = columns

    def inverse_diagonal(self, rows: Tensor) -> Tensor:
        """Entries of the diagonal of the inverse, to about two digits."""
        unit = self.coef.new_zeros(len(self.coef), len(rows))
        picked = rows, torch.arange(len(rows), device=rows.device)
        unit[picked] = 1
        return self._columns(unit)[picked]


def solve_iteratively(
    system: System, y: Tensor, solver: Solver, *, limit: int
) -> IterativeSolution:
    """Solve a machine's system without its matrix.

    Warns if the residual is above the tolerance after ``solver.max_steps`` steps.
    """
    left, right = system.sides
    precondition = _preconditioner(system, _rank(system, y, solver, limit))

    def product(v: Tensor) -> Tensor:
        fresh = expansion_of_sides(left, right, v, system.kernel)
        return fresh.addcmul_(system.ridges[:, None], v)

    def columns(unit: Tensor) -> Tensor:
        return conjugate_gradients(product, unit, precondition, 1e-2, 100)[0]

    coef, steps, residual = conjugate_gradients(
        product, y, precondition, solver.tolerance, solver.max_steps
    )
    converged = residual <= solver.tolerance
    if not converged:
        warnings.warn(
            f"solve: conjugate gradients stopped after {steps} steps with relative "
            f"residual {residual:.1e}, above {solver.tolerance:.1e}. Raise ridge or "
            "memory_limit (a better preconditioner), or use float64.",
            UserWarning,
            stacklevel=2,
        )
    solved = Solved("cg", y.dtype, steps=steps, residual=residual, converged=converged)
    return IterativeSolution(coef, solved, columns)


def _rank(system: System, y: Tensor, solver: Solver, limit: int) -> int:
    n, k = len(system.points), y.shape[1]
    rank = min(solver.rank or _LARGEST_RANK, n)
    while rank > 1 and iterative_bytes(n, k, rank, dtype=y.dtype) > limit:
        rank //= 2
    return rank


def _preconditioner(system: System, rank: int) -> Callable[[Tensor], Tensor]:
    points, dtype = system.points, system.points.dtype
    # Spread over the rows by a fixed stride: rows may be in any order, and a solve
    # must not depend on a random state.
    chosen = torch.linspace(0, len(points) - 1, rank, device=points.device).long()
    some = points[chosen]
    table = kernel_matrix(points, some, system.kernel, metric=system.metric)
    inverse_ridges = 1 / system.ridges[:, None]
    core = kernel_matrix(some, some, system.kernel, metric=system.metric).double()
    core += (table.T @ (table * inverse_ridges)).double()
    factor = _definite_factor(core, torch.finfo(dtype).eps)

    def precondition(residual: Tensor) -> Tensor:
        scaled = residual * inverse_ridges
        inner = torch.cholesky_solve((table.T @ scaled).double(), factor).to(dtype)
        return scaled - (table @ inner) * inverse_ridges

    return precondition


def _definite_factor(core: Tensor, noise: float) -> Tensor:
    """A Cholesky factor of a matrix that is definite up to noise of its dtype.

    Whatever is added to the diagonal moves the preconditioner, not the solution.
    """
    shift = noise * float(core.diagonal().mean())
    while True:
        factor, info = torch.linalg.cholesky_ex(
            core + shift * torch.eye(len(core), dtype=core.dtype, device=core.device)
        )
        if not info:
            return factor
        shift *= 10


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    precondition: Callable[[Tensor], Tensor],
    tolerance: float,
    max_steps: int,
) -> tuple[Tensor, int, float]:
    """Solve for every column at once; return the solution, steps, worst residual.

    Columns have step lengths of their own and share the products. A column of zeros
    is solved by zeros.
    """
    scale = b.norm(dim=0).clamp(min=torch.finfo(b.dtype).tiny)
    solution = torch.zeros_like(b)
    residual = b.clone()
    direction = precondition(residual)
    energy = (residual * direction).sum(0)
    worst, steps = float((residual.norm(dim=0) / scale).max()), 0
    while worst > tolerance and steps < max_steps:
        image = product(direction)
        curvature = (direction * image).sum(0)
        length = torch.where(curvature > 0, energy / curvature, 0.0)
        solution += length * direction
        residual -= length * image
        steps += 1
        worst = float((residual.norm(dim=0) / scale).max())
        image = precondition(residual)
        updated = (residual * image).sum(0)
        direction = image + torch.where(energy > 0, updated / energy, 0.0) * direction
        energy = updated
    return solution, steps, worst
