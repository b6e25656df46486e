r"""Algorithm 1 on a small table, compiled: solve, learn the metric, or all of it.

The functions are run by every member of a team (see
:mod:`~normalign.kernels.compiled.team`); each writes its own part of what they share,
so that what comes out does not depend on how many there are. Points and squares lie in
strips, all else row by row (see :mod:`~normalign.kernels.compiled.products`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from normalign.kernels.compiled.compiling import compiled, remembered
from normalign.kernels.compiled.factor import back_substitute, factorise
from normalign.kernels.compiled.factor import phases as factor_phases
from normalign.kernels.compiled.products import (
    BLOCK,
    multiply,
    multiply_strip,
    multiply_symmetric,
    multiply_turned,
)
from normalign.kernels.compiled.profiles import profile_row
from normalign.kernels.compiled.team import first_item, next_item, wait
from normalign.kernels.compiled.tile import HEIGHT, lanes, width
from normalign.kernels.compiled.vectors import (
    everywhere,
    fused,
    magnitude,
    read,
    write,
)

__all__ = ["LEARN_PHASES", "learn", "recur", "solve", "solve_phases"]

LEARN_PHASES = 4


@compiled
def solve_phases(n: int) -> int:
    """How many phases :func:`solve` takes."""
    return factor_phases(n) + 4


@remembered
def solve(
    points: Any, metric: Any, full: bool, scale: float, noise: float, profile: int,
    ridges: Any, targets: Any, images: Any, square: Any, slopes: Any, aside: Any,
    answers: Any, status: Any, d: int, rows: int, strips: int,
    phase: int, members: int, flags: Any,
) -> bool:  # fmt: skip
    r"""Fill the kernel matrix and its slopes, factorise, solve for all targets.

    Parameters
    ----------
    points : strips of d + 2 rows, a column for each point
        Centred, then a row of ones and one for their squares; the columns behind them
        are zero.
    metric : array of d rows and more of whole strips if ``full``, else of d numbers
    scale, noise : float
        One over the squared bandwidth; the share of rounding in squared norms.
    ridges, targets : arrays of shape (n,) and (n, k)
    images : strips of d + 2 rows, up to a whole tile
        Room for the points through the metric.
    square, slopes : strips of ``rows`` rows
        Their upper halves are written.
    answers : groups of ``rows`` vectors
        The coefficients: of every row as many as a vector has numbers, then the next.
    status : array of two numbers
        The smallest pivot, and the largest sum of squares of an output's coefficients.

    Returns
    -------
    bool
        Whether the matrix is definite; if not, nothing can be trusted.
    """
    n, k, w = len(ridges), targets.shape[1], width(square)
    height = len(images) // (strips * w)

    item = first_item(flags, phase, members)
    while item < strips:
        _sides(points, metric, full, scale, noise, images, d, height, item)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, strips)
    phase += 1

    items = (n + BLOCK - 1) // BLOCK
    item = first_item(flags, phase, members)
    while item < items:
        block = (item * BLOCK, min(item * BLOCK + BLOCK, n))
        for s in range(block[0] // w, strips):
            multiply_strip(images, points, height, square, rows, d + 2, block, s)
            part = slice((s * rows + block[0]) * w, (s * rows + block[1]) * w)
            profile_row(profile, square[part], slopes[part])
        for i in range(*block):
            square[(i // w * rows + i) * w + i % w] += ridges[i]
            for j in range(k):
                square[((n + j) // w * rows + i) * w + (n + j) % w] = targets[i, j]
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, items)
    phase += 1

    if not factorise(square, rows, strips, n, aside, phase, members, flags):
        return False
    phase += factor_phases(n)

    items = (k + lanes(square) - 1) // lanes(square)
    item = first_item(flags, phase, members)
    while item < items:
        back_substitute(square, rows, n, k, answers, item)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, items)
    phase += 1

    item = first_item(flags, phase, members)
    while item < 1:
        _judge(square, rows, n, answers, status)
        item = next_item(flags, phase, members, item)
    return wait(flags, phase, members, 1)


@compiled
def _sides(
    points: Any, metric: Any, full: bool, scale: Any, noise: Any, images: Any,
    d: int, height: int, strip: int,
) -> None:  # fmt: skip
    r"""Prepare a strip of both sides of :math:`s_i + s_j - 2 x_i^\top M x_j`.

    From the squares :math:`s` the noise of products is taken off, as in
    :class:`~normalign.kernels.functions.Radial`.
    """
    w, start = width(points), strip * height * width(points)
    if full:
        step = (d + w - 1) // w * w
        multiply(metric, step, points, start, w, images, start, w, d, (0, d))
    nothing, one = everywhere(scale - scale), everywhere(points.dtype.type(1))
    minus_two = everywhere(points.dtype.type(-2))
    for q in range(start, start + w, lanes(points)):
        squares, sizes = nothing, nothing
        for p in range(d):
            x = read(points, q + p * w)
            if full:
                image = everywhere(scale) * read(images, q + p * w)
            else:
                image = everywhere(scale * metric[p]) * x
            squares = fused(x, image, squares)
            sizes = sizes + magnitude(x * image)
            write(images, q + p * w, minus_two * image)
        squares = squares - everywhere(noise) * sizes
        write(images, q + d * w, squares)
        write(images, q + (d + 1) * w, one)
        write(points, q + (d + 1) * w, squares)


@compiled
def _judge(square: Any, rows: int, n: int, answers: Any, status: Any) -> None:
    """What tells whether a solution is to be trusted; NaN, if there is one."""
    w, count = width(square), lanes(square)
    smallest = square[0]
    for i in range(n):
        pivot = square[(i // w * rows + i) * w + i % w]
        smallest = pivot if not pivot >= smallest else smallest
    totals = np.empty(count, square.dtype)
    largest = square.dtype.type(0)
    for start in range(0, len(answers), rows * count):
        total = everywhere(square.dtype.type(0))
        for p in range(start, start + n * count, count):
            entry = read(answers, p)
            total = fused(entry, entry, total)
        write(totals, 0, total)
        for q in range(count):
            largest = totals[q] if not totals[q] <= largest else largest
    status[0], status[1] = smallest * smallest, largest


@remembered
def learn(
    points: Any, answers: Any, weights: Any, slopes: Any, rows: int, strips: int,
    metric: Any, full: bool, share: float, d: int, k: int,
    rows_x: Any, table: Any, sums: Any, gradients: Any, total: Any,
    phase: int, members: int, flags: Any,
) -> None:  # fmt: skip
    r"""The next metric: the average gradient outer product, scaled to trace d.

    .. math:: s \sum_i \omega_i G_i^\top G_i, \qquad
              G_i = \sum_j w_{ij} a_j (M x_j)^\top
                    - \Bigl(\sum_j w_{ij} a_j\Bigr) (M x_i)^\top

    Parameters
    ----------
    points, answers, slopes, rows, strips, metric, full
        As :func:`solve` had and left them; the metric is overwritten, unless all
        gradients vanish.
    weights : array of shape (n,)
        Roots of how often each row counts.
    share : float
        The factor s.
    rows_x : n rows, up to a whole tile, of whole strips and of d + 1 numbers at least
        Room for the points through the metric, row by row, with a one behind each.
    table, sums : n rows, up to a whole tile, of k (d + 1) numbers and more
        Of every output the images times its coefficients, and what slopes make of it.
    gradients : n k rows of whole strips, d columns
    total : d rows, up to a whole tile, of whole strips
        The sum of outer products; one row of squares, if the metric is diagonal.
    """
    n, w = len(weights), width(slopes)
    blocks = (n + BLOCK - 1) // BLOCK
    step, wide = len(table) // rows, (d + w - 1) // w * w
    height, long = len(points) // (strips * w), len(rows_x) // rows

    item = first_item(flags, phase, members)
    while item < blocks:
        block = (item * BLOCK, min(item * BLOCK + BLOCK, n))
        if full:
            for s in range(0, wide, w):
                multiply_turned(points, height, metric, wide, rows_x, long, d, block, s)
        for i in range(*block):
            if not full:
                _turn(points, metric, height, d, i, rows_x, i * long)
            rows_x[i * long + d] = rows_x.dtype.type(1)
            _spread(rows_x, i * long, answers, rows, d, k, i, table, i * step)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, blocks)
    phase += 1

    item = first_item(flags, phase, members)
    while item < blocks:
        block = (item * BLOCK, min(item * BLOCK + BLOCK, n))
        for s in range((k * (d + 1) + w - 1) // w):
            multiply_symmetric(slopes, rows, n, table, sums, step, block, s)
        for i in range(*block):
            _gather(
                rows_x, i * long, sums, i * step, weights[i], d, k, i, gradients, wide
            )
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, blocks)
    phase += 1

    items = (d + HEIGHT - 1) // HEIGHT if full else wide // lanes(total)
    item = first_item(flags, phase, members)
    while item < items:
        if full:
            tile = (item * HEIGHT, item * HEIGHT + HEIGHT)
            for s in range(0, wide, w):
                multiply(
                    gradients, wide, gradients, s, wide, total, s, wide, n * k, tile
                )
        else:
            _sum_squares(gradients, n * k, wide, item * lanes(total), total)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, items)
    phase += 1

    item = first_item(flags, phase, members)
    while item < 1:
        _replace(metric, total, d, wide if full else 0, share)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, 1)


@compiled
def _turn(
    points: Any, metric: Any, height: int, d: int, i: int, rows_x: Any, row: int
) -> None:
    """A point through a diagonal metric, from its column to a row."""
    w = width(points)
    place = i // w * height * w + i % w
    for p in range(d):
        rows_x[row + p] = metric[p] * points[place + p * w]


@compiled
def _spread(
    rows_x: Any, row: int, answers: Any, rows: int, d: int, k: int, i: int,
    table: Any, at: int,
) -> None:  # fmt: skip
    """A row of the table: the point, once for each output, times its coefficient.

    What is written behind the last number of an output is overwritten by the next, and
    zero behind the last output.
    """
    count = lanes(table)
    for c in range(k):
        answer = answers[(c // count * rows + i) * count + c % count]
        factor = everywhere(answer)
        for p in range(0, d + 1, count):
            write(table, at + c * (d + 1) + p, factor * read(rows_x, row + p))


@compiled
def _gather(
    rows_x: Any, row: int, sums: Any, at: int, weight: Any, d: int, k: int, i: int,
    gradients: Any, wide: int,
) -> None:  # fmt: skip
    """The gradients of all outputs at a point, with anything behind their columns."""
    count = lanes(sums)
    share = everywhere(weight)
    for c in range(k):
        source, target = at + c * (d + 1), (i * k + c) * wide
        mass = everywhere(sums[source + d])
        for p in range(0, d, count):
            difference = read(sums, source + p) - mass * read(rows_x, row + p)
            write(gradients, target + p, share * difference)


@compiled
def _sum_squares(table: Any, rows: int, wide: int, column: int, total: Any) -> None:
    """Sums of squares of as many columns as a vector has numbers."""
    sums = everywhere(table.dtype.type(0))
    for i in range(rows):
        entry = read(table, i * wide + column)
        sums = fused(entry, entry, sums)
    write(total, column, sums)


@compiled
def _replace(metric: Any, table: Any, d: int, wide: int, factor: Any) -> None:
    """Overwrite a metric by a multiple of a table, made symmetric and of trace d.

    Of a diagonal alone, if rows are no numbers wide.
    """
    trace = metric.dtype.type(0)
    for p in range(d):
        trace += factor * table[p * wide + p]
    if not 0 < trace < np.inf:
        return
    scale = factor * (metric.dtype.type(d) / trace)
    half = scale * metric.dtype.type(0.5)
    for i in range(d):
        if wide:
            for j in range(i + 1):
                entry = half * (table[i * wide + j] + table[j * wide + i])
                metric[i * wide + j] = metric[j * wide + i] = entry
        else:
            metric[i] = scale * table[i]


@remembered
def recur(
    points: Any, metric: Any, full: bool, scale: float, share: float, noise: float,
    profile: int, ridges: Any, targets: Any, weights: Any, images: Any, square: Any,
    slopes: Any, aside: Any, answers: Any,
    rows_x: Any, table: Any, sums: Any, gradients: Any, total: Any,
    status: Any, least: float, most: float, d: int, rows: int, strips: int,
    phase: int, members: int, flags: Any,
) -> bool:  # fmt: skip
    """Solve and learn by turns, as often as ``status`` has rows, and solve at the end.

    ``least`` is the smallest pivot and ``most`` the largest sum of squares that are
    trusted. False, and an arbitrary state, as soon as one is not.
    """
    n, k = targets.shape
    for index in range(len(status)):
        if not solve(
            points, metric, full, scale, noise, profile, ridges, targets, images,
            square, slopes, aside, answers, status[index], d, rows, strips,
            phase, members, flags,
        ):  # fmt: skip
            return False
        if not (status[index, 0] > least and status[index, 1] <= most):
            return False
        phase += solve_phases(n)
        if index + 1 < len(status):
            learn(
                points, answers, weights, slopes, rows, strips, metric, full, share,
                d, k, rows_x, table, sums, gradients, total, phase, members, flags,
            )  # fmt: skip
            phase += LEARN_PHASES
    return True
