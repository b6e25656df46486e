"""Alignment and rank through the layers of a network."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from normalign._errors import require
from normalign.geometry import LocalGeometry
from normalign.plots._curves import COLOURS

__all__ = ["plot_profile"]

PANELS = {
    "centroid_alignment": "centroid alignment",
    "normal_alignment": "normal alignment",
    "effective_rank": "effective rank",
}

# Names of more letters than this in all would meet on the axis, and are turned.
_LETTERS = 34

# Beside the colours, for print and for those who see few of them.
_MARKERS = ("o", "s", "^", "D", "v")


def plot_profile(
    profile: Mapping[str, LocalGeometry] | Mapping[str, Mapping[str, LocalGeometry]],
    *,
    figure: Figure | None = None,
) -> Figure:
    """Draw centroid alignment, normal alignment and effective rank by place.

    One panel each: the mean over the samples as a line with dots, the middle half of
    the samples as a band. Alignments share one scale from 0, or below where a centroid
    points away, to 1 where any comes above a half; ranks start at 1.

    Parameters
    ----------
    profile : LayerProfile, or mapping of str to LayerProfile
        What :func:`~normalign.geometry.layer_profile` returns. Several, by name, are
        drawn over one another; their places are put side by side in the order in which
        they come.
    figure : matplotlib Figure, optional
        Where to draw; by default a new one.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    ValueError
        If there is no place, or no sample, to draw.

    Examples
    --------
    >>> import torch
    >>> from normalign.geometry import layer_profile
    >>> figure = plot_profile(layer_profile(torch.nn.Linear(4, 2), torch.ones(3, 4)))
    >>> [axis.get_title() for axis in figure.axes]
    ['centroid alignment', 'normal alignment', 'effective rank']
    """
    runs = _by_name(profile)
    places = list(dict.fromkeys(place for run in runs.values() for place in run))
    drawable = bool(places) and all(
        len(g) for run in runs.values() for g in run.values()
    )
    require(
        drawable, "plot_profile", "profile", "of at least one place and sample",
        f"places {places}",
    )  # fmt: skip
    turned = sum(len(place) + 1 for place in places) > _LETTERS
    width = max(2.6, 1.2 + 0.28 * len(places))
    figure = figure or plt.figure(
        figsize=(3 * width, 2.9 if turned else 2.5), layout="constrained"
    )
    axes = figure.subplots(1, len(PANELS), squeeze=False)[0]
    for axis, (measure, title) in zip(axes, PANELS.items(), strict=True):
        for i, (name, run) in enumerate(runs.items()):
            _draw(axis, run, places, measure, name, i)
        axis.set_title(title, fontsize="medium")
        _frame(axis, places, turned)
    axes[1].set_xlabel("mean, and middle half of the samples", fontsize="small")
    _scale_alignments(axes[:2])
    axes[2].set_ylim(bottom=min(1, axes[2].get_ylim()[0]))
    axes[2].yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    if len(runs) > 1:
        axes[0].legend(fontsize="small", frameon=False)
    return figure


def _by_name(profile: Mapping) -> dict[str, Mapping[str, LocalGeometry]]:
    values = list(profile.values())
    if values and not isinstance(values[0], LocalGeometry):
        return dict(profile)
    return {"": profile}


def _draw(
    axis: Axes,
    run: Mapping[str, LocalGeometry],
    places: list[str],
    measure: str,
    name: str,
    i: int,
) -> None:
    colour, marker = COLOURS[i % len(COLOURS)], _MARKERS[i % len(_MARKERS)]
    at = [places.index(place) for place in run]
    values = [getattr(g, measure).double().cpu() for g in run.values()]
    means = [float(v.mean()) for v in values]
    low, high = (
        [float(v.quantile(q)) if bool(v.isfinite().all()) else float("nan")
         for v in values]
        for q in (0.25, 0.75)
    )  # fmt: skip
    axis.plot(at, means, color=colour, marker=marker, markersize=4, linewidth=1.6,
              label=name)  # fmt: skip
    if len(at) > 1:
        axis.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    else:  # a band needs two ends
        axis.vlines(at, low, high, color=colour, alpha=0.35, linewidth=6)


def _frame(axis: Axes, places: list[str], turned: bool) -> None:
    axis.set_xticks(range(len(places)), places, fontsize="small")
    if turned:
        axis.tick_params(axis="x", rotation=45)
        for label in axis.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
    axis.set_xlim(-0.5, len(places) - 0.5)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def _scale_alignments(axes: list[Axes]) -> None:
    """Give both alignments one scale that holds 0, and 1 if they come near it."""
    low = min(axis.get_ylim()[0] for axis in axes)
    high = max(axis.get_ylim()[1] for axis in axes)
    for axis in axes:
        axis.set_ylim(min(0.0, low), 1.02 if high > 0.5 else high)
        if low < 0:
            axis.axhline(0, color="#8a8f98", linewidth=0.8)
