r"""Algorithm 1 on a small table, compiled: solve, learn the metric, or all of it.

The functions are run by every member of a team (see
:mod:`~normalign.kernels.compiled.team`); each writes its own part of what they share,
so that what comes out does not depend on how many there are. Tables lie in strips (see
:mod:`~normalign.kernels.compiled.products`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from normalign.kernels.compiled.compiling import compiled, remembered
from normalign.kernels.compiled.factor import back_substitute, factorise
from normalign.kernels.compiled.factor import phases as factor_phases
from normalign.kernels.compiled.products import (
    BLOCK,
    pack,
    pack_symmetric,
    subtract_strip,
)
from normalign.kernels.compiled.profiles import profile_row
from normalign.kernels.compiled.team import first_item, next_item, wait
from normalign.kernels.compiled.tile import width

__all__ = ["LEARN_PHASES", "learn", "recur", "solve", "solve_phases"]

_OUTPUTS = 4  # for which one pass over the factor is made
LEARN_PHASES = 6


@compiled
def solve_phases(n: int) -> int:
    """How many phases :func:`solve` takes."""
    return factor_phases(n) + 5


@remembered
def solve(
    points: Any, metric: Any, placed: Any, full: bool, scale: float, noise: float,
    profile: int, ridges: Any, targets: Any, left: Any, right: Any,
    square: Any, slopes: Any, aside: Any, coef: Any, status: Any,
    d: int, rows: int, strips: int,
    phase: int, room: Any, members: int, flags: Any,
) -> bool:  # fmt: skip
    r"""Fill the kernel matrix and its slopes, factorise, solve for all targets.

    Parameters
    ----------
    points : strips of d rows, a column for each point
        Centred; the columns behind them are zero.
    metric, placed : array of d * d numbers if ``full``, else of d, and room for strips
        The metric, and where it is put into strips.
    scale, noise : float
        One over the squared bandwidth; the share of rounding in squared norms.
    ridges, targets : arrays of shape (n,) and (n, k)
    left, right : strips of d + 2 rows and more
        Room for both sides of the kernel's products.
    square, slopes : strips of ``rows`` rows
        Their upper halves are written.
    coef : array of shape (k, n)
        The answer.
    status : array of two numbers
        The smallest pivot, and the largest sum of squares of an output's coefficients.

    Returns
    -------
    bool
        Whether the matrix is definite; if not, nothing can be trusted.
    """
    n, k, w = len(ridges), targets.shape[1], width(square)
    height = len(left) // (strips * w)

    items = (d + BLOCK - 1) // BLOCK if full else 0
    item = first_item(flags, phase, members)
    while item < items:
        block = (item * BLOCK, min(item * BLOCK + BLOCK, d))
        _clear(left, height, block, strips, 0)
        _place(metric, placed, d, block)
        pack(placed, d, 0, d, block, room)
        for s in range(strips):
            subtract_strip(left, height, points, d, 0, d, block, s, room)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, items)
    phase += 1

    item = first_item(flags, phase, members)
    while item < strips:
        _sides(points, metric, full, scale, noise, left, right, d, height, item)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, strips)
    phase += 1

    items = (n + BLOCK - 1) // BLOCK
    item = first_item(flags, phase, members)
    while item < items:
        block = (item * BLOCK, min(item * BLOCK + BLOCK, n))
        _clear(square, rows, block, strips, block[0] // w)
        pack(left, height, 0, d + 2, block, room)
        for s in range(block[0] // w, strips):
            subtract_strip(square, rows, right, height, 0, d + 2, block, s, room)
            part = slice((s * rows + block[0]) * w, (s * rows + block[1]) * w)
            profile_row(profile, square[part], slopes[part])
        for i in range(*block):
            square[(i // w * rows + i) * w + i % w] += ridges[i]
            for j in range(k):
                square[((n + j) // w * rows + i) * w + (n + j) % w] = targets[i, j]
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, items)
    phase += 1

    if not factorise(square, rows, strips, n, aside, phase, members, flags, room):
        return False
    phase += factor_phases(n)

    items = (k + _OUTPUTS - 1) // _OUTPUTS
    item = first_item(flags, phase, members)
    while item < items:
        end = min(item * _OUTPUTS + _OUTPUTS, k)
        back_substitute(square, rows, n, coef, item * _OUTPUTS, end)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, items)

    phase += 1

    item = first_item(flags, phase, members)
    while item < 1:
        _judge(square, rows, coef, status)
        item = next_item(flags, phase, members, item)
    return wait(flags, phase, members, 1)


@compiled
def _judge(square: Any, rows: int, coef: Any, status: Any) -> None:
    """What tells whether a solution is to be trusted; NaN, if there is one."""
    w, (k, n) = width(square), coef.shape
    smallest = square[0]
    for i in range(n):
        pivot = square[(i // w * rows + i) * w + i % w]
        smallest = pivot if not pivot >= smallest else smallest
    largest = coef.dtype.type(0)
    for c in range(k):
        total = coef.dtype.type(0)
        for i in range(n):
            total += coef[c, i] * coef[c, i]
        largest = total if not total <= largest else largest
    status[0], status[1] = smallest * smallest, largest


@compiled
def _clear(
    table: Any, rows: int, block: tuple[int, int], strips: int, first: int
) -> None:
    w = width(table)
    zero = table.dtype.type(0)
    for s in range(first, strips):
        for place in range((s * rows + block[0]) * w, (s * rows + block[1]) * w):
            table[place] = zero


@compiled
def _place(table: Any, strips: Any, rows: int, columns: tuple[int, int]) -> None:
    """Put some columns of a square table into strips, with zeros behind the last."""
    w, count = width(strips), len(table) // rows
    for j in range(columns[0], min(columns[0] + BLOCK, len(strips) // rows)):
        for i in range(rows):
            entry = table[i * count + j] if j < count else table.dtype.type(0)
            strips[(j // w * rows + i) * w + j % w] = entry


@compiled
def _sides(
    points: Any, metric: Any, full: bool, scale: Any, noise: Any,
    left: Any, right: Any, d: int, rows: int, s: int,
) -> None:  # fmt: skip
    r"""A strip of both sides of :math:`s_i + s_j - 2 x_i^\top M x_j`, to be subtracted.

    ``left`` has minus the points times the metric, if that is full. From the squares
    :math:`s` the noise of products is taken off, as in
    :class:`~normalign.kernels.functions.Radial`.
    """
    w, one = width(left), left.dtype.type(1)
    start, source = s * rows * w, s * d * w
    last, behind = start + d * w, start + (d + 1) * w
    for q in range(w):
        left[last + q] = left[behind + q] = left.dtype.type(0)
    for p in range(d):
        factor = -scale if full else scale * metric[p]
        for q in range(w):
            x = points[source + p * w + q]
            image = factor * (left[start + p * w + q] if full else x)
            left[last + q] += x * image
            left[behind + q] += abs(x * image)
            left[start + p * w + q] = image + image
            right[start + p * w + q] = x
    for q in range(w):
        squares = left[last + q] - noise * left[behind + q]
        left[last + q], left[behind + q] = -squares, -one
        right[last + q], right[behind + q] = one, squares


@remembered
def learn(
    rows_x: Any, coef: Any, weights: Any, slopes: Any, rows: int,
    metric: Any, placed: Any, full: bool, share: float, table: Any, sums: Any,
    gradients: Any, total: Any, half: Any, whole: Any,
    phase: int, room: Any, members: int, flags: Any,
) -> None:  # fmt: skip
    r"""The next metric: the average gradient outer product, scaled to trace d.

    .. math:: s \, M S M, \qquad S = \sum_i \omega_i G_i^\top G_i, \qquad
              G_i = \sum_j w_{ij} a_j x_j^\top - \Bigl(\sum_j w_{ij} a_j\Bigr) x_i^\top

    Everything that is subtracted from nothing has the other sign.

    Parameters
    ----------
    rows_x : array of shape (n, d + 1)
        The points, and a one behind each.
    coef : array of shape (k, n)
    weights : array of shape (n,)
        Roots of how often each row counts.
    slopes, rows, metric, placed, full
        As :func:`solve` had and left them; the metric is overwritten, unless all
        gradients vanish.
    share : float
        The factor s.
    table : strips of n rows, k (d + 1) columns
    sums : strips of ``rows`` rows, as many columns
    gradients : strips of n k rows, d columns
    total : strips of d rows and more, d columns
        Minus S.
    half, whole : as total
        S M, and minus M S M, if the metric is full.
    """
    (k, n), w = coef.shape, width(slopes)
    d, columns = rows_x.shape[1] - 1, len(table) // n
    blocks = (n + BLOCK - 1) // BLOCK
    # a row of the table, and of the gradients, with zeros behind
    long = np.zeros(columns, slopes.dtype)
    short = np.zeros(len(gradients) // (n * k), slopes.dtype)

    item = first_item(flags, phase, members)
    while item < blocks:
        for i in range(item * BLOCK, min(item * BLOCK + BLOCK, n)):
            for c in range(k):
                for p in range(d + 1):
                    long[c * (d + 1) + p] = coef[c, i] * rows_x[i, p]
            _write_row(long, table, n, i)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, blocks)
    phase += 1

    item = first_item(flags, phase, members)
    while item < blocks:
        block = (item * BLOCK, min(item * BLOCK + BLOCK, n))
        _clear(sums, rows, block, columns // w, 0)
        pack_symmetric(slopes, rows, n, block, room)
        for s in range(columns // w):
            subtract_strip(sums, rows, table, n, 0, n, block, s, room)
        for i in range(*block):
            _read_row(long, sums, rows, i)
            for c in range(k):
                first, mass = c * (d + 1), long[c * (d + 1) + d]
                for p in range(d):
                    difference = long[first + p] - mass * rows_x[i, p]
                    short[p] = weights[i] * difference
                _write_row(short, gradients, n * k, i * k + c)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, blocks)
    phase += 1

    strips = len(gradients) // (n * k * w)
    height, items = len(total) // (strips * w), (d + BLOCK - 1) // BLOCK
    item = first_item(flags, phase, members)
    while item < items:
        block = (item * BLOCK, min(item * BLOCK + BLOCK, d))
        _clear(total, height, block, strips, 0)
        for c in range(k):
            pack(gradients, n * k, c * n, n, block, room)
            for s in range(strips):
                subtract_strip(
                    total, height, gradients, n * k, c * n, n, block, s, room
                )
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, items)
    phase += 1

    if full:
        item = first_item(flags, phase, members)
        while item < items:
            block = (item * BLOCK, min(item * BLOCK + BLOCK, d))
            _clear(half, height, block, strips, 0)
            pack(total, height, 0, d, block, room)
            for s in range(strips):
                subtract_strip(half, height, placed, d, 0, d, block, s, room)
            item = next_item(flags, phase, members, item)
        wait(flags, phase, members, items)
        phase += 1

        item = first_item(flags, phase, members)
        while item < items:
            block = (item * BLOCK, min(item * BLOCK + BLOCK, d))
            _clear(whole, height, block, strips, 0)
            pack(placed, d, 0, d, block, room)
            for s in range(strips):
                subtract_strip(whole, height, half, height, 0, d, block, s, room)
            item = next_item(flags, phase, members, item)
        wait(flags, phase, members, items)
        phase += 1

    item = first_item(flags, phase, members)
    while item < 1:
        _replace(metric, whole if full else total, height, full, -share)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, 1)


@compiled
def _replace(metric: Any, strips: Any, rows: int, full: bool, factor: Any) -> None:
    """Overwrite a metric by a multiple of a table, made symmetric and of trace d."""
    w = width(strips)
    d = int(math.sqrt(len(metric))) if full else len(metric)
    trace = metric.dtype.type(0)
    for p in range(d):
        entry = factor * strips[(p // w * rows + p) * w + p % w]
        trace += entry if full else entry * metric[p] * metric[p]
    if not 0 < trace < np.inf:
        return
    scale = factor * (metric.dtype.type(d) / trace)
    half = scale * metric.dtype.type(0.5)
    for i in range(d):
        if not full:
            entry = scale * strips[(i // w * rows + i) * w + i % w]
            metric[i] = entry * metric[i] * metric[i]
            continue
        for j in range(i + 1):
            one = strips[(j // w * rows + i) * w + j % w]
            other = strips[(i // w * rows + j) * w + i % w]
            metric[i * d + j] = metric[j * d + i] = half * (one + other)


@remembered
def recur(
    points: Any, rows_x: Any, metric: Any, placed: Any, full: bool, scale: float,
    share: float, noise: float, profile: int, ridges: Any, targets: Any, weights: Any,
    left: Any, right: Any, square: Any, slopes: Any, aside: Any, coef: Any,
    table: Any, sums: Any, gradients: Any, total: Any, half: Any, whole: Any,
    status: Any, least: float, most: float, d: int, rows: int, strips: int,
    phase: int, room: Any, members: int, flags: Any,
) -> bool:  # fmt: skip
    """Solve and learn by turns, as often as ``status`` has rows, and solve at the end.

    ``least`` is the smallest pivot and ``most`` the largest sum of squares that are
    trusted. False, and an arbitrary state, as soon as one is not.
    """
    n = len(ridges)
    for index in range(len(status)):
        if not solve(
            points, metric, placed, full, scale, noise, profile, ridges, targets,
            left, right, square, slopes, aside, coef, status[index],
            d, rows, strips, phase, room, members, flags,
        ):  # fmt: skip
            return False
        if not (status[index, 0] > least and status[index, 1] <= most):
            return False
        phase += solve_phases(n)
        if index + 1 < len(status):
            learn(
                rows_x, coef, weights, slopes, rows, metric, placed, full, share,
                table, sums, gradients, total, half, whole,
                phase, room, members, flags,
            )  # fmt: skip
            phase += LEARN_PHASES
    return True


@compiled
def _write_row(row: Any, strips: Any, rows: int, i: int) -> None:
    """Write a row into a table in strips; it is as long as they are wide together."""
    w = width(strips)
    for s in range(len(row) // w):
        place = (s * rows + i) * w
        for q in range(w):
            strips[place + q] = row[s * w + q]


@compiled
def _read_row(row: Any, strips: Any, rows: int, i: int) -> None:
    """The other way round."""
    w = width(strips)
    for s in range(len(row) // w):
        place = (s * rows + i) * w
        for q in range(w):
            row[s * w + q] = strips[place + q]
