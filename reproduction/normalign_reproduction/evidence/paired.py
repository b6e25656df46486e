"""What changes in pairs say: bootstrap intervals and one-sided tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from normalign_reproduction._errors import require

__all__ = ["RESAMPLES", "bootstrap_interval", "student_p", "wilcoxon_p"]

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
