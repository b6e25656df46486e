r"""Products of tables whose rows are summed over: ``C = A^T B``, tile by tile.

Large tables lie in strips (see :mod:`~normalign.kernels.compiled.tile`). Entry
``(i, j)`` is at ``start + i w + j % w``, where ``w`` is the width of a strip and
``start`` the place where strip ``j // w`` begins: all strips have as many rows, or, of
a symmetric table, only those down to the diagonal, and then there is an array of
``starts``. Small tables lie row by row, as usual, some way apart.

Some rows of ``C`` at a time are made for a strip of ``B``, of which ``DEPTH`` rows stay
near the processor meanwhile.
"""

from __future__ import annotations

from typing import Any

from normalign.kernels.compiled.compiling import compiled
from normalign.kernels.compiled.tile import (
    HEIGHT,
    add_narrow,
    add_tile,
    add_turned,
    set_narrow,
    set_tile,
    subtract_tile,
    width,
)

__all__ = [
    "BLOCK",
    "DEPTH",
    "multiply",
    "multiply_strip",
    "multiply_symmetric",
    "multiply_turned",
    "subtract_strip",
    "sum_narrow",
    "sum_tile",
]

BLOCK = 32  # a multiple of the width of every strip
DEPTH = 256


@compiled
def sum_tile(
    fresh: bool, a: Any, b: Any, c: Any, at_a: int, at_b: int, at_c: int,
    step_a: int, step_b: int, step_c: int, begin: int, end: int,
) -> None:  # fmt: skip
    """One tile of a product, instead of what stands there, or added to it."""
    if fresh:
        set_tile(a, b, c, at_a, at_b, at_c, step_a, step_b, step_c, begin, end)
    else:
        add_tile(a, b, c, at_a, at_b, at_c, step_a, step_b, step_c, begin, end)


@compiled
def sum_narrow(
    fresh: bool, a: Any, b: Any, c: Any, at_a: int, at_b: int, at_c: int,
    step_a: int, step_b: int, step_c: int, begin: int, end: int,
) -> None:  # fmt: skip
    """The same for as many columns as a vector has numbers."""
    if fresh:
        set_narrow(a, b, c, at_a, at_b, at_c, step_a, step_b, step_c, begin, end)
    else:
        add_narrow(a, b, c, at_a, at_b, at_c, step_a, step_b, step_c, begin, end)


@compiled
def multiply(
    fresh: bool, a: Any, step_a: int, b: Any, at_b: int, step_b: int,
    c: Any, at_c: int, step_c: int, depth: int, rows: tuple[int, int],
) -> None:  # fmt: skip
    """Some rows of a strip's width of ``C``, from an ``A`` that lies row by row.

    Rows of ``C`` are made ``HEIGHT`` at a time: there must be room behind the last. If
    not ``fresh``, they are added to.
    """
    for begin in range(0, depth, DEPTH):
        end = min(begin + DEPTH, depth)
        for i in range(rows[0], rows[1], HEIGHT):
            sum_tile(
                fresh and begin == 0, a, b, c, i, at_b, at_c + i * step_c,
                step_a, step_b, step_c, begin, end,
            )  # fmt: skip


@compiled
def multiply_strip(
    a: Any, b: Any, height: int, c: Any, at_c: int, depth: int,
    rows: tuple[int, int], strip: int,
) -> None:  # fmt: skip
    """Some rows of a strip of ``C``, whose row 0 is, or would be, at ``at_c``.

    All three lie in strips, those of ``A`` and ``B`` ``height`` rows long.
    """
    w = width(c)
    for begin in range(0, depth, DEPTH):
        end = min(begin + DEPTH, depth)
        for i in range(rows[0], rows[1], HEIGHT):
            sum_tile(
                begin == 0, a, b, c, i // w * height * w + i % w, strip * height * w,
                at_c + i * w, w, w, w, begin, end,
            )  # fmt: skip


@compiled
def multiply_turned(
    a: Any, height: int, b: Any, step_b: int, c: Any, step_c: int, depth: int,
    rows: tuple[int, int], column: int,
) -> None:  # fmt: skip
    """Some rows of a strip's width of ``C``, which, like ``B``, lies row by row.

    ``A`` lies in strips of ``height`` rows.
    """
    w = width(a)
    for begin in range(0, depth, DEPTH):
        end = min(begin + DEPTH, depth)
        for i in range(rows[0], rows[1], HEIGHT):
            sum_tile(
                begin == 0, a, b, c, i // w * height * w + i % w, column,
                i * step_c + column, w, step_b, step_c, begin, end,
            )  # fmt: skip


@compiled
def subtract_strip(
    square: Any, starts: Any, depth: int, rows: tuple[int, int], strip: int
) -> None:
    """Take ``A^T A`` of the rows above from some rows of a strip of a table."""
    w = width(square)
    at_b = starts[strip]
    for begin in range(0, depth, DEPTH):
        end = min(begin + DEPTH, depth)
        for i in range(rows[0], rows[1], HEIGHT):
            at_a = starts[i // w] + i % w
            subtract_tile(
                square, square, square, at_a, at_b, at_b + i * w, w, w, w, begin, end
            )


@compiled
def multiply_symmetric(
    a: Any, starts: Any, n: int, b: Any, c: Any, step: int, rows: tuple[int, int],
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
            sum_tile(
                begin == 0, a, b, c, starts[i // w] + i % w, at_b, i * step + at_b,
                w, step, step, begin, end,
            )  # fmt: skip
    for begin in range(rows[0], n, DEPTH):
        end = min(begin + DEPTH, n)
        for i in range(rows[0], rows[1], HEIGHT):
            add_turned(
                a, b, c, i * w, at_b, i * step + at_b, starts, step, step, begin, end
            )
