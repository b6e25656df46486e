r"""Ridge regression in a kernel: the linear system behind every machine.

.. math:: (K + \rho \, \mathrm{diag}(1 / w)) \, a = y

Algorithm 1 of the paper prints ``alpha = K y``; the inverse is meant. Sample weights
enter where they do in weighted least squares, so that a row of weight two is the same
as the row twice.

:func:`solve` picks how. *Directly*, by a Cholesky factor in place of one triangle: in
the dtype of the data first; if float32 leaves the matrix indefinite, or coefficients
so large that digits are lost, again in float64, in which the machine then stays
(what large coefficients sum to is lost in float32, too); if that fails, with a jitter
on the diagonal, which is reported. *Iteratively*, where the triangle
does not fit the memory that is allowed (:mod:`normalign.kernels.iterative`). *Compiled*
is a direct solver for small tables, the same numbers sooner
(:mod:`normalign.kernels.compiled`), where numba is there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from normalign._checks import complaint, require
from normalign.kernels import compiled
from normalign.kernels.agop import (
    pulls_early,
    sum_of_squares,
    symmetric,
    with_both_sides,
)
from normalign.kernels.functions import Gaussian, Kernel, Laplace, Radial
from normalign.kernels.gradients import gradients_of_slopes, pulled_back
from normalign.kernels.memory import available_bytes, direct_bytes
from normalign.kernels.metric import learned
from normalign.kernels.tiles import spans, square_spans, tile_shape
from normalign.kernels.triangle import Triangle, is_small

if TYPE_CHECKING:
    from normalign.kernels.compiled.solution import Factored, Problem

__all__ = [
    "DirectSolution",
    "Solution",
    "Solved",
    "Solver",
    "System",
    "solve",
    "solve_last",
]

_NEVER_MIND = 1 << 26  # bytes for which nobody is asked what is free
_LOST_DIGITS = 32  # a pivot of that many rounding errors has no digit left to trust
_LOST_SHARE = 3e-4  # of the targets; ordinary tables have a tenth of it
_COMPILED = 8192  # rows up to which compiled code is sooner done
# Operations in one call of it, which nobody can interrupt: a fraction of a second.
_AT_ONCE = 2e10


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
    ``caution`` is what a user should know of; it is for those to tell whom the user
    called, and who know whether they have told it before.
    """

    solver: str
    dtype: torch.dtype
    jitter: float = 0.0
    steps: int = 0
    residual: float | None = None
    converged: bool = True
    caution: str = ""


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
    spare: object  # memory that the next solve may overwrite

    def inverse_diagonal(self, rows: Tensor) -> Tensor:
        """Entries of the diagonal of the inverse."""
        ...

    def next_metric(self, weights: Tensor | None, mass: float) -> Tensor | None:
        """What is learned from the gradients at all rows, if that comes for little.

        ``mass`` is the sum of the weights, or the number of rows.
        """
        ...


def solve(
    system: System,
    y: Tensor,
    solver: Solver,
    *,
    spare: object = None,
    slopes: bool = False,
) -> Solution:
    """Solve a machine's system for all its outputs.

    Parameters
    ----------
    system : System
    y : Tensor of shape (n, k)
    solver : Solver
    spare : object, optional
        Memory of an earlier solve of the same points, to be overwritten.
    slopes : bool, default=False
        ``next_metric`` will be asked for: a direct solver makes the kernel's slopes
        on its way, where the table is so small that they may be kept.

    Raises
    ------
    ValueError
        If "cholesky" was asked for and its triangle does not fit the memory limit.
    """
    n, dtype, device = len(system.points), system.points.dtype, system.points.device
    needed = direct_bytes(n, dtype=dtype, device=device)
    limit = solver.memory_limit or _unasked_limit(system, needed, spare)
    if solver.name == "cg" or (solver.name == "auto" and needed > limit):
        from normalign.kernels.iterative import solve_iteratively

        return solve_iteratively(system, y, solver, limit=limit, spare=spare)
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


