r"""Algorithm 1 compiled: solve, or all of it.

The functions are run by every member of a team (see
:mod:`~normalign.kernels.compiled.team`); each writes its own part of what they share,
so that what comes out does not depend on how many there are. Points and kernel values
lie in strips, all else row by row (see :mod:`~normalign.kernels.compiled.products`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from normalign.kernels.compiled.compiling import also_python, compiled, remembered
from normalign.kernels.compiled.factor import back_substitute, blocks_of, factorise
from normalign.kernels.compiled.factor import phases as factor_phases
from normalign.kernels.compiled.learning import is_usable, learn, learn_phases
from normalign.kernels.compiled.near import mend_near
from normalign.kernels.compiled.products import BLOCK, multiply, multiply_strip
from normalign.kernels.compiled.profiles import profile_row
from normalign.kernels.compiled.team import first_item, next_item, wait
from normalign.kernels.compiled.tile import lanes, width
from normalign.kernels.compiled.vectors import (
    everywhere,
    fused,
    read,
    write,
)

__all__ = ["recur", "solve", "solve_phases"]


@also_python
def solve_phases(n: int) -> int:
    """How many phases :func:`solve` takes."""
    return factor_phases(n) + 4


@remembered
def solve(
    points: Any, metric: Any, full: bool, scale: float, profile: int,
    ridges: Any, targets: Any, shares: Any, images: Any, square: Any, slopes: Any,
    starts: Any, aside: Any, answers: Any, status: Any, d: int, some: tuple[int, int],
    phase: int, members: int, flags: Any,
) -> bool:  # fmt: skip
    r"""Fill the kernel matrix and its slopes, factorise, solve for all targets.

    Parameters
    ----------
    points : strips of d + 2 rows, a column for each point
        Centred, then a row of ones and one for their squares; the columns behind them
        are zero.
    metric : array of d rows and more of whole strips if ``full``, else of d numbers
    scale : float
        One over the squared bandwidth.
    ridges, targets : arrays of shape (n,) and (n, k)
    shares : array of shape (k,)
        By which the squared coefficients of an output are judged.
    images : strips of d + 2 rows, up to a whole tile
        Room for the points through the metric.
    square, slopes : strips that begin at ``starts``
        Their upper halves are written. There may be no room for slopes.
    aside : array
        Room for a block of the factor.
    answers : groups of vectors, one for each row
        The coefficients: of every row as many as a vector has numbers, then the next.
    status : array of three numbers
        The smallest pivot, and the largest sum of squares of an output's coefficients,
        times its share. The third is for :func:`~.learning.learn`.
    some : tuple of int
        Which blocks of the factor to make, of all before which it is made: with the
        first the matrix is filled, with the last the targets are solved for.

    Returns
    -------
    bool
        Whether the matrix is definite; if not, nothing can be trusted.
    """
    n, k, strips = len(ridges), targets.shape[1], len(starts) - 1
    height = len(images) // (strips * width(square))
    rows = len(answers) // (lanes(square) * ((k + lanes(square) - 1) // lanes(square)))

    if some[0] == 0:
        item = first_item(flags, phase, members)
        while item < strips:
            _sides(points, metric, full, scale, images, d, height, item)
            item = next_item(flags, phase, members, item)
        wait(flags, phase, members, strips)
        phase += 1

        items = (n + BLOCK - 1) // BLOCK
        unkept = np.empty(BLOCK * width(square), square.dtype)
        item = first_item(flags, phase, members)
        while item < items:
            block = (item * BLOCK, min(item * BLOCK + BLOCK, n))
            _fill(
                points, images, height, profile, square, slopes, unkept, starts, d,
                block,
            )  # fmt: skip
            _complete(square, starts, ridges, targets, block)
            item = next_item(flags, phase, members, item)
        wait(flags, phase, members, items)
        phase += 1

    if not factorise(square, starts, n, aside, some, phase, members, flags):
        return False
    phase += factor_phases(n)
    if some[1] < blocks_of(n):
        return True

    items = (k + lanes(square) - 1) // lanes(square)
    item = first_item(flags, phase, members)
    while item < items:
        back_substitute(square, starts, rows, n, k, answers, item)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, items)
    phase += 1

    item = first_item(flags, phase, members)
    while item < 1:
        _judge(square, starts, rows, n, answers, shares, status)
        item = next_item(flags, phase, members, item)
    return wait(flags, phase, members, 1)


@compiled
def _sides(
    points: Any, metric: Any, full: bool, scale: Any, images: Any, d: int, height: int,
    strip: int,
) -> None:  # fmt: skip
    r"""Prepare a strip of both sides of :math:`s_i + s_j - 2 x_i^\top M x_j`."""
    w, start = width(points), strip * height * width(points)
    if full:
        step = (d + w - 1) // w * w
        multiply(True, metric, step, points, start, w, images, start, w, d, (0, d))
    nothing, one = everywhere(scale - scale), everywhere(points.dtype.type(1))
    minus_two = everywhere(points.dtype.type(-2))
    for q in range(start, start + w, lanes(points)):
        squares = nothing
        for p in range(d):
            x = read(points, q + p * w)
            if full:
                image = everywhere(scale) * read(images, q + p * w)
            else:
                image = everywhere(scale * metric[p]) * x
            squares = fused(x, image, squares)
            write(images, q + p * w, minus_two * image)
        write(images, q + d * w, squares)
        write(images, q + (d + 1) * w, one)
        write(points, q + (d + 1) * w, squares)


@compiled
def _fill(
    points: Any, images: Any, height: int, profile: int, square: Any, slopes: Any,
    unkept: Any, starts: Any, d: int, block: tuple[int, int],
) -> None:  # fmt: skip
    """Kernel values of some rows, and their slopes, from the diagonal on."""
    w = width(square)
    for s in range(block[0] // w, len(starts) - 1):
        multiply_strip(images, points, height, square, starts[s], d + 2, block, s)
        # no point is near itself, which would have a look at all others
        _set_diagonal(square, starts[s], s, block, math.inf)
        mend_near(
            images, points, points, images, height, d, square, starts[s], block, s
        )
        _set_diagonal(square, starts[s], s, block, 0.0)
        part = slice(starts[s] + block[0] * w, starts[s] + block[1] * w)
        if len(slopes):
            profile_row(profile, square[part], slopes[part])
        else:
            profile_row(profile, square[part], unkept)


@compiled
def _set_diagonal(
    square: Any, start: int, strip: int, block: tuple[int, int], value: float
) -> None:
    """What some rows of a strip have on the diagonal."""
    w = width(square)
    for i in range(max(block[0], strip * w), min(block[1], strip * w + w)):
        square[start + i * w + i % w] = value


@compiled
def _complete(
    square: Any, starts: Any, ridges: Any, targets: Any, block: tuple[int, int]
) -> None:
    """Ridges on the diagonal of some rows, and the targets behind them."""
    w, (n, k) = width(square), targets.shape
    for i in range(*block):
        square[starts[i // w] + i * w + i % w] += ridges[i]
        for j in range(n, n + k):
            square[starts[j // w] + i * w + j % w] = targets[i, j - n]


@compiled
def _judge(
    square: Any, starts: Any, rows: int, n: int, answers: Any, shares: Any, status: Any
) -> None:
    """What tells whether a solution is to be trusted; NaN, if there is one."""
    w, count = width(square), lanes(square)
    smallest = square[0]
    for i in range(n):
        pivot = square[starts[i // w] + i * w + i % w]
        smallest = pivot if not pivot >= smallest else smallest
    totals = np.empty(count, square.dtype)
    largest = square.dtype.type(0)
    for group in range(len(answers) // (rows * count)):
        total, start = everywhere(square.dtype.type(0)), group * rows * count
        for p in range(start, start + n * count, count):
            entry = read(answers, p)
            total = fused(entry, entry, total)
        write(totals, 0, total)
        for q in range(min(count, len(shares) - group * count)):
            lost = totals[q] * shares[group * count + q]
            largest = lost if not lost <= largest else largest
    status[0], status[1] = smallest * smallest, largest


@remembered
def recur(
    points: Any, metric: Any, full: bool, scale: float, profile: int,
    ridges: Any, targets: Any, shares: Any, weights: Any, images: Any, square: Any,
    slopes: Any, starts: Any, aside: Any, answers: Any,
    rows_x: Any, table: Any, sums: Any, gradients: Any, total: Any,
    status: Any, least: float, most: float, d: int, at_once: int,
    some: tuple[int, int], phase: int, members: int, flags: Any,
) -> bool:  # fmt: skip
    """Solve and learn by turns, as often as ``status`` has rows, and solve at the end.

    ``least`` is the smallest pivot and ``most`` the largest sum of squares, times its
    share, that are trusted; ``some`` are all blocks of the factor. False, and an
    arbitrary state, as soon as one is not, or gradients of a solution that is not zero
    have no squares in this precision.
    """
    n, k = targets.shape
    for index in range(len(status)):
        if not solve(
            points, metric, full, scale, profile, ridges, targets, shares,
            images, square, slopes, starts, aside, answers, status[index], d,
            some, phase, members, flags,
        ):  # fmt: skip
            return False
        if not (status[index, 0] > least and status[index, 1] <= most):
            return False
        phase += solve_phases(n)
        if index + 1 < len(status):
            learn(
                points, images, profile, answers, weights, slopes, starts, metric,
                full, d, k, at_once, rows_x, table, sums, gradients, total,
                status[index], phase, members, flags,
            )  # fmt: skip
            phase += learn_phases(k, at_once)
            if status[index, 1] > 0 and not is_usable(status[index, 2]):
                return False
    return True
