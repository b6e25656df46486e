"""Tables in strips, the plain way."""

import itertools

import numpy as np

from normalign.kernels.compiled.tile import columns


def in_strips(table, rows=None):
    """A table in strips of its dtype; ``rows`` of them, with NaN behind its own."""
    width = columns(table.dtype.itemsize)
    height = len(table) if rows is None else rows
    count = -(-table.shape[1] // width)
    padded = np.full((height, count * width), np.nan, table.dtype)
    padded[: len(table), : table.shape[1]] = table
    padded[: len(table), table.shape[1] :] = 0
    strips = [padded[:, s * width : (s + 1) * width].ravel() for s in range(count)]
    return np.concatenate(strips)


def from_strips(flat, rows, shape):
    """The other way round."""
    width = columns(flat.dtype.itemsize)
    strips = flat.reshape(-1, rows, width)
    return np.concatenate(list(strips), axis=1)[: shape[0], : shape[1]]


def in_triangle(table, layout):
    """A table in strips that end below the diagonal, with NaN behind its rows."""
    width, starts = layout.width, layout.starts
    flat = np.full(starts[-1], np.nan, table.dtype)
    for s, (start, end) in enumerate(itertools.pairwise(starts)):
        strip = flat[start:end].reshape(-1, width)
        part = table[: len(strip), s * width : (s + 1) * width]
        strip[: len(part)] = 0
        strip[: len(part), : part.shape[1]] = part
    return flat


def from_triangle(flat, layout, shape):
    """The other way round; NaN where nothing is held."""
    width, starts = layout.width, layout.starts
    table = np.full((layout.rows, layout.span), np.nan, flat.dtype)
    for s, (start, end) in enumerate(itertools.pairwise(starts)):
        strip = flat[start:end].reshape(-1, width)
        table[: len(strip), s * width : (s + 1) * width] = strip
    return table[: shape[0], : shape[1]]
