"""How the tables of a compiled machine lie in memory, and how large they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from normalign.kernels.compiled.factor import rows_at_once
from normalign.kernels.compiled.products import BLOCK
from normalign.kernels.compiled.tile import HEIGHT, columns, vector_lanes

__all__ = ["Layout", "in_strips", "layout_of", "whole"]

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


def in_strips(table: np.ndarray, width: int) -> np.ndarray:
    """A table of whole strips, strip after strip."""
    height, span = table.shape
    strips = table.reshape(height, span // width, width).swapaxes(0, 1)
    return np.ascontiguousarray(strips).reshape(-1)
