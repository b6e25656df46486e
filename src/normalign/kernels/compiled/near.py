r"""Squared distances of near points, computed again from differences.

.. math:: u_{ij} = (x_i - x_j)^\top (M x_i - M x_j) / \ell^2

What :func:`~normalign.kernels.sides.mend_near_` does to tiles of tensors. Those of
points that only rounding tells from each other become negative, so that they have no
slope; their kernel values are those of the distance.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload

from normalign.kernels.compiled.compiling import compiled
from normalign.kernels.compiled.tile import lanes, width
from normalign.kernels.compiled.vectors import everywhere, fused, least, read, write
from normalign.kernels.sides import NEAR, SAME

__all__ = ["mend_near"]


def _shares(table: Any) -> Any:
    """Of the squares of two points: `NEAR`, and `SAME`."""
    return _as_numbers(getattr(torch, str(table.dtype)), table.dtype.type)


@overload(_shares)
def _shares_of(table: Any) -> Any:
    kind = types.float32 if table.dtype == types.float32 else types.float64
    near, same = _as_numbers(getattr(torch, str(table.dtype)), float)

    def implementation(table: Any) -> Any:
        return kind(near), kind(same)

    return implementation


def _as_numbers(dtype: torch.dtype, kind: Any) -> tuple[Any, Any]:
    return kind(NEAR[dtype]), kind(SAME[dtype])


@compiled
def mend_near(
    a: Any, b: Any, other_a: Any, other_b: Any, height: int, d: int, c: Any, at_c: int,
    rows: tuple[int, int], strip: int,
) -> None:  # fmt: skip
    """Mend some rows of a strip of squared distances, as ``multiply_strip`` left them.

    Parameters
    ----------
    a, b : strips of ``height`` rows, d + 2 of which were multiplied
        The one has points and the other their images, times -2; then squares and ones.
    other_a, other_b : strips
        Images, times -2, of what ``a`` has as points, or points; likewise for ``b``.
    c : array
        Row 0 of the strip is, or would be, at ``at_c``.
    """
    w, (share, same) = width(c), _shares(c)
    at_b = strip * height * w
    low, high = at_b + d * w, at_b + (d + 1) * w
    if not _any_near(a, b, height, d, c, at_c, rows, low, high, share):
        return
    for i in range(*rows):
        at_a, place = i // w * height * w + i % w, at_c + i * w
        first, second = a[at_a + d * w], a[at_a + (d + 1) * w]
        for q in range(w):
            size = first * b[low + q] + second * b[high + q]
            if c[place + q] <= share * size:
                found = _from_differences(a, b, other_a, other_b, at_a, at_b + q, d, w)
                if not found > same * size:
                    found = found - found if found < 0 else -found
                c[place + q] = found


@compiled
def _any_near(
    a: Any, b: Any, height: int, d: int, c: Any, at_c: int, rows: tuple[int, int],
    low: int, high: int, share: Any,
) -> bool:  # fmt: skip
    """Whether there is something to mend, which is rare: a pass over vectors."""
    w, count = width(c), lanes(c)
    lowest = np.empty(count, c.dtype)
    minus = everywhere(-share)
    for q in range(0, w, count):
        ones, squares = minus * read(b, low + q), minus * read(b, high + q)
        margin = everywhere(c.dtype.type(1))
        for i in range(*rows):
            at_a = i // w * height * w + i % w
            first, second = (
                everywhere(a[at_a + d * w]),
                everywhere(a[at_a + (d + 1) * w]),
            )
            here = fused(second, squares, read(c, at_c + i * w + q))
            margin = least(margin, fused(first, ones, here))
        write(lowest, 0, margin)
        for p in range(count):
            if not lowest[p] > 0:
                return True
    return False


@compiled
def _from_differences(
    a: Any, b: Any, other_a: Any, other_b: Any, at_a: int, at_b: int, d: int, w: int
) -> Any:
    total = a.dtype.type(0)
    for p in range(0, d * w, w):
        one = a[at_a + p] - other_b[at_b + p]
        total += one * (b[at_b + p] - other_a[at_a + p])
    return a.dtype.type(0.5) * total
