r"""The metric that a machine learns, compiled.

.. math:: M \leftarrow \sum_i \omega_i G_i^\top G_i, \qquad
          G_i = \sum_j w_{ij} a_j (M x_j)^\top
                - \Bigl(\sum_j w_{ij} a_j\Bigr) (M x_i)^\top

the last line of Algorithm 1's loop, scaled to trace d. The slopes :math:`w_{ij}` were
kept when the kernel matrix was filled, or, where there was no room for them, are made
again, a strip at a time. Some outputs at a time, so that the tables stay small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from normalign.kernels.compiled.compiling import also_python, compiled, remembered
from normalign.kernels.compiled.products import (
    BLOCK,
    DEPTH,
    multiply,
    multiply_symmetric,
    multiply_turned,
)
from normalign.kernels.compiled.sums import MANY, sum_block
from normalign.kernels.compiled.team import first_item, next_item, wait
from normalign.kernels.compiled.tile import HEIGHT, lanes, width
from normalign.kernels.compiled.vectors import everywhere, fused, read, write

__all__ = ["is_usable", "learn", "learn_phases"]


@also_python
def learn_phases(k: int, at_once: int) -> int:
    """How many phases :func:`learn` takes."""
    return 3 * ((k + at_once - 1) // at_once) + 1


def is_usable(trace: Any) -> bool:
    """Whether a sum of squares is a number with all its digits."""
    return bool(np.finfo(trace.dtype).tiny / np.finfo(trace.dtype).eps < trace < np.inf)


@overload(is_usable)
def _is_usable(trace: Any) -> Any:
    limits = np.finfo(np.float32 if trace == types.float32 else np.float64)
    least = float(limits.tiny / limits.eps)

    def implementation(trace: Any) -> bool:
        return least < trace < np.inf

    return implementation


@remembered
def learn(
    points: Any, images: Any, profile: int, answers: Any, weights: Any, slopes: Any,
    starts: Any, metric: Any, full: bool, d: int, k: int, at_once: int, rows_x: Any,
    table: Any, sums: Any, gradients: Any, total: Any, status: Any,
    phase: int, members: int, flags: Any,
) -> None:  # fmt: skip
    r"""The next metric: the average gradient outer product, scaled to trace d.

    Parameters
    ----------
    points, images, profile, answers, slopes, starts, metric, full
        As :func:`~normalign.kernels.compiled.machine.solve` had and left them; the
        metric is overwritten, if there is something to learn.
    weights : array of shape (n,)
        Roots of how often each row counts.
    at_once : int
        Outputs of one turn.
    rows_x : n rows, up to a whole tile, of whole strips and of d + 1 numbers at least
        Room for the points through the metric, row by row, with a one behind each.
    table, sums : n rows, up to a whole tile, of ``at_once`` (d + 1) numbers and more
        Of every output the images times its coefficients, and what slopes make of it.
    gradients : n times ``at_once`` rows of whole strips, d columns
    total : d rows, up to a whole tile, of whole strips
        The sum of outer products; one row of squares, if the metric is diagonal.
    status : array of three numbers
        The third becomes the trace of that sum.
    """
    n, w, strips = len(weights), width(points), len(starts) - 1
    rows, blocks = (n + HEIGHT - 1) // HEIGHT * HEIGHT, (n + BLOCK - 1) // BLOCK
    step, wide = len(table) // rows, (d + w - 1) // w * w
    height, long = len(points) // (strips * w), len(rows_x) // rows
    # Slopes that were not kept are made again, some at a time.
    near = np.empty(0 if len(slopes) else DEPTH * MANY, points.dtype)
    steep = np.empty_like(near)
    tall = BLOCK if len(slopes) else MANY
    for begin in range(0, k, at_once):
        some = (begin, min(begin + at_once, k))
        count = some[1] - some[0]

        item = first_item(flags, phase, members)
        while item < blocks:
            block = (item * BLOCK, min(item * BLOCK + BLOCK, n))
            if begin == 0:
                _turn(points, height, metric, full, d, block, rows_x, long)
            for i in range(*block):
                _spread(rows_x, i * long, answers, rows, d, some, i, table, i * step)
            item = next_item(flags, phase, members, item)
        wait(flags, phase, members, blocks)
        phase += 1

        items = (n + tall - 1) // tall
        item = first_item(flags, phase, members)
        while item < items:
            block = (item * tall, min(item * tall + tall, n))
            if len(slopes):
                for s in range((count * (d + 1) + w - 1) // w):
                    multiply_symmetric(slopes, starts, n, table, sums, step, block, s)
            else:
                sum_block(
                    images, points, points, images, height, profile, True, d, n,
                    images, points, 0, table, step, w, count * (d + 1), sums, step,
                    block, near, steep, near,
                )  # fmt: skip
            for i in range(*block):
                _gather(
                    rows_x, i * long, sums, i * step, weights[i], d, count, i,
                    gradients, wide,
                )  # fmt: skip
            item = next_item(flags, phase, members, item)
        wait(flags, phase, members, items)
        phase += 1

        items = (d + HEIGHT - 1) // HEIGHT if full else wide // lanes(total)
        item = first_item(flags, phase, members)
        while item < items:
            if full:
                tile = (item * HEIGHT, item * HEIGHT + HEIGHT)
                for s in range(0, wide, w):
                    multiply(
                        begin == 0, gradients, wide, gradients, s, wide, total, s,
                        wide, n * count, tile,
                    )  # fmt: skip
            else:
                column = item * lanes(total)
                _sum_squares(begin == 0, gradients, n * count, wide, column, total)
            item = next_item(flags, phase, members, item)
        wait(flags, phase, members, items)
        phase += 1

    item = first_item(flags, phase, members)
    while item < 1:
        status[2] = _replace(metric, total, d, wide if full else 0)
        item = next_item(flags, phase, members, item)
    wait(flags, phase, members, 1)


@compiled
def _turn(
    points: Any, height: int, metric: Any, full: bool, d: int, block: tuple[int, int],
    rows_x: Any, long: int,
) -> None:  # fmt: skip
    """Some points through the metric, from their columns to rows, a one behind each."""
    w = width(points)
    wide = (d + w - 1) // w * w
    if full:
        for s in range(0, wide, w):
            multiply_turned(points, height, metric, wide, rows_x, long, d, block, s)
    for i in range(*block):
        if not full:
            place = i // w * height * w + i % w
            for p in range(d):
                rows_x[i * long + p] = metric[p] * points[place + p * w]
        rows_x[i * long + d] = rows_x.dtype.type(1)


@compiled
def _spread(
    rows_x: Any, row: int, answers: Any, rows: int, d: int, some: tuple[int, int],
    i: int, table: Any, at: int,
) -> None:  # fmt: skip
    """A row of the table: the point, once for each output, times its coefficient.

    What is written behind the last number of an output is overwritten by the next, and
    zero behind the last output.
    """
    count = lanes(table)
    for c in range(*some):
        answer = answers[(c // count * rows + i) * count + c % count]
        factor, target = everywhere(answer), at + (c - some[0]) * (d + 1)
        for p in range(0, d + 1, count):
            write(table, target + p, factor * read(rows_x, row + p))


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
def _sum_squares(
    fresh: bool, table: Any, rows: int, wide: int, column: int, total: Any
) -> None:
    """Sums of squares of as many columns as a vector has numbers."""
    sums = everywhere(table.dtype.type(0)) if fresh else read(total, column)
    for i in range(rows):
        entry = read(table, i * wide + column)
        sums = fused(entry, entry, sums)
    write(total, column, sums)


@compiled
def _replace(metric: Any, table: Any, d: int, wide: int) -> Any:
    """Overwrite a metric by a multiple of a table, made symmetric and of trace d.

    Of a diagonal alone, if rows are no numbers wide. The trace of the table is
    returned, and nothing happens if that is no usable number.
    """
    trace = metric.dtype.type(0)
    for p in range(d):
        trace += table[p * wide + p]
    if not is_usable(trace):
        return trace
    scale = metric.dtype.type(d) / trace
    half = scale * metric.dtype.type(0.5)
    for i in range(d):
        if wide:
            for j in range(i + 1):
                entry = half * (table[i * wide + j] + table[j * wide + i])
                metric[i * wide + j] = metric[j * wide + i] = entry
        else:
            metric[i] = scale * table[i]
    return trace
