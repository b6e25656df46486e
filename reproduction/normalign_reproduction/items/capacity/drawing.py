"""Pictures of robustly trained networks: by the number of images, and by stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normalign_reproduction._errors import require
from normalign_reproduction.items.capacity.rows import (
    by_network,
    by_size,
    network_title,
    value,
)
from normalign_reproduction.items.layers.claims import VIEWS, profile
from normalign_reproduction.report.panels import COLOURS, bands, spread
from normalign_reproduction.spec import Records
from normalign_reproduction.statistics import drop_none

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["by_images", "by_stage"]

_MARKERS = ("o", "s", "^", "D")
_WAYS = {"final": "-", "averaged": "--"}
_VIEWS = {"train": "-", "test": "--", "untrained": ":"}
_NUMBERS = {
    "centroid_alignment": "Centroid alignment",
    "answer_alignment": "Right answer's alignment",
    "normal_alignment": "Normal alignment",
    "effective_rank": "Effective rank",
}
_OF_INPUTS = ("normal_alignment", "effective_rank")


def by_images(records: Records) -> Figure:
    """Draw alignment, rank and accuracies against the number of training images.

    A colour for each network; solid for the weights at the end, dashed for their
    average. Of the accuracies, those at the end, and dotted those under attack.

    Raises
    ------
    ValueError
        If there are no records.
    """
    axes, figure = _axes("by_images", records, 3)
    for k, group in enumerate(by_network(records).values()):
        own = by_size(group)
        sizes = {n: own.get(n, []) for n in by_size(records)}
        for weights, style in _WAYS.items():
            for axis, name in zip(axes, _OF_INPUTS, strict=False):
                seeds = {
                    n: drop_none(value(r, name, weights) for r in runs)
                    for n, runs in sizes.items()
                }
                _line(axis, seeds, k, style)
        for name, style in (("test_accuracy", "-"), ("robust_accuracy", ":")):
            shares = {
                n: [100 * one for one in drop_none(value(r, name) for r in runs)]
                for n, runs in sizes.items()
            }
            _line(axes[2], shares, k, style)
    titles = ("Normal alignment", "Effective rank", "Accuracy (%)")
    for axis, title in zip(axes, titles, strict=True):
        _dress(axis, "Training images", title)
        axis.set_xscale("log")
        ticks = list(by_size(records))
        axis.set_xticks(ticks, [f"{n}" for n in ticks])
        axis.minorticks_off()
    _legend(axes[0], records, {"final weights": "-", "averaged weights": "--"})
    _styles(axes[2], {"clean": "-", "under attack": ":"})
    return figure


def by_stage(records: Records) -> Figure:
    """Draw alignments and rank of the maps from each stage's input to the output.

    A colour for each network; solid at training images, dashed at test images, dotted
    for the network before training.

    Raises
    ------
    ValueError
        If there are no records.
    """
    axes, figure = _axes("by_stage", records, len(_NUMBERS))
    places = list(dict.fromkeys(place for r in records for place in r["places"]))
    for axis, (name, title) in zip(axes, _NUMBERS.items(), strict=True):
        for k, group in enumerate(by_network(records).values()):
            for view, style in _VIEWS.items():
                found = profile(group, name, view)
                _line(axis, {places.index(at): v for at, v in found.items()}, k, style)
        _dress(axis, "Map from the input of", title)
        axis.set_xticks(range(len(places)), places)
        axis.margins(x=0.08)
    _legend(axes[0], records, {VIEWS[view]: _VIEWS[view] for view in _VIEWS})
    return figure


def _axes(callee: str, records: Records, n: int) -> tuple[Sequence[Axes], Figure]:
    from matplotlib.figure import Figure

    require(len(records) > 0, callee, "records", "non-empty", list(records))
    figure = Figure(figsize=(3.4 * n, 3.3), layout="constrained")
    return figure.subplots(1, n), figure


def _line(axis: Axes, seeds: Mapping[int, Sequence[float]], k: int, style: str) -> None:
    """Draw means over seeds along an axis, in a band that reaches over them.

    The line is broken where there is no number: it would seem to tell of one.
    """
    found = {x: spread(values) for x, values in seeds.items()}
    curve = bands([(x, one) for x, one in found.items() if one is not None])
    colour, solid = COLOURS[k % len(COLOURS)], style == "-"
    means = dict(zip(curve.x, curve.mean, strict=True))
    within = [x for x in found if means and min(means) <= x <= max(means)]
    axis.plot(
        within, [means.get(x, math.nan) for x in within],
        color=colour, linestyle=style, linewidth=1.6,
        marker=_MARKERS[k % len(_MARKERS)], markersize=5 if solid else 4,
        fillstyle="full" if solid else "none",
    )  # fmt: skip
    if curve.n > 1:
        axis.fill_between(
            curve.x, curve.low, curve.high, color=colour, alpha=0.1, linewidth=0
        )


def _legend(axis: Axes, records: Records, styles: Mapping[str, Any]) -> None:
    """Name networks by colour and mark, and ways by dashes, under the whole figure."""
    from matplotlib import rcParams
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLOURS[k % len(COLOURS)], label=network_title(network),
               marker=_MARKERS[k % len(_MARKERS)], markersize=5)
        for k, network in enumerate(by_network(records))
    ]  # fmt: skip
    handles += [
        Line2D([], [], color=rcParams["text.color"], linestyle=style, label=name)
        for name, style in styles.items()
    ]
    figure = axis.figure
    figure.legend(  # pyright: ignore[reportAttributeAccessIssue]
        handles=handles, loc="outside lower center", ncols=len(handles), frameon=False,
        fontsize="small",
    )  # fmt: skip


def _styles(axis: Axes, styles: Mapping[str, Any]) -> None:
    from matplotlib import rcParams
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=rcParams["text.color"], linestyle=style, label=name)
        for name, style in styles.items()
    ]
    axis.legend(handles=handles, frameon=False, fontsize="small")


def _dress(axis: Axes, xlabel: str, ylabel: str) -> None:
    axis.set_xlabel(xlabel)
    axis.set_ylabel(ylabel)
    axis.grid(alpha=0.16, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
