r"""Ridge regression in a kernel: the linear system behind every machine.

.. math:: (K + \rho \, \mathrm{diag}(1 / w)) \, a = y

Algorithm 1 of the paper prints ``alpha = K y``; the inverse is meant. Sample weights
enter where they do in weighted least squares, so that a row of weight two is the same
as the row twice.

:func:`solve` picks how. *Directly*, by a Cholesky factor in place of one triangle: in
the dtype of the data first; if float32 leaves the matrix indefinite, or coefficients
so large that digits are lost, again in float64, in which the machine then stays
(what large coefficients sum to is lost in float32, too); if that fails, with a jitter
on the diagonal, which is reported and warned about. *Iteratively*, where the triangle
does not fit the memory that is allowed (:mod:`normalign.kernels.iterative`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from normalign._checks import complaint, require
from normalign.kernels.functions import Kernel, Radial
from normalign.kernels.memory import available_bytes, direct_bytes
from normalign.kernels.tiles import spans, square_spans, tile_shape
from normalign.kernels.triangle import Triangle, is_small

__all__ = ["DirectSolution", "Solution", "Solved", "Solver", "System", "solve"]

_NEVER_MIND = 1 << 26  # bytes for which nobody is asked what is free
_LOST_DIGITS = 32  # a pivot of that many rounding errors has no digit left to trust
_LOST_SHARE = 3e-4  # of the targets; ordinary tables have a tenth of it


@dataclass(frozen=True)
class Solver:
    """How linear systems are to be solved.

    Parameters
    ----------
    name : {"auto", "cholesky", "cg"}
        "auto" takes the direct solver where its triangle fits, conjugate gradients
        elsewhere.
    memory_limit : int, optional
        Bytes that may be allocated above the data; by default what is free now.
    tolerance : float
        Relative residual at which conjugate gradients stop.
    max_steps : int
        Steps after which they stop in any case, with a warning.
    rank : int, optional
        Points of the Nyström preconditioner; by default as memory allows, at most
        2000.
    """

    name: Literal["auto", "cholesky", "cg"] = "auto"
    memory_limit: int | None = None
    tolerance: float = 1e-4
    max_steps: int = 500
    rank: int | None = None

    def __post_init__(self) -> None:
        require(
            self.name in ("auto", "cholesky", "cg"),
            "Solver",
            "name",
            '"auto", "cholesky" or "cg"',
            repr(self.name),
        )
        require(
            self.memory_limit is None or self.memory_limit > 0,
            "Solver",
            "memory_limit",
            "a positive number of bytes, or None",
            self.memory_limit,
        )
        require(self.tolerance > 0, "Solver", "tolerance", "positive", self.tolerance)
        require(self.max_steps >= 1, "Solver", "max_steps", "1 or more", self.max_steps)
        require(
            self.rank is None or (isinstance(self.rank, int) and self.rank >= 1),
            "Solver",
            "rank",
            "an integer of 1 or more, or None",
            self.rank,
        )


@dataclass(frozen=True)
class Solved:
    """What a solver did: read it, log it, put it into a table.

    ``jitter`` is what had to be added to the diagonal (0.0 almost always), ``steps``
    and ``residual`` (relative, the worst output) belong to conjugate gradients.
    """

    solver: str
    dtype: torch.dtype
    jitter: float = 0.0
    steps: int = 0
    residual: float | None = None
    converged: bool = True


@dataclass(frozen=True)
class System:
    """The matrix of a machine: centred points, a kernel, a metric, a ridge per row."""

    points: Tensor
    kernel: Kernel
    metric: Tensor | None
    ridges: Tensor

    def to(self, dtype: torch.dtype) -> System:
        """The same system in another precision."""
        metric = None if self.metric is None else self.metric.to(dtype)
        return System(self.points.to(dtype), self.kernel, metric, self.ridges.to(dtype))

    @cached_property
    def sides(self) -> tuple[Tensor, Tensor]:
        """Both sides of the kernel's tiles."""
        return self.kernel.sides(self.points, self.metric)


