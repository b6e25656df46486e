"""The numbers under a figure: where its curves end, as a table."""

from __future__ import annotations

import math

from normalign_reproduction.reporting.panels import Panel, Panels, PointsPanel
from normalign_reproduction.spec import Column, Figure, Records, Row, Table
from normalign_reproduction.summaries import grouped, interval, mean

__all__ = ["curve_ends"]


def curve_ends(figure: Figure, *, title: str = "Where the curves end") -> Table | None:
    """Return a table of the last values of a figure's curves, means over seeds.

    It has a row for each line, or for each point along an axis of settings. ``None``
    for a figure that is not made of
    :class:`~normalign_reproduction.reporting.panels.Panels`.
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
        groups = grouped(records, *keys)
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

    named = {panels.by: panels.heading() or panels.by}
    heads = [Column(key, named.get(key) or key) for key in keys]
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
