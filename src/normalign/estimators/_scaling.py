"""Where a table's numbers are put before a kernel sees them, and how precisely.

A kernel sees differences, in units of its bandwidth. So a table may be shifted and
divided by a power of two, and the bandwidth with it, without changing the machine; it
then neither overflows nor loses the digits in which its rows differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import pdist

from normalign._errors import describe

DTYPES = {"float32": torch.float32, "float64": torch.float64}

# Rows up to which double precision costs nothing that anybody would notice.
PRECISE_ROWS = 1000
# What torch may say to something that is no device, or to one that is not here.
_NO_DEVICE = (AssertionError, OverflowError, RuntimeError, TypeError, ValueError)
# Rows from which an accelerator pays for its launches and transfers.
_DEVICE_ROWS = 2000
# Spreads of a table, in bandwidths, whose squares a precision can hold.
_SPREADS = {torch.float32: 1e12, torch.float64: 1e120}
# Shares of a small distance that may be rounding: more, and "auto" takes float64.
_HARMLESS = 5e-5
# Sizes of targets beside the largest whose squares a precision can hold.
_TARGET_SHARES = {torch.float32: 1e-12, torch.float64: 1e-140}
# Rows by whose distances a table is judged, and which of them are small.
_SAMPLE, _SMALL = 256, 0.1
# Spreads of a table whose inverse and whose multiples are numbers.
_SIZES = (1e-200, 1e300)
# Beyond that many spreads of the training rows, and bandwidths, every kernel is zero.
_FAR = {torch.float32: 1e15, torch.float64: 1e150}


def clip_limit(dtype: torch.dtype, bandwidth: float) -> float:
    """Scaled coordinate beyond which a kernel of that scaled bandwidth is zero.

    Examples
    --------
    >>> clip_limit(torch.float32, 5.0), clip_limit(torch.float32, 0.5)
    (1000000000000000.0, 500000000000000.0)
    """
    return _FAR[dtype] * min(bandwidth, 1.0)


def power_of_two(size: float) -> float:
    """The smallest power of two that is at least as large; one for zero.

    Examples
    --------
    >>> power_of_two(5.0), power_of_two(0.25), power_of_two(0.0)
    (8.0, 0.25, 1.0)
    """
    if size == 0:
        return 1.0
    mantissa, exponent = math.frexp(size)
    exponent = exponent - 1 if mantissa == 0.5 else exponent
    return math.ldexp(1.0, max(min(exponent, 1023), -1022))


@dataclass(frozen=True)
class Scaling:
    r"""A table's middle and spread: :math:`x \mapsto (x - m) / u`.

    The median of each column, which no outlier moves, and one power of two for all, so
    that repeated or reordered rows have the very same scaling and the division rounds
    nothing.

    Parameters
    ----------
    location : ndarray of shape (d,)
    unit : float

    Examples
    --------
    >>> scaling = Scaling.of(np.array([[1.0, 0.0], [3.0, 8.0]]))
    >>> scaling.location, scaling.unit
    (array([1., 0.]), 8.0)
    """

    location: np.ndarray
    unit: float

    @classmethod
    def of(cls, table: np.ndarray, weights: np.ndarray | None = None) -> Scaling:
        """The scaling that puts a table into ``[-1, 1]``.

        Its origin is the lower median of each column; weights act as repetitions.
        """
        low, middle, high = (
            part.astype(np.float64) for part in _ends_and_medians(table, weights)
        )
        # halves, because the range of finite numbers may be infinite
        half = np.maximum(high / 2 - middle / 2, middle / 2 - low / 2).max()
        # infinite, and refused later, if twice the half is
        return cls(middle, 2 * power_of_two(float(half)) if half else 1.0)

    def require_size(self, callee: str) -> None:
        """Raise if bandwidths and derivatives would be no numbers in these units."""
        if not (_SIZES[0] < self.unit < _SIZES[1]):
            raise ValueError(
                f"{callee}: X must be spread over {_SIZES[0]:g} to {_SIZES[1]:g}, "
                f"got {self.unit:.1g}. Scale the columns (StandardScaler)."
            )

    def apply(
        self, table: np.ndarray, dtype: torch.dtype, *, bandwidth: float = 1.0
    ) -> np.ndarray:
        """The scaled table, with rows too far to matter clipped.

        Squares of distances are then finite, in units of the scaled bandwidth, too.
        """
        # to infinity, which is far; beside it nothing is a number, and refused
        with np.errstate(over="ignore", invalid="ignore"):
            inside = np.subtract(table, self.location, dtype=np.float64)
            inside /= self.unit
        far = clip_limit(dtype, bandwidth)
        np.minimum(inside, far, out=inside)
        np.maximum(inside, -far, out=inside)
        return inside.astype(str(dtype).removeprefix("torch."), copy=False)

    def identity_weight(self, identity_weight: float) -> float:
        r"""The weight of the identity against the covariance of the scaled table.

        .. math:: (1 - a) u^2 \mathrm{Cov}' + a I \;\propto\; (1 - a') \mathrm{Cov}'
                  + a' I
        """
        if identity_weight in (0.0, 1.0):
            return float(identity_weight)
        odds = self.unit * self.unit * (1 - identity_weight) / identity_weight
        return 1 / (1 + odds)


def _ends_and_medians(
    table: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The least, the middle and the largest number of each column."""
    if weights is None:
        places = [0, (len(table) - 1) // 2, len(table) - 1]
        low, middle, high = np.partition(table, places, axis=0)[places]
        return low, middle, high
    return table.min(axis=0), _medians(table, weights), table.max(axis=0)


def _medians(table: np.ndarray, weights: np.ndarray) -> np.ndarray:
    order = np.argsort(table, axis=0, kind="stable")
    mass = np.cumsum(weights[order], axis=0)
    half = (mass < mass[-1] / 2).sum(axis=0)
    return np.take_along_axis(table, order, axis=0)[half, np.arange(table.shape[1])]


def rounding_share(inside: np.ndarray, dtype: torch.dtype) -> float:
    r"""How much of a small distance between rows is rounding, at worst.

    .. math:: \epsilon \, (4 + \sqrt d) \max_i |x_i| \big/ q_{0.1}(|x_i - x_j|)

    Clusters that are far apart, or one outlier, take the digits of the coordinates by
    which neighbours differ. The tenth of the distances that is smallest is looked for
    among at most 256 rows, evenly drawn from the table. Zero if they are all the same,
    infinite if most of their squares vanish even in float64.

    Parameters
    ----------
    inside : ndarray of shape (n, d)
        A scaled table, in float64.
    dtype : torch.dtype
        In which distances would be computed.

    Examples
    --------
    Two rows at distance one: five roundings of one.

    >>> two = np.array([[0.0], [1.0]])
    >>> rounding_share(two, torch.float32) / 2.0**-23
    5.0
    """
    largest = float(np.einsum("ij,ij->i", inside, inside).max())
    some = _sample(inside)
    apart = pdist(some, "sqeuclidean")
    if not apart.all():  # the same rows, or squares that underflow to zero
        apart = apart[pdist(some, "chebyshev") > 0]
    if not len(apart):
        return 0.0
    if not np.median(apart):  # squares of numbers too small beside the largest
        return math.inf
    ratio = largest / max(float(np.quantile(apart, _SMALL)), 1e-250)
    return rounding_noise(dtype, inside.shape[1]) * math.sqrt(ratio)


def rounding_noise(dtype: torch.dtype, d: int) -> float:
    """Rounding in a sum of ``d`` products, as a share of the largest it may be."""
    return torch.finfo(dtype).eps * (4 + math.sqrt(d))


def _sample(inside: np.ndarray) -> np.ndarray:
    """At most 256 rows, evenly drawn from the table."""
    if len(inside) <= _SAMPLE:
        return inside
    return inside[np.linspace(0, len(inside) - 1, _SAMPLE).astype(int)]


def select_dtype(
    callee: str,
    name: str,
    n: int,
    *,
    spread: float,
    noise: float = 0.0,
    target_share: float = 1.0,
) -> torch.dtype:
    """The working precision for n rows whose spread is so many bandwidths.

    Parameters
    ----------
    noise : float
        :func:`rounding_share` in float32: where it does harm, "auto" is float64.
    target_share : float
        Size of the smallest target, as a share of the largest.
    """
    if not noise < math.inf:
        raise ValueError(
            f"{callee}: X must be on a scale near the bandwidth, without rows "
            "beside which all others are one, got rows that far away. Drop "
            "outliers, or scale the columns (RobustScaler, QuantileTransformer)."
        )
    enough = [dtype for dtype, limit in _SPREADS.items() if 1 / limit < spread < limit]
    wanted = DTYPES.get(name)
    if wanted is None and enough:
        coarse = _TARGET_SHARES[torch.float32] <= target_share and noise <= _HARMLESS
        precise = n <= PRECISE_ROWS or torch.float32 not in enough or not coarse
        wanted = torch.float64 if precise else torch.float32
    if wanted is None or wanted not in enough:
        raise ValueError(
            f"{callee}: X must be on a scale near the bandwidth, got columns that "
            f"spread over {spread:.1g} bandwidths. Scale the columns "
            "(StandardScaler), or set bandwidth to their spread."
        )
    if not target_share >= _TARGET_SHARES[wanted]:
        raise ValueError(
            f"{callee}: y must be columns within {1 / _TARGET_SHARES[wanted]:.0e} "
            f"of each other in size for {str(wanted).removeprefix('torch.')}, got "
            f"one of {target_share:.0e} of another. Scale the targets, or fit each "
            'alone; dtype="float64" holds more.'
        )
    return wanted


def select_device(callee: str, name: Any, n: int, *, given: Any = None) -> torch.device:
    """The device for n rows: as named, where the table is, or where it pays.

    Parameters
    ----------
    name : str or torch.device
        "auto", or a device of torch.
    given : torch.device, optional
        Where the caller's tensor is.
    """
    if isinstance(name, str) and name == "auto":
        if isinstance(given, torch.device) and given.type == "cuda":
            return given
        pays = n >= _DEVICE_ROWS and torch.cuda.is_available()
        return torch.device("cuda" if pays else "cpu")
    if isinstance(name, str) and name == "cpu":  # which is always here
        return torch.device("cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except _NO_DEVICE as error:
        rule = '"auto" or a device of torch that is here'
        raise ValueError(
            f"{callee}: device must be {rule}, got {describe(name)}."
        ) from error
    if device.type == "meta":
        raise ValueError(
            f"{callee}: device must be a device that computes, got {name!r}."
        )
    return device


_LOOK_ROWS = 32
# Squared distances in a scaled table that cannot be rounding.
_APART = 1e-9


@dataclass(frozen=True)
class DistanceSample:
    """Distances between a few rows, which settle the questions for most tables.

    Parameters
    ----------
    rows : ndarray of shape (m, d)
        At most 32 scaled rows.
    squares : tuple of float
        Squared distances of pairs (a row and itself among them): above a twentieth, a
        quarter and three quarters of all. They are right to about 1e-15.
    """

    rows: np.ndarray
    squares: tuple[float, float, float]

    @classmethod
    def of(cls, inside: np.ndarray) -> DistanceSample:
        """Sample rows evenly from a scaled table."""
        some = inside[:: max(-(-len(inside) // _LOOK_ROWS), 1)]
        gram = some @ some.T
        norms = gram.diagonal()
        squares = (norms + norms[:, None] - 2 * gram).ravel()
        places = [squares.size // 20, squares.size // 4, 3 * squares.size // 4]
        few, quarter, most = np.partition(squares, places)[places].tolist()
        return cls(some, (few, quarter, most))

    def are_distinct(self) -> bool:
        """Whether surely most pairs of rows are apart."""
        return self.squares[1] > _APART

    def are_within(self, least: float, most: float) -> bool:
        """Whether surely the middle half of all distances is, in any metric of trace d.

        Of such a metric no direction has more than d. The lower end is that of the
        plain distance.
        """
        _, low, high = self.squares
        # squares of numbers up to two are right to a thousandth of the lowest here
        return max(least**2, _APART) < low and high * self.rows.shape[1] < most**2
