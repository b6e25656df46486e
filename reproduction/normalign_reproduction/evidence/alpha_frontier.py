"""On which tables an identity weight below one makes robustness free."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from normalign_reproduction.evidence.alpha_path import (
    PLAIN,
    common_scores,
    defined_tables,
    leak_free,
    table_means,
)
from normalign_reproduction.evidence.tabular import defined
from normalign_reproduction.spec import Record, Records, Row

__all__ = ["frontier_rows"]

_JUDGED = ("as_accurate", "free", "clear", "dearer")
_HAIR = 1e-9  # of rounding in a mean of folds


def frontier_rows(records: Records) -> list[Row]:
    r"""Return on how many tables a weight below one makes robustness free.

    A weight is *as accurate* on a table if :math:`\bar\delta \ge -s/\sqrt m` for its
    differences to weight 1 in the ``m`` folds of all seeds; *free* if it also has a
    lower attack success rate at radius 1, *clearly* so by more than one such standard
    error of that rate. *Dearer* is *free* with the two weights exchanged: weight 1 is
    as accurate as this one and has the lower rate, which chance alone would give as
    often as *free*. Folds overlap, so the errors are on the small side.

    The last row counts tables where any weight does; best of several, it is larger by
    chance, and so is its *dearer*.
    """
    judged = _judged(records)
    rows: list[Row] = [
        {"weight": f"{weight:g}", **_counts([[one] for one in by_table.values()])}
        for weight, by_table in judged.items()
    ]
    if judged:
        tables = next(iter(judged.values()))
        every = [[by[table] for by in judged.values()] for table in tables]
        rows.append({"weight": "any below 1", **_counts(every)})
    return rows


def _judged(records: Records) -> dict[float, dict[str, dict[str, bool]]]:
    """Return for each weight below 1 and table what it is: as accurate, free, ..."""
    common, found = common_scores(records), table_means(records)
    if PLAIN not in found:
        return {}
    runs = {
        (r["identity_weight"], r["dataset"], r.run.seed): r for r in leak_free(records)
    }
    judged: dict[float, dict[str, dict[str, bool]]] = {}
    for weight in (weight for weight in found if weight != PLAIN):
        judged[weight] = {}
        for table in defined_tables(found, "asr_1"):
            twins = [
                (runs[weight, table, seed], runs[PLAIN, table, seed])
                for seed in common[weight][table]
            ]
            new, old = defined(
                [found[weight][table]["asr_1"], found[PLAIN][table]["asr_1"]]
            )
            judged[weight][table] = _judgement(twins, new - old)
    return judged


def _judgement(twins: Sequence[tuple[Record, Record]], moved: float) -> dict[str, bool]:
    """Compare a weight with weight 1 on a table, within their standard errors.

    Parameters
    ----------
    moved : float
        By how much the attack success rate differs.
    """
    accuracy, rate = [], []
    for one, other in twins:
        radius = list(one["radii"]).index(1.0)
        folds = zip(one.result["folds"], other.result["folds"], strict=True)
        for mine, theirs in folds:
            accuracy.append(100 * (mine["accuracy"] - theirs["accuracy"]))
            # A fold without a right row has no rate.
            rates = defined([_rate(mine, radius), _rate(theirs, radius)])
            rate += [rates[0] - rates[1]] if len(rates) == 2 else []
    change, error = statistics.fmean(accuracy), _standard_error(accuracy) + _HAIR
    as_accurate = change >= -error
    return {
        "as_accurate": as_accurate,
        "free": as_accurate and moved < 0,
        "clear": as_accurate and moved < -_standard_error(rate),
        "dearer": change <= error and moved > 0,
    }


def _rate(fold: Mapping[str, Any], radius: int) -> float | None:
    clean = fold["accuracy"]
    return 100 * (clean - fold["attacked"][radius]) / clean if clean else None


def _standard_error(values: Sequence[float]) -> float:
    n = len(values)
    return statistics.stdev(values) / math.sqrt(n) if n > 1 else 0.0


def _counts(tables: Sequence[Sequence[Mapping[str, bool]]]) -> Row:
    """Count the tables where any of some weights is so."""
    counted = {n: sum(any(one[n] for one in some) for some in tables) for n in _JUDGED}
    return {"n_tables": len(tables), **counted}
