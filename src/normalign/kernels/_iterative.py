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

from normalign.kernels._expansion import expansion_of_sides
from normalign.kernels._memory import (
    FEWEST_COLUMNS,
    LARGEST_RANK,
    VECTORS,
    Needs,
    fits_in_double,
)
from normalign.kernels._precision import LOST_SHARE, lost_share, rounding_caution
from normalign.kernels._sides import spans
from normalign.kernels._system import (
    FACTOR_GONE,
    RidgeTooSmall,
    Solved,
    Solver,
    Spare,
    System,
)

__all__ = ["IterativeSolution", "solve_iteratively"]

# A solution, the steps it took, and its relative residual.
CGResult = tuple[Tensor, int, float]

_COLUMNS_AT_ONCE, _ROWS_AT_ONCE = 64, 256


class IterativeSolution:
    """Coefficients by conjugate gradients, and the inverse by more of them."""

    def __init__(
        self,
        coef: Tensor,
        solved: Solved,
        columns: Callable[[Tensor], Tensor],
        at_once: int,
        require_progress: Callable[[bool], None],
    ) -> None:
        self.coef = coef
        self.solved = solved
        self.spare: Spare = self
        self._columns: Callable[[Tensor], Tensor] | None = columns
        self._at_once = at_once
        self._require_progress = require_progress

    def forget(self) -> None:
        """Give up what the inverse is made by: a preconditioner as large as allowed."""
        self._columns = None

    release = forget

    def inverse_diagonal(self, rows: Tensor) -> Tensor:
        """Entries of the diagonal of the inverse, to about two digits."""
        columns, found = self._columns, []
        if columns is None:
            raise RuntimeError(FACTOR_GONE)
        for some in rows.split(self._at_once):
            unit = self.coef.new_zeros(len(self.coef), len(some), dtype=torch.float64)
            picked = some, torch.arange(len(some), device=rows.device)
            unit[picked] = 1
            found.append(columns(unit)[picked])
        diagonal = torch.cat(found)
        # of a definite matrix; a column without progress is zero
        self._require_progress(bool((diagonal > 0).all()))
        return diagonal.to(self.coef.dtype)

    def next_metric(self, weights: Tensor | None) -> None:
        """None: no slopes are stored."""


def solve_iteratively(
    system: System,
    y: Tensor,
    solver: Solver,
    *,
    limit: int,
    spare: Spare | None = None,
) -> IterativeSolution:
    """Solve a machine's system without its matrix.

    Kernel tiles have the dtype of the data at first; vectors and the preconditioner,
    where large numbers cancel, are float64. A residual that is summed over products in
    float32 may vanish where the true one does not, so one product in float64 checks it,
    and where it is above the tolerance more steps are taken by such products. After
    ``solver.max_steps`` in all, the best solution so far is returned, with a
    caution. Coefficients that are too large for float32 stay float64 where a machine in
    float64 fits the limit. What ``spare`` kept is given up.

    Raises
    ------
    RidgeTooSmall
        A ``ValueError``, if no step came nearer to a solution than zeros are.
    """
    if spare is not None:
        spare.release()
    needs, single = Needs.of(system, y.shape[1]), y.dtype != torch.float64
    rank = _rank(needs, solver, limit)
    exact = system.to(torch.float64) if single else system
    precondition = _preconditioner(exact, rank, solver.callee)
    products = _product(system), _product(exact)
    del exact  # and its points
    largest = LOST_SHARE / torch.finfo(y.dtype).eps  # beside targets of size one

    def run(b: Tensor, tolerance: float, max_steps: int) -> CGResult:
        most = largest * b.square().mean(0).sqrt()
        begun = conjugate_gradients(
            products[0], b, precondition, tolerance, max_steps, most=most
        )
        return conjugate_gradients(
            products[1], b, precondition, tolerance, max_steps, begun=begun
        )

    least = f"{float(system.ridges.min()):.1e}"

    def require_progress(progress: bool) -> None:
        if not progress:
            raise RidgeTooSmall(
                f"{solver.callee}: ridge must be large enough for conjugate gradients "
                f"to approach a solution, got {least}. Raise ridge, or use "
                'solver="cholesky".'
            )

    coef, steps, residual = run(y.double(), solver.tolerance, solver.max_steps)
    require_progress(residual < 1)  # that of zeros
    converged, dtype, cautions = residual <= solver.tolerance, y.dtype, []
    if not converged:
        cautions.append(
            f"conjugate gradients stopped after {steps} steps with relative residual "
            f"{residual:.1e}, above {solver.tolerance:.1e}. Raise ridge, or "
            "memory_limit for a better preconditioner."
        )
    lost = lost_share(coef, y, system.ridges)
    if lost > LOST_SHARE:
        if single and fits_in_double(system, needs.k, limit, direct=False):
            dtype = torch.float64
        else:
            cautions.append(rounding_caution(lost, y.dtype))
    solved = Solved(
        "cg", dtype, steps=steps, residual=residual, converged=converged,
        caution=" ".join(cautions),
    )  # fmt: skip
    spared = max(limit - needs.iterative(rank), 0) // (VECTORS * 8 * needs.n)
    return IterativeSolution(
        coef.to(dtype),
        solved,
        lambda unit: run(unit, 1e-2, 100)[0],
        at_once=min(max(needs.k, FEWEST_COLUMNS) + spared, _COLUMNS_AT_ONCE),
        require_progress=require_progress,
    )


