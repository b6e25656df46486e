r"""Products of tables whose rows are summed over: ``C -= A^T B``, tile by tile.

Every table lies in strips (see :mod:`~normalign.kernels.compiled.tile`): entry
``(i, j)`` of a table of ``m`` rows is at ``(j // w) m w + i w + j % w``, where ``w`` is
the width of a strip. Two sizes keep what is used again and again near the processor:
``BLOCK`` columns of ``A``, packed, fit the second cache, and ``DEPTH`` rows of a strip
of ``B`` the first.
"""

from __future__ import annotations

from typing import Any

from normalign.kernels.compiled.compiling import compiled
from normalign.kernels.compiled.tile import (
    HEIGHT,
    copy_head,
    copy_turned,
    subtract_tile,
    width,
)

__all__ = ["BLOCK", "pack", "pack_symmetric", "subtract_strip"]

BLOCK = 32  # a multiple of the width of every strip
DEPTH = 256


@compiled
def pack(
    a: Any, rows_a: int, start: int, depth: int, rows: tuple[int, int], room: Any
) -> None:
    """Pack columns of ``A``, some rows of them, for a block of BLOCK rows of ``C``.

    ``room`` has BLOCK entries for each of the ``depth`` rows. Strips are padded, so
    there are columns enough.
    """
    w = width(a)
    for i in range(rows[0], rows[1], HEIGHT):
        source = (i // w * rows_a + start) * w + i % w
        place = (i - rows[0]) * depth
        for p in range(depth):
            copy_head(a, room, source + p * w, place + p * HEIGHT)


@compiled
def pack_symmetric(
    a: Any, rows_a: int, depth: int, rows: tuple[int, int], room: Any
) -> None:
    """The same for a symmetric ``A``, all of it, whose upper half is there."""
    w = width(a)
    for i in range(rows[0], rows[1], HEIGHT):
        source, place = i // w * rows_a * w + i % w, (i - rows[0]) * depth
        for p in range(min(i, depth)):
            copy_head(a, room, source + p * w, place + p * HEIGHT)
        for p in range(i, min(i + HEIGHT, depth)):
            for r in range(HEIGHT):
                low, high = min(p, i + r), max(p, i + r)
                entry = a[(high // w * rows_a + low) * w + high % w]
                room[place + p * HEIGHT + r] = entry
        # The rest stands in rows. HEIGHT divides the width and all numbers here but the
        # depth, behind which room is padded.
        for p in range(i + HEIGHT, depth, HEIGHT):
            source = (p // w * rows_a + i) * w + p % w
            copy_turned(a, room, source, place + p * HEIGHT, w)


@compiled
def subtract_strip(
    c: Any, rows_c: int, b: Any, rows_b: int, start: int, depth: int,
    rows: tuple[int, int], strip: int, room: Any,
) -> None:  # fmt: skip
    """Subtract the products of packed columns and a strip from a strip of ``C``."""
    w = width(c)
    for begin in range(0, depth, DEPTH):
        deep = min(DEPTH, depth - begin)
        source, target = (strip * rows_b + start + begin) * w, strip * rows_c * w
        for i in range(rows[0], rows[1], HEIGHT):
            place = (i - rows[0]) * depth + begin * HEIGHT
            subtract_tile(room, b, c, place, source, target + i * w, w, w, deep)
