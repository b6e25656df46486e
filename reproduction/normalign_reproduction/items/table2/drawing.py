"""Pictures of tables: two methods against each other, and the path between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normalign_reproduction._errors import require
from normalign_reproduction.items.alpha_path.rows import (
    PROTOCOL,
    RADII,
    path_rows,
    quartile_tables,
    table_means,
)
from normalign_reproduction.items.table2.rows import (
    METHODS,
    PROTOCOLS,
    pairs,
    scores,
)
from normalign_reproduction.report.panels import COLOURS, STYLES
from normalign_reproduction.spec import Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["against", "frontier"]

_QUANTITIES = {
    "accuracy": "Test accuracy (%)",
    "asr_1": "Attack success rate (%), radius 1",
    "normal_alignment": "Normal alignment",
}


def against(records: Records) -> Figure:
    """Draw RFAM against RFM, a point for each table and protocol, over a diagonal.

    Points are means over seeds. Above the diagonal RFAM has the larger number.

    Raises
    ------
    ValueError
        If there are no records.
    """
    from matplotlib.figure import Figure

    require(len(records) > 0, "against", "records", "non-empty", list(records))
    figure = Figure(figsize=(3.4 * len(_QUANTITIES), 3.3), layout="constrained")
    axes = figure.subplots(1, len(_QUANTITIES))
    for axis, (name, title) in zip(axes, _QUANTITIES.items(), strict=True):
        ends: list[float] = []
        for colour, protocol in zip(COLOURS, PROTOCOLS, strict=False):
            points = _points(records, protocol, name)
            ends += [end for point in points for end in point]
            axis.scatter(
                [x for x, _ in points], [y for _, y in points], s=14, alpha=0.7,
                color=colour, label=protocol, linewidths=0,
            )  # fmt: skip
        if ends:
            reach = min(ends), max(ends)
            axis.plot(reach, reach, color=COLOURS[4], linewidth=0.9, zorder=0)
        axis.set_title(title, fontsize="medium")
        axis.set_xlabel("RFM")
        axis.set_ylabel("RFAM")
        axis.set_aspect("equal", adjustable="datalim")
        _plain(axis)
    axes[0].legend(frameon=False, fontsize="small")
    return figure


def frontier(records: Records) -> Figure:
    """Draw accuracy against attack success along the identity weight.

    Left: means over tables, a line for each radius, every weight a point. Right: the
    same at radius 1 for single tables, at the quartiles of how much the attack success
    changes from weight 1 to weight 0. A ring is weight 0, a full point weight 1.

    Raises
    ------
    ValueError
        If there are no records.
    """
    from matplotlib.figure import Figure

    require(len(records) > 0, "frontier", "records", "non-empty", list(records))
    figure = Figure(figsize=(8.4, 3.5), layout="constrained")
    means, single = figure.subplots(1, 2)
    rows = path_rows(records)
    for k, radius in enumerate(RADII):
        points = [
            (row[f"asr_{radius}"], row["accuracy"])
            for row in rows
            if row[f"asr_{radius}"] is not None and row["accuracy"] is not None
        ]
        _path(means, points, COLOURS[k], STYLES[k], f"radius {radius}")
    found = table_means(records)
    for k, table in enumerate(quartile_tables(records)):
        points = [
            (one["asr_1"], one["accuracy"])
            for one in (by_table[table] for by_table in found.values())
            if one["asr_1"] is not None and one["accuracy"] is not None
        ]
        _path(single, points, COLOURS[k], STYLES[k % len(STYLES)], table)
    titles = (f"means over tables, {PROTOCOL}", f"single tables, {PROTOCOL}, radius 1")
    for axis, title in zip((means, single), titles, strict=True):
        axis.set_title(title, fontsize="medium")
        axis.set_xlabel("Attack success rate (%)")
        axis.set_ylabel("Test accuracy (%)")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize="small")
        _plain(axis)
    return figure


def _points(records: Records, protocol: str, name: str) -> list[tuple[float, float]]:
    rfm, rfam = (
        scores(records, protocol=protocol, identity_weight=weight)
        for weight in METHODS.values()
    )
    return [
        (x, y)
        for one, other in pairs(rfm, rfam).values()
        if (x := one[name]) is not None and (y := other[name]) is not None
    ]


def _path(
    axis: Axes,
    points: Sequence[tuple[float, float]],
    colour: str,
    style: str,
    label: str,
) -> None:
    """Draw a path from weight 0, a ring, to weight 1, a full point."""
    if not points:
        return
    x, y = zip(*points, strict=True)
    axis.plot(x, y, color=colour, linestyle=style, linewidth=1.4, label=label)
    axis.plot(x[1:-1], y[1:-1], ".", color=colour, markersize=4)
    axis.plot(x[:1], y[:1], "o", color=colour, markersize=6, fillstyle="none")
    axis.plot(x[-1:], y[-1:], "o", color=colour, markersize=6)


def _plain(axis: Axes) -> None:
    axis.grid(alpha=0.16, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
