r"""Many ridges in one kernel: one factorisation for all, where that is cheaper.

With :math:`W^{1/2} K W^{1/2} = Q \Lambda Q^\top` every ridge costs two products,

.. math:: a(\rho) = W^{1/2} Q (\Lambda + \rho I)^{-1} Q^\top W^{1/2} y

but an eigendecomposition costs as much as several Cholesky factors, and the more of
them the larger the matrix: on two cores 2 at 100 rows, 4 to 9 at 300, 12 to 20 at 1500
(``benchmarks/ridges.py``). So five ridges share one only for small tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Real

import torch
from torch import Tensor

from normalign._errors import as_float, describe, require, require_kind
from normalign.kernels._arguments import require_table
from normalign.kernels._digits import (
    LOST_SHARE,
    added_jitter,
    lost_digits,
    lost_share,
)
from normalign.kernels._distances import kernel_matrix
from normalign.kernels._memory import available_bytes
from normalign.kernels._solve import solve
from normalign.kernels._system import Solved, Solver, System

__all__ = ["ridge_path", "shared_is_cheaper"]

_EPS = torch.finfo(torch.float64).eps
_SQUARES = 6  # of float64, of which an eigendecomposition is made


def shared_is_cheaper(n: int, n_ridges: int) -> bool:
    """Whether one eigendecomposition costs less than a Cholesky factor per ridge.

    A simple law for measured times; see the module.

    Examples
    --------
    >>> shared_is_cheaper(100, 5), shared_is_cheaper(2500, 5)
    (True, False)
    """
    return n_ridges > 0.032 * n**0.9


def ridge_path(
    system: System,
    y: Tensor,
    ridges: Sequence[float],
    *,
    solver: Solver | None = None,
) -> Iterator[tuple[Tensor, Solved]]:
    """Return the coefficients for each ridge one by one, and how they were found.

    Parameters
    ----------
    system : System
        Its own ``ridges`` are taken relative to one another only: a ridge here
        multiplies them. With ones they are the ridges themselves.
    y : Tensor of shape (n, k)
    ridges : sequence of float
    solver : Solver, optional
        A solver that is named is used for each; "auto" may share a factorisation.

    Returns
    -------
    iterator of (Tensor of shape (n, k), Solved)

    Raises
    ------
    TypeError
        If an argument is not of its kind.
    ValueError
        If there are not as many targets as points, or a ridge is not positive.
    """
    callee, values = "ridge_path", _checked_ridges(ridges)
    kind = isinstance(system, System)
    require_kind(kind, callee, "system", "a System", describe(system))
    require_table(callee, "y", y)
    n = len(system.points)
    require(len(y) == n, callee, "y", f"of shape ({n}, k)", y)
    named = solver is None or isinstance(solver, Solver)
    require_kind(named, callee, "solver", "a Solver or None", describe(solver))
    return _path(system, y, values, solver or Solver(callee=callee))


def _checked_ridges(ridges: Sequence[float]) -> list[float]:
    several = isinstance(ridges, Iterable) and getattr(ridges, "ndim", 1) == 1
    told = describe(ridges)
    kind = "a sequence of numbers"
    require_kind(several, "ridge_path", "ridges", kind, told)
    values = [one.item() if isinstance(one, Tensor) else one for one in ridges]
    numbers = all(isinstance(one, Real) for one in values)
    require_kind(numbers, "ridge_path", "ridges", kind, told)
    positive = all(0 < as_float(one) < math.inf for one in values)
    require(positive, "ridge_path", "ridges", "positive and finite", told)
    return [float(one) for one in values]


def _path(
    system: System, y: Tensor, ridges: list[float], solver: Solver
) -> Iterator[tuple[Tensor, Solved]]:
    if solver.name == "auto" and shared_is_cheaper(len(y), len(ridges)):
        limit = solver.memory_limit or available_bytes(system.points.device)
        if _SQUARES * 8 * len(y) ** 2 <= limit:
            yield from _shared(system, y, ridges)
            return
    for ridge in ridges:
        one = solve(replace(system, ridges=system.ridges * ridge), y, solver)
        yield one.coef, one.solved


def _shared(
    system: System, y: Tensor, ridges: Sequence[float]
) -> Iterator[tuple[Tensor, Solved]]:
    """In float64: these are small tables, and small ridges are to lose no digits.

    Coefficients go back to the precision of the targets unless they are too large for
    it, as those of other solvers do.
    """
    exact = system.to(torch.float64)
    scale = exact.ridges.rsqrt()[:, None]
    matrix = kernel_matrix(
        exact.points, exact.points, exact.kernel, metric=exact.metric
    )
    spectrum, axes = torch.linalg.eigh(matrix.mul_(scale).mul_(scale.T))
    inner = axes.T @ (scale * y)
    smallest, noise = float(spectrum[0]), _EPS * len(y) * float(spectrum[-1])
    for ridge in ridges:
        jitter = 0.0 if smallest + ridge > noise else noise - min(smallest, 0.0)
        coef = scale * (axes @ (inner / (spectrum + ridge + jitter)[:, None]))
        caution = added_jitter(jitter, torch.float64) if jitter else ""
        if lost_share(coef, y, exact.ridges) <= LOST_SHARE:
            coef = coef.to(y.dtype)
        elif (lost := lost_share(coef, y.double(), exact.ridges)) > LOST_SHARE:
            caution = caution or lost_digits(lost, torch.float64)
        yield coef, Solved("eigh", coef.dtype, jitter=jitter, caution=caution)
