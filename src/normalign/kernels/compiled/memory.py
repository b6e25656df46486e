"""The arrays of a compiled machine, laid out once for all its iterations."""

from __future__ import annotations

from collections import deque

import numpy as np
from torch import Tensor

from normalign.kernels.compiled.factor import rows_at_once
from normalign.kernels.compiled.layout import in_strips, layout_of

__all__ = ["Memory"]

# The last machine's matrix, for the next one: a system gives fresh memory page by
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
    keeps : bool
        Whether slopes have room beside the matrix.
    """

    def __init__(self, points: Tensor, k: int, members: int, keeps: bool) -> None:
        self._source: Tensor | None = points
        table = points.detach().numpy()
        (n, d), dtype = table.shape, table.dtype
        self.layout = layout = layout_of(n, d, k, dtype.itemsize)
        self.members, self.starts, self.dtype = members, layout.starts, dtype

        turned = np.zeros((layout.height, layout.span), dtype)
        turned[:d, :n], turned[d] = table.T, 1
        self.points = in_strips(turned, layout.width)
        self.images = np.empty(layout.height * layout.span, dtype)
        entries = int(self.starts[-1])
        buffer = _taken((1 + keeps) * entries, dtype)
        self._buffer: np.ndarray | None = buffer
        self.square = buffer[:entries]
        self.slopes = buffer[entries : (1 + keeps) * entries]
        self.aside = np.empty(rows_at_once(n) ** 2, dtype)
        self._sums: tuple[np.ndarray, ...] | None = None

    def __del__(self, spare: deque[np.ndarray] = _spare, most: int = _KEPT) -> None:
        # names of the module may be gone by then
        buffer = getattr(self, "_buffer", None)
        if buffer is not None and buffer.nbytes <= most:
            spare.append(buffer)

    def holds(self, points: Tensor, k: int) -> bool:
        """Whether this is the memory of these points and as many outputs."""
        return points is self._source and k == self.layout.k

    def release(self) -> None:
        """Let go of all arrays, and keep none for another machine."""
        self._source = self._buffer = self._sums = None
        self.points = self.images = self.square = self.slopes = np.empty(0, self.dtype)

    def sums(self, full: bool) -> tuple[np.ndarray, ...]:
        """What gradients are made of: points, table, sums, gradients, and their total.

        The total is a square if the metric is full.
        """
        if self._sums is None:
            layout, dtype = self.layout, self.dtype
            self._sums = (
                np.zeros(layout.rows * layout.long, dtype),
                np.zeros(layout.rows * layout.step, dtype),
                np.empty(layout.rows * layout.step, dtype),
                np.zeros(layout.n * layout.at_once * layout.wide, dtype),
                np.empty(layout.total(full), dtype),
            )
        return self._sums

    def metric(self, metric: np.ndarray) -> np.ndarray:
        """A metric as compiled code takes it: flat, rows in whole strips; a copy."""
        if metric.ndim == 1:
            return metric.copy()
        d = len(metric)
        padded = np.zeros((d, self.layout.wide), metric.dtype)
        padded[:, :d] = metric
        return padded.reshape(-1)

    def answers(self) -> np.ndarray:
        """Room for the coefficients of all outputs."""
        layout = self.layout
        return np.empty(layout.groups * layout.rows * layout.lanes, self.dtype)

    def coef(self, answers: np.ndarray) -> np.ndarray:
        """The coefficients that stand there, of shape (n, k)."""
        layout, (n, k) = self.layout, (self.layout.n, self.layout.k)
        groups = answers.reshape(layout.groups, layout.rows, layout.lanes)[:, :n]
        return np.ascontiguousarray(groups.swapaxes(0, 1).reshape(n, -1)[:, :k])
