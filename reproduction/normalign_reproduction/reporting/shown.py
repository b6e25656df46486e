"""What can be shown of an item with the runs at hand: tables, drawings, curve ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from normalign_reproduction.reporting.drawings import Drawing, drawing
from normalign_reproduction.reporting.ends import curve_ends
from normalign_reproduction.reporting.numbers import run_numbers
from normalign_reproduction.reporting.outcomes import Outcome
from normalign_reproduction.spec import Figure, Records, Table

__all__ = ["Shown", "figures", "named", "shown", "tables"]

# What a table or figure raises when its runs are not all there.
_TOO_EARLY = (LookupError, ValueError, TypeError, ArithmeticError)


@dataclass(frozen=True)
class Shown:
    """The tables of an item by the names of their files, its drawings, their ends."""

    tables: dict[str, Table] = field(default_factory=dict)
    drawings: Sequence[Drawing] = ()
    ends: Sequence[Table] = ()


def named(outcome: Outcome, part: Table | Figure) -> str:
    """Return the name of a table's or figure's file, without its ending."""
    item, name = outcome.item.name, part.name
    return name if name.startswith(item) else f"{item}-{name}"


def shown(outcome: Outcome) -> Shown:
    """Return what can be shown; of an item with missing runs, what they allow."""
    records = outcome.records
    if not records:
        return Shown()
    drawings = [
        drawing(figure, records, name=name)
        for name, figure in figures(outcome).items()
    ]  # fmt: skip
    ends = list(tables(outcome, ends=True).values())
    return Shown(tables(outcome), drawings, ends)


def figures(outcome: Outcome) -> dict[str, Figure]:
    """Return the figures that can be drawn, by the names of their files."""
    return {
        named(outcome, figure): figure
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
        named(outcome, table): table
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
