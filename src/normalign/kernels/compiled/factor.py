r"""The Cholesky factor of a small system, and its solution.

.. math:: K + \rho I = U^\top U, \qquad U a = U^{-\top} y

Row by row in place of the upper half. The targets stand in the columns behind the
matrix, so that factorising turns them into :math:`U^{-\top} y` on the way. Rows come in
blocks: a block is brought up to date by one product with all rows above it, then its
diagonal part is factorised, then the rest of its rows is divided by that. The members
of a team take its strips as they come.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from normalign.kernels.compiled.compiling import compiled
from normalign.kernels.compiled.products import BLOCK, subtract_strip
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

__all__ = ["back_substitute", "factorise", "phases"]


@compiled
def factorise(
    square: Any, rows: int, strips: int, n: int, aside: Any,
    phase: int, members: int, flags: Any,
) -> bool:  # fmt: skip
    """Overwrite the upper half by its factor; False if the matrix is not definite.

    Two phases for each block, from the given one on, and one more. ``aside`` has BLOCK
    entries for each row of whole blocks.
    """
    w = width(square)
    block = np.empty(BLOCK * BLOCK, square.dtype)
    triangles = np.empty(BLOCK * HEIGHT, square.dtype)
    for top in range(0, n, BLOCK):
        size, first = min(BLOCK, n - top), top // w
        items = strips - first if top else 0
        item = first_item(flags, phase, members)
        while item < items:
            subtract_strip(square, rows, top, (top, top + size), first + item)
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
                _copy_block(square, rows, top, size, block, 0, False)
                if not _factorise_block(block, size, triangles):
                    give_up(flags)
                    return False
                ready = True
            if item == 0:
                copy(block, aside, 0, top * BLOCK, BLOCK * BLOCK)
            else:
                _divide_strip(
                    square, rows, behind + item - 1, top, size, block, triangles
                )
            item = next_item(flags, phase, members, item)
        if not wait(flags, phase, members, items):
            return False
        phase += 1

    item = first_item(flags, phase, members)
    while item < 1:
        for top in range(0, n, BLOCK):
            size = min(BLOCK, n - top)
            _copy_block(square, rows, top, size, aside, top * BLOCK, True)
        item = next_item(flags, phase, members, item)
    return wait(flags, phase, members, 1)


@compiled
def phases(n: int) -> int:
    """How many phases a factor takes."""
    return 2 * ((n + BLOCK - 1) // BLOCK) + 1


@compiled
def _copy_block(
    square: Any, rows: int, top: int, size: int, block: Any, at_block: int, back: bool
) -> None:
    """A diagonal block, strip by strip, to a place of its own or back."""
    w = width(square)
    for s in range(min(BLOCK // w, len(square) // (rows * w) - top // w)):
        here, there = ((top // w + s) * rows + top) * w, at_block + s * BLOCK * w
        if back:
            copy(block, square, there, here, size * w)
        else:
            copy(square, block, here, there, size * w)


@compiled
def _factorise_block(block: Any, size: int, triangles: Any) -> bool:
    """The factor of a diagonal block, in strips, in place.

    ``triangles`` has what stands on the diagonal of every few rows, with inverses. The
    rows behind the last, up to a whole tile, are overwritten by anything.
    """
    w = width(block)
    for top in range(0, size, HEIGHT):
        first = top // w
        at_b, at_triangle = first * BLOCK * w, top * HEIGHT
        at_a, at_c = at_b + top % w, at_b + top * w
        subtract_tile(block, block, block, at_a, at_b, at_c, w, w, w, 0, top)
        if not factorise_tile(
            block, triangles, at_c + top % w, at_triangle, w, size - top
        ):
            return False
        divide_tile(
            block, block, block, at_a, at_b, at_c, w, w, w, 0, 0,
            triangles, at_triangle,
        )  # fmt: skip
        for s in range(first + 1, BLOCK // w):
            at_b = s * BLOCK * w
            divide_tile(
                block, block, block, at_a, at_b, at_b + top * w, w, w, w, 0, top,
                triangles, at_triangle,
            )  # fmt: skip
    return True


@compiled
def _divide_strip(
    square: Any, rows: int, strip: int, top: int, size: int, block: Any, triangles: Any
) -> None:
    """Divide the rows of a block in one strip by the block's factor."""
    w = width(square)
    at_b = (strip * rows + top) * w
    for i in range(0, size, HEIGHT):
        at_a = i // w * BLOCK * w + i % w
        divide_tile(
            block, square, square, at_a, at_b, at_b + i * w, w, w, w, 0, i,
            triangles, i * HEIGHT,
        )  # fmt: skip


@compiled
def back_substitute(
    square: Any, rows: int, n: int, k: int, answers: Any, group: int
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
        place = column // w * rows * w + column % w
        for i in range(n):
            answers[start + i * count + q] = square[place + i * w]
    whole = n // HEIGHT * HEIGHT
    for i in range(n - 1, whole - 1, -1):
        _solve_row(square, rows, n, answers, start, i)
    for top in range(whole - HEIGHT, -1, -HEIGHT):
        at = start + top * count
        subtract_narrow(
            square, answers, answers, top * w, start, at, rows * w, count, count,
            top + HEIGHT, n,
        )  # fmt: skip
        place = (top // w * rows + top) * w + top % w
        solve_narrow(square, answers, place, at, w, count)


@compiled
def _solve_row(
    square: Any, rows: int, n: int, answers: Any, start: int, i: int
) -> None:
    """One row of a triangle that is no whole tile, number by number."""
    w, count = width(square), lanes(square)
    pivot = square[(i // w * rows + i) * w + i % w]
    for q in range(count):
        entry = answers[start + i * count + q]
        for j in range(i + 1, n):
            factor = square[(j // w * rows + i) * w + j % w]
            entry -= factor * answers[start + j * count + q]
        answers[start + i * count + q] = entry / pivot
