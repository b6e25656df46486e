r"""Points as operands of a product that gives a tile, and distances of near points.

.. math:: u_{ij} = (x_i - x_j)^\top M (x_i - x_j) / \ell^2
                 = s_i + s_j - 2 x_i^\top M x_j / \ell^2

is one matrix product. But it is a difference of large numbers, which has no correct
digits for points that are near each other. Those few pairs are computed again, from
differences of their coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normalign.kernels.cuda import kernels_for
from normalign.kernels.tiles import spans

__all__ = ["NEAR", "SAME", "Sides", "mend_near_", "middle"]

# A squared distance below this share of the points' squared norms is computed again:
# from the product, its relative error would be above 1e-9, or 1e-3 in float32.
NEAR = {torch.float64: 1e-6, torch.float32: 1e-3}

# Share below which two points count as duplicates in gradients: they differ by less
# than eight rounding errors of their coordinates. The slope of a kernel with a kink
# grows without bound as points approach each other, and amplifies rounding errors.
SAME = {t: (8 * torch.finfo(t).eps) ** 2 for t in (torch.float64, torch.float32)}

# Entries that are searched for near pairs, and coordinates that are gathered, at once.
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
    mixed : tuple of Tensor of shape (n, d) and (d, d), optional
        The points, and the matrix that they were multiplied by in both operands, which
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


def mend_near_(squared: Tensor, rows: Sides, columns: Sides) -> Tensor:
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
    # Skipped if no pair is near; on a GPU this test would wait for the device.
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
            squared[i, j] = apart.mul_(images).sum(1).mul_(0.5)
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
    # the same number as torch's median, faster for few rows
    half = (some.shape[0] - 1) // 2
    return torch.from_numpy(np.partition(some.detach().numpy(), half, axis=0)[half])
