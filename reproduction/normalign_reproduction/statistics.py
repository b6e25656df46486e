"""From records to numbers: groups, means, intervals, and paired and rank tests."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from normalign_reproduction._errors import require
from normalign_reproduction.spec import Record, Records

__all__ = [
    "NONE", "RESAMPLES", "bootstrap_interval", "column", "critical_difference",
    "drop_none", "final", "group_by", "holm", "interval", "mean", "signed_rank_p",
    "student_p", "wilcoxon_p",
]  # fmt: skip


def group_by(records: Records, *names: str) -> dict[tuple[Any, ...], list[Record]]:
    """Return the records by the values of some settings, each group by seed.

    The groups come in the order in which their values are first met.

    Examples
    --------
    >>> group_by([], "method")
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


def drop_none(values: Iterable[float | None]) -> list[float]:
    """Return the numbers that are not None.

    Examples
    --------
    >>> drop_none([1.0, None])
    [1.0]
    """
    return [value for value in values if value is not None]


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


RESAMPLES = 10_000
_STATISTICS: dict[str, Callable[..., Any]] = {"mean": np.mean, "median": np.median}
_DIRECTIONS = ("greater", "less")
_EXACT = 50  # changes, up to which all signs are counted


def bootstrap_interval(
    values: Sequence[float],
    *,
    statistic: str = "mean",
    n_resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float, float] | None:
    r"""Return the percentile bootstrap's 95 % interval of a mean or a median.

    .. math:: [q_{0.025}, q_{0.975}] \text{ of } T(v^{*}_1), \dots, T(v^{*}_B)

    with each :math:`v^{*}_b` drawn from the values with replacement. Equal numbers of
    values are resampled alike, so that samples in pairs stay in pairs. ``None`` of
    fewer than two values.

    Parameters
    ----------
    statistic : {"mean", "median"}
    n_resamples, seed : int

    Raises
    ------
    ValueError
        If the statistic is another.

    Examples
    --------
    >>> bootstrap_interval([2.0, 2.0, 2.0])
    (2.0, 2.0)
    """
    known = statistic in _STATISTICS
    require(known, "bootstrap_interval", "statistic", "'mean' or 'median'",
            repr(statistic))  # fmt: skip
    if len(values) < 2:
        return None
    return _interval(tuple(map(float, values)), statistic, n_resamples, seed)


def student_p(changes: Sequence[float], *, direction: str) -> float | None:
    r"""Return the p-value of a one-sided t-test that the mean change is none.

    .. math:: t = \bar\delta \big/ \sqrt{s_\delta^2 / n}, \qquad n - 1
        \text{ degrees of freedom}

    Of the differences of pairs, this is Student's paired test. ``None`` of fewer than
    two changes, and of changes that do not vary.

    Parameters
    ----------
    direction : {"greater", "less"}
        What the mean is if it is not zero.

    Examples
    --------
    >>> round(student_p([1.0, 3.0], direction="greater"), 3)  # t = 2
    0.148
    """
    _require_direction("student_p", direction)
    if len(set(changes)) < 2:
        return None
    found: Any = stats.ttest_1samp(changes, 0.0, alternative=direction)
    return float(found.pvalue)


def wilcoxon_p(changes: Sequence[float], *, direction: str) -> float | None:
    """Return the p-value of Wilcoxon's one-sided signed-rank test.

    Changes of zero are left out, as Wilcoxon did. Exact for up to 50 changes of
    different size, else by the normal approximation. ``None`` where nothing changes.

    Parameters
    ----------
    direction : {"greater", "less"}

    Examples
    --------
    >>> wilcoxon_p([1.0, 2.0, 3.0], direction="greater")  # one of eight signs
    0.125
    """
    _require_direction("wilcoxon_p", direction)
    moved = [change for change in changes if change != 0]
    if not moved:
        return None
    untied = len({abs(change) for change in moved}) == len(moved)
    method = "exact" if untied and len(moved) <= _EXACT else "approx"
    found: Any = stats.wilcoxon(moved, alternative=direction, method=method)
    return float(found.pvalue)


def _require_direction(callee: str, direction: str) -> None:
    rule = " or ".join(map(repr, _DIRECTIONS))
    require(direction in _DIRECTIONS, callee, "direction", rule, repr(direction))


@lru_cache(maxsize=4)
def _draws(n: int, n_resamples: int, seed: int) -> NDArray[np.intp]:
    return np.random.default_rng(seed).integers(0, n, (n_resamples, n), dtype=np.intp)


# A table is written several times over: on a page, as CSV, Markdown and LaTeX.
@lru_cache(maxsize=2048)
def _interval(
    values: tuple[float, ...], statistic: str, n_resamples: int, seed: int
) -> tuple[float, float]:
    drawn = np.asarray(values)[_draws(len(values), n_resamples, seed)]
    found = _STATISTICS[statistic](drawn, axis=1)
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


# Results are kept with six digits; differences below are none.
NONE = 1e-5
_LEVEL = 0.05


def signed_rank_p(differences: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Wilcoxon's signed-rank test.

    Ranks of differences that are zero are divided between the signs. ``None`` of fewer
    than two differences; 1 if all are zero.

    Examples
    --------
    >>> signed_rank_p([1.0, 2.0, 3.0]), signed_rank_p([0.0, 0.0])  # 2 / 2^3
    (0.25, 1.0)
    """
    if len(differences) < 2:
        return None
    near = [0.0 if abs(value) < NONE else value for value in differences]
    if not any(near):
        return 1.0
    found: Any = stats.wilcoxon(near, zero_method="zsplit")
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    r"""Return p-values corrected for their number by Holm's step-down rule.

    .. math:: \tilde p_{(i)} = \max_{j \le i} \min\{1, (m - j + 1)\, p_{(j)}\}

    Examples
    --------
    >>> holm([0.04, 0.01])
    [0.04, 0.02]
    """
    corrected = [0.0] * len(p_values)
    reached = 0.0
    for done, place in enumerate(np.argsort(p_values, kind="stable")):
        reached = max(reached, min(1.0, (len(p_values) - done) * p_values[place]))
        corrected[place] = reached
    return corrected


def critical_difference(n_methods: int, n_tables: int) -> float:
    r"""Return by how much mean ranks must differ to be told apart (Nemenyi, 5 %).

    .. math:: q_{0.95}(k, \infty) \sqrt{k (k + 1) / (12 N)}

    with the quantile of the studentised range of :math:`k` methods on :math:`N` tables.

    Examples
    --------
    >>> round(critical_difference(2, 4), 2)  # 1.96 / sqrt(4)
    0.98
    """
    # Degrees of freedom beyond a million make no difference, and infinity is slow.
    quantile = float(stats.studentized_range.ppf(1 - _LEVEL, n_methods, 1e7))
    return quantile * (n_methods * (n_methods + 1) / (12 * n_tables)) ** 0.5