def solve_last(
    system: System,
    y: Tensor,
    solver: Solver,
    *,
    n_iter: int,
    weights: Tensor | None,
    mass: float,
) -> tuple[Solution, Tensor] | None:
    """The last solution of a recursion in a fixed kernel, and its metric, in one go.

    The same numbers as :func:`solve` and ``next_metric`` give by turns, sooner, where
    there is compiled code for it. None where there is none, where it would take long,
    or where an iteration needs more than its precision.
    """
    limit, k = solver.memory_limit or _unasked_limit(system, 0, None), y.shape[1]
    work = (n_iter + 1) * float(system.points.shape[0]) ** 3
    small = solver.name != "cg" and work < _AT_ONCE
    if not (small and _is_for_compiled(system, k, limit)):
        return None
    from normalign.kernels.compiled.solution import last_of

    dtype, most = system.points.dtype, math.inf
    if dtype != torch.float64:
        most = (_LOST_SHARE * _size(y) / torch.finfo(dtype).eps) ** 2
    found = last_of(
        _problem(system, y), n_iter, weights, mass,
        least=_smallest_pivot(dtype), most=most,
    )  # fmt: skip
    return None if found is None else (CompiledSolution(found[0]), found[1])


def _problem(system: System, y: Tensor, spare: object = None) -> Problem:
    from normalign.kernels.compiled.solution import Problem

    return Problem(system.points, system.kernel, system.metric, system.ridges, y, spare)


def _unasked_limit(system: System, needed: int, spare: object) -> int:
    """What may be used where no limit was given: what is free, or is held already."""
    points = system.points
    wished = needed
    if points.device.type == "cpu" and len(points) <= _COMPILED:
        wished = 3 * len(points) ** 2 * points.dtype.itemsize  # two squares and more
    if wished < _NEVER_MIND:
        return _NEVER_MIND
    return available_bytes(points.device) + (0 if spare is None else needed)


class DirectSolution:
    """A solution that keeps its factor until the next solve overwrites it."""

    def __init__(
        self, coef: Tensor, solved: Solved, triangle: Triangle, system: System
    ) -> None:
        self.coef = coef
        self.solved = solved
        self.triangle = triangle
        self.spare: object = triangle
        self._system = system

    def inverse_diagonal(self, rows: Tensor) -> Tensor:
        """Entries of the diagonal of the inverse: columns of ``L^{-1}``, squared."""
        unit = _unit_columns(self.triangle.panels[0], len(self.triangle), rows)
        return self.triangle.half_solve_(unit).square_().sum(0).to(self.coef.dtype)

    def next_metric(self, weights: Tensor | None, mass: float) -> Tensor | None:
        """From the slopes, if they were kept."""
        if self.triangle.slopes is None:
            return None
        points, metric = self._system.points, self._system.metric
        kernel = self._system.kernel
        early = pulls_early(2 * len(points), kernel, metric)
        if early:
            points = pulled_back(points, kernel, metric)
        gradients = gradients_of_slopes(points, self.coef, self.triangle.slopes)
        diagonal = metric is not None and metric.ndim == 1
        total = sum_of_squares(
            gradients, torch.zeros_like(points[0]), weights, diagonal
        )
        update = symmetric(total) if early else with_both_sides(total, kernel, metric)
        return learned(update / mass, metric)


class CompiledSolution:
    """A solution by compiled code, with its factor and slopes until the next solve."""

    def __init__(self, found: Factored) -> None:
        self.coef = found.coef
        self.solved = Solved("cholesky", found.coef.dtype)
        self.spare: object = found.problem.memory
        self._found = found

    def inverse_diagonal(self, rows: Tensor) -> Tensor:
        """As of :class:`DirectSolution`."""
        lower = self._found.factor().T
        unit = _unit_columns(lower, len(lower), rows)
        return torch.linalg.solve_triangular(lower, unit, upper=False).square_().sum(0)

    def next_metric(self, weights: Tensor | None, mass: float) -> Tensor:
        """Compiled, too."""
        return self._found.next_metric(weights, mass)


def _unit_columns(like: Tensor, n: int, rows: Tensor) -> Tensor:
    unit = like.new_zeros(n, len(rows))
    unit[rows, torch.arange(len(rows), device=rows.device)] = 1
    return unit


