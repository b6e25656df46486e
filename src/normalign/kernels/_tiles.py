"""How a large kernel matrix is walked through: pieces that stay in cache.

On a processor a tile is about the size of a second-level cache, so that the passes
over it (square root, exponential, ...) cost arithmetic and no memory traffic. On an
accelerator launches are what costs, so tiles are large.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

__all__ = ["spans", "square_spans", "tile_shape"]

_CPU_TILE = (512, 1024)
_SQUARE_TILE = 1 << 17  # entries of a tile of a small square that is held whole
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