def _product(system: System) -> Callable[[Tensor], Tensor]:
    """What the system's matrix makes of columns; tiles are in the system's dtype."""
    sides, kernel, dtype = system.sides, system.kernel, system.points.dtype
    ridges = system.ridges.double()[:, None]

    def product(v: Tensor) -> Tensor:
        fresh = expansion_of_sides(sides, sides, v.to(dtype), kernel).double()
        return fresh.addcmul_(ridges, v)

    return product


def _rank(needs: Needs, solver: Solver, limit: int) -> int:
    """As many points of a preconditioner as are wanted, and fit."""
    rank = min(solver.rank or LARGEST_RANK, needs.n)
    while rank > 1 and needs.iterative(rank) > limit:
        rank //= 2
    return rank


def _preconditioner(
    system: System, rank: int, callee: str
) -> Callable[[Tensor], Tensor]:
    """The inverse of P, from a system in float64."""
    sides, n = system.sides, len(system.points)
    # Spread over the rows by a fixed stride: rows may be in any order, and a solve
    # must not depend on a random state.
    places = torch.arange(rank, device=sides.device) * (n - 1) // max(rank - 1, 1)
    some = sides[places]
    # In one piece, so that it all goes back to the system at once.
    parts = sides.left.new_empty(n + 2 * rank, rank).split([n, rank, rank])
    table, core, factor = parts[0], parts[1], parts[2].T
    for rows in spans(n, _ROWS_AT_ONCE):
        system.kernel.values_(sides[rows], some, table[rows])
    inverse_ridges = 1 / system.ridges[:, None]
    torch.index_select(table, 0, places, out=core)
    for rows in spans(n, _ROWS_AT_ONCE):
        core.addmm_(table[rows].T, table[rows] * inverse_ridges[rows])
    _factorise(core, factor, callee)

    def precondition(residual: Tensor) -> Tensor:
        scaled = residual * inverse_ridges
        half = torch.linalg.solve_triangular(factor, table.T @ scaled, upper=False)
        inner = torch.linalg.solve_triangular(factor.T, half, upper=True)
        return scaled.sub_((table @ inner).mul_(inverse_ridges))

    return precondition


def _factorise(core: Tensor, factor: Tensor, callee: str) -> None:
    """Fill ``factor`` with that of a matrix which is definite up to rounding.

    Whatever is added to the diagonal moves the preconditioner, not the solution.
    """
    diagonal = core.diagonal().clone()
    size = float(diagonal.mean())
    noise = torch.finfo(core.dtype).eps * size
    failure = torch.empty((), dtype=torch.int32, device=core.device)
    for power in range(20):
        torch.add(diagonal, noise * 10.0**power, out=core.diagonal())
        torch.linalg.cholesky_ex(core, out=(factor, failure))
        if not failure:
            return
    raise RidgeTooSmall(
        f"{callee}: ridge must be large enough for 1 / ridge to be a number, got a "
        f"preconditioner of size {size:.1e}. Raise ridge, or use "
        'solver="cholesky".'
    )


def conjugate_gradients(
    product: Callable[[Tensor], Tensor],
    b: Tensor,
    precondition: Callable[[Tensor], Tensor],
    tolerance: float,
    max_steps: int,
    *,
    begun: CGResult | None = None,
    most: Tensor | None = None,
) -> CGResult:
    """Solve for every column at once; return the solution, steps, worst residual.

    Columns have step lengths of their own and share the products. A column of zeros
    is solved by zeros. The solution is the best of all steps, so its residual is
    never above that of zeros, which is one.

    Parameters
    ----------
    begun : tuple, optional
        Where to start. Its residual is computed again, by a product.
    most : Tensor of shape (k,), optional
        Norms of the solution's columns beyond which there is no use in going on.
    """
    scale = b.norm(dim=0).clamp(min=torch.finfo(b.dtype).tiny)
    solution, steps, residual = torch.zeros_like(b), 0, b.clone()
    if begun is not None:
        solution, steps, _ = begun
        residual -= product(solution)
        useless = residual.norm(dim=0) > scale
        solution = solution.masked_fill(useless, 0.0)
        residual = torch.where(useless, b, residual)
    direction = precondition(residual)
    energy = (residual * direction).sum(0)
    worst = float((residual.norm(dim=0) / scale).max())
    best, least = solution.clone(), worst
    while worst > tolerance and steps < max_steps:
        if most is not None and bool((solution.norm(dim=0) > most).any()):
            break
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
