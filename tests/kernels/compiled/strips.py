"""Tables in strips, the plain way."""

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
