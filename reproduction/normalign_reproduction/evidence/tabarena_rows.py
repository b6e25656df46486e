"""The tables of the TabArena item, row by row, beside the paper's numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from scipy import stats

from normalign_reproduction.evidence.tabarena import (
    PUBLISHED_COUNTS,
    PUBLISHED_MEAN,
    RFM,
    Outcome,
    outcomes,
    own_gains,
    published_tasks,
)
from normalign_reproduction.experiments.tabarena_tasks import LACKING
from normalign_reproduction.spec import Records, Row
from normalign_reproduction.summaries import interval, mean

__all__ = [
    "breakdown_rows", "reference_rows", "share_interval", "summary_rows", "task_rows",
]  # fmt: skip

_ERRORS = {"roc_auc": "1 - AUC", "log_loss": "log-loss", "rmse": "RMSE"}


def task_rows(records: Records) -> list[Row]:
    """Return a row for each task: the chosen weight and its gains beside the paper's.

    Tasks that the paper prints and that were not at hand come last.
    """
    rows = [_task_row(outcome) for outcome in outcomes(records)]
    if any(record.run.data == "tabarena" for record in records):
        rows += [
            {"task": printed["title"], "state": "not at hand", **_printed(name)}
            for name, printed in published_tasks().items()
            if name in LACKING
        ]
    return rows


def _task_row(outcome: Outcome) -> Row:
    weight = outcome.chosen()
    test = outcome.gains(outcome.test, weight)
    printed = published_tasks().get(outcome.task)
    return {
        "task": outcome.task if printed is None else printed["title"],
        "state": "partial" if outcome.partial else "",
        "error": _ERRORS[outcome.metric],
        "n_rows": outcome.n_rows,
        "n_inputs": outcome.n_inputs,
        "n_draws": outcome.n_draws,
        "weight": weight,
        "own_weights": ", ".join(
            f"{one:g}" for one in outcome.own_choices(outcome.validation)
        ),
        "rfm_error": statistics.fmean(outcome.validation[RFM]),
        "validation_gain": mean(outcome.gains(outcome.validation, weight)),
        "test_gain": mean(test),
        "test_interval": None if weight == RFM else interval(test),
        "own_test_gain": mean(outcome.own_gains(outcome.validation, outcome.test)),
        **_printed(outcome.task),
    }


def _printed(task: str) -> Row:
    printed = published_tasks().get(task, {})
    return {
        "published_weight": printed.get("alpha"),
        "published_gain": printed.get("improvement"),
    }


def breakdown_rows(records: Records) -> list[Row]:
    """Return how many tasks choose each weight, beside the paper's count.

    By mean validation error over the draws, and of one draw, the mean over them.
    """
    found = outcomes(records)
    weights = sorted({w for one in found for w in one.validation}, reverse=True)
    chosen = [one.chosen() for one in found]
    printed = sum(PUBLISHED_COUNTS.values())
    rows = []
    for weight in weights:
        single = [one.own_choices(one.validation) for one in found]
        shares = [own.count(weight) / len(own) for own in single]
        count = PUBLISHED_COUNTS.get(weight)
        rows.append(
            {
                "weight": weight,
                "n": chosen.count(weight),
                "share": chosen.count(weight) / len(chosen),
                "single_share": mean(shares),
                "published_n": count,
                "published_share": None if count is None else count / printed,
            }
        )
    return rows


def reference_rows(records: Records) -> list[Row]:
    r"""Return what the choice gains over each weight, as if that were the default.

    Were five weights equally good, another would look better than any of them in
    :math:`1 - 1/5` of the tasks. Only what exceeds that, or is left of it on rows that
    had no part in the choice, speaks for or against a default.
    """
    found = outcomes(records)
    weights = sorted({w for one in found for w in one.validation}, reverse=True)
    rows = []
    for reference in weights:
        of = [one for one in found if reference in one.validation]
        beaten = [one for one in of if one.chosen(reference) != reference]
        validation, test = (
            [
                statistics.fmean(gains)
                for one in beaten
                if (gains := one.gains(part(one), one.chosen(reference), reference))
            ]
            for part in (lambda one: one.validation, lambda one: one.test)
        )
        chance = statistics.fmean(1 - 1 / len(one.validation) for one in of)
        rows.append(
            {
                "weight": reference,
                "n": len(beaten),
                "share": len(beaten) / len(of),
                "chance": chance,
                "validation_gain": mean(validation),
                "test_gain": mean(test),
                "test_median": statistics.median(test) if test else None,
            }
        )
    return rows


def summary_rows(records: Records) -> list[Row]:
    """Return the gains over all tasks that chose a weight below one.

    The last two choose by one part of the rows and look at the other, both ways.
    """
    found = outcomes(records)
    below = [one for one in found if one.chosen() != RFM]
    k, n = len(below), len(found)
    share: Row = {
        "quantity": "Tasks that choose a weight below one, %", "n": n,
        "mean": 100 * k / n if n else None, "interval": share_interval(k, n),
        "published_mean": 100 * _published_share(),
    }  # fmt: skip
    printed = [row["improvement"] for row in published_tasks().values()]
    chosen = [
        (
            "Gain there in validation error, %",
            [one.gains(one.validation, one.chosen()) for one in below],
            {
                "published_mean": PUBLISHED_MEAN,
                "published_median": statistics.median(printed),
            },
        ),
        (
            "Gain of the same choice in test error, %",
            [one.gains(one.test, one.chosen()) for one in below],
            {},
        ),
        (
            "Each draw's own choice: gain in validation error, %",
            own_gains(found, "validation", "validation"),
            {},
        ),
        (
            "Each draw's own choice: gain in test error, %",
            own_gains(found, "validation", "test"),
            {},
        ),
        (
            "Chosen by test error: gain in validation error, %",
            own_gains(found, "test", "validation"),
            {},
        ),
    ]
    return [share] + [
        {"quantity": words, **_spread(gains), **more} for words, gains, more in chosen
    ]


def _spread(gains: Sequence[Sequence[float]]) -> Row:
    means = [statistics.fmean(of_task) for of_task in gains if of_task]
    return {
        "n": len(means),
        "mean": mean(means),
        "interval": interval(means),
        "median": statistics.median(means) if means else None,
    }


def share_interval(k: int, n: int) -> tuple[float, float] | None:
    """Return the exact 95 % interval of a share k / n, in percent; ``None`` of 0 / 0.

    Examples
    --------
    >>> low, high = share_interval(0, 10)
    >>> low, round(high, 1)  # 0.025 = (1 - 0.308)^10
    (0.0, 30.8)
    """
    if not n:
        return None
    found = stats.binomtest(k, n).proportion_ci()
    return 100 * float(found.low), 100 * float(found.high)


def _published_share() -> float:
    """Return the share of tasks that the paper's sentence counts below one."""
    return 1 - PUBLISHED_COUNTS[RFM] / sum(PUBLISHED_COUNTS.values())
