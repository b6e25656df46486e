"""What is stored of an item: its runs and records, differences and verdicts.

None of this needs torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from normalign_reproduction.claims import command, verdict_word, verdicts
from normalign_reproduction.report.tables import data_of, data_words, markdown, one_line
from normalign_reproduction.spec import (
    Cell,
    Claim,
    Column,
    Item,
    Record,
    Row,
    Run,
    Table,
)
from normalign_reproduction.store import Store

__all__ = [
    "COLUMNS", "Outcome", "difference_list", "differences", "duration_words", "origin",
    "outcome", "outcomes", "verdict_rows", "verdict_tables",
]  # fmt: skip


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
        """In how many cells each claim holds, in a sentence; empty while runs lack."""
        if not self.complete:
            return ""
        if self.item.finding is not None:
            return self.item.finding(self.records)
        holds: dict[str, list[bool]] = {}
        for claim, verdict in self.verdicts:
            holds.setdefault(claim.statement, []).append(verdict.holds is True)
        counts = (
            f"{name} ({sum(one)} of {len(one)} cells hold)"
            for name, one in holds.items()
        )
        return f"{'; '.join(counts) or 'No claim is judged at this size'}."

    @cached_property
    def verdicts(self) -> list[tuple[Claim, Cell]]:
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


_SHOWN = 6  # values of a setting that are written out


def differences(outcome: Outcome) -> list[str]:
    """Return what differs from the full size on the paper's data, a line for each.

    What differs from the paper even there is the item's ``departures``.

    Examples of a line: ``"epochs 300 instead of 20000"``, ``"3 seeds instead of 10"``.
    """
    item, lines = outcome.item, []
    ours = [run for run in outcome.runs if run.seed == outcome.runs[0].seed]
    full: list[Run] = []
    if "full" in item.sizes:
        full = item.runs(size="full", preset=outcome.preset, digits="mnist")
        full = [run for run in full if run.seed == 0]
    places = {run.data for run in full}
    embedded = [run for run in ours if run.data == "digits_5000"]
    if embedded:
        which, proper = _which(embedded, ours, ()), data_words(places - {"synthetic"})
        lines.append(f"{which}5000 embedded digits in place of {proper or 'MNIST'}")
    if not full:
        return lines
    if outcome.size != "full":
        places = set() if item.needs_digits else places
        elsewhere = bool(places) and places.isdisjoint(run.data for run in ours)
        if elsewhere:
            lines.append(f"{outcome.data} in place of {data_words(places)}")
        # On other data a variant is another one; that is said already.
        lines += _changes(
            ours, full, but_for=_varying_settings(full) if elsewhere else ()
        )
    if len(ours) != len(full):
        lines.append(f"{len(ours)} variants instead of {len(full)}")
    wanted, taken = item.sizes["full"].seeds, len({run.seed for run in outcome.runs})
    if wanted != taken:
        lines.append(f"{taken} seed{'s' * (taken > 1)} instead of {wanted}")
    if len(item.presets()) > 1:
        said = {"released": "the released code's", "text": "those of the paper's text"}
        named = said.get(outcome.preset, outcome.preset)
        lines.append(f"constants: {named} (preset {outcome.preset})")
    return lines


def difference_list(outcome: Outcome, *, form: str) -> str:
    """Return what differs from the paper, at this size and at every, as text.

    Parameters
    ----------
    form : {"table", "md", "tex"}
        For a terminal, as a list of Markdown, or as comments of LaTeX.
    """
    lines = [*differences(outcome), *outcome.item.departures]
    if not lines:
        return ""
    head = f"{outcome.item.reference}: what differs from the paper"
    if form == "md":
        listed = [f"- {markdown(one_line(line))}" for line in lines]
        return "\n".join([f"**{markdown(head)}**", "", *listed]) + "\n"
    start = "% " if form == "tex" else ""
    listed = [f"{start}- {one_line(line)}" for line in lines]
    return "\n".join([f"{start}{head}", *listed]) + "\n"


def origin(outcome: Outcome) -> dict[str, str]:
    """Return what the finished runs were made by: commit, versions, device, time."""
    made = [record.made for record in outcome.records]
    versions = _distinct(
        ", ".join(f"{name} {v}" for name, v in one["versions"].items())
        for one in made
        if one.get("versions")
    )
    facts = {
        "data": outcome.data,
        "runs": f"{len(outcome.records)} of {len(outcome.runs)}",
        "commit": _distinct(one.get("commit") for one in made),
        "versions": versions,
        "device": _distinct(one.get("device") for one in made),
        "computing": "" if outcome.seconds is None else duration_words(outcome.seconds),
    }
    return {name: fact for name, fact in facts.items() if fact}


def duration_words(seconds: float) -> str:
    """Return a duration in words.

    Examples
    --------
    >>> duration_words(0.4), duration_words(75), duration_words(7260)
    ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _distinct(words: Iterable[Any]) -> str:
    return "; ".join(dict.fromkeys(str(word) for word in words if word))


