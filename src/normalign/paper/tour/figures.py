"""The pictures of the tour, each an SVG small enough for a telephone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch

from normalign.data.dataset import Dataset
from normalign.geometry import Slice, partition
from normalign.paper.reporting.svg import drawing_style, svg_text
from normalign.paper.tour.runs import TourRun
from normalign.plots import plot_centroids, plot_curves, plot_partition

__all__ = ["Figures", "draw_figures"]

CURVES = {
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
    "normal_alignment": "normal alignment",
    "effective_rank": "effective rank",
    "centroid_alignment": "centroid alignment",
    "local_robustness": "local robustness",
}

# The drawn square has its centre at the first digit and, from there, this reach in
# units of the slice's axes: wide enough for a thousand regions or more, narrow enough
# to see them one by one.
_REACH = 0.2


@dataclass(frozen=True)
class Figures:
    """SVG elements by name, and what was counted in drawing them.

    Parameters
    ----------
    curves : dict of str
        One panel for each measure.
    centroids : dict of str
        Digits over their centroids, for each run and state, ``"run, state"``.
    partition : dict of str
        The square around a digit, for each run.
    regions : dict of int
        Number of regions in that square, for each run.
    boundaries : dict of int
        Number of segments in it along which the prediction changes.
    """

    curves: dict[str, str]
    centroids: dict[str, str]
    partition: dict[str, str]
    regions: dict[str, int]
    boundaries: dict[str, int]

    def files(self) -> dict[str, str]:
        """Return file name and content of every picture."""
        named = {
            f"{group}-{key.replace(', ', '-').replace(' ', '-')}.svg": svg
            for group in ("curves", "centroids", "partition")
            for key, svg in getattr(self, group).items()
        }
        return dict(sorted(named.items()))


def draw_figures(runs: Mapping[str, TourRun], data: Dataset) -> Figures:
    """Draw curves over training, digits with centroids, and a slice of the input."""
    with drawing_style():
        return Figures(_curves(runs), _centroids(runs, data), *_partitions(runs, data))


def _curves(runs: Mapping[str, TourRun]) -> dict[str, str]:
    columns = {name: run.history.columns for name, run in runs.items()}
    marks = {name: run.epoch("generalised") for name, run in runs.items()}
    limits = {"train_accuracy": (0.0, 1.02), "test_accuracy": (0.0, 1.02)}
    drawn = {}
    for column, title in CURVES.items():
        figure = plt.figure(figsize=(3.6, 2.5), layout="constrained")
        plot_curves(columns, {column: title}, marks=marks, limits=limits, figure=figure)
        drawn[column] = svg_text(figure, name=column, title=f"{title} over epochs")
    return drawn


def _centroids(runs: Mapping[str, TourRun], data: Dataset) -> dict[str, str]:
    x = _one_of_each(data)[::2]
    drawn = {}
    for name, run in runs.items():
        for state in ("memorised", "end"):
            if state not in run.states:
                continue
            figure = plt.figure(figsize=(3.6, 1.75), layout="constrained")
            plot_centroids(run.network(state), x, n=5, figure=figure)
            label = f"{name}, {state}".replace(" ", "-").replace(",", "")
            title = f"five digits over their centroids: {name}, {state}"
            drawn[f"{name}, {state}"] = svg_text(figure, name=label, title=title)
    return drawn


def _partitions(
    runs: Mapping[str, TourRun], data: Dataset
) -> tuple[dict[str, str], dict[str, int], dict[str, int]]:
    digits = _one_of_each(data)[:3]
    plane = Slice.through(*digits)
    centre = plane.coordinates(digits[:1])[0]
    low, high = centre - _REACH, centre + _REACH
    bounds = [float(v) for v in (low[0], high[0], low[1], high[1])]
    drawn, regions, boundaries = {}, {}, {}
    for name, run in runs.items():
        pieces = partition(run.network(), plane, bounds=bounds)
        regions[name] = len(pieces)
        boundaries[name] = len(pieces.decision_boundaries())
        figure = plt.figure(figsize=(3.6, 3.2), layout="constrained")
        axes = figure.subplots()
        plot_partition(pieces, color="slope_norm", points=digits[:1], ax=axes)
        for artist in axes.collections:
            artist.set_rasterized(True)  # thousands of polygons are a large SVG
        axes.set(xticks=[], yticks=[])
        label = f"partition-{name.replace(' ', '-')}"
        title = f"the regions of a slice through three digits: {name}"
        drawn[name] = svg_text(figure, name=label, title=title)
    return drawn, regions, boundaries


def _one_of_each(data: Dataset) -> torch.Tensor:
    """Return the first training image of each digit, from 0 to 9."""
    places = [int((data.y_train == digit).nonzero()[0]) for digit in range(10)]
    return data.x_train[places]
