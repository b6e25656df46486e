r"""The Cholesky factor of a small system, and its solution.

.. math:: K + \rho I = U^\top U, \qquad U a = U^{-\top} y

Row by row in place of the upper half. The targets stand in the columns behind the
matrix, so that factorising turns them into :math:`U^{-\top} y` on the way. Rows come in
blocks: a block is brought up to date by one product with all rows above it, then its
diagonal part is factorised, then the rest of its rows is divided by that. The members
of a team take its strips as they come.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from normalign.kernels.compiled.compiling import compiled
from normalign.kernels.compiled.products import BLOCK, pack, subtract_strip
from normalign.kernels.compiled.team import first_item, give_up, next_item, wait
from normalign.kernels.compiled.tile import (
    HEIGHT,
    divide_tile,
    dot_strip,
    subtract_tile,
    width,
)

__all__ = ["back_substitute", "factorise", "phases"]


@compiled
def factorise(
    square: Any, rows: int, strips: int, n: int, aside: Any,
    phase: int, members: int, flags: Any, room: Any,
) -> bool:  # fmt: skip
    """Overwrite the upper half by its factor; False if the matrix is not definite.

    Two phases for each block, from the given one on, and one more. ``aside`` has BLOCK
    entries for each row of whole blocks.
    """
    w = width(square)
    block = np.empty(BLOCK * BLOCK, square.dtype)
    packed = np.empty(BLOCK * BLOCK, square.dtype)
    triangles = np.empty(BLOCK * HEIGHT, square.dtype)
    for top in range(0, n, BLOCK):
        size, first = min(BLOCK, n - top), top // w
        items, ready = strips - first if top else 0, False
        item = first_item(flags, phase, members)
        while item < items:
            if not ready:
                pack(square, rows, 0, top, (top, top + size), room)
                ready = True
            subtract_strip(
                square, rows, square, rows, 0, top, (top, top + size), first + item,
                room,
            )  # fmt: skip
            item = next_item(flags, phase, members, item)
        if not wait(flags, phase, members, items):
            return False
        phase += 1

        # All who divide by the diagonal block need its factor, and make it themselves.
        # The first item is to put it aside: others may still be reading the block.
        behind = first + BLOCK // w
        items, ready = max(strips - behind, 0) + 1, False
        item = first_item(flags, phase, members)
        while item < items:
            if not ready:
                _copy_block(square, rows, top, size, block, False)
                if not _factorise_block(block, size, packed, triangles):
                    give_up(flags)
                    return False
                ready = True
            if item == 0:
                _copy_run(block, aside, 0, top * BLOCK)
            else:
                _divide_strip(
                    square, rows, behind + item - 1, top, size, packed, triangles
                )
            item = next_item(flags, phase, members, item)
        if not wait(flags, phase, members, items):
            return False
        phase += 1

    item = first_item(flags, phase, members)
    while item < 1:
        for top in range(0, n, BLOCK):
            _copy_run(aside, block, top * BLOCK, 0)
            _copy_block(square, rows, top, min(BLOCK, n - top), block, True)
        item = next_item(flags, phase, members, item)
    return wait(flags, phase, members, 1)


@compiled
def phases(n: int) -> int:
    """How many phases a factor takes."""
    return 2 * ((n + BLOCK - 1) // BLOCK) + 1


@compiled
def _divide_strip(
    square: Any, rows: int, strip: int, top: int, size: int, packed: Any, triangles: Any
) -> None:
    """Divide the rows of a block in one strip by the block's factor."""
    w = width(square)
    above = (strip * rows + top) * w
    for i in range(0, size, HEIGHT):
        divide_tile(
            packed, square, square, i * BLOCK, above, above + i * w, w, w, i,
            triangles, i * HEIGHT,
        )  # fmt: skip


@compiled
def _copy_run(source: Any, target: Any, at_source: int, at_target: int) -> None:
    """As many numbers as a block has."""
    for p in range(BLOCK * BLOCK):
        target[at_target + p] = source[at_source + p]


@compiled
def _copy_block(
    square: Any, rows: int, top: int, size: int, block: Any, back: bool
) -> None:
    """A diagonal block, row by row, to a place of its own or back."""
    w = width(square)
    for s in range(min(BLOCK // w, len(square) // (rows * w) - top // w)):
        place = ((top // w + s) * rows + top) * w
        for i in range(size):
            for q in range(w):
                here, there = place + i * w + q, i * BLOCK + s * w + q
                if back:
                    square[here] = block[there]
                else:
                    block[there] = square[here]


@compiled
def _factorise_block(block: Any, size: int, packed: Any, triangles: Any) -> bool:
    """The factor of a diagonal block, and what divides other columns by it.

    ``packed`` has, for every few rows, the columns above them; ``triangles`` their
    own triangles, with inverses on the diagonal.
    """
    w = width(block)
    for top in range(0, size, HEIGHT):
        at_packed, at_triangle = top * BLOCK, top * HEIGHT
        for p in range(top):
            for r in range(HEIGHT):
                packed[at_packed + p * HEIGHT + r] = block[p * BLOCK + top + r]
        first, height = top // w * w, min(HEIGHT, size - top)
        place = top * BLOCK + first
        subtract_tile(packed, block, block, at_packed, first, place, BLOCK, BLOCK, top)
        if not _triangle(block, top, height, triangles):
            return False
        divide_tile(
            packed, block, block, 0, 0, place, BLOCK, BLOCK, 0, triangles, at_triangle
        )
        for j in range(first + w, BLOCK, w):
            divide_tile(
                packed, block, block, at_packed, j, top * BLOCK + j, BLOCK, BLOCK,
                top, triangles, at_triangle,
            )  # fmt: skip
    return True


@compiled
def _triangle(block: Any, top: int, size: int, triangles: Any) -> bool:
    """The factor of a few rows and columns, number by number."""
    place, one = top * HEIGHT, block.dtype.type(1)
    for i in range(HEIGHT):
        for j in range(i, HEIGHT):
            entry = block[(top + i) * BLOCK + top + j]
            triangles[place + i * HEIGHT + j] = entry
    for i in range(size):
        row = place + i * HEIGHT
        pivot = triangles[row + i]
        if not pivot > 0:
            return False
        inverse = one / math.sqrt(pivot)
        triangles[row + i] = inverse
        for j in range(i + 1, HEIGHT):
            triangles[row + j] *= inverse
        for p in range(i + 1, HEIGHT):
            factor = triangles[row + p]
            for j in range(p, HEIGHT):
                triangles[place + p * HEIGHT + j] -= factor * triangles[row + j]
    return True


@compiled
def back_substitute(
    square: Any, rows: int, n: int, out: Any, first: int, end: int
) -> None:
    """Solve ``U a = b`` for some of the columns ``b`` behind the matrix.

    Strip by strip from the last one: its own unknowns, then what they are worth to all
    rows above.
    """
    w = width(square)
    for c in range(first, end):
        place = (n + c) // w * rows * w + (n + c) % w
        for i in range(n):
            out[c, i] = square[place + i * w]
    known = np.zeros(w, square.dtype)
    for s in range((n - 1) // w, -1, -1):
        top, stop = s * w, min(s * w + w, n)
        strip = s * rows * w
        for c in range(first, end):
            for q in range(w):
                known[q] = square.dtype.type(0)
            for i in range(stop - 1, top - 1, -1):
                row = strip + i * w
                entry = out[c, i] - dot_strip(square, known, row, 0)
                known[i - top] = entry / square[row + i - top]
                out[c, i] = known[i - top]
            for i in range(top):
                out[c, i] -= dot_strip(square, known, strip + i * w, 0)
