"""TabArena's tasks from their runs: gains of a chosen identity weight, and rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scipy import stats

from normalign_reproduction.files import read_csv
from normalign_reproduction.items.tabarena.tasks import LACKING
from normalign_reproduction.spec import Records, Row
from normalign_reproduction.statistics import group_by, interval, mean

__all__ = [
    "PUBLISHED_COUNTS", "PUBLISHED_MEAN", "RFM", "TaskErrors", "best_weight",
    "breakdown_rows", "gain", "own_gains", "published_tasks", "reference_rows",
    "share_interval", "summary_rows", "task_errors", "task_rows",
]  # fmt: skip

RFM = 1.0  # the identity weight that makes an RFAM an RFM
# The sentence on TabArena: how many of its 51 tasks chose a weight, and what those that
# chose less than one gained in validation error, in percent.
PUBLISHED_COUNTS = {1.0: 34, 0.1: 11, 0.01: 0, 0.001: 2, 0.0: 4}
PUBLISHED_MEAN = 5.27

_EQUAL = 1e-9  # errors nearer than that, relatively, are the same

# Errors by identity weight, one for each draw.
ByWeight = Mapping[float, Sequence[float]]


@dataclass(frozen=True)
class TaskErrors:
    """The errors of a task.

    Parameters
    ----------
    task, metric : str
    partial : bool
        Whether its data are other than the benchmark's.
    n_rows, n_inputs : int
        Rows of all parts; columns after encoding.
    validation, test : mapping of identity weight to sequence of float
        An error for each draw, in the same order for all weights.
    """

    task: str
    metric: str
    partial: bool
    n_rows: int
    n_inputs: int
    validation: ByWeight
    test: ByWeight

    @property
    def n_draws(self) -> int:
        """How often the rows were divided."""
        return len(self.validation[RFM])

    def chosen(self, reference: float = RFM) -> float:
        """Return the weight with the least mean validation error."""
        means = {w: statistics.fmean(errors) for w, errors in self.validation.items()}
        return best_weight(means, reference)

    def gains(
        self, errors: ByWeight, weight: float, reference: float = RFM
    ) -> list[float]:
        """Return what a weight gains over the reference in each draw, in percent.

        In percent of the reference's mean error, so the mean of the gains is the gain
        of the means. Nothing if that mean is zero.
        """
        base = statistics.fmean(errors[reference])
        pairs = zip(errors[reference], errors[weight], strict=True)
        return [100 * (before - after) / base for before, after in pairs if base]

    def own_choices(self, by: ByWeight) -> list[float]:
        """Return the weight of the least error of each draw."""
        return [
            best_weight({w: errors[d] for w, errors in by.items()})
            for d in range(self.n_draws)
        ]

    def own_gains(self, by: ByWeight, seen: ByWeight) -> list[float]:
        """Return the gains of each draw's own choice, seen on other rows of that draw.

        Parameters
        ----------
        by, seen : mapping of identity weight to sequence of float
            The errors that choose, and those in which the gain is.
        """
        found = [
            gain(seen[RFM][d], seen[weight][d])
            for d, weight in enumerate(self.own_choices(by))
        ]
        return [one for one in found if one is not None]


def best_weight(errors: Mapping[float, float], reference: float = RFM) -> float:
    """Return the weight of the least error; of equals the reference, or the largest.

    Examples
    --------
    >>> best_weight({1.0: 0.2, 0.1: 0.1, 0.0: 0.1})
    0.1
    >>> best_weight({1.0: 0.1, 0.0: 0.1})
    1.0
    """
    most = min(errors.values()) * (1 + _EQUAL)
    best = [weight for weight, error in errors.items() if error <= most]
    return reference if reference in best else max(best)


def gain(before: float, after: float) -> float | None:
    r"""Return by how many percent an error shrank; ``None`` where it grew from zero.

    .. math:: 100\,(e_{\text{before}} - e_{\text{after}}) / e_{\text{before}}

    Examples
    --------
    >>> gain(0.2, 0.1), gain(0.0, 0.0), gain(0.0, 0.1)
    (50.0, 0.0, None)
    """
    if before == after:
        return 0.0
    return 100 * (before - after) / before if before else None


def task_errors(records: Records) -> list[TaskErrors]:
    """Return the errors of each task, by its name; draws that lack a weight left out.

    So are tasks without an RFM to compare with.
    """
    found = []
    by_task = group_by(records, "task")
    for (task,) in sorted(by_task, key=lambda values: str(values[0]).lower()):
        by_weight = {
            weight: {(r["repeat"], r.run.seed): r.result for r in group}
            for (weight,), group in group_by(by_task[task,], "identity_weight").items()
        }
        common = set.intersection(*(set(of) for of in by_weight.values()))
        if RFM not in by_weight or len(by_weight) < 2 or not common:
            continue
        draws = sorted(common)
        validation, test = (
            {w: [of[d][name] for d in draws] for w, of in sorted(by_weight.items())}
            for name in ("validation_error", "test_error")
        )
        one = by_weight[RFM][draws[0]]
        n_rows = one["n_fit"] + one["n_validation"] + one["n_test"]
        found.append(
            TaskErrors(
                task, one["metric"], one["partial"], n_rows, one["n_inputs"],
                validation, test,
            )
        )  # fmt: skip
    return found


@cache
def published_tasks() -> dict[str, Row]:
    """Return the 17 rows that the paper prints, by the benchmark's names.

    Examples
    --------
    >>> published_tasks()["splice"]["improvement"]
    10.09
    """
    lines = read_csv(Path(__file__).with_name("published.csv"))
    return {
        line["task"]: {
            "title": line["title"],
            "rows": int(line["rows"]),
            "features": int(line["features"]),
            "alpha": float(line["alpha"]),
            "improvement": float(line["improvement"]),
        }
        for line in lines
    }


def own_gains(found: Sequence[TaskErrors], by: str, seen: str) -> list[list[float]]:
    """Return the gains of the draws' own choices, of tasks with one below one.

    Parameters
    ----------
    by, seen : {"validation", "test"}
    """
    return [
        one.own_gains(getattr(one, by), getattr(one, seen))
        for one in found
        if any(weight != RFM for weight in one.own_choices(getattr(one, by)))
    ]


_ERRORS = {"roc_auc": "1 - AUC", "log_loss": "log-loss", "rmse": "RMSE"}


def task_rows(records: Records) -> list[Row]:
    """Return a row for each task: the chosen weight and its gains beside the paper's.

    Tasks that the paper prints and that were not at hand come last.
    """
    rows = [_task_row(outcome) for outcome in task_errors(records)]
    if any(record.run.data == "tabarena" for record in records):
        rows += [
            {"task": printed["title"], "state": "not at hand", **_published_row(name)}
            for name, printed in published_tasks().items()
            if name in LACKING
        ]
    return rows


def _task_row(outcome: TaskErrors) -> Row:
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
        **_published_row(outcome.task),
    }


def _published_row(task: str) -> Row:
    printed = published_tasks().get(task, {})
    return {
        "published_weight": printed.get("alpha"),
        "published_gain": printed.get("improvement"),
    }


def breakdown_rows(records: Records) -> list[Row]:
    """Return how many tasks choose each weight, beside the paper's count.

    By mean validation error over the draws, and of one draw, the mean over them.
    """
    found = task_errors(records)
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
    found = task_errors(records)
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
    found = task_errors(records)
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
