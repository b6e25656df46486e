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
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

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
    """Yield the coefficients for each ridge, and how they were found.

    Parameters
    ----------
    system : System
        Its own ``ridges`` are taken relative to one another only: a ridge here
        multiplies them. With ones they are the ridges themselves.
    y : Tensor of shape (n, k)
    ridges : sequence of float
    solver : Solver, optional
        A solver that is named is used for each; "auto" may share a factorisation.

    Yields
    ------
    coef : Tensor of shape (n, k)
    solved : Solved
    """
    solver = solver or Solver()
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
