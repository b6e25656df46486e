"""The rules of claims about curves: where they begin, where they end, what that says.

Each function returns a ``check`` for :class:`~normalign_reproduction.spec.Claim`: from
records to a verdict for each value of a setting. A cell without records has no verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from normalign_reproduction.spec import Record, Records, Verdict
from normalign_reproduction.summaries import column, final, grouped

__all__ = ["ends_at_least", "falls_towards", "first", "rises", "start_and_end"]

Check = Callable[[Records], list[Verdict]]


def first(record: Record, name: str) -> float:
    """Return the first finite value of a column; NaN if there is none."""
    return next((v for v in column(record, name) if math.isfinite(v)), math.nan)


def start_and_end(records: Records, name: str) -> tuple[float, float]:
    """Return the means over seeds of a column's first and last finite values."""
    return (
        statistics.fmean(first(record, name) for record in records),
        statistics.fmean(final(record, name) for record in records),
    )


def rises(
    name: str, *, by: str, cell: str, least_rise: float, least_end: float
) -> Check:
    """Return the rule that a column rises by so much, to so much, mean over seeds."""

    def judge(group: Sequence[Record]) -> tuple[bool, str, str]:
        start, end = start_and_end(group, name)
        holds = end - start >= least_rise and end >= least_end
        why = f"a rise of {end - start:.3g}, at least {least_rise:g}; "
        why += f"an end of {end:.3g}, at least {least_end:g}"
        return holds, f"{start:.3g} to {end:.3g}", why

    return _each(by, cell, "rises", judge)


def falls_towards(
    name: str, *, by: str, cell: str, limit: float, most_left: float, most_end: float
) -> Check:
    """Return the rule that a column comes closer to a limit, from above.

    The distance to the limit must shrink to at most the share ``most_left`` of what it
    was, and the column end at ``most_end`` or below, mean over seeds.
    """

    def judge(group: Sequence[Record]) -> tuple[bool, str, str]:
        start, end = start_and_end(group, name)
        left = (end - limit) / (start - limit) if start > limit else math.inf
        why = f"{left:.2g} of its distance to {limit:g} left, at most {most_left:g}; "
        why += f"an end of {end:.3g}, at most {most_end:g}"
        holds = left <= most_left and end <= most_end
        return holds, f"{start:.3g} to {end:.3g}", why

    return _each(by, cell, f"falls towards {limit:g}", judge)


def ends_at_least(name: str, *, by: str, cell: str, least: float) -> Check:
    """Return the rule that a column ends at so much or more, mean over seeds."""

    def judge(group: Sequence[Record]) -> tuple[bool, str, str]:
        _, end = start_and_end(group, name)
        return end >= least, f"{end:.3g}", f"an end of {end:.3g}, at least {least:g}"

    return _each(by, cell, "high", judge)


def _each(
    by: str,
    cell: str,
    paper: str,
    judge: Callable[[Sequence[Record]], tuple[bool, str, str]],
) -> Check:
    """Return a check of each value of a setting, in rising order."""

    def check(records: Records) -> list[Verdict]:
        groups = grouped(records, by)
        verdicts = []
        for values in sorted(groups):
            holds, ours, why = judge(groups[values])
            name = cell.format(*values)
            verdicts.append(Verdict(name, paper, ours, holds, why))
        return verdicts

    return check
