"""A quick look at a table before anything is computed with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Look"]

_SAMPLE = 32
# Squared distances in a table's frame that no rounding explains.
_APART = 1e-9


@dataclass(frozen=True)
class Look:
    """A quick look at how far some rows are apart, which most tables need no more than.

    Parameters
    ----------
    some : ndarray of shape (m, d)
        At most 32 rows, in their frame.
    squares : tuple of float
        Squared distances of pairs (a row and itself among them): above a twentieth, a
        quarter and three quarters of all. They are right to about 1e-15.
    """

    some: np.ndarray
    squares: tuple[float, float, float]

    @classmethod
    def at(cls, inside: np.ndarray) -> Look:
        """Look at rows evenly drawn from a table."""
        some = inside[:: max(-(-len(inside) // _SAMPLE), 1)]
        gram = some @ some.T
        norms = gram.diagonal()
        squares = (norms + norms[:, None] - 2 * gram).ravel()
        places = [squares.size // 20, squares.size // 4, 3 * squares.size // 4]
        few, quarter, most = np.partition(squares, places)[places].tolist()
        return cls(some, (few, quarter, most))

    def differs(self) -> bool:
        """Whether surely most pairs of rows are apart."""
        return self.squares[1] > _APART

    def lies_within(self, least: float, most: float) -> bool:
        """Whether surely the middle half of all distances is, in any metric of trace d.

        Of such a metric no direction has more than d. The lower end is that of the
        plain distance.
        """
        _, low, high = self.squares
        # squares of numbers up to two are right to a thousandth of the lowest here
        return max(least**2, _APART) < low and high * self.some.shape[1] < most**2