def _solve_directly(
    system: System, y: Tensor, *, limit: int, spare: object, slopes: bool
) -> Solution:
    n, dtype, device = len(system.points), system.points.dtype, system.points.device
    found = _tried(system, y, limit=limit, spare=spare, slopes=slopes)
    single = dtype != torch.float64
    exact = found is not None and (
        not single or lost_share(found.coef, y) <= _LOST_SHARE
    )
    if found is not None and exact:
        return found
    if single and direct_bytes(n, dtype=torch.float64, device=device) <= limit:
        del spare, found
        system, y = system.to(torch.float64), y.double()
        found = _tried(system, y, limit=limit, spare=None, slopes=slopes)
        if found is not None:
            return found
    if found is None:
        return _with_jitter(system, _allocated(system, limit), y)
    caution = (
        f"coefficients are so large that rounding in float32 moves outputs by about "
        f"{10 * lost_share(found.coef, y):.0e} of the targets, and float64 does not "
        "fit memory_limit. Raise ridge or memory_limit."
    )
    found.solved = replace(found.solved, caution=caution)
    return found


def _tried(
    system: System, y: Tensor, *, limit: int, spare: object, slopes: bool
) -> CompiledSolution | DirectSolution | None:
    """The solution in the system's precision; None if that leaves it indefinite."""
    if _is_for_compiled(system, y.shape[1], limit):
        from normalign.kernels.compiled.solution import factored

        quick = factored(_problem(system, y, spare))
        fine = quick.pivot > _smallest_pivot(system.points.dtype)
        return CompiledSolution(quick) if fine else None
    triangle = spare if isinstance(spare, Triangle) else _allocated(system, limit)
    _make_room(triangle, system, slopes)
    if not _factorise(system, triangle):
        return None
    solved = Solved("cholesky", system.points.dtype)
    return _finished(triangle, y, solved, system)


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
    limits = torch.finfo(y.dtype)
    # one question to a device, not two
    share = coef.square().sum(0).max() / y.square().mean(0).max().clamp(min=limits.tiny)
    return limits.eps * math.sqrt(share)


def _size(y: Tensor) -> float:
    """The root mean square of the largest target, and never quite zero."""
    return math.sqrt(max(float(y.square().mean(0).max()), torch.finfo(y.dtype).tiny))


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
    caution = (
        f"K + ridge is not positive definite in {str(dtype)[6:]}; added {jitter:.1e} "
        "to its diagonal. Raise ridge, or remove near-duplicate rows."
    )
    solved = Solved("cholesky", dtype, jitter=jitter, caution=caution)
    return _finished(triangle, y, solved, system)


def _finished(
    triangle: Triangle, y: Tensor, solved: Solved, system: System
) -> DirectSolution:
    return DirectSolution(triangle.solve_(y.clone()), solved, triangle, system)


def _factorise(system: System, triangle: Triangle, *, jitter: float = 0.0) -> bool:
    fill_(triangle, system)
    triangle.add_diagonal_(system.ridges + jitter if jitter else system.ridges)
    if not triangle.factorise_():
        return False
    smallest = float(triangle.diagonal().min()) ** 2  # NaN, if there is one
    # A jitter is the last resort.
    return smallest > (0 if jitter > 0 else _smallest_pivot(system.points.dtype))


def _smallest_pivot(dtype: torch.dtype) -> float:
    """Below which a factor is not trusted; after float64 there is nowhere to go."""
    return 0.0 if dtype == torch.float64 else _LOST_DIGITS * torch.finfo(dtype).eps


def _is_for_compiled(system: System, k: int, limit: int) -> bool:
    """Whether there is compiled code for a system, and room for its square."""
    points, kernel = system.points, system.kernel
    known = isinstance(kernel, Gaussian) or (
        isinstance(kernel, Laplace) and kernel.exponent == 1
    )
    n, small = len(points), points.device.type == "cpu" and len(points) <= _COMPILED
    if not (known and small and 0 < k <= n and compiled.is_available()):
        return False
    from normalign.kernels.compiled.memory import square_bytes

    full = system.metric is not None and system.metric.ndim == 2
    d = points.shape[1] if full else 0
    return square_bytes(n, d, k, points.dtype.itemsize) <= limit


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
