"""The errors of the TabArena runs: which identity weight is chosen, what it gains.

A *draw* is one division of a task's rows into parts to fit, validate and test on. The
paper compares validation errors after choosing by them: the least of five errors is
below the first of them by chance alone. So each gain stands here with that of the same
choice on rows which had no part in it.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from normalign_reproduction.spec import Records, Row
from normalign_reproduction.summaries import grouped

__all__ = [
    "PUBLISHED_COUNTS", "PUBLISHED_MEAN", "RFM", "Outcome", "gain", "outcomes",
    "own_gains", "preferred", "published_tasks",
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
class Outcome:
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
        return preferred(means, reference)

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
            preferred({w: errors[d] for w, errors in by.items()})
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


def preferred(errors: Mapping[float, float], reference: float = RFM) -> float:
    """Return the weight of the least error; of equals the reference, or the largest.

    Examples
    --------
    >>> preferred({1.0: 0.2, 0.1: 0.1, 0.0: 0.1}), preferred({1.0: 0.1, 0.0: 0.1})
    (0.1, 1.0)
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


def outcomes(records: Records) -> list[Outcome]:
    """Return the errors of each task, by its name; draws that lack a weight left out.

    So are tasks without an RFM to compare with.
    """
    found = []
    by_task = grouped(records, "task")
    for (task,) in sorted(by_task, key=lambda values: str(values[0]).lower()):
        by_weight = {
            weight: {(r["repeat"], r.run.seed): r.result for r in group}
            for (weight,), group in grouped(by_task[task,], "identity_weight").items()
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
            Outcome(
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
    path = files("normalign_reproduction").joinpath("published", "tabarena.csv")
    lines = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
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


def own_gains(found: Sequence[Outcome], by: str, seen: str) -> list[list[float]]:
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
