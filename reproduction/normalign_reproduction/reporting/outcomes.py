"""What there is of an item: its runs, those finished, and all that follows from them.

Tables, figures, pages and verdicts are made of an :class:`Outcome`. None of this needs
torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from normalign_reproduction.reporting.compare import command, verdicts
from normalign_reproduction.reporting.sources import data_of
from normalign_reproduction.results import Store
from normalign_reproduction.spec import Claim, Item, Record, Run, Verdict

__all__ = ["Outcome", "outcome", "outcomes"]


@dataclass(frozen=True)
class Outcome:
    """An item at a size and a preset, with the records of its finished runs.

    Parameters
    ----------
    item : Item
    size, preset : str
        The preset is the one whose constants were taken.
    runs : sequence of Run
        All that belong to it.
    records : sequence of Record
        Of those that are finished, in the same order.
    asked_seeds : int, optional
        How many seeds were asked for, if others than the size's.
    """

    item: Item
    size: str
    preset: str
    runs: Sequence[Run]
    records: Sequence[Record]
    asked_seeds: int | None = None

    @property
    def complete(self) -> bool:
        """Whether all runs are finished."""
        return len(self.records) == len(self.runs) > 0

    @property
    def data(self) -> str:
        """What the runs are computed on, in words."""
        return data_of(self.runs, self.records)

    @property
    def command(self) -> str:
        """The command that makes the runs."""
        return command(
            self.item, size=self.size, preset=self.preset, seeds=self.asked_seeds,
            data={run.data for run in self.runs},
        )  # fmt: skip

    @property
    def missing(self) -> str:
        """How many runs are there, and what makes the others; empty if none lacks."""
        if self.complete:
            return ""
        there = f"{len(self.records)} of {len(self.runs)} runs are there"
        return f"{there}; {self.command} makes the others"

    @property
    def about(self) -> str:
        """What the numbers are from: size, preset, data and seeds."""
        return f"{self.size} size, {self.preset} preset, {self.data}, {self.seeds}"

    @property
    def seeds(self) -> str:
        """How many seeds each variant has, in words."""
        finished: dict[str, int] = {}
        for run in self.runs:
            finished.setdefault(_variant(run), 0)
        for record in self.records:
            finished[_variant(record.run)] += 1
        low, high = min(finished.values()), max(finished.values())
        if low == high:
            return "1 seed" if high == 1 else f"{high} seeds"
        return f"{low} to {high} seeds"

    @property
    def seconds(self) -> float | None:
        """How long the finished runs took, each with its share of its batch."""
        shares = [
            record.made["seconds"] / max(1, record.made.get("n_runs", 1))
            for record in self.records
            if record.made.get("seconds") is not None
        ]
        return sum(shares) if shares else None

    @cached_property
    def finding(self) -> str:
        """What the numbers say, in a sentence; empty while runs lack."""
        return self.item.finding(self.records) if self.complete else ""

    @cached_property
    def verdicts(self) -> list[tuple[Claim, Verdict]]:
        """A verdict for each cell of each claim that this size can answer to."""
        return verdicts(
            self.item, self.records, size=self.size, preset=self.preset,
            seeds=self.asked_seeds,
        )  # fmt: skip

    def count(self, holds: bool | None) -> int:
        """Return how many cells have a verdict."""
        return sum(verdict.holds is holds for _, verdict in self.verdicts)


def outcome(
    item: Item,
    *,
    size: str,
    preset: str,
    store: Store,
    digits: str | None = None,
    seeds: int | None = None,
) -> Outcome:
    """Return what there is of an item.

    Parameters
    ----------
    digits : {"mnist", "digits_5000"}, optional
        By default those of which more runs are finished, and MNIST where there are as
        many.
    seeds : int, optional
        Another number of seeds than the size's.
    """
    sources = [digits] if digits is not None else ["mnist", "digits_5000"]
    if not item.needs_digits:
        sources = sources[:1]
    found = []
    for source in sources:
        runs = item.runs(size=size, preset=preset, digits=source, seeds=seeds)
        found.append((runs, store.records(runs)))
    # The first of equals: MNIST.
    runs, records = max(found, key=lambda pair: len(pair[1]))
    kept = runs[0].preset if runs else preset
    return Outcome(item, size, kept, runs, records, seeds)


def outcomes(items: Iterable[Item], **settings: Any) -> list[Outcome]:
    """Return what there is of several items; settings as those of :func:`outcome`."""
    return [outcome(item, **settings) for item in items]


def _variant(run: Run) -> str:
    return repr(sorted(run.settings.items(), key=lambda pair: pair[0]))