class Solution(Protocol):
    """Coefficients, and what else the solver can say while its factor is alive."""

    coef: Tensor
    solved: Solved

    def inverse_diagonal(self, rows: Tensor) -> Tensor:
        """Entries of the diagonal of the inverse."""
        ...


def solve(
    system: System,
    y: Tensor,
    solver: Solver,
    *,
    spare: Triangle | None = None,
    slopes: bool = False,
) -> Solution:
    """Solve a machine's system for all its outputs.

    Parameters
    ----------
    system : System
    y : Tensor of shape (n, k)
    solver : Solver
    spare : Triangle, optional
        Memory of an earlier solve, to be overwritten.
    slopes : bool, default=False
        The kernel's slopes will be asked for: a direct solver makes them on its way,
        where the table is so small that they may be kept.

    Raises
    ------
    ValueError
        If "cholesky" was asked for and its triangle does not fit the memory limit.
    """
    n, dtype, device = len(system.points), system.points.dtype, system.points.device
    needed = direct_bytes(n, dtype=dtype, device=device)
    limit = solver.memory_limit or _unasked_limit(needed, device, spare)
    if solver.name == "cg" or (solver.name == "auto" and needed > limit):
        from normalign.kernels.iterative import solve_iteratively

        return solve_iteratively(system, y, solver, limit=limit)
    if needed > limit:
        raise ValueError(
            complaint(
                "solve",
                "memory_limit",
                f"at least {needed / 1e6:.0f} MB for a Cholesky factor of {n} rows",
                f"{limit / 1e6:.0f} MB",
                'Set max_leaf_size to fit the rows in parts, or solver="cg" to keep '
                "no matrix, or raise memory_limit.",
            )
        )
    return _solve_directly(system, y, limit=limit, spare=spare, slopes=slopes)


def _unasked_limit(needed: int, device: torch.device, spare: Triangle | None) -> int:
    """What may be used where no limit was given: what is free, or is held already."""
    if needed < _NEVER_MIND:
        return _NEVER_MIND
    return available_bytes(device) + (0 if spare is None else needed)


class DirectSolution:
    """A solution that keeps its factor until the next solve overwrites it."""

    def __init__(self, coef: Tensor, solved: Solved, triangle: Triangle) -> None:
        self.coef = coef
        self.solved = solved
        self.triangle = triangle

    @property
    def slopes(self) -> Tensor | None:
        """The kernel's slopes, their lower half, if they were made on the way."""
        return self.triangle.slopes

    def inverse_diagonal(self, rows: Tensor) -> Tensor:
        """Entries of the diagonal of the inverse: columns of ``L^{-1}``, squared."""
        unit = self.triangle.panels[0].new_zeros(len(self.triangle), len(rows))
        unit[rows, torch.arange(len(rows), device=rows.device)] = 1
        return self.triangle.half_solve_(unit).square_().sum(0).to(self.coef.dtype)


def _solve_directly(
    system: System, y: Tensor, *, limit: int, spare: Triangle | None, slopes: bool
) -> DirectSolution:
    n, dtype, device = len(system.points), system.points.dtype, system.points.device
    triangle = spare or _allocated(system, limit)
    _make_room(triangle, system, slopes)
    found = None
    if _factorise(system, triangle):
        found = _finished(triangle, y, Solved("cholesky", dtype))
        if dtype == torch.float64 or lost_share(found.coef, y) <= _LOST_SHARE:
            return found
    doubled = direct_bytes(n, dtype=torch.float64, device=device)
    if dtype != torch.float64 and doubled <= limit:
        del triangle, spare, found
        system, y = system.to(torch.float64), y.double()
        triangle = _allocated(system, limit)
        _make_room(triangle, system, slopes)
        if _factorise(system, triangle):
            return _finished(triangle, y, Solved("cholesky", torch.float64))
        found = None
    if found is None:
        return _with_jitter(system, triangle, y)
    warnings.warn(
        f"solve: coefficients are so large that rounding in float32 moves outputs by "
        f"about {10 * lost_share(found.coef, y):.0e} of the targets, and float64 does "
        "not fit memory_limit. Raise ridge or memory_limit.",
        UserWarning,
        stacklevel=2,
    )
    return found


