"""Curves and final values of several seeds, as a mean within a band."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from normalign_reproduction._errors import require
from normalign_reproduction.spec import Record, Records
from normalign_reproduction.summaries import column, final

__all__ = ["Curve", "Spread", "bands", "mean_curve", "settled", "spread"]

# Fewer seeds than this have no standard deviation worth drawing.
_FEW = 5


@dataclass(frozen=True)
class Spread:
    """The mean of some seeds, and how far they reach.

    ``low`` and ``high`` are the least and the greatest of fewer than five numbers, else
    one standard deviation to each side.
    """

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Curve:
    """A mean with its band along an axis, over at most ``n`` seeds."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    n: int


def spread(values: Sequence[float], scale: float = 1.0) -> Spread | None:
    """Return mean and reach of those numbers that are finite; ``None`` of none.

    Examples
    --------
    >>> spread([1.0, 3.0, float("nan")])
    Spread(mean=2.0, low=1.0, high=3.0, n=2)
    """
    finite = [scale * value for value in values if math.isfinite(value)]
    if not finite:
        return None
    middle, low, high = statistics.fmean(finite), min(finite), max(finite)
    if len(finite) >= _FEW:
        reach = statistics.stdev(finite)
        low, high = middle - reach, middle + reach
    return Spread(middle, low, high, len(finite))


def bands(points: Sequence[tuple[float, Spread]]) -> Curve:
    """Return spreads along an axis as a curve."""
    return Curve(
        [x for x, _ in points],
        [s.mean for _, s in points],
        [s.low for _, s in points],
        [s.high for _, s in points],
        max((s.n for _, s in points), default=0),
    )


def mean_curve(
    records: Records, x: str, y: str, *, log: bool = False, scale: float = 1.0
) -> Curve:
    """Return the mean curve of some seeds of the same variant.

    Seeds that were not evaluated at the same places are read between theirs, on a
    straight line of the axis; none is drawn beyond its own ends. With ``log``, what is
    not positive along the axis is left out.
    """
    curves = [_finite(column(r, x), column(r, y), log) for r in records]
    places = sorted({at for curve in curves for at, _ in curve})
    points = []
    for at in places:
        here = spread([_read(curve, at, log) for curve in curves], scale)
        if here is not None:
            points.append((at, here))
    return bands(points)


def settled(record: Record, name: str) -> float:
    """Return a number of a result, or the last finite one of a column; else NaN.

    Raises
    ------
    ValueError
        If the result has neither.
    """
    if name in record.result:
        value = record.result[name]
        return math.nan if value is None else float(value)
    rule = f"one of {', '.join(record.result)} or a column of the history"
    require("history" in record.result, "settled", "name", rule, repr(name))
    return final(record, name)


def _finite(
    x: Sequence[float], y: Sequence[float], log: bool
) -> list[tuple[float, float]]:
    pairs = zip(x, y, strict=True)
    return [
        (at, value)
        for at, value in pairs
        if math.isfinite(value) and (at > 0 or not log)
    ]


def _read(curve: Sequence[tuple[float, float]], at: float, log: bool) -> float:
    """Return a curve's value at a place, between its neighbours; NaN outside."""
    if not curve or not curve[0][0] <= at <= curve[-1][0]:
        return math.nan
    place = math.log if log else float
    for (left, low), (right, high) in zip(curve, [*curve[1:], curve[-1]], strict=True):
        if at == left:
            return low
        if left < at < right:
            share = (place(at) - place(left)) / (place(right) - place(left))
            return low + share * (high - low)
    return math.nan
