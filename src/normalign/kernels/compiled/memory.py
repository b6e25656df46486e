"""The arrays of a compiled machine, laid out once for all its iterations."""

from __future__ import annotations

from collections import deque

import numpy as np
from torch import Tensor

from normalign.kernels.compiled.products import BLOCK
from normalign.kernels.compiled.tile import HEIGHT, columns

__all__ = ["Memory", "square_bytes"]


def _whole(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def square_bytes(n: int, k: int, itemsize: int) -> int:
    """Bytes of the kernel matrix and of its slopes, with their padding."""
    return 2 * _whole(n, HEIGHT) * _whole(n + k, columns(itemsize)) * itemsize


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
        self.width = columns(dtype.itemsize)
        self.members = members
        self.rows = _whole(n, HEIGHT)
        self.strips = _whole(n + k, self.width) // self.width
        span = self.strips * self.width

        self.points = self.in_strips(table.T, span)
        # A one behind every point: outer products with both are made in one go.
        self.rows_x = np.ones((n, d + 1), dtype)
        self.rows_x[:, :d] = table
        self.metric = np.empty(d * _whole(d, self.width), dtype)
        # One block of rows more than whole tiles: two rows stand behind the points.
        sides = _whole(d, HEIGHT) + max(HEIGHT, 2)
        self.left, self.right = (np.empty(sides * span, dtype) for _ in range(2))
        self._buffer = _taken(2 * self.rows * span, dtype)
        self.square, self.slopes = self._buffer[: 2 * self.rows * span].reshape(2, -1)
        self.aside = np.empty(_whole(n, BLOCK) * BLOCK, dtype)
        deepest = max(n, d + 2)
        # Turned squares may reach over the end by as much as they are wide.
        room = BLOCK * deepest + HEIGHT * HEIGHT
        self.rooms = np.empty((members, room), dtype)
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

    @property
    def sums(self) -> tuple[np.ndarray, ...]:
        """What gradients are made of: table, sums, gradients, three squares."""
        if self._sums is None:
            (n, d, k), dtype = self._shape, self._dtype
            wide, narrow = (_whole(count, self.width) for count in (k * (d + 1), d))
            self._sums = (
                np.empty(n * wide, dtype),
                np.empty(self.rows * wide, dtype),
                np.empty(n * k * narrow, dtype),
                *(np.empty(_whole(d, HEIGHT) * narrow, dtype) for _ in range(3)),
            )
        return self._sums

    def in_strips(self, table: np.ndarray, span: int) -> np.ndarray:
        """A table in strips, with zeros behind its columns."""
        rows, count = table.shape
        padded = np.zeros((rows, span), table.dtype)
        padded[:, :count] = table
        strips = padded.reshape(rows, -1, self.width).swapaxes(0, 1)
        return np.ascontiguousarray(strips).reshape(-1)

    def from_strips(self, flat: np.ndarray, rows: int, count: int) -> np.ndarray:
        """The table that lies in strips; some of its rows and columns."""
        strips = flat.reshape(self.strips, -1, self.width)[:, :rows]
        return strips.swapaxes(0, 1).reshape(rows, -1)[:, :count]
