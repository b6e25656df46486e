"""From records to numbers: groups, means over seeds, intervals, curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from scipy import stats

from normalign_reproduction._errors import require
from normalign_reproduction.spec import Record, Records

__all__ = ["column", "final", "grouped", "interval", "mean"]


def grouped(records: Records, *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """Return the records by the values of some settings, each group by seed.

    The groups come in the order in which their values are first met.

    Examples
    --------
    >>> grouped([], "method")
    {}
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in names), []).append(record)
    return {
        values: sorted(group, key=lambda record: record.run.seed)
        for values, group in groups.items()
    }


def column(record: Record, name: str) -> list[float]:
    """Return a column of the history of a run; what is not finite as NaN or infinity.

    Raises
    ------
    ValueError
        If there is no such column.
    """
    columns = record.result["history"]["columns"]
    rule = f"one of {', '.join(columns)}"
    require(name in columns, "column", "name", rule, repr(name))
    return [float(value) for value in columns[name]]


def final(record: Record, name: str, *, over: int = 1) -> float:
    """Return the mean of the last finite values of a column; NaN if there is none.

    NaN also of a run that diverged: its last finite value is no end.

    Parameters
    ----------
    over : int
        Of how many values. Training ends between two spikes or on one; a mean of
        several evaluations says more.
    """
    if record.result.get("stopped") == "diverged":
        return math.nan
    values = [value for value in column(record, name) if math.isfinite(value)]
    return statistics.fmean(values[-over:]) if values else math.nan


def mean(values: Sequence[float]) -> float | None:
    """Return the mean of some numbers, or ``None`` of none.

    Examples
    --------
    >>> mean([1.0, 3.0]), mean([])
    (2.0, None)
    """
    return statistics.fmean(values) if values else None


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    r"""Return Student's 95 % interval of a mean, or ``None`` of fewer than two numbers.

    .. math:: \bar v \pm t_{0.975, n-1}\, s / \sqrt n

    Examples
    --------
    >>> low, high = interval([0.0, 2.0])
    >>> round(low, 1), round(high, 1)
    (-11.7, 13.7)
    """
    if len(values) < 2:
        return None
    middle, spread = statistics.fmean(values), statistics.stdev(values)
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * spread / len(values) ** 0.5
    return middle - reach, middle + reach
