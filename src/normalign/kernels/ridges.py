r"""Many ridges in one kernel: one factorisation for all, where that is cheaper.

With :math:`W^{1/2} K W^{1/2} = Q \Lambda Q^\top` every ridge costs two products,

.. math:: a(\rho) = W^{1/2} Q (\Lambda + \rho I)^{-1} Q^\top W^{1/2} y

but an eigendecomposition costs as much as several Cholesky factors, and the more of
them the larger the matrix: on two cores 2 at 100 rows, 4 to 9 at 300, 12 to 20 at 1500,
and of compiled ones 4 to 9, 20, and 20 to 40 (``benchmarks/ridges.py``). So five ridges
share one only for small tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Real

import torch
from torch import Tensor

from normalign._checks import as_float, describe, require, require_kind
from normalign.kernels.arguments import require_table
from normalign.kernels.direct import compiled_room
from normalign.kernels.distances import kernel_matrix
from normalign.kernels.solve import solve
from normalign.kernels.system import Solved, Solver, System

__all__ = ["ridge_path", "shared_is_cheaper"]


def shared_is_cheaper(n: int, n_ridges: int, *, quick: bool = False) -> bool:
    """Whether one eigendecomposition costs less than a Cholesky factor per ridge.

    Simple laws for measured times; see the module. Solves are ``quick`` where they are
    compiled.

    Examples
    --------
    >>> shared_is_cheaper(100, 5), shared_is_cheaper(2500, 5)
    (True, False)
    >>> shared_is_cheaper(100, 5, quick=True)
    False
    """
    return n_ridges > (min(0.06 * n, 20) if quick else 0.032 * n**0.9)


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
    quick = compiled_room(system, y.shape[1], math.inf, slopes=False) is not None
    if solver.name == "auto" and shared_is_cheaper(len(y), len(ridges), quick=quick):
        yield from _shared(system, y, ridges)
        return
    for ridge in ridges:
        one = solve(replace(system, ridges=system.ridges * ridge), y, solver)
        yield one.coef, one.solved


def _shared(
    system: System, y: Tensor, ridges: Sequence[float]
) -> Iterator[tuple[Tensor, Solved]]:
    scale = system.ridges.rsqrt()[:, None]
    matrix = kernel_matrix(
        system.points, system.points, system.kernel, metric=system.metric
    )
    # Small tables only, so float64 costs little and small ridges lose no digits.
    spectrum, axes = torch.linalg.eigh((scale * matrix * scale.T).double())
    inner = axes.T @ (scale * y).double()
    for ridge in ridges:
        shrunk = inner / (spectrum.clamp(min=0) + ridge)[:, None]
        coef = (scale * (axes @ shrunk)).to(y.dtype)
        yield coef, Solved("eigh", torch.float64)
