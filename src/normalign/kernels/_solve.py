r"""Solve the linear system of a machine, for one ridge or for several.

The direct solver computes a Cholesky factor in place of one triangle
(:mod:`normalign.kernels._triangle`), in the dtype of the data first. If float32 leaves
the matrix indefinite, or the coefficients so large that digits are lost, it solves
again in float64, and the machine stays in float64, because float32 would lose what
large coefficients sum to. If that fails too, a jitter is added to the diagonal and
reported. Where the triangle exceeds the memory limit, conjugate gradients
(:mod:`normalign.kernels._iterative`) solve without a matrix.

For many ridges and one kernel, :math:`W^{1/2} K W^{1/2} = Q \Lambda Q^\top` gives each
solution by two products,

.. math:: a(\rho) = W^{1/2} Q (\Lambda + \rho I)^{-1} Q^\top W^{1/2} y

An eigendecomposition costs as much as several Cholesky factors, more of them the larger
the matrix: on two cores 2 at 100 rows, 4 to 9 at 300, 12 to 20 at 1500
(``benchmarks/ridges.py``). Five ridges therefore share one for small tables only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from normalign._errors import as_float, describe
from normalign.kernels._agop import (
    apply_diagonal,
    apply_full,
    sum_of_squares,
)
from normalign.kernels._distances import kernel_matrix
from normalign.kernels._expansion import gradients_of_slopes
from normalign.kernels._functions import Kernel, Radial, require_table
from normalign.kernels._memory import (
    SMALL_BYTES,
    Needs,
    available_bytes,
    fits_in_double,
)
from normalign.kernels._metric import scaled_update
from normalign.kernels._precision import (
    LOST_SHARE,
    jitter_caution,
    lost_share,
    rounding_caution,
)
from normalign.kernels._sides import Sides, spans, square_spans, tile_shape
from normalign.kernels._system import (
    FACTOR_GONE,
    Solution,
    Solved,
    Solver,
    Spare,
    System,
)
from normalign.kernels._triangle import Triangle, is_small

__all__ = [
    "DirectSolution",
    "ridge_path",
    "shared_is_cheaper",
    "solve",
    "solve_directly",
]

_LOST_DIGITS = 32  # a pivot of that many rounding errors has no digit left to trust


def solve_directly(
    system: System,
    y: Tensor,
    *,
    limit: int,
    spare: Spare | None,
    slopes: bool,
    callee: str,
) -> Solution:
    """Solve by a factor in as much precision as it takes, and ``limit`` allows.

    ``callee`` is named in the error if none is enough.
    """
    found = _attempt(system, y, limit=limit, spare=spare, slopes=slopes)
    lost = math.inf if found is None else lost_share(found.coef, y, system.ridges)
    single = y.dtype != torch.float64
    again = not lost <= LOST_SHARE and single
    if again and fits_in_double(system, y.shape[1], limit, direct=True):
        _release(spare, found)
        system, y, spare = system.to(torch.float64), y.double(), None
        found = _attempt(system, y, limit=limit, spare=None, slopes=slopes)
        if found is not None:
            lost = lost_share(found.coef, y, system.ridges)
            system.release()  # the caller builds its own system in float64
    if found is None:
        _release(spare)
        return _with_jitter(system, _allocate(system, limit), y, callee)
    if lost > LOST_SHARE:
        caution = rounding_caution(lost, y.dtype)
        found.solved = replace(found.solved, caution=caution)
    return found


def _release(spare: Spare | None, found: Solution | None = None) -> None:
    """Free memory to which callers and stored iterations still refer."""
    for one in (spare, None if found is None else found.spare):
        if one is not None:
            one.release()


def _attempt(
    system: System, y: Tensor, *, limit: int, spare: Spare | None, slopes: bool
) -> DirectSolution | None:
    """The solution in the system's precision; None if that leaves it indefinite."""
    if isinstance(spare, Triangle):
        triangle = spare
    else:
        _release(spare)
        triangle = _allocate(system, limit)
    _make_room(triangle, system, slopes)
    if not _factorise(system, triangle):
        return None
    solved = Solved("cholesky", system.points.dtype)
    return _solution(triangle, y, solved, system)