def _allocated(system: System, limit: int) -> Triangle:
    """Memory for a factor: a square and its slopes where they are small."""
    points = system.points
    n, dtype, device = len(points), points.dtype, points.device
    whole = is_small(n, device) and 2 * n * n * dtype.itemsize <= limit
    return Triangle(n, dtype=dtype, device=device, whole=whole)


def _make_room(triangle: Triangle, system: System, slopes: bool) -> None:
    radial, cpu = isinstance(system.kernel, Radial), system.points.device.type == "cpu"
    if not (triangle.whole and slopes and radial and cpu):
        triangle.slopes = None
    elif triangle.slopes is None:
        triangle.slopes = torch.empty_like(triangle.panels[0])


def lost_share(coef: Tensor, y: Tensor) -> float:
    r"""How much of the targets rounding can move: :math:`\epsilon \|a\| / \|y\|_{rms}`.

    Outputs are sums of coefficients times numbers in ``(0, 1]``, each right to a
    rounding error; where coefficients are large and cancel, the errors do not. On
    tables and kernels tried in float32, outputs were off by about ten times this.
    """
    size = y.square().mean(0).sqrt().max().clamp(min=torch.finfo(y.dtype).tiny)
    return float(torch.finfo(y.dtype).eps * coef.norm(dim=0).max() / size)


def _with_jitter(system: System, triangle: Triangle, y: Tensor) -> DirectSolution:
    dtype = system.points.dtype
    jitter = 10 * torch.finfo(dtype).eps * len(system.points) ** 0.5
    while not _factorise(system, triangle, jitter=jitter):
        jitter *= 10
        if not jitter < 1:
            raise ValueError(
                complaint(
                    "solve",
                    "x",
                    "finite, with distances that the dtype can tell apart",
                    f"a kernel matrix that stays indefinite with {jitter:g} added",
                    "Scale the columns, or raise ridge.",
                )
            )
    warnings.warn(
        f"solve: K + ridge is not positive definite in {str(dtype)[6:]}; added "
        f"{jitter:.1e} to its diagonal. Raise ridge, or remove near-duplicate rows.",
        UserWarning,
        stacklevel=2,
    )
    return _finished(triangle, y, Solved("cholesky", dtype, jitter=jitter))


def _finished(triangle: Triangle, y: Tensor, solved: Solved) -> DirectSolution:
    return DirectSolution(triangle.solve_(y.clone()), solved, triangle)


def _factorise(system: System, triangle: Triangle, *, jitter: float = 0.0) -> bool:
    fill_(triangle, system)
    triangle.add_diagonal_(system.ridges + jitter if jitter else system.ridges)
    if not triangle.factorise_():
        return False
    smallest = float(triangle.diagonal().min()) ** 2  # NaN, if there is one
    # In double precision there is nowhere better to go.
    last_resort = system.points.dtype == torch.float64 or jitter > 0
    lost = _LOST_DIGITS * torch.finfo(system.points.dtype).eps
    return smallest > (0 if last_resort else lost)


def fill_(triangle: Triangle, system: System) -> None:
    """Write a system's kernel matrix into a triangle, tile by tile."""
    left, right = system.sides
    if triangle.whole:
        _fill_whole_(triangle, system.kernel, left, right)
        return
    height, _ = tile_shape(left.device)
    for start, panel in zip(triangle.edges, triangle.panels, strict=False):
        other = right[start : start + panel.shape[1]]
        for rows in spans(len(panel), height):
            system.kernel.values_(left[start:][rows], other, panel[rows])


def _fill_whole_(
    triangle: Triangle, kernel: Kernel, left: Tensor, right: Tensor
) -> None:
    """The same where a square is held; only up to the diagonal's tile."""
    (square,), slopes = triangle.panels, triangle.slopes
    atonce = left.device.type != "cpu"
    for rows in [slice(0, len(square))] if atonce else square_spans(len(square)):
        upto = slice(0, rows.stop)
        tile, part, other = square[rows, upto], left[rows], right[upto]
        if slopes is not None and isinstance(kernel, Radial):
            kernel.values_and_slopes_(part, other, tile, slopes[rows, upto])
        else:
            kernel.values_(part, other, tile)
