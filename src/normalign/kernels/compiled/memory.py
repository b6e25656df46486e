"""The arrays of a compiled machine, laid out once for all its iterations."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from torch import Tensor

from normalign.kernels.compiled.factor import rows_at_once
from normalign.kernels.compiled.products import BLOCK
from normalign.kernels.compiled.tile import HEIGHT, columns, vector_lanes

__all__ = ["Layout", "Memory", "in_strips", "layout_of", "whole"]

# Entries that the tables of gradients may have, of however few rows: a fraction of a
# second-level cache.
_FEW = 1 << 18


def whole(count: int, unit: int) -> int:
    """A count, up to whole units."""
    return -(-count // unit) * unit


@dataclass(frozen=True)
class Layout:
    """How large everything is.

    Parameters
    ----------
    n, d, k : int
        Rows, columns, outputs.
    itemsize : int
        Bytes of a number.
    """

    n: int
    d: int
    k: int
    itemsize: int

    @cached_property
    def width(self) -> int:
        """Columns of a strip."""
        return columns(self.itemsize)

    @cached_property
    def lanes(self) -> int:
        """Numbers of a vector."""
        return vector_lanes(self.itemsize)

    @cached_property
    def rows(self) -> int:
        """Rows, up to a whole tile."""
        return whole(self.n, HEIGHT)

    @cached_property
    def span(self) -> int:
        """Columns of the matrix and of the targets behind it, up to a whole strip."""
        return whole(self.n + self.k, self.width)

    @cached_property
    def height(self) -> int:
        """Rows of a strip of points: two behind them, up to a whole tile."""
        return max(whole(self.d, HEIGHT), self.d + 2)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where the strips of the matrix begin, and where the last ends.

        A strip has the rows down to the end of the block that is on the diagonal.
        """
        places = np.arange(0, self.span, self.width)
        heights = np.minimum((places // BLOCK + 1) * BLOCK, self.rows)
        return np.concatenate([[0], np.cumsum(heights * self.width)]).astype(np.int64)

    @cached_property
    def groups(self) -> int:
        """Groups of outputs of which a row has one vector."""
        return whole(self.k, self.lanes) // self.lanes

    @cached_property
    def wide(self) -> int:
        """Columns, up to a whole strip."""
        return whole(self.d, self.width)

    @cached_property
    def long(self) -> int:
        """A row of points with a one behind it: products with both are one."""
        return max(whole(self.d + 1, self.lanes), self.wide)

    @cached_property
    def at_once(self) -> int:
        """Outputs whose gradients are made at a time: as many as leave tables small.

        That is a quarter of the matrix.
        """
        each = self.rows * (2 * (self.d + 1) + self.wide)
        most = max(int(self.starts[-1]) // 4, _FEW)
        return min(max(most // each, 1), self.k)

    @cached_property
    def step(self) -> int:
        """A row of the tables: whole vectors are written, the last over its end."""
        return whole(self.at_once * (self.d + 1), self.width) + self.lanes

    def total(self, full: bool) -> int:
        """Entries of the sum of gradients' outer products, or of their squares."""
        return whole(self.d, HEIGHT) * self.wide if full else self.wide

    @cached_property
    def _usual(self) -> int:
        """Entries of what every machine has beside its matrix, but for a metric."""
        answers = self.groups * self.rows * self.lanes
        return 2 * self.height * self.span + rows_at_once(self.n) ** 2 + answers

    @cached_property
    def _tables(self) -> int:
        """Entries of what gradients are made of, but for their total."""
        each = self.rows * (self.long + 2 * self.step)
        return each + self.n * self.at_once * self.wide

    def bytes(self, *, full: bool, slopes: bool, learns: bool = True) -> int:
        """Of everything: matrix and slopes, points, metrics, tables of gradients.

        Parameters
        ----------
        full : bool
            Whether the metric is, or else diagonal.
        slopes : bool
            Whether they are kept.
        learns : bool, default=True
            Whether there will be a next metric.
        """
        entries = int(self.starts[-1]) * (1 + slopes) + self._usual
        entries += self.d * self.wide if full else self.d
        if learns:
            entries += self._tables + self.total(full)
        return entries * self.itemsize


# Small machines come by the thousand, and many alike.
layout_of = lru_cache(maxsize=16)(Layout)

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
        self._source, table = points, points.detach().numpy()
        (n, d), dtype = table.shape, table.dtype
        self.layout = layout = layout_of(n, d, k, dtype.itemsize)
        self.members, self.starts, self.dtype = members, layout.starts, dtype

        turned = np.zeros((layout.height, layout.span), dtype)
        turned[:d, :n], turned[d] = table.T, 1
        self.points = in_strips(turned, layout.width)
        self.images = np.empty(layout.height * layout.span, dtype)
        entries = int(self.starts[-1])
        self._buffer = _taken((1 + keeps) * entries, dtype)
        self.square = self._buffer[:entries]
        self.slopes = self._buffer[entries : (1 + keeps) * entries]
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


def in_strips(table: np.ndarray, width: int) -> np.ndarray:
    """A table of whole strips, strip after strip."""
    height, span = table.shape
    strips = table.reshape(height, span // width, width).swapaxes(0, 1)
    return np.ascontiguousarray(strips).reshape(-1)
