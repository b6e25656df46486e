"""Who solves a machine's system: a factor where it fits, conjugate gradients elsewhere.

*Directly*, by a Cholesky factor in place of one triangle
(:mod:`normalign.kernels._direct`), or *iteratively*, where the triangle does not fit the
memory that is allowed (:mod:`normalign.kernels._iterative`).
"""

from __future__ import annotations

from torch import Tensor

from normalign._errors import complaint
from normalign.kernels._direct import solve_directly
from normalign.kernels._memory import UNASKED, Needs, available_bytes
from normalign.kernels._system import Solution, Solver, Spare, System

__all__ = ["solve"]


def solve(
    system: System,
    y: Tensor,
    solver: Solver,
    *,
    spare: Spare | None = None,
    slopes: bool = False,
) -> Solution:
    """Solve a machine's system for all its outputs.

    Parameters
    ----------
    system : System
    y : Tensor of shape (n, k)
    solver : Solver
    spare : Spare, optional
        Memory of an earlier solve of the same points, to be overwritten.
    slopes : bool, default=False
        ``next_metric`` will be asked for: a direct solver makes the kernel's slopes
        on its way, where the table is so small that they may be kept.

    Raises
    ------
    ValueError
        If "cholesky" was asked for and its machine does not fit the memory limit.
    """
    n, needed = len(system.points), Needs.of(system, y.shape[1]).direct
    limit = solver.memory_limit or _unasked_limit(system, needed, spare)
    if solver.name == "cg" or (solver.name == "auto" and needed > limit):
        from normalign.kernels._iterative import solve_iteratively

        return solve_iteratively(system, y, solver, limit=limit, spare=spare)
    if needed > limit:
        raise ValueError(
            complaint(
                solver.callee,
                "memory_limit",
                f"at least {needed / 1e6:.0f} MB to fit {n} rows by a Cholesky factor",
                f"{limit / 1e6:.0f} MB",
                'Set max_leaf_size to fit the rows in parts, or solver="cg" to keep '
                "no matrix, or raise memory_limit.",
            )
        )
    return solve_directly(
        system, y, limit=limit, spare=spare, slopes=slopes, callee=solver.callee
    )


def _unasked_limit(system: System, needed: int, spare: Spare | None) -> int:
    """What may be used where no limit was given: what is free, or is held already."""
    if needed < UNASKED:
        return UNASKED
    return available_bytes(system.points.device) + (0 if spare is None else needed)
