r"""Sums over all centers of what a kernel makes of their distances.

.. math:: S_{ic} = \sum_p \kappa(u_{ip}) \, T_{pc}

With values of the kernel these are the outputs of an expansion, with slopes what its
gradients are made of, and with slopes times :math:`a_p \cdot v_i` what one gradient
at each point is made of. No matrix is held: of some points and some centers distances
are made, turned into values and multiplied while they are near.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from normalign.kernels.compiled.compiling import compiled, remembered
from normalign.kernels.compiled.near import mend_near
from normalign.kernels.compiled.products import (
    DEPTH,
    multiply_strip,
    sum_narrow,
    sum_tile,
)
from normalign.kernels.compiled.profiles import profile_row
from normalign.kernels.compiled.team import first_item, next_item, wait
from normalign.kernels.compiled.tile import HEIGHT, lanes, width
from normalign.kernels.compiled.vectors import read, write

__all__ = ["MANY", "expand", "sum_block"]

# Points that share what is read of a table: a multiple of the width of every strip.
MANY = 128


@remembered
def expand(
    centers: Any, points: Any, other_centers: Any, other_points: Any, height: int,
    profile: int, steep: bool, n: int, m: int, coef: Any, directions: Any, k: int,
    table: Any, columns: int, sums: Any, step: int, phase: int, members: int,
    flags: Any,
) -> None:  # fmt: skip
    """Sums at all points; one phase.

    Parameters
    ----------
    centers, points : strips of ``height`` rows, a column for each
        Products of one of each are squared distances.
    other_centers, other_points : strips
        The other sides of both.
    steep : bool
        Whether slopes are summed, or else values.
    n, m : int
        Points and centers.
    coef, directions : strips of ``k`` rows, a column for each center and each point
        Whose products are factors of the slopes, if ``k`` is not zero.
    table : strips of m rows
        Of which ``columns`` columns are wanted.
    sums : rows of ``step`` numbers, one for each point, up to a whole tile
    """
    w, items = width(points), (n + MANY - 1) // MANY
    near = np.empty(DEPTH * MANY, points.dtype)
    slopes = np.empty_like(near)
    mixed = np.empty(DEPTH * w if k else 0, points.dtype)
    item = first_item(flags, phase, members)
    while item < items:
        block = (item * MANY, min(item * MANY + MANY, n))
        sum_block(
            centers, points, other_centers, other_points, height, profile, steep,
            height - 2, m, coef, directions, k, table, w, m * w, columns, sums, step,
            block, near, slopes, mixed,
        )  # fmt: skip
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, items)


@compiled
def sum_block(
    centers: Any, points: Any, other_centers: Any, other_points: Any, height: int,
    profile: int, steep: bool, d: int, m: int, coef: Any, directions: Any, k: int,
    table: Any, step_t: int, wide_t: int, columns: int, sums: Any, step: int,
    block: tuple[int, int], near: Any, slopes: Any, mixed: Any,
) -> None:  # fmt: skip
    """Sums at a block of points, ``MANY`` or fewer, from a whole strip on.

    Of centers and points d + 2 rows are multiplied; ``step_t`` is the distance of rows
    of the table and ``wide_t`` that of a strip's width of columns;
    ``near`` and ``slopes`` room for ``DEPTH`` times as many numbers, ``mixed`` for as
    many of a strip, if ``k`` is not zero.
    """
    w, count = width(points), lanes(points)
    for begin in range(0, m, DEPTH):
        end = min(begin + DEPTH, m)
        for s in range(block[0] // w, (block[1] + w - 1) // w):
            start = (s - block[0] // w) * DEPTH * w
            rows, at = (begin, end), start - begin * w
            multiply_strip(centers, points, height, near, at, d + 2, rows, s)
            mend_near(
                centers, points, other_centers, other_points, height, d, near, at,
                rows, s,
            )  # fmt: skip
            part = slice(start, start + (end - begin) * w)
            profile_row(profile, near[part], slopes[part])
            if k:
                multiply_strip(
                    coef, directions, k, mixed, -begin * w, k, (begin, end), s
                )
                for q in range(0, (end - begin) * w, count):
                    write(slopes, start + q, read(slopes, start + q) * read(mixed, q))
        factors = slopes if steep else near
        for column in range(0, columns, w):
            at_b = begin * step_t + column // w * wide_t
            for i in range(block[0], block[1], HEIGHT):
                at_a = (i // w - block[0] // w) * DEPTH * w + i % w
                if columns - column <= count:
                    sum_narrow(
                        begin == 0, factors, table, sums, at_a, at_b,
                        i * step + column, w, step_t, step, 0, end - begin,
                    )  # fmt: skip
                else:
                    sum_tile(
                        begin == 0, factors, table, sums, at_a, at_b,
                        i * step + column, w, step_t, step, 0, end - begin,
                    )  # fmt: skip
