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

from collections.abc import Callable

import torch
from torch import Tensor

from normalign._checks import complaint
from normalign.kernels.functions import kernel_matrix
from normalign.kernels.gradients import expansion_of_sides
from normalign.kernels.memory import iterative_bytes
from normalign.kernels.system import OVERWRITTEN, Solved, Solver, Spare, System
from normalign.kernels.tiles import spans

__all__ = ["IterativeSolution", "solve_iteratively"]

_LARGEST_RANK = 2000
_COLUMNS_AT_ONCE = 64
_VECTORS = 9  # of a column's length that its conjugate gradients hold, and some more


class IterativeSolution:
    """Coefficients by conjugate gradients, and the inverse by more of them."""

    def __init__(
        self,
        coef: Tensor,
        solved: Solved,
        columns: Callable[[Tensor], Tensor],
        at_once: int,
    ) -> None:
        self.coef = coef
        self.solved = solved
        self.spare: Spare = self
        self._columns: Callable[[Tensor], Tensor] | None = columns
        self._at_once = at_once

    def forget(self) -> None:
        """Give up what the inverse is made by: a preconditioner as large as allowed."""
        self._columns = None

    release = forget

    def inverse_diagonal(self, rows: Tensor) -> Tensor:
        """Entries of the diagonal of the inverse, to about two digits."""
        columns, found = self._columns, []
        if columns is None:
            raise RuntimeError(OVERWRITTEN)
        for some in rows.split(self._at_once):
            unit = self.coef.new_zeros(len(self.coef), len(some), dtype=torch.float64)
            picked = some, torch.arange(len(some), device=rows.device)
            unit[picked] = 1
            found.append(columns(unit)[picked])
        return torch.cat(found).to(self.coef.dtype)

    def next_metric(self, weights: Tensor | None) -> None:
        """Nothing is at hand that it could be made of."""


def solve_iteratively(
    system: System, y: Tensor, solver: Solver, *, limit: int, spare: Spare | None = None
) -> IterativeSolution:
    """Solve a machine's system without its matrix.

    Kernel tiles have the dtype of the data; vectors and the preconditioner, where
    large numbers cancel, are float64. If the residual is above the tolerance after
    ``solver.max_steps`` steps, what is returned is the best that was met, and it says
    so. What ``spare`` kept is given up.
    """
    (left, right), dtype = system.sides, y.dtype
    ridges = system.ridges.double()[:, None]
    if spare is not None:
        spare.release()
    rank = _rank(system, y, solver, limit)
    precondition = _preconditioner(system, rank, solver.callee)

    def product(v: Tensor) -> Tensor:
        fresh = expansion_of_sides(left, right, v.to(dtype), system.kernel).double()
        return fresh.addcmul_(ridges, v)

    def columns(unit: Tensor) -> Tensor:
        return conjugate_gradients(product, unit, precondition, 1e-2, 100)[0]

    coef, steps, residual = conjugate_gradients(
        product, y.double(), precondition, solver.tolerance, solver.max_steps
    )
    converged = residual <= solver.tolerance
    caution = (
        f"conjugate gradients stopped after {steps} steps with relative residual "
        f"{residual:.1e}, above {solver.tolerance:.1e}. Raise ridge or memory_limit (a "
        "better preconditioner), or use float64."
    )
    solved = Solved(
        "cg", dtype, steps=steps, residual=residual, converged=converged,
        caution="" if converged else caution,
    )  # fmt: skip
    n, k = y.shape
    left_over = limit - iterative_bytes(n, k, rank, dtype=dtype)
    at_once = max(min(left_over // (_VECTORS * 8 * n), _COLUMNS_AT_ONCE), k)
    return IterativeSolution(coef.to(dtype), solved, columns, at_once)


def _rank(system: System, y: Tensor, solver: Solver, limit: int) -> int:
    n, k = len(system.points), y.shape[1]
    rank = min(solver.rank or _LARGEST_RANK, n)
    while rank > 1 and iterative_bytes(n, k, rank, dtype=y.dtype) > limit:
        rank //= 2
    return rank


def _preconditioner(
    system: System, rank: int, callee: str
) -> Callable[[Tensor], Tensor]:
    points = system.points
    # Spread over the rows by a fixed stride: rows may be in any order, and a solve
    # must not depend on a random state.
    chosen = torch.linspace(0, len(points) - 1, rank, device=points.device).long()
    some = points[chosen]
    table = points.new_empty(len(points), rank, dtype=torch.float64)
    for rows in spans(len(points), 1024):
        table[rows] = kernel_matrix(
            points[rows], some, system.kernel, metric=system.metric
        )
    inverse_ridges = 1 / system.ridges.double()[:, None]
    core = kernel_matrix(some, some, system.kernel, metric=system.metric).double()
    for rows in spans(len(points), 1024):
        core.addmm_(table[rows].T, table[rows] * inverse_ridges[rows])
    factor = _definite_factor(core, torch.finfo(points.dtype).eps, callee)

    def precondition(residual: Tensor) -> Tensor:
        scaled = residual * inverse_ridges
        inner = torch.cholesky_solve(table.T @ scaled, factor)
        return scaled - (table @ inner) * inverse_ridges

    return precondition


def _definite_factor(core: Tensor, noise: float, callee: str) -> Tensor:
    """A Cholesky factor of a matrix that is definite up to noise of its dtype.

    Whatever is added to the diagonal moves the preconditioner, not the solution.
    """
    size = float(core.diagonal().mean())
    for shift in (noise * size * 10.0**power for power in range(20)):
        factor, info = torch.linalg.cholesky_ex(
            core + shift * torch.eye(len(core), dtype=core.dtype, device=core.device)
        )
        if not info:
            return factor
    raise ValueError(
        complaint(
            callee,
            "ridge",
            "large enough for 1 / ridge to be a number",
            f"a preconditioner of size {size:.1e}",
            'Raise ridge, or use solver="cholesky".',
        )
    )


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    precondition: Callable[[Tensor], Tensor],
    tolerance: float,
    max_steps: int,
) -> tuple[Tensor, int, float]:
    """Solve for every column at once; return the solution, steps, worst residual.

    Columns have step lengths of their own and share the products. A column of zeros
    is solved by zeros. The solution is the best that was met, so its residual is
    never above that of zeros, which is one.
    """
    scale = b.norm(dim=0).clamp(min=torch.finfo(b.dtype).tiny)
    solution = torch.zeros_like(b)
    residual = b.clone()
    direction = precondition(residual)
    energy = (residual * direction).sum(0)
    worst, steps = float((residual.norm(dim=0) / scale).max()), 0
    best, least = solution.clone(), worst
    while worst > tolerance and steps < max_steps:
        image = product(direction)
        curvature = (direction * image).sum(0)
        length = torch.where(curvature > 0, energy / curvature, 0.0)
        solution += length * direction
        residual -= length * image
        steps += 1
        worst = float((residual.norm(dim=0) / scale).max())
        if worst < least:
            best.copy_(solution)
            least = worst
        image = precondition(residual)
        updated = (residual * image).sum(0)
        direction = image + torch.where(energy > 0, updated / energy, 0.0) * direction
        energy = updated
    return best, steps, least
