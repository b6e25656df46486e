"""What the TabArena table shows, and the rules by which ours agrees with the paper's.

The last rule is beyond the paper: whether gains are still there on test rows.
"""

from __future__ import annotations

import statistics

from scipy import stats

from normalign_reproduction.items.tabarena.rows import (
    PUBLISHED_COUNTS,
    PUBLISHED_MEAN,
    RFM,
    TaskErrors,
    own_gains,
    published_tasks,
    share_interval,
    task_errors,
)
from normalign_reproduction.items.tabarena.tasks import LACKING
from normalign_reproduction.items.table1.rows import welch_p
from normalign_reproduction.spec import Cell, Claim, Records
from normalign_reproduction.statistics import interval, student_p

__all__ = ["CLAIMS"]

SURE = 0.05
FEWEST = 5  # tasks that a rule about tasks needs


def _below(found: list[TaskErrors]) -> list[TaskErrors]:
    return [one for one in found if one.chosen() != RFM]


def _third(records: Records) -> list[Cell]:
    found = task_errors(records)
    k, n = len(_below(found)), len(found)
    theirs, all_theirs = len(published_tasks()), sum(PUBLISHED_COUNTS.values())
    table = [[k, n - k], [theirs, all_theirs - theirs]]
    p = float(stats.fisher_exact(table).pvalue)  # type: ignore[attr-defined]
    both = sum(one.task in published_tasks() for one in _below(found))
    why = f"Fisher's exact test of the two shares: p = {p:.2g}, {SURE:g} or more "
    why += f"asked; {both} of our {k} are among the printed"
    printed = f"{theirs} of {all_theirs}, {100 * theirs / all_theirs:.0f} %"
    shown = f"{k} of {n}{_within(share_interval(k, n), 0)}"
    return [
        Cell(
            "Tasks that choose a weight below one", printed, shown,
            p >= SURE if n >= FEWEST else None, why,
        )
    ]  # fmt: skip


def _within(ends: tuple[float, float] | None, digits: int) -> str:
    """Say how far off a number may be: what agrees may do so for lack of tasks."""
    if ends is None:
        return ""
    low, high = (f"{end:.{digits}f}" for end in ends)
    return f", 95 % interval {low} to {high} %"


def _order(records: Records) -> list[Cell]:
    chosen = [one.chosen() for one in task_errors(records)]
    counts = {weight: chosen.count(weight) for weight in PUBLISHED_COUNTS}
    first, second = list(PUBLISHED_COUNTS)[:2]
    below = [weight for weight in counts if weight != RFM]
    others = [counts[weight] for weight in below if weight != second]
    holds = counts[first] > counts[second] > max(others)
    shown, printed = (
        ", ".join(f"{weight:g}: {n}" for weight, n in of.items())
        for of in (counts, PUBLISHED_COUNTS)
    )
    why = f"{first:g} is to be chosen most often, then {second:g}, none as often as it"
    enough = holds if len(chosen) >= FEWEST else None
    return [Cell("Tasks by chosen weight", printed, shown, enough, why)]


def _size(records: Records) -> list[Cell]:
    below = _below(task_errors(records))
    # Whoever chose a weight below one had an error to gain from.
    ours = [statistics.fmean(one.gains(one.validation, one.chosen())) for one in below]
    p = welch_p(ours, [row["improvement"] for row in published_tasks().values()])
    words = "too few tasks" if p is None else f"p = {p:.2g}, {SURE:g} or more asked"
    why = f"Welch's test against the printed improvements: {words}"
    shown = "-"
    if ours:
        shown = f"{statistics.fmean(ours):.2f} %{_within(interval(ours), 2)}"
    holds = None if p is None or len(ours) < FEWEST else p >= SURE
    cell = "Mean gain in validation error"
    return [Cell(cell, f"{PUBLISHED_MEAN:g} %", shown, holds, why)]


def _printed_tasks(records: Records) -> list[Cell]:
    """A verdict for each task that the paper prints; none where data are partial."""
    found, verdicts = {one.task: one for one in task_errors(records)}, []
    for task, printed in published_tasks().items():
        theirs = f"{printed['alpha']:g}"
        one = found.get(task)
        if one is None:
            lacking = task in LACKING
            why = "its data were not at hand" if lacking else "it has no results here"
            verdicts.append(Cell(printed["title"], theirs, "-", None, why))
            continue
        weight = one.chosen()
        gained = statistics.fmean(one.gains(one.validation, weight) or [0.0])
        why = f"a gain of {gained:.2f} % in validation error; printed: "
        why += f"{printed['improvement']:g} %"
        holds: bool | None = weight != RFM
        if one.partial:
            holds, why = None, f"its data are partial; {why}"
        verdicts.append(Cell(printed["title"], theirs, f"{weight:g}", holds, why))
    return verdicts


def _carries_over(records: Records) -> list[Cell]:
    found = task_errors(records)
    validated, tested = (
        [
            statistics.fmean(gains)
            for gains in own_gains(found, "validation", seen)
            if gains
        ]
        for seen in ("validation", "test")
    )
    if len(tested) < FEWEST:
        why = f"{len(tested)} tasks choose a weight below one, {FEWEST} needed"
        return [Cell("Mean gain in test error", "-", "-", None, why)]
    p = student_p(tested, direction="greater")
    average = statistics.fmean(tested)
    holds = p is not None and p < SURE and average > 0
    words = "no variance" if p is None else f"p = {p:.2g}, less than {SURE:g} asked"
    why = f"one-sided t-test over {len(tested)} tasks: {words}; the same choices gain "
    why += f"{statistics.fmean(validated):.2f} % in validation error"
    return [Cell("Mean gain in test error", "above 0", f"{average:.2f} %", holds, why)]


FULL = ("full",)
CLAIMS = (
    Claim(
        "Weights below one improve a third of the tasks",
        "The share of tasks that choose one does not differ from 17 of 51 at the "
        "5 % level.",
        _third, sizes=FULL,
    ),
    Claim(
        "Most tasks stay with an RFM, and 0.1 is next",
        "1 is chosen more often than any other, 0.1 more often than what is left.",
        _order, sizes=FULL,
    ),
    Claim(
        "The improvement is 5.27 % on average",
        "The mean gain in validation error, over tasks that choose a weight below "
        "one, does not differ from the printed ones' at the 5 % level.",
        _size, sizes=FULL,
    ),
    Claim(
        "The printed tasks choose a weight below one",
        "So does ours, by the mean validation error over the draws.",
        _printed_tasks, sizes=FULL,
    ),
    Claim(
        "The improvements carry over to test rows",
        "Each draw chooses by its validation rows; the mean gain in test error over "
        "tasks with a choice below one is above 0 at the 5 % level. Beyond the paper, "
        "which has no test error.",
        _carries_over,
    ),
)  # fmt: skip
