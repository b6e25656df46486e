"""Where a network memorised, where it generalised, and what rose in between."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from scipy import stats

from normalign_reproduction.spec import Cell, Record, Records
from normalign_reproduction.statistics import column, final

__all__ = [
    "between", "correlates_with_test", "generalisation_epoch", "generalises_late",
    "memorisation_epoch", "rank_correlation", "rises_since_memorised",
]  # fmt: skip

Check = Callable[[Records], list[Cell]]

# The paper's criterion for modular addition, on the training and the test set.
LEAST = 0.99


def memorisation_epoch(record: Record) -> float | None:
    """Return the first evaluated epoch with a train accuracy above 99 %, if any."""
    return _first_above(record, "train_accuracy")


def generalisation_epoch(record: Record) -> float | None:
    """Return the first evaluated epoch with a test accuracy above 99 %, if any."""
    return _first_above(record, "test_accuracy")


def between(record: Record) -> list[int]:
    """Return the rows from memorisation to generalisation, or to the end."""
    start, end = memorisation_epoch(record), generalisation_epoch(record)
    if start is None:
        return []
    epochs = column(record, "epoch")
    last = math.inf if end is None else end
    return [i for i, epoch in enumerate(epochs) if start <= epoch <= last]


def rank_correlation(record: Record, name: str, other: str) -> float:
    """Return Spearman's correlation of two columns between the two events.

    NaN for fewer than five rows, or where a column stands still.
    """
    rows = between(record)
    x, y = ([column(record, c)[i] for i in rows] for c in (name, other))
    if len(rows) < 5 or len(set(x)) == 1 or len(set(y)) == 1:
        return math.nan
    return statistics.correlation(
        stats.rankdata(x).tolist(), stats.rankdata(y).tolist()
    )


def generalises_late(*, least_ratio: float, least_end: float) -> Check:
    """Return the rule that each seed generalises, so many times as late as it learns.

    It must pass 99 % on both sets, and end at ``least_end`` or above on the test set.
    """

    def judge(record: Record) -> Cell:
        early, late = memorisation_epoch(record), generalisation_epoch(record)
        cell, end = f"seed {record.run.seed}", final(record, "test_accuracy")
        if early is None or late is None:
            why = f"99 % was not passed on both sets; test accuracy ends at {end:.3g}"
            return Cell(cell, "generalises late", f"{end:.3g}", False, why)
        ratio = late / max(early, 1)
        why = f"epoch {late:g} against {early:g}, {ratio:.3g} times, at least "
        why += f"{least_ratio:g}; test accuracy ends at {end:.4g}, at least {least_end}"
        holds = ratio >= least_ratio and end >= least_end
        return Cell(cell, "generalises late", f"{ratio:.3g} times", holds, why)

    def check(records: Records) -> list[Cell]:
        return [judge(r) for r in sorted(records, key=lambda r: r.run.seed)]

    return check


def rises_since_memorised(name: str, *, least: float) -> Check:
    """Return the rule that a column ends higher than it was at memorisation.

    By ``least`` or more, in the mean over the seeds that memorised.
    """

    def check(records: Records) -> list[Cell]:
        pairs = [
            (column(record, name)[rows[0]], final(record, name))
            for record in records
            if (rows := between(record))
        ]
        if 2 * len(pairs) <= len(records):
            why = f"{len(pairs)} of {len(records)} seeds memorised"
            return [Cell("all seeds", "rises", "-", None, why)]
        start, end = (statistics.fmean(values) for values in zip(*pairs, strict=True))
        why = f"a rise of {end - start:.3g} since memorisation, at least {least:g}; "
        why += f"{len(pairs)} of {len(records)} seeds"
        ours = f"{start:.3g} to {end:.3g}"
        return [Cell("all seeds", "rises", ours, end - start >= least, why)]

    return check


def correlates_with_test(name: str, *, least: float) -> Check:
    """Return the rule that a column and the test accuracy rise together.

    Spearman's correlation between memorisation and generalisation is ``least`` or more
    in the mean over seeds.
    """

    def check(records: Records) -> list[Cell]:
        found = [rank_correlation(record, name, "test_accuracy") for record in records]
        found = [value for value in found if math.isfinite(value)]
        if 2 * len(found) <= len(records):
            why = f"{len(found)} of {len(records)} seeds have five rows or more"
            return [Cell("all seeds", "correlates", "-", None, why)]
        middle = statistics.fmean(found)
        why = f"mean correlation {middle:.2g}, at least {least:g}; by seed: "
        why += ", ".join(f"{value:.2g}" for value in found)
        ours = f"{middle:.2g}"
        return [Cell("all seeds", "correlates", ours, middle >= least, why)]

    return check


def _first_above(record: Record, name: str) -> float | None:
    rows = zip(column(record, "epoch"), column(record, name), strict=True)
    return next((epoch for epoch, value in rows if value > LEAST), None)
