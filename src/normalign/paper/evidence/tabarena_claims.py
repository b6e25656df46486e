"""What the TabArena table shows, and the rules by which ours agrees with the paper's.

The last rule is beyond the paper: whether gains are still there on test rows.
"""

from __future__ import annotations

import statistics
from typing import Any

from scipy import stats

from normalign.paper.evidence.acceleration_table import welch_p
from normalign.paper.evidence.tabarena import (
    PUBLISHED_COUNTS,
    PUBLISHED_MEAN,
    RFM,
    Outcome,
    outcomes,
    own_gains,
    published_tasks,
)
from normalign.paper.evidence.tabarena_rows import summary_rows
from normalign.paper.spec import Claim, Records, Row, Verdict

__all__ = ["CLAIMS", "finding", "greater_p"]

SURE = 0.05
FEWEST = 5  # tasks that a rule about tasks needs


def greater_p(values: list[float]) -> float | None:
    """Return the p-value of Student's test that a mean is not above zero.

    ``None`` of fewer than two numbers, or of numbers that do not vary.

    Examples
    --------
    >>> round(greater_p([1.0, 3.0]), 3)  # t = 2: 1/2 - arctan(2) / pi
    0.148
    """
    if len(set(values)) < 2:
        return None
    found: Any = stats.ttest_1samp(values, 0.0, alternative="greater")
    return float(found.pvalue)


def _below(found: list[Outcome]) -> list[Outcome]:
    return [one for one in found if one.chosen() != RFM]


def _third(records: Records) -> list[Verdict]:
    found = outcomes(records)
    k, n = len(_below(found)), len(found)
    theirs, all_theirs = len(published_tasks()), sum(PUBLISHED_COUNTS.values())
    table = [[k, n - k], [theirs, all_theirs - theirs]]
    p = float(stats.fisher_exact(table).pvalue)  # type: ignore[attr-defined]
    why = f"Fisher's exact test of the two shares: p = {p:.2g}, {SURE:g} or more asked"
    return [
        Verdict(
            "Tasks that choose a weight below one", f"{theirs} of {all_theirs}",
            f"{k} of {n}", p >= SURE if n >= FEWEST else None, why,
        )
    ]  # fmt: skip


def _order(records: Records) -> list[Verdict]:
    chosen = [one.chosen() for one in outcomes(records)]
    counts = {weight: chosen.count(weight) for weight in PUBLISHED_COUNTS}
    first, second = list(PUBLISHED_COUNTS)[:2]
    below = [weight for weight in counts if weight != RFM]
    holds = counts[first] == max(counts.values())
    holds = holds and counts[second] == max(counts[weight] for weight in below)
    shown, printed = (
        ", ".join(f"{weight:g}: {n}" for weight, n in of.items())
        for of in (counts, PUBLISHED_COUNTS)
    )
    why = f"{first:g} is to be chosen most often, and {second:g} most of those below"
    enough = holds if len(chosen) >= FEWEST else None
    return [Verdict("Tasks by chosen weight", printed, shown, enough, why)]


def _size(records: Records) -> list[Verdict]:
    below = _below(outcomes(records))
    # Whoever chose a weight below one had an error to gain from.
    ours = [statistics.fmean(one.gains(one.validation, one.chosen())) for one in below]
    p = welch_p(ours, [row["improvement"] for row in published_tasks().values()])
    words = "too few tasks" if p is None else f"p = {p:.2g}, {SURE:g} or more asked"
    why = f"Welch's test against the printed improvements: {words}"
    shown = f"{statistics.fmean(ours):.2f} %" if ours else "-"
    holds = None if p is None or len(ours) < FEWEST else p >= SURE
    cell = "Mean gain in validation error"
    return [Verdict(cell, f"{PUBLISHED_MEAN:g} %", shown, holds, why)]


def _printed(records: Records) -> list[Verdict]:
    """A verdict for each task that the paper prints; none where data are partial."""
    found, verdicts = {one.task: one for one in outcomes(records)}, []
    for task, printed in published_tasks().items():
        theirs = f"{printed['alpha']:g}"
        one = found.get(task)
        if one is None:
            why = "its data were not at hand"
            verdicts.append(Verdict(printed["title"], theirs, "-", None, why))
            continue
        weight = one.chosen()
        gained = statistics.fmean(one.gains(one.validation, weight) or [0.0])
        why = f"a gain of {gained:.2f} % in validation error; printed: "
        why += f"{printed['improvement']:g} %"
        holds: bool | None = weight != RFM
        if one.partial:
            holds, why = None, f"its data are partial; {why}"
        verdicts.append(Verdict(printed["title"], theirs, f"{weight:g}", holds, why))
    return verdicts


def _carried(records: Records) -> list[Verdict]:
    found = outcomes(records)
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
        return [Verdict("Mean gain in test error", "-", "-", None, why)]
    p, average = greater_p(tested), statistics.fmean(tested)
    holds = p is not None and p < SURE and average > 0
    words = "no variance" if p is None else f"p = {p:.2g}, less than {SURE:g} asked"
    why = f"one-sided t-test over {len(tested)} tasks: {words}; the same choices gain "
    why += f"{statistics.fmean(validated):.2f} % in validation error"
    return [
        Verdict("Mean gain in test error", "above 0", f"{average:.2f} %", holds, why)
    ]


FULL = ("full",)
CLAIMS = (
    Claim(
        "Weights below one improve a third of the tasks",
        "The share of tasks that choose one does not differ from 17 of 51 at the "
        "5 % level.",
        _third, FULL,
    ),
    Claim(
        "Most tasks stay with an RFM, and 0.1 is next",
        "1 is chosen most often, 0.1 most often of the weights below one.",
        _order, FULL,
    ),
    Claim(
        "The improvement is 5.27 % on average",
        "The mean gain in validation error, over tasks that choose a weight below "
        "one, does not differ from the printed ones' at the 5 % level.",
        _size, FULL,
    ),
    Claim(
        "The printed tasks choose a weight below one",
        "So does ours, by the mean validation error over the draws.",
        _printed, FULL,
    ),
    Claim(
        "The improvements carry over to test rows",
        "Each draw chooses by its validation rows; the mean gain in test error over "
        "tasks with a choice below one is above 0 at the 5 % level. Beyond the paper, "
        "which has no test error.",
        _carried,
    ),
)  # fmt: skip


def finding(records: Records) -> str:
    """Return how often a weight below one is chosen, and what is left of its gain."""
    found = outcomes(records)
    if not found:
        return "There is no task with an RFM to compare with."
    k, n = len(_below(found)), len(found)
    _, chosen, same, own, tested, _ = summary_rows(records)
    text = f"A weight below one has the least validation error in {k} of {n} tasks"
    if k:
        text += f", by {_words(chosen)} on average"
    if same["n"]:
        text += f"; the same choice gains {_words(same)} in test error"
    text += ". "
    if own["n"] and tested["n"]:
        text += f"Where each draw chooses for itself, {_words(own)} in validation "
        text += f"error become {_words(tested)} in test error ({own['n']} of {n}). "
    chance = statistics.fmean(1 - 1 / len(one.validation) for one in found)
    text += "Equally good weights, whose errors did not go together, would be chosen "
    return f"{text}over an RFM in {100 * chance:.0f} % of the tasks."


def _words(row: Row) -> str:
    return f"{row['mean']:.2f} % (median {row['median']:.2f} %)"
