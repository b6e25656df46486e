r"""Tables of points from which kernel tiles are computed, and squared distances.

.. math:: u_{ij} = (x_i - x_j)^\top M (x_i - x_j) / \ell^2
                 = s_i + s_j - 2 x_i^\top M x_j / \ell^2

is one matrix product of two tables. It is also a difference of large numbers, so for
points near each other no digits are left. Those few entries are computed again from
differences of coordinates.

A large matrix is computed in tiles. On a CPU a tile has about the size of the
second-level cache, so that the element-wise passes (square root, exponential, ...) cost
no memory traffic. On an accelerator launches are the cost, so tiles are large.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normalign.kernels._metric import through_metric
from normalign.kernels.cuda import kernels_for

__all__ = [
    "CLOSE",
    "NEAR",
    "Sides",
    "middle",
    "recompute_near_",
    "spans",
    "square_spans",
    "tile_shape",
]

_CPU_TILE = (512, 1024)
_SQUARE_TILE = 1 << 17  # entries of a tile of a small matrix that is stored whole
_DEVICE_TILE = (8192, 16384)


def tile_shape(device: torch.device) -> tuple[int, int]:
    """Rows and columns of one tile."""
    return _CPU_TILE if device.type == "cpu" else _DEVICE_TILE


def spans(total: int, size: int) -> Iterator[slice]:
    """Consecutive slices that cover ``range(total)``.

    Examples
    --------
    >>> [(s.start, s.stop) for s in spans(5, 2)]
    [(0, 2), (2, 4), (4, 5)]
    """
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def square_spans(n: int) -> Iterator[slice]:
    """Rows of a small square in tiles; all of them where they are few.

    Examples
    --------
    >>> [(s.start, s.stop) for s in square_spans(300)]
    [(0, 300)]
    """
    return spans(n, max(_SQUARE_TILE // max(n, 1), 32))


# A squared distance below this share of the points' squared norms is computed again:
# from the product, its relative error would be above 1e-9, or 1e-3 in float32.
NEAR = {torch.float64: 1e-6, torch.float32: 1e-3}

# Share below which gradients are computed from differences of coordinates, too. The
# slope of a kernel with a kink grows without bound as points approach each other, and
# with it the rounding errors of a sum over centers; above, they are below 1e-3.
CLOSE = {t: (1e3 * torch.finfo(t).eps) ** 2 for t in (torch.float64, torch.float32)}

# Entries that are compared with the limit, and coordinates gathered, at a time.
_CPU_ENTRIES, _DEVICE_ENTRIES = 1 << 20, 1 << 26
_COORDINATES = 1 << 22


@dataclass(frozen=True)
class Sides:
    """The two operands of points in a product: one for rows, one for columns.

    Parameters
    ----------
    left, right : Tensor of shape (n, q)
        The products of ``left`` of some points and ``right`` of others are the entries
        of a tile.
    mixed : tuple of Tensor of shape (n, d), and (d, d) or (d,), optional
        The points, and the matrix that they are multiplied by in the operands, which
        adds a rounding error for each product.
    """

    left: Tensor
    right: Tensor
    mixed: tuple[Tensor, Tensor] | None = None

    def __getitem__(self, rows: slice | Tensor) -> Sides:
        mixed = None if self.mixed is None else (self.mixed[0][rows], self.mixed[1])
        return Sides(self.left[rows], self.right[rows], mixed)

    def __len__(self) -> int:
        return len(self.left)

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """Both operands."""
        return self.left, self.right

    @property
    def device(self) -> torch.device:
        """The device of the points."""
        return self.left.device


def recompute_near_(squared: Tensor, rows: Sides, columns: Sides) -> Tensor:
    r"""Compute squared distances of near points again, in place.

    .. math:: u_{ij} = (x_i - x_j)^\top (M x_i - M x_j) / \ell^2

    Their relative error is then a rounding over the distance, relative to the size of
    the points, and no longer over its square.

    Parameters
    ----------
    squared : Tensor of shape (n, m)
        Products of ``rows.left`` and ``columns.right``.
    rows, columns : Sides
        Of a radial kernel: ``(-2 M x, s, 1)`` and ``(x, 1, s)``.
    """
    if not squared.numel():
        return squared
    share, d = NEAR[squared.dtype], rows.left.shape[1] - 2
    kernels = kernels_for(squared)
    if kernels is not None and squared.stride(1) == 1:
        return kernels.mend_near_(squared, rows.both, columns.both, share)
    own, others = rows.left[:, d], columns.right[:, d + 1]
    cpu = squared.device.type == "cpu"
    # On a CPU the tile is in cache; reading the result would make a device wait.
    if cpu and float(squared.amin()) > share * float(own.amax() + others.amax()):
        return squared
    entries = _CPU_ENTRIES if cpu else _DEVICE_ENTRIES
    for some in spans(len(squared), max(entries // squared.shape[1], 1)):
        limits = torch.add(own[some, None], others).mul_(share)
        near = (squared[some] <= limits).nonzero()
        for part in spans(len(near), max(_COORDINATES // max(d, 1), 1)):
            i, j = near[part, 0] + some.start, near[part, 1]
            apart = rows.right[i, :d] - columns.right[j, :d]
            images = columns.left[j, :d] - rows.left[i, :d]  # of 2 M (x_i - x_j)
            found = images.mul_(apart).sum(1).mul_(0.5)
            if rows.mixed is not None:
                # rounding of the images may be larger than their difference
                least = (own[i] + others[j]).mul_(CLOSE[squared.dtype])
                close = (found <= least).logical_and_(apart.any(1))
                steps = apart[close]
                images = through_metric(steps, rows.mixed[1])
                found[close] = images.mul_(steps).sum(1)
            squared[i, j] = found
    return squared


def middle(points: Tensor) -> Tensor:
    """Return the medians of coordinates, by which points are shifted.

    Kernels do not depend on the origin, but rounding errors do: squares of large
    coordinates leave no correct digits for small distances. Unlike means, medians are
    not moved by outliers. At most about a thousand rows are used.
    """
    if not len(points):
        return points.new_zeros(points.shape[1])
    some = points[:: max(points.shape[0] // 1000, 1)]
    if some.device.type != "cpu":
        return some.median(0).values
    # the same number, faster for few rows
    half = (some.shape[0] - 1) // 2
    return torch.from_numpy(np.partition(some.detach().numpy(), half, axis=0)[half])
