r"""The Cholesky factor of a system, and what is solved with it.

.. math:: K + \rho I = U^\top U, \qquad U a = U^{-\top} y

Row by row in place of the upper half. The targets stand in the columns behind the
matrix, so that factorising turns them into :math:`U^{-\top} y` on the way. Rows come in
blocks: a block is brought up to date by one product with all rows above it, then its
diagonal part is factorised, then the rest of its rows is divided by that. The members
of a team take its strips as they come. Strips end below the diagonal, see
:class:`~normalign.kernels.compiled.layout.Layout`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from normalign.kernels.compiled.compiling import also_python, compiled, remembered
from normalign.kernels.compiled.products import subtract_strip
from normalign.kernels.compiled.team import first_item, give_up, next_item, wait
from normalign.kernels.compiled.tile import (
    HEIGHT,
    divide_tile,
    factorise_tile,
    lanes,
    solve_narrow,
    subtract_narrow,
    subtract_tile,
    width,
)
from normalign.kernels.compiled.vectors import clear, copy

__all__ = [
    "back_substitute",
    "blocks_of",
    "factorise",
    "forward_substitute",
    "phases",
    "rows_at_once",
]

# Rows of a block. More of them use again what was read from memory, and few keep the
# members of a team busy in a small matrix.
_FEW, _MANY = 32, 128
_MUCH = 2000  # rows from which on memory is what counts


@also_python
def rows_at_once(n: int) -> int:
    """Rows of a block."""
    return _MANY if n >= _MUCH else _FEW


@also_python
def blocks_of(n: int) -> int:
    """How many blocks a factor takes."""
    return (n + rows_at_once(n) - 1) // rows_at_once(n)


@also_python
def phases(n: int) -> int:
    """How many phases a factor takes."""
    return 2 * blocks_of(n) + 1


@compiled
def factorise(
    square: Any, starts: Any, n: int, aside: Any, some: tuple[int, int],
    phase: int, members: int, flags: Any,
) -> bool:  # fmt: skip
    """Overwrite ``some`` blocks by their factor; False if the matrix is not definite.

    All before these must have been factorised. Two phases for each block, from the
    given one on, and one more. ``aside`` has room for one.
    """
    w, size = width(square), rows_at_once(n)
    strips = len(starts) - 1
    block = np.empty(size * size, square.dtype)
    triangles = np.empty(size * HEIGHT, square.dtype)
    begin, end = some[0] * size, min(some[1] * size, n)
    for top in range(begin, end, size):
        bottom, first = min(top + size, n), top // w
        # The first item is to put the block before in its place: nobody reads it now.
        items = strips - first + 1 if top else 1
        item = first_item(flags, phase, members)
        while item < items:
            if item == 0:
                if top > begin:
                    _copy_block(square, starts, (top - size, top), aside, size, True)
            else:
                strip = first + item - 1
                held = (starts[strip + 1] - starts[strip]) // w
                subtract_strip(square, starts, top, (top, min(bottom, held)), strip)
            item = next_item(flags, phase, members, item)
        if not wait(flags, phase, members, items):
            return False
        phase += 1

        # All who divide by the diagonal block need its factor, and make it themselves.
        # The first item is to put it aside: others may still be reading the block.
        behind = first + size // w
        items, ready = max(strips - behind, 0) + 1, False
        item = first_item(flags, phase, members)
        while item < items:
            if not ready:
                _copy_block(square, starts, (top, bottom), block, size, False)
                if not _factorise_block(block, size, bottom - top, triangles):
                    give_up(flags)
                    return False
                ready = True
            if item == 0:
                copy(block, aside, 0, 0, size * size)
            else:
                _divide_strip(
                    square, starts[behind + item - 1], top, bottom, block, size,
                    triangles,
                )  # fmt: skip
            item = next_item(flags, phase, members, item)
        if not wait(flags, phase, members, items):
            return False
        phase += 1

    item = first_item(flags, phase, members)
    while item < 1:
        last = (end - 1) // size * size
        _copy_block(square, starts, (last, end), aside, size, True)
        item = next_item(flags, phase, members, item)
    return wait(flags, phase, members, 1)


@compiled
def _copy_block(
    square: Any, starts: Any, rows: tuple[int, int], block: Any, size: int, back: bool
) -> None:
    """A diagonal block, strip by strip, to a place of its own or back."""
    w, top = width(square), rows[0]
    for s in range(min(size // w, len(starts) - 1 - top // w)):
        strip = top // w + s
        here, there = starts[strip] + top * w, s * size * w
        count = min((rows[1] - top) * w, starts[strip + 1] - here)
        if back:
            copy(block, square, there, here, count)
        else:
            copy(square, block, here, there, count)


@compiled
def _factorise_block(block: Any, size: int, count: int, triangles: Any) -> bool:
    """The factor of a diagonal block of ``count`` rows, in strips, in place.

    ``triangles`` has what stands on the diagonal of every few rows, with inverses. The
    rows behind the last, up to a whole tile, are overwritten by anything.
    """
    w = width(block)
    for top in range(0, count, HEIGHT):
        first = top // w
        at_b, at_triangle = first * size * w, top * HEIGHT
        at_a, at_c = at_b + top % w, at_b + top * w
        subtract_tile(block, block, block, at_a, at_b, at_c, w, w, w, 0, top)
        if not factorise_tile(
            block, triangles, at_c + top % w, at_triangle, w, count - top
        ):
            return False
        divide_tile(
            block, block, block, at_a, at_b, at_c, w, w, w, 0, 0,
            triangles, at_triangle,
        )  # fmt: skip
        for s in range(first + 1, size // w):
            at_b = s * size * w
            divide_tile(
                block, block, block, at_a, at_b, at_b + top * w, w, w, w, 0, top,
                triangles, at_triangle,
            )  # fmt: skip
    return True


@compiled
def _divide_strip(
    square: Any, start: int, top: int, bottom: int, block: Any, size: int,
    triangles: Any,
) -> None:  # fmt: skip
    """Divide the rows of a block in one strip by the block's factor."""
    w = width(square)
    at_b = start + top * w
    for i in range(0, bottom - top, HEIGHT):
        at_a = i // w * size * w + i % w
        divide_tile(
            block, square, square, at_a, at_b, at_b + i * w, w, w, w, 0, i,
            triangles, i * HEIGHT,
        )  # fmt: skip


