"""What of an item can be shown with the stored runs: tables, figures, numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from normalign_reproduction.report.outcome import Outcome
from normalign_reproduction.report.panels import Panel, Panels, PointsPanel
from normalign_reproduction.report.svg import Drawing, drawing
from normalign_reproduction.spec import Column, Figure, Record, Records, Row, Table
from normalign_reproduction.statistics import group_by, interval, mean

__all__ = [
    "Contents", "contents_of", "curve_ends", "figures", "part_name", "run_numbers",
    "tables",
]  # fmt: skip

# What a table or figure raises when its runs are not all there.
_TOO_EARLY = (LookupError, ValueError, TypeError, ArithmeticError)


@dataclass(frozen=True)
class Contents:
    """The tables of an item by the names of their files, its drawings, their ends."""

    tables: dict[str, Table] = field(default_factory=dict)
    drawings: Sequence[Drawing] = ()
    ends: Sequence[Table] = ()


def part_name(outcome: Outcome, part: Table | Figure) -> str:
    """Return the name of a table's or figure's file, without its ending."""
    item, name = outcome.item.name, part.name
    return name if name.startswith(item) else f"{item}-{name}"


def contents_of(outcome: Outcome) -> Contents:
    """Return what can be shown; of an item with missing runs, what they allow."""
    records = outcome.records
    if not records:
        return Contents()
    drawings = [
        drawing(figure, records, name=name)
        for name, figure in figures(outcome).items()
    ]  # fmt: skip
    ends = list(tables(outcome, ends=True).values())
    return Contents(tables(outcome), drawings, ends)


def figures(outcome: Outcome) -> dict[str, Figure]:
    """Return the figures that can be drawn, by the names of their files."""
    return {
        part_name(outcome, figure): figure
        for figure in outcome.item.figures
        if outcome.complete or _possible(outcome, figure.draw)
    }


def tables(outcome: Outcome, *, ends: bool = False) -> dict[str, Table]:
    """Return the tables that can be made, by the names of their files.

    Parameters
    ----------
    ends : bool
        Not the item's tables, but where the curves of its figures end; of a figure
        without curves, the numbers of its runs.
    """
    made = _read_off(outcome) if ends else outcome.item.tables
    return {
        part_name(outcome, table): table
        for table in made
        if outcome.complete or _possible(outcome, table.rows)
    }


def _read_off(outcome: Outcome) -> list[Table]:
    """Return what can be read off the figures of an item, as tables."""
    title, read = outcome.item.title, []
    for figure in outcome.item.figures:
        read += [
            curve_ends(figure, title=f"{title}: where the curves end"),
            run_numbers(
                figure, outcome.records, title=f"{title}: the numbers of its runs"
            ),
        ]
    return [table for table in read if table is not None]


def _possible(outcome: Outcome, make: Callable[[Records], Any]) -> bool:
    """Say whether something can be made of the runs of an item that lacks some."""
    try:
        return bool(outcome.records) and make(outcome.records) is not None
    except _TOO_EARLY:
        return False


def curve_ends(figure: Figure, *, title: str = "Where the curves end") -> Table | None:
    """Return a table of the last values of a figure's curves, means over seeds.

    It has a row for each line, or for each point along an axis of settings. ``None``
    for a figure that is not made of
    :class:`~normalign_reproduction.report.panels.Panels`.
    """
    panels = figure.draw
    if not isinstance(panels, Panels):
        return None
    along = [panel.x for panel in panels.panels if isinstance(panel, PointsPanel)]
    keys = list(dict.fromkeys(([panels.by] if panels.by else []) + along))
    drawn: dict[str, Panel | PointsPanel] = {}
    for panel in panels.panels:
        for name in panel.columns:
            drawn.setdefault(name, panel)

    def rows(records: Records) -> list[Row]:
        order = [line.value for line in panels.lines(records)]
        names = {line.value: line.label for line in panels.lines(records)}
        groups = group_by(records, *keys)
        if panels.by is not None:
            groups = dict(sorted(groups.items(), key=lambda g: order.index(g[0][0])))
        made = []
        for values, group in groups.items():
            row: Row = dict(zip(keys, values, strict=True))
            if panels.by is not None:
                row[panels.by] = names[row[panels.by]]
            row["n"] = len(group)
            for name, panel in drawn.items():
                ends = [panel.end(record, name) for record in group]
                row |= _end(_key(name, panel), ends)
            made.append(row)
        return made

    titles = {panels.by: panels.heading() or panels.by}
    heads = [Column(key, titles.get(key) or key) for key in keys]
    ends = [
        Column(key, _head(name, panel), "{:.4g}", interval=f"{key}_interval")
        for name, panel in drawn.items()
        for key in [_key(name, panel)]
    ]
    return Table(
        figure.name, title, rows,
        [*heads, Column("n", "seeds", "{:d}"), *ends],
        note="Means over seeds with Student's 95 % interval.",
    )  # fmt: skip


def _key(name: str, panel: Panel | PointsPanel) -> str:
    """Return the name of a column, which in CSV is all that tells its unit."""
    percent = panel.scale == 100 and "%" in panel.ylabel
    return f"{name}_percent" if percent else name


def _head(name: str, panel: Panel | PointsPanel) -> str:
    """Return what a column is of: of several in a panel, the axis and which of them."""
    title = panel.columns[name]
    alone = not panel.ylabel or title == panel.ylabel
    return title if alone else f"{panel.ylabel}: {title}"


def _end(name: str, values: list[float]) -> Row:
    finite = [value for value in values if math.isfinite(value)]
    return {name: mean(finite), f"{name}_interval": interval(finite)}


def run_numbers(
    figure: Figure, records: Records, *, title: str = "The numbers of its runs"
) -> Table | None:
    """Return a table of the numbers in the results behind a figure without curves.

    It has a row for each variant, and a column for each number or list of numbers that
    all results have: the median over the list and the seeds, the least and the
    greatest. ``None`` for a figure of
    :class:`~normalign_reproduction.report.panels.Panels`, for one that wants none,
    and where the results have no such numbers.
    """
    if isinstance(figure.draw, Panels) or not figure.numbers or not records:
        return None
    names = [
        name
        for name in records[0].result
        if all(_values(record, name) for record in records)
    ]
    if not names:
        return None
    keys = _varying_settings(records)

    def rows(records: Records) -> list[Row]:
        groups = group_by(records, *keys) if keys else {(): list(records)}
        made = []
        for values, group in groups.items():
            row: Row = {**dict(zip(keys, values, strict=True)), "n": len(group)}
            for name in names:
                row |= _summary(name, [v for r in group for v in _values(r, name)])
            made.append(row)
        return made

    heads = [Column(key, _words(key), "{:g}") for key in keys]
    found = [
        Column(name, _words(name), "{:.4g}", interval=f"{name}_reach") for name in names
    ]
    return Table(
        figure.name, title, rows, [*heads, Column("n", "seeds", "{:d}"), *found],
        note="Medians over all values of all seeds, with the least and the greatest.",
    )  # fmt: skip


def _varying_settings(records: Records) -> list[str]:
    """Return the settings that tell the variants apart."""
    first = records[0].run.settings
    return [
        name
        for name, value in first.items()
        if not isinstance(value, list | tuple | dict)
        and any(record.run.settings.get(name) != value for record in records)
    ]


def _values(record: Record, name: str) -> Sequence[float]:
    """Return a number, or a flat list of numbers, of a result; else none."""
    value: Any = record.result.get(name)
    values = value if isinstance(value, list | tuple) else [value]
    return values if all(_is_number(one) for one in values) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _summary(name: str, values: Sequence[float]) -> Row:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return {name: None}
    reach = min(finite), max(finite)
    return {name: statistics.median(finite), f"{name}_reach": reach}


def _words(name: str) -> str:
    return name.replace("_", " ")
