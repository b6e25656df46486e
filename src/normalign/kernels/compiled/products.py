r"""Products of tables whose rows are summed over: ``C = A^T B``, tile by tile.

The large tables lie in strips (see :mod:`~normalign.kernels.compiled.tile`): entry
``(i, j)`` of a table of ``m`` rows is at ``(j // w) m w + i w + j % w``, where ``w`` is
the width of a strip. Small ones lie row by row, as usual, some way apart.

``BLOCK`` columns of ``A`` are used again and again for a strip of ``B``, of which
``DEPTH`` rows at a time stay near the processor.
"""

from __future__ import annotations

from typing import Any

from normalign.kernels.compiled.compiling import compiled
from normalign.kernels.compiled.tile import (
    HEIGHT,
    add_tile,
    add_turned,
    set_tile,
    subtract_tile,
    width,
)

__all__ = [
    "BLOCK",
    "multiply",
    "multiply_strip",
    "multiply_symmetric",
    "multiply_turned",
    "subtract_strip",
]

BLOCK = 32  # a multiple of the width of every strip
DEPTH = 256


@compiled
def multiply(
    a: Any, step_a: int, b: Any, at_b: int, step_b: int, c: Any, at_c: int, step_c: int,
    depth: int, rows: tuple[int, int],
) -> None:  # fmt: skip
    """Some rows of a strip's width of ``C``, from an ``A`` that lies row by row.

    Rows of ``C`` are made ``HEIGHT`` at a time: there must be room behind the last.
    """
    for begin in range(0, depth, DEPTH):
        end = min(begin + DEPTH, depth)
        for i in range(rows[0], rows[1], HEIGHT):
            at = at_c + i * step_c
            if begin:
                add_tile(a, b, c, i, at_b, at, step_a, step_b, step_c, begin, end)
            else:
                set_tile(a, b, c, i, at_b, at, step_a, step_b, step_c, begin, end)


@compiled
def multiply_strip(
    a: Any, b: Any, height: int, c: Any, rows_c: int, depth: int,
    rows: tuple[int, int], strip: int,
) -> None:  # fmt: skip
    """Some rows of a strip of ``C``; all three lie in strips, ``A`` and ``B`` alike."""
    w = width(c)
    at_b = strip * height * w
    for begin in range(0, depth, DEPTH):
        end = min(begin + DEPTH, depth)
        for i in range(rows[0], rows[1], HEIGHT):
            at_a, at_c = i // w * height * w + i % w, (strip * rows_c + i) * w
            if begin:
                add_tile(a, b, c, at_a, at_b, at_c, w, w, w, begin, end)
            else:
                set_tile(a, b, c, at_a, at_b, at_c, w, w, w, begin, end)


@compiled
def multiply_turned(
    a: Any, height: int, b: Any, step_b: int, c: Any, step_c: int, depth: int,
    rows: tuple[int, int], column: int,
) -> None:  # fmt: skip
    """Some rows of a strip's width of ``C``, which, like ``B``, lies row by row.

    ``A`` lies in strips.
    """
    w = width(a)
    for begin in range(0, depth, DEPTH):
        end = min(begin + DEPTH, depth)
        for i in range(rows[0], rows[1], HEIGHT):
            at_a, at_c = i // w * height * w + i % w, i * step_c + column
            if begin:
                add_tile(a, b, c, at_a, column, at_c, w, step_b, step_c, begin, end)
            else:
                set_tile(a, b, c, at_a, column, at_c, w, step_b, step_c, begin, end)


@compiled
def subtract_strip(
    square: Any, height: int, depth: int, rows: tuple[int, int], strip: int
) -> None:
    """Take ``A^T A`` of the rows above from some rows of a strip of a table."""
    w = width(square)
    at_b = strip * height * w
    for begin in range(0, depth, DEPTH):
        end = min(begin + DEPTH, depth)
        for i in range(rows[0], rows[1], HEIGHT):
            at_a = i // w * height * w + i % w
            subtract_tile(
                square, square, square, at_a, at_b, at_b + i * w, w, w, w, begin, end
            )


@compiled
def multiply_symmetric(
    a: Any, height: int, n: int, b: Any, c: Any, step: int, rows: tuple[int, int],
    strip: int,
) -> None:  # fmt: skip
    """Some rows of ``C = A B`` for a symmetric ``A`` in strips.

    Of ``A`` there is the upper half, and all of the blocks on the diagonal; ``rows``
    are one of these. Above it columns are read, in it and to its right rows. ``B`` and
    ``C`` lie row by row; a strip's width of columns is made.
    """
    w, at_b = width(a), strip * width(a)
    for begin in range(0, max(rows[0], 1), DEPTH):
        end = min(begin + DEPTH, rows[0])
        for i in range(rows[0], rows[1], HEIGHT):
            at_a, at_c = i // w * height * w + i % w, i * step + at_b
            if begin:
                add_tile(a, b, c, at_a, at_b, at_c, w, step, step, begin, end)
            else:
                set_tile(a, b, c, at_a, at_b, at_c, w, step, step, begin, end)
    for begin in range(rows[0], n, DEPTH):
        end = min(begin + DEPTH, n)
        for i in range(rows[0], rows[1], HEIGHT):
            add_turned(
                a, b, c, i * w, at_b, i * step + at_b, height * w, step, step,
                begin, end,
            )  # fmt: skip
