"""Numbers over training, in small panels on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normalign._errors import require

__all__ = ["COLOURS", "plot_curves"]

# Told apart in print, by the colour-blind, and on light and dark ground alike.
COLOURS = ("#d9762b", "#2f86c6", "#3f9e6b", "#b05aa0", "#8a8f98")


def plot_curves(
    runs: Mapping[str, Mapping[str, Sequence[float]]],
    panels: Mapping[str, str] | Sequence[str],
    *,
    over: str = "epoch",
    marks: Mapping[str, float | None] | None = None,
    limits: Mapping[str, tuple[float, float]] | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Draw one panel per quantity, one curve per run, over a logarithmic axis.

    Rows where ``over`` is not positive (the untrained model at epoch 0) have no place
    on the axis and are left out; numbers that are not finite leave a gap.

    Parameters
    ----------
    runs : mapping of str to columns
        The name of a run and its columns, e.g. ``{"baseline": history.columns}``.
    panels : mapping of column to title, or sequence of columns
        What is drawn; from left to right.
    over : str, default="epoch"
        The column along the axis.
    marks : mapping of run to number, optional
        A dotted vertical line for a run, such as its epoch of generalisation.
    limits : mapping of column to (low, high), optional
        Range of a panel; the others fit their curves.
    figure : matplotlib Figure, optional
        Where to draw; by default a new one.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If there is nothing to draw, or a run lacks one of the columns.

    Examples
    --------
    >>> columns = {"epoch": [1, 10, 100], "loss": [1.0, 0.1, 0.01]}
    >>> len(plot_curves({"run": columns}, ["loss"]).axes)
    1
    """
    titles = dict(panels) if isinstance(panels, Mapping) else {p: p for p in panels}
    callee = "plot_curves"
    require(len(runs) > 0, callee, "runs", "non-empty", dict(runs))
    require(len(titles) > 0, callee, "panels", "non-empty", list(titles))
    for name, columns in runs.items():
        for column in (over, *titles):
            got = f"{name!r} with {', '.join(columns)}"
            rule = f"columns with {column!r} in each"
            require(column in columns, callee, "runs", rule, got)

    figure = figure or plt.figure(
        figsize=(3.4 * len(titles), 2.5), layout="constrained"
    )
    axes = figure.subplots(1, len(titles), squeeze=False)[0]
    for axis, (column, title) in zip(axes, titles.items(), strict=True):
        _panel(axis, runs, column, over)
        axis.set_title(title, fontsize="medium")
        if limits is not None and column in limits:
            axis.set_ylim(limits[column])
        for place, name in enumerate(runs):
            mark = None if marks is None else marks.get(name)
            if mark is not None:
                axis.axvline(mark, color=_colour(place), linestyle=":", linewidth=1)
    axes[0].legend(fontsize="small", frameon=False)
    return figure


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _panel(
    axis: Axes,
    runs: Mapping[str, Mapping[str, Sequence[float]]],
    column: str,
    over: str,
) -> None:
    for place, (name, columns) in enumerate(runs.items()):
        pairs = zip(columns[over], columns[column], strict=True)
        points = [(at, value) for at, value in pairs if at > 0]
        at, values = zip(*points, strict=True) if points else ((), ())
        axis.plot(at, values, color=_colour(place), label=name, linewidth=1.6)
    axis.set_xscale("log")
    axis.set_xlabel(over)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
