r"""Directly: a Cholesky factor in place of one triangle, and how far to trust it.

In the dtype of the data first; if float32 leaves the matrix indefinite, or coefficients
so large that digits are lost, again in float64, in which the machine then stays (what
large coefficients sum to is lost in float32, too); if that fails, with a jitter on the
diagonal, which is reported.

The factor is made of products of panels (:mod:`normalign.kernels._triangle`).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from normalign._errors import complaint
from normalign.kernels._agop import finished, sum_of_squares, through_full
from normalign.kernels._digits import (
    LOST_SHARE,
    added_jitter,
    lost_digits,
    lost_share,
)
from normalign.kernels._expansion import gradients_of_slopes
from normalign.kernels._functions import Kernel, Radial
from normalign.kernels._memory import Needs, fits_in_double
from normalign.kernels._metric import learned
from normalign.kernels._sides import Sides
from normalign.kernels._system import (
    OVERWRITTEN,
    Solution,
    Solved,
    Spare,
    System,
)
from normalign.kernels._tiles import spans, square_spans, tile_shape
from normalign.kernels._triangle import Triangle, is_small

__all__ = ["DirectSolution", "solve_directly"]

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

    ``callee`` complains where none is enough.
    """
    found = _tried(system, y, limit=limit, spare=spare, slopes=slopes)
    lost = math.inf if found is None else lost_share(found.coef, y, system.ridges)
    single = y.dtype != torch.float64
    again = not lost <= LOST_SHARE and single
    if again and fits_in_double(system, y.shape[1], limit, direct=True):
        _let_go(spare, found)
        system, y, spare = system.to(torch.float64), y.double(), None
        found = _tried(system, y, limit=limit, spare=None, slopes=slopes)
        if found is not None:
            lost = lost_share(found.coef, y, system.ridges)
            system.release()  # who goes on in float64 has a system of its own
    if found is None:
        _let_go(spare)
        return _with_jitter(system, _allocated(system, limit), y, callee)
    if lost > LOST_SHARE:
        caution = lost_digits(lost, y.dtype)
        found.solved = replace(found.solved, caution=caution)
    return found


def _let_go(spare: Spare | None, found: Solution | None = None) -> None:
    """Free memory to which callers, and who keeps an iteration, still refer."""
    for one in (spare, None if found is None else found.spare):
        if one is not None:
            one.release()


def _tried(
    system: System, y: Tensor, *, limit: int, spare: Spare | None, slopes: bool
) -> DirectSolution | None:
    """The solution in the system's precision; None if that leaves it indefinite."""
    if isinstance(spare, Triangle):
        triangle = spare
    else:
        _let_go(spare)
        triangle = _allocated(system, limit)
    _make_room(triangle, system, slopes)
    if not _factorise(system, triangle):
        return None
    solved = Solved("cholesky", system.points.dtype)
    return _finished(triangle, y, solved, system)


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
            raise RuntimeError(OVERWRITTEN)
        n, found = len(self.triangle), [self.coef.new_empty(0)]
        # some columns at a time, in the memory of a tile
        for some in rows.split(max(math.prod(tile_shape(rows.device)) // n, 64)):
            unit = _unit_columns(self.triangle.panels[0], n, some)
            found.append(self.triangle.half_solve_(unit).square_().sum(0))
        return torch.cat(found).to(self.coef.dtype)

    def next_metric(self, weights: Tensor | None) -> Tensor | None:
        """From the slopes, if they were kept."""
        if self.triangle.slopes is None:
            return None
        kernel, metric = self._system.kernel, self._system.metric
        points = through_full(self._system.points, kernel, metric)
        gradients = gradients_of_slopes(points, self.coef, self.triangle.slopes)
        diagonal = metric is not None and metric.ndim == 1
        total = sum_of_squares(
            gradients, torch.zeros_like(points[0]), weights, diagonal
        )
        return learned(finished(total, kernel, metric))


def _unit_columns(like: Tensor, n: int, rows: Tensor) -> Tensor:
    unit = like.new_zeros(n, len(rows))
    unit[rows, torch.arange(len(rows), device=rows.device)] = 1
    return unit


def _allocated(system: System, limit: int) -> Triangle:
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
                complaint(
                    callee,
                    "rows",
                    "finite, with distances that the dtype can tell apart",
                    f"a kernel matrix that stays indefinite with {jitter:g} added",
                    "Scale the columns, or raise ridge.",
                )
            )
    caution = added_jitter(jitter, dtype)
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
    """The same where a square is held; only up to the diagonal's tile."""
    (square,), slopes = triangle.panels, triangle.slopes
    atonce = sides.device.type != "cpu"
    for rows in [slice(0, len(square))] if atonce else square_spans(len(square)):
        upto = slice(0, rows.stop)
        tile, part, other = square[rows, upto], sides[rows], sides[upto]
        if slopes is not None and isinstance(kernel, Radial):
            kernel.values_and_slopes_(part, other, tile, slopes[rows, upto])
        else:
            kernel.values_(part, other, tile)