@compiled
def back_substitute(
    square: Any, starts: Any, rows: int, n: int, k: int, answers: Any, group: int
) -> None:
    """Solve ``U a = b`` for some of the columns ``b`` behind the matrix.

    For as many as a vector has numbers: all answers of a row are one vector. A few
    rows at a time from the last one on, each less what the rows below are worth to it.
    """
    w, count = width(square), lanes(square)
    start = group * rows * count
    clear(answers, start, rows * count)
    for q in range(min(count, k - group * count)):
        column = n + group * count + q
        place = starts[column // w] + column % w
        for i in range(n):
            answers[start + i * count + q] = square[place + i * w]
    whole = n // HEIGHT * HEIGHT
    for i in range(n - 1, whole - 1, -1):
        _solve_row(square, starts, n, answers, start, i)
    for top in range(whole - HEIGHT, -1, -HEIGHT):
        at = start + top * count
        subtract_narrow(
            square, answers, answers, top * w, start, at, starts, count, count,
            top + HEIGHT, n,
        )  # fmt: skip
        place = starts[top // w] + top * w + top % w
        solve_narrow(square, answers, place, at, w, count)


@compiled
def _solve_row(
    square: Any, starts: Any, n: int, answers: Any, start: int, i: int
) -> None:
    """One row of a triangle that is no whole tile, number by number."""
    w, count = width(square), lanes(square)
    pivot = square[starts[i // w] + i * w + i % w]
    for q in range(count):
        entry = answers[start + i * count + q]
        for j in range(i + 1, n):
            factor = square[starts[j // w] + i * w + j % w]
            entry -= factor * answers[start + j * count + q]
        answers[start + i * count + q] = entry / pivot


@remembered
def forward_substitute(
    square: Any, starts: Any, n: int, table: Any, rows: int, firsts: Any,
    phase: int, members: int, flags: Any,
) -> None:  # fmt: skip
    r"""Overwrite a table in strips by :math:`U^{-\top}` times it; one phase.

    Parameters
    ----------
    table : strips of ``rows`` rows, up to a whole tile
    firsts : array
        The first row of every strip of the table in which not all is zero.
    """
    w, items = width(table), len(firsts)
    triangle = np.empty(HEIGHT * HEIGHT, square.dtype)
    item = first_item(flags, phase, members)
    while item < items:
        at_b = item * rows * w
        first = firsts[item] // HEIGHT * HEIGHT
        for i in range(first, n, HEIGHT):
            at_a = starts[i // w] + i % w
            _invert_pivots(square, at_a + i * w, min(n - i, HEIGHT), triangle)
            divide_tile(
                square, table, table, at_a, at_b, at_b + i * w, w, w, w, first, i,
                triangle, 0,
            )  # fmt: skip
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, items)


@compiled
def _invert_pivots(square: Any, place: int, count: int, triangle: Any) -> None:
    """A triangle on the diagonal as ``divide_tile`` wants it; ones behind its rows."""
    w = width(square)
    for i in range(HEIGHT):
        for j in range(i, HEIGHT):
            inside = i < count and j < count
            entry = square[place + i * w + j] if inside else square.dtype.type(i == j)
            triangle[i * HEIGHT + j] = 1 / entry if i == j else entry