def _varying_settings(runs: Sequence[Run]) -> set[str]:
    """Return the settings in which runs differ from each other."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.settings.items():
            values.setdefault(name, set()).add(_format(value))
    return {name for name, some in values.items() if len(some) > 1}


def _changes(
    ours: Sequence[Run], full: Sequence[Run], *, but_for: Collection[str]
) -> list[str]:
    """Return which settings differ, and in which variants if not in all."""
    pairs = [(one, twin) for one in ours if (twin := _twin(one, full)) is not None]
    where: dict[tuple[str, str], list[Run]] = {}
    for one, twin in pairs:
        mine, theirs = _leaves(one.settings), _leaves(twin.settings)
        for name in mine:
            known = name in theirs and name not in but_for
            if known and mine[name] != theirs[name]:
                line = (
                    f"{name.rpartition('.')[2]} {mine[name]} instead of {theirs[name]}"
                )
                where.setdefault((name, line), []).append(one)
    taken = [one for one, _ in pairs]
    changed = {name.partition(".")[0] for name, _ in where}
    return [
        f"{_which(some, taken, changed)}{line}" for (_, line), some in where.items()
    ]


def _twin(run: Run, others: Sequence[Run]) -> Run | None:
    """Return the run of another size that is most alike; ``None`` among none.

    Runs of two sizes are of the same variant if nothing else is as alike.
    """
    mine = _leaves(run.settings)

    def likeness(other: Run) -> int:
        theirs = _leaves(other.settings)
        return sum(mine[name] == theirs.get(name) for name in mine)

    return max(others, key=likeness, default=None)


def _which(some: Sequence[Run], ours: Sequence[Run], changed: Collection[str]) -> str:
    """Say which runs are meant, by an unchanged setting that tells them apart."""
    if len(some) == len(ours):
        return ""
    rest = [run for run in ours if run not in some]
    for name in (name for name in some[0].settings if name not in changed):
        values = {_format(run.settings.get(name)) for run in some}
        if values.isdisjoint(_format(run.settings.get(name)) for run in rest):
            return f"{name} {_join(sorted(values))}: "
    return f"{len(some)} of {len(ours)} variants: "


def _leaves(settings: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Return settings and settings within settings, by their whole names."""
    leaves = {}
    if "shortened" in settings:  # changes of a recipe, kept apart from it
        settings = {
            **settings,
            "recipe": {**settings["recipe"], **settings["shortened"]},
        }
    for name, value in settings.items():
        if isinstance(value, Mapping):
            leaves |= _leaves(value, f"{above}{name}.")
        else:
            leaves[f"{above}{name}"] = _format(value)
    return leaves


def _format(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "-".join(_format(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _join(values: Sequence[str]) -> str:
    shown = ", ".join(values[:_SHOWN])
    return f"{shown}, ..." if len(values) > _SHOWN else shown


_ORIGIN = ("item", "size", "preset", "data")
_VERDICT = ("claim", "cell", "rule", "paper", "ours", "verdict", "why")
COLUMNS: tuple[str, ...] = _ORIGIN + _VERDICT


def verdict_rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return a row for each cell of some items, with what it is from."""
    return [
        {
            "item": outcome.item.name, "size": outcome.size,
            "preset": outcome.preset, "data": outcome.data,
            "claim": claim.statement, "cell": verdict.name, "rule": claim.rule,
            "paper": verdict.paper, "ours": verdict.ours,
            "verdict": verdict_word(verdict.holds), "why": verdict.why,
        }
        for outcome in outcomes
        for claim, verdict in outcome.verdicts
    ]  # fmt: skip


def verdict_tables(outcome: Outcome) -> list[Table]:
    """Return the verdicts of one item, a table for each claim under its rule."""
    item, names = outcome.item, ("cell", "paper", "ours", "verdict", "why")
    claims = dict.fromkeys(claim.statement for claim, _ in outcome.verdicts)
    rules = {claim.statement: claim.rule for claim, _ in outcome.verdicts}
    return [
        Table(
            "verdicts", f"{item.reference}. {name}: {rules[name]}",
            lambda records, name=name: [
                row for row in verdict_rows([outcome]) if row["claim"] == name
            ],
            [Column(column, column.capitalize()) for column in names],
        )
        for name in claims
    ]  # fmt: skip
