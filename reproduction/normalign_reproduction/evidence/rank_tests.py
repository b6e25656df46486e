"""Tests of methods on many tables, by ranks: Wilcoxon, Holm, Nemenyi (Demšar, 2006)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

__all__ = ["NONE", "critical_difference", "holm", "signed_rank_p", "signed_ranks"]

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


def signed_ranks(differences: Sequence[float]) -> float:
    r"""Return to which side Wilcoxon's test leans, :math:`W^+ - W^-`.

    Examples
    --------
    >>> signed_ranks([-1.0, 2.0, 3.0])
    4.0
    """
    near = [0.0 if abs(value) < NONE else value for value in differences]
    return float(np.sign(near) @ stats.rankdata(np.abs(near)))


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
