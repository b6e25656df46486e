"""Claims: the rules that read a verdict off records, and the verdicts of an item."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from normalign_reproduction.spec import Cell, Claim, Item, Record, Records
from normalign_reproduction.statistics import column, final, group_by

__all__ = [
    "Result", "command", "ends_at_least", "falls_towards", "first", "judge", "rises",
    "start_and_end", "verdict_word", "verdicts",
]  # fmt: skip

Check = Callable[[Records], list[Cell]]


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

    def check(records: Records) -> list[Cell]:
        groups = group_by(records, by)
        verdicts = []
        for values in sorted(groups):
            holds, ours, why = judge(groups[values])
            name = cell.format(*values)
            verdicts.append(Cell(name, paper, ours, holds, why))
        return verdicts

    return check


_WORDS = {True: "holds", False: "does not", None: "cannot tell"}


def verdict_word(holds: bool | None) -> str:
    """Return a verdict in words.

    Examples
    --------
    >>> verdict_word(None)
    'cannot tell'
    """
    return _WORDS[holds]


def command(
    item: Item,
    *,
    size: str,
    preset: str,
    seeds: int | None = None,
    data: Collection[str] = (),
) -> str:
    """Return the command that makes the runs of an item.

    Parameters
    ----------
    data : collection of str
        What the runs are computed on; the embedded digits are asked for by name, for
        where MNIST is found, it is taken.
    """
    words = ["normalign reproduce", item.name]
    words += ["--digits digits_5000"] if "digits_5000" in data else []
    words += ["--full"] if size == "full" else []
    words += [f"--preset {preset}"] if len(item.presets()) > 1 else []
    words += [] if seeds is None else [f"--seeds {seeds}"]
    return " ".join(words)


def verdicts(
    item: Item, records: Records, *, size: str, preset: str, seeds: int | None = None
) -> list[tuple[Claim, Cell]]:
    """Return the verdicts on all claims of an item that mean something at a size.

    As long as runs are missing, each claim has one verdict, and that is that it cannot
    be told: a rule read off a part of the runs would be another rule.

    Parameters
    ----------
    records : sequence of Record
        Of the finished runs of this item, size and preset.
    seeds : int, optional
        Another number of seeds than the size's.

    Raises
    ------
    ValueError
        If the item has no such size or preset.
    """
    # The number of runs is the same for all data.
    runs = item.runs(size=size, preset=preset, digits="mnist", seeds=seeds)
    kept = preset if preset in item.settings else next(iter(item.settings))
    claims = [c for c in item.claims if size in c.sizes and kept in c.presets]
    if len(records) < len(runs) or not runs:
        data = {record.run.data for record in records}
        remedy = command(item, size=size, preset=kept, seeds=seeds, data=data)
        why = f"{len(records)} of {len(runs)} runs are there; {remedy} makes the others"
        return [(claim, Cell("all", "", "", None, why)) for claim in claims]
    return [(claim, verdict) for claim in claims for verdict in claim.check(records)]


Verdict = Literal["holds", "fails", "undecided", "not tested"]


@dataclass(frozen=True)
class Result:
    """The verdict on a claim.

    Parameters
    ----------
    claim : Claim
    verdict : {"holds", "fails", "undecided", "not tested"}
        It holds if all cells hold, and fails if one fails.
    cells : sequence of Cell
        Empty if the claim is not tested.
    reason : str
        Why it fails, is undecided or is not tested.
    """

    claim: Claim
    verdict: Verdict
    cells: Sequence[Cell] = ()
    reason: str = ""

    @property
    def headline(self) -> Cell | None:
        """The cell that decides: the first that fails, else is undecided, else any."""
        order = {False: 0, None: 1, True: 2}
        return min(self.cells, key=lambda cell: order[cell.holds], default=None)


def judge(
    item: Item, records: Records, *, size: str, preset: str, seeds: int | None = None
) -> list[Result]:
    """Return the result of each claim of an item.

    A claim is not tested if its rule is not meaningful at this size or preset, or if
    runs are missing. It is undecided if a cell is undecided and none fails, and if a
    cell is the value of a single seed.

    Parameters
    ----------
    records : sequence of Record
        The finished runs of this item, size and preset.
    seeds : int, optional
        The number of seeds, if it is not that of the size.
    """
    own_preset = preset if preset in item.settings else next(iter(item.settings))
    results = []
    for claim in item.claims:
        if size not in claim.sizes:
            reason = f"The rule needs the {' or '.join(claim.sizes)} size."
            results.append(Result(claim, "not tested", reason=reason))
        elif own_preset not in claim.presets:
            reason = f"The rule is for preset {' or '.join(claim.presets)}."
            results.append(Result(claim, "not tested", reason=reason))
        elif missing := missing_runs(item, records, size, own_preset, seeds):
            results.append(Result(claim, "not tested", reason=missing))
        else:
            results.append(_result(claim, claim.check(records)))
    return results


def _result(claim: Claim, cells: Sequence[Cell]) -> Result:
    decided = [cell.holds for cell in cells]
    if any(cell.n == 1 for cell in cells) and claim.counts == "seeds":
        return Result(claim, "undecided", cells, claim.reason or "Only one seed.")
    if False in decided:
        return Result(claim, "fails", cells, claim.reason)
    if None in decided or not decided:
        return Result(claim, "undecided", cells, claim.reason)
    return Result(claim, "holds", cells)


def missing_runs(
    item: Item, records: Records, size: str, preset: str, seeds: int | None
) -> str:
    """Return how many runs are missing and the command for them; empty if none."""
    # the number of runs is the same for all data
    runs = item.runs(size=size, preset=preset, digits="mnist", seeds=seeds)
    if runs and len(records) >= len(runs):
        return ""
    data = {record.run.data for record in records}
    remedy = command(item, size=size, preset=preset, seeds=seeds, data=data)
    return f"{len(runs) - len(records)} of {len(runs)} runs are missing: {remedy}"