class DirectSolution:
    """A solution that keeps its factor until the next solve overwrites it."""

    def __init__(
        self, coef: Tensor, solved: Solved, triangle: Triangle, system: System
    ) -> None:
        self.coef = coef
        self.solved = solved
        self.triangle = triangle
        self.spare: Spare = triangle
        self._system = system
        self._forgotten = False

    def forget(self) -> None:
        """Take no more questions about the inverse."""
        self._forgotten = True

    def inverse_diagonal(self, rows: Tensor) -> Tensor:
        """Entries of the diagonal of the inverse: columns of ``L^{-1}``, squared."""
        if self._forgotten:
            raise RuntimeError(FACTOR_GONE)
        n, found = len(self.triangle), [self.coef.new_empty(0)]
        # some columns at a time, in the memory of a tile
        for some in rows.split(max(math.prod(tile_shape(rows.device)) // n, 64)):
            unit = _unit_columns(self.triangle.panels[0], n, some)
            found.append(self.triangle.half_solve_(unit).square_().sum(0))
        return torch.cat(found).to(self.coef.dtype)

    def next_metric(self, weights: Tensor | None) -> Tensor | None:
        """From the slopes, if they were kept."""
        kernel, metric = self._system.kernel, self._system.metric
        if self.triangle.slopes is None or not isinstance(kernel, Radial):
            return None
        points = apply_full(self._system.points, kernel, metric)
        diagonal = metric is not None and metric.ndim == 1
        gradients = gradients_of_slopes(
            points, self.coef, self.triangle.slopes, kernel, self._system.sides,
            mapped=metric is not None and not diagonal,
        )  # fmt: skip
        total = sum_of_squares(
            gradients, torch.zeros_like(points[0]), weights, diagonal
        )
        return scaled_update(apply_diagonal(total, kernel, metric))


def _unit_columns(like: Tensor, n: int, rows: Tensor) -> Tensor:
    unit = like.new_zeros(n, len(rows))
    unit[rows, torch.arange(len(rows), device=rows.device)] = 1
    return unit


def _allocate(system: System, limit: int) -> Triangle:
    """Memory for a factor: a square and its slopes where they are small."""
    points = system.points
    n, dtype, device = len(points), points.dtype, points.device
    needed = Needs.of(system, 1).base + 2 * n * n * dtype.itemsize
    whole = is_small(n, device) and needed <= limit
    return Triangle(n, dtype=dtype, device=device, whole=whole)


def _make_room(triangle: Triangle, system: System, slopes: bool) -> None:
    radial, cpu = isinstance(system.kernel, Radial), system.points.device.type == "cpu"
    if not (triangle.whole and slopes and radial and cpu):
        triangle.slopes = None
    elif triangle.slopes is None:
        triangle.slopes = torch.empty_like(triangle.panels[0])


def _with_jitter(
    system: System, triangle: Triangle, y: Tensor, callee: str
) -> DirectSolution:
    dtype = system.points.dtype
    jitter = 10 * torch.finfo(dtype).eps * len(system.points) ** 0.5
    while not _factorise(system, triangle, jitter=jitter):
        jitter *= 10
        if not jitter < 1:
            raise ValueError(
                f"{callee}: rows must be finite, with distances that the dtype can "
                "tell apart, got a kernel matrix that stays indefinite with "
                f"{jitter:g} added. Scale the columns, or raise ridge."
            )
    caution = jitter_caution(jitter, dtype)
    solved = Solved("cholesky", dtype, jitter=jitter, caution=caution)
    return _solution(triangle, y, solved, system)


def _solution(
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


def fill_(triangle: Triangle, system: System) -> None:
    """Write a system's kernel matrix into a triangle, tile by tile."""
    sides = system.sides
    if triangle.whole:
        _fill_whole_(triangle, system.kernel, sides)
        return
    height, _ = tile_shape(sides.device)
    for start, panel in zip(triangle.edges, triangle.panels, strict=False):
        other = sides[start : start + panel.shape[1]]
        for rows in spans(len(panel), height):
            system.kernel.values_(sides[start:][rows], other, panel[rows])


def _fill_whole_(triangle: Triangle, kernel: Kernel, sides: Sides) -> None:
    """The same for a whole square, only up to the tile of the diagonal."""
    (square,), slopes = triangle.panels, triangle.slopes
    atonce = sides.device.type != "cpu"
    for rows in [slice(0, len(square))] if atonce else square_spans(len(square)):
        upto = slice(0, rows.stop)
        tile, part, other = square[rows, upto], sides[rows], sides[upto]
        if slopes is not None and isinstance(kernel, Radial):
            kernel.values_and_slopes_(part, other, tile, slopes[rows, upto])
        else:
            kernel.values_(part, other, tile)


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
        ``next_metric`` will be called: for a small table the direct solver stores the
        kernel's slopes.

    Raises
    ------
    ValueError
        If "cholesky" was asked for and its machine does not fit the memory limit.
    """
    n, needed = len(system.points), Needs.of(system, y.shape[1]).direct
    limit = solver.memory_limit or _default_limit(system, needed, spare)
    if solver.name == "cg" or (solver.name == "auto" and needed > limit):
        from normalign.kernels._iterative import solve_iteratively

        return solve_iteratively(system, y, solver, limit=limit, spare=spare)
    if needed > limit:
        raise ValueError(
            f"{solver.callee}: memory_limit must be at least {needed / 1e6:.0f} MB to "
            f"fit {n} rows by a Cholesky factor, got {limit / 1e6:.0f} MB. Set "
            'max_leaf_size to fit the rows in parts, or solver="cg" to keep no matrix, '
            "or raise memory_limit."
        )
    return solve_directly(
        system, y, limit=limit, spare=spare, slopes=slopes, callee=solver.callee
    )


def _default_limit(system: System, needed: int, spare: Spare | None) -> int:
    """The limit where none was given: what is free, and what ``spare`` occupies."""
    if needed < SMALL_BYTES:
        return SMALL_BYTES
    return available_bytes(system.points.device) + (0 if spare is None else needed)


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
    values = _checked_ridges(ridges)
    if not isinstance(system, System):
        raise TypeError(f"ridge_path: system must be a System, got {describe(system)}.")
    require_table("ridge_path", "y", y)
    if len(y) != len(system.points):
        raise ValueError(
            f"ridge_path: y must be of shape ({len(system.points)}, k), "
            f"got {describe(y)}."
        )
    if not (solver is None or isinstance(solver, Solver)):
        raise TypeError(
            f"ridge_path: solver must be a Solver or None, got {describe(solver)}."
        )
    return _path(system, y, values, solver or Solver(callee="ridge_path"))


def _checked_ridges(ridges: Sequence[float]) -> list[float]:
    several = isinstance(ridges, Iterable) and getattr(ridges, "ndim", 1) == 1
    given = describe(ridges)  # an iterator is used up below
    items: Iterable[Any] = ridges if several else [None]
    values = [one.item() if isinstance(one, Tensor) else one for one in items]
    if not all(isinstance(one, Real) for one in values):
        raise TypeError(
            f"ridge_path: ridges must be a sequence of numbers, got {given}."
        )
    if not all(0 < as_float(one) < math.inf for one in values):
        raise ValueError(
            f"ridge_path: ridges must be positive and finite, got {given}."
        )
    return [float(one) for one in values]


def _path(
    system: System, y: Tensor, ridges: list[float], solver: Solver
) -> Iterator[tuple[Tensor, Solved]]:
    if solver.name == "auto" and shared_is_cheaper(len(y), len(ridges)):
        limit = solver.memory_limit or available_bytes(system.points.device)
        if _SQUARES * 8 * len(y) ** 2 <= limit:
            yield from _solve_all(system, y, ridges)
            return
    for ridge in ridges:
        one = solve(replace(system, ridges=system.ridges * ridge), y, solver)
        yield one.coef, one.solved


def _solve_all(
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
        caution = jitter_caution(jitter, torch.float64) if jitter else ""
        if lost_share(coef, y, exact.ridges) <= LOST_SHARE:
            coef = coef.to(y.dtype)
        elif (lost := lost_share(coef, y.double(), exact.ridges)) > LOST_SHARE:
            caution = caution or rounding_caution(lost, torch.float64)
        yield coef, Solved("eigh", coef.dtype, jitter=jitter, caution=caution)
