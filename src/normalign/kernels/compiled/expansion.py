"""Compiled expansions: what :mod:`normalign.kernels.gradients` asks for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from normalign.kernels.compiled import profile_of
from normalign.kernels.compiled.layout import in_strips, whole
from normalign.kernels.compiled.sums import MANY, expand
from normalign.kernels.compiled.team import threads, together
from normalign.kernels.compiled.tile import HEIGHT, columns
from normalign.kernels.functions import Kernel
from normalign.kernels.sides import Sides
from normalign.kernels.tiles import spans

__all__ = ["sums_of_sides"]

# Kernel values of one call, which nobody can interrupt: a fraction of a second.
_AT_ONCE = 1 << 28
_ROWS = 1 << 13  # of points, at most, so that what is made of them stays small


def sums_of_sides(
    points: Sides,
    centers: Sides,
    table: Tensor,
    kernel: Kernel,
    *,
    slopes: bool,
    mixed: tuple[Tensor, Tensor] | None = None,
) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(rows, sums)``: what values or slopes of some rows make of a table.

    Parameters
    ----------
    points, centers : Sides of n and of m points
        Of a radial kernel that has a profile here.
    table : Tensor of shape (m, c)
        A row for each column of the kernel matrix.
    slopes : bool
        Whether slopes are summed, or else values.
    mixed : (Tensor of shape (n, k), Tensor of shape (m, k)), optional
        Whose products are factors of the slopes.

    Yields
    ------
    rows : slice
    sums : Tensor of shape (rows, c)
        Overwritten by the next.
    """
    w = columns(table.dtype.itemsize)
    (n, height), (m, count) = points.left.shape, table.shape
    right, left = _strips(centers.right.T, w), _strips(centers.left.T, w)
    factors = _strips(table, w)
    towards, coef = (points.left[:, :0], table[:, :0]) if mixed is None else mixed
    k, mixing = coef.shape[1], _strips(coef.T, w)
    profile, step = profile_of(kernel), whole(count, w)
    size = min(max(_AT_ONCE // max(m, 1) // MANY * MANY, MANY), _ROWS)
    sums = np.empty((whole(min(size, n), HEIGHT), step), factors.dtype)
    into = sums.reshape(-1)
    for rows in spans(n, size):
        some, ways = points[rows], _strips(towards[rows].T, w)
        own, other = _strips(some.left.T, w), _strips(some.right.T, w)
        here = rows.stop - rows.start
        together(
            lambda members, flags, own=own, other=other, ways=ways, here=here: expand(
                right, own, left, other, height, profile, slopes, here, m, mixing, ways,
                k, factors, count, into, step, 0, members, flags,
            ),
            min(threads(), whole(here, MANY) // MANY),
            1,
        )  # fmt: skip
        yield rows, torch.from_numpy(sums[:here, :count])


def _strips(table: Tensor, w: int) -> np.ndarray:
    """A table in strips, with zeros up to a whole one."""
    padded = np.zeros((len(table), whole(table.shape[1], w)), table.numpy().dtype)
    padded[:, : table.shape[1]] = table.numpy()
    return in_strips(padded, w)
