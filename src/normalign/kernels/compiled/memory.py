"""The arrays of a compiled machine, laid out once for all its iterations."""

from __future__ import annotations

from collections import deque

import numpy as np
from torch import Tensor

from normalign.kernels.compiled.products import BLOCK
from normalign.kernels.compiled.tile import HEIGHT, columns, vector_lanes

__all__ = ["Memory", "square_bytes"]


def _whole(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def square_bytes(n: int, d: int, k: int, itemsize: int) -> int:
    """Bytes of the kernel matrix and of its slopes, and of a metric and its update.

    With their padding. ``d`` is zero for a diagonal metric, which is no square.
    """
    wide = columns(itemsize)
    kernel = _whole(n, HEIGHT) * _whole(n + k, wide)
    metric = _whole(d, HEIGHT) * _whole(d, wide)
    return 2 * (kernel + metric) * itemsize


# The last machine's squares, for the next one: a system gives fresh memory page by
# page, which takes longer than to fill it. At most _KEPT bytes.
_spare: deque[np.ndarray] = deque(maxlen=1)
_KEPT = 1 << 26


def _taken(size: int, dtype: np.dtype) -> np.ndarray:
    try:
        buffer = _spare.pop()
    except IndexError:
        return np.empty(size, dtype)
    fits = buffer.dtype == dtype and size <= len(buffer)
    return buffer if fits else np.empty(size, dtype)


class Memory:
    """Everything that the functions of ``machine`` read and write.

    Parameters
    ----------
    points : Tensor of shape (n, d)
        Centred.
    k : int
        Outputs.
    members : int
        That may work at the same time.
    """

    def __init__(self, points: Tensor, k: int, members: int) -> None:
        self._source, table = points, points.detach().numpy()
        (n, d), dtype = table.shape, table.dtype
        self.width, lanes = columns(dtype.itemsize), vector_lanes(dtype.itemsize)
        self.members = members
        self.rows = _whole(n, HEIGHT)
        self.strips = _whole(n + k, self.width) // self.width
        self.groups, self.lanes = _whole(k, lanes) // lanes, lanes
        span = self.strips * self.width

        # Both sides of the kernel's products have as many rows: two behind the points,
        # up to whole tiles.
        height = max(_whole(d, HEIGHT), d + 2)
        turned = np.zeros((height, span), dtype)
        turned[:d, :n], turned[d] = table.T, 1
        self.points = self.in_strips(turned)
        self.images = np.empty(height * span, dtype)
        self._buffer = _taken(2 * self.rows * span, dtype)
        self.square, self.slopes = self._buffer[: 2 * self.rows * span].reshape(2, -1)
        self.aside = np.empty(_whole(n, BLOCK) * BLOCK, dtype)
        self._shape, self._dtype = (n, d, k), dtype
        self._sums: tuple[np.ndarray, ...] | None = None

    def __del__(self, spare: deque[np.ndarray] = _spare, most: int = _KEPT) -> None:
        # names of the module may be gone by then
        buffer = getattr(self, "_buffer", None)
        if buffer is not None and buffer.nbytes <= most:
            spare.append(buffer)

    def holds(self, points: Tensor, k: int) -> bool:
        """Whether this is the memory of these points and as many outputs."""
        return points is self._source and k == self._shape[2]

    def sums(self, full: bool) -> tuple[np.ndarray, ...]:
        """What gradients are made of: points, table, sums, gradients, and their total.

        The total is a square if the metric is full.
        """
        if self._sums is None:
            (n, d, k), dtype = self._shape, self._dtype
            # A one stands behind every point: products with both are made in one go.
            wide = _whole(d, self.width)
            long = max(_whole(d + 1, self.lanes), wide)
            # Whole vectors are written, the last of them over the end of a row.
            step = _whole(k * (d + 1), self.width) + self.lanes
            self._sums = (
                np.zeros(self.rows * long, dtype),
                np.zeros(self.rows * step, dtype),
                np.empty(self.rows * step, dtype),
                np.zeros(n * k * wide, dtype),
                np.empty(_whole(d, HEIGHT) * wide if full else wide, dtype),
            )
        return self._sums

    def in_strips(self, table: np.ndarray) -> np.ndarray:
        """A table of whole strips, strip after strip."""
        strips = table.reshape(len(table), -1, self.width).swapaxes(0, 1)
        return np.ascontiguousarray(strips).reshape(-1)

    def from_strips(self, flat: np.ndarray, rows: int, count: int) -> np.ndarray:
        """The table that lies in strips; some of its rows and columns."""
        strips = flat.reshape(self.strips, -1, self.width)[:, :rows]
        return strips.swapaxes(0, 1).reshape(rows, -1)[:, :count]

    def metric(self, metric: np.ndarray) -> np.ndarray:
        """A metric as compiled code takes it: flat, rows in whole strips; a copy."""
        if metric.ndim == 1:
            return metric.copy()
        d = len(metric)
        padded = np.zeros((d, _whole(d, self.width)), metric.dtype)
        padded[:, :d] = metric
        return padded.reshape(-1)

    def answers(self) -> np.ndarray:
        """Room for the coefficients of all outputs."""
        return np.empty(self.groups * self.rows * self.lanes, self._dtype)

    def coef(self, answers: np.ndarray) -> np.ndarray:
        """The coefficients that stand there, of shape (n, k)."""
        n, _, k = self._shape
        groups = answers.reshape(self.groups, self.rows, self.lanes)[:, :n]
        return np.ascontiguousarray(groups.swapaxes(0, 1).reshape(n, -1)[:, :k])
