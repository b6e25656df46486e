"""The numbers under a figure that has no curves: what its runs gave, as a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from normalign_reproduction.reporting.panels import Panels
from normalign_reproduction.spec import Column, Figure, Record, Records, Row, Table
from normalign_reproduction.summaries import grouped

__all__ = ["run_numbers"]


def run_numbers(
    figure: Figure, records: Records, *, title: str = "The numbers of its runs"
) -> Table | None:
    """Return a table of the numbers in the results behind a figure without curves.

    It has a row for each variant, and a column for each number or list of numbers that
    all results have: the median over the list and the seeds, the least and the
    greatest. ``None`` for a figure of
    :class:`~normalign_reproduction.reporting.panels.Panels`, for one that wants none,
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
    keys = _varied(records)

    def rows(records: Records) -> list[Row]:
        groups = grouped(records, *keys) if keys else {(): list(records)}
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


def _varied(records: Records) -> list[str]:
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
