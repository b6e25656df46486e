"""The picture of a comparison of methods: differences on tables, and mean ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from normalign_reproduction.items.peers.rows import (
    REFERENCE,
    TITLES,
    Standing,
    standing,
)
from normalign_reproduction.spec import Records
from normalign_reproduction.statistics import critical_difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["StandingPicture"]

# Seen on light and dark ground alike.
_LINE, _POINT, _OWN = "#8a8f98", "#2f86c6", "#d9762b"
_WIDTH = 0.5


@dataclass(frozen=True)
class StandingPicture:
    """Two panels: RFAM's accuracy less each method's, and the mean ranks of all.

    On the left a point is a table that both have, with a box over the quartiles; where
    RFAM has no table in common with another, there is no such panel. On the right the
    bar is as long as mean ranks must differ to be told apart.

    Parameters
    ----------
    reach : float
        Differences beyond, in percentage points, are drawn at the edge.

    Examples
    --------
    >>> StandingPicture().reach
    20.0
    """

    reach: float = 20.0

    def __call__(self, records: Records) -> Figure:
        """Draw the records."""
        from matplotlib.figure import Figure

        found = standing(records)
        others = [
            method
            for method in found.accuracies
            if method != REFERENCE and found.differences(method)
        ]
        height = 1.2 + 0.32 * max(len(others) + 1, len(found.mean_ranks))
        figure = Figure(figsize=(9.0, height), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        if others:
            self._differences(left, found, others)
        else:
            left.set_axis_off()
        _ranks(right, found)
        for axis in (left, right):
            axis.grid(axis="x", alpha=0.16, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
        return figure

    def _differences(self, axis: Axes, found: Standing, others: Sequence[str]) -> None:
        for place, method in enumerate(others):
            points = [100 * value for value in found.differences(method)]
            shown = [max(-self.reach, min(self.reach, value)) for value in points]
            # Spread by their order, so that equal ones do not hide each other.
            spread = [0.3 * ((7 * i) % 11 / 10 - 0.5) for i in range(len(shown))]
            axis.plot(
                shown, [place + off for off in spread], "o", color=_POINT, alpha=0.45,
                markersize=3, markeredgewidth=0,
            )  # fmt: skip
            low, middle, high = np.quantile(points, (0.25, 0.5, 0.75)).clip(
                -self.reach, self.reach
            )
            axis.barh(
                place, high - low, _WIDTH, left=low, fill=False, edgecolor=_LINE,
                linewidth=1.0,
            )  # fmt: skip
            ends = place - _WIDTH / 2, place + _WIDTH / 2
            axis.plot([middle, middle], ends, color=_OWN, linewidth=1.6)
        axis.axvline(0.0, color=_LINE, linewidth=0.8, linestyle=":")
        axis.set_yticks(range(len(others)), [TITLES[method] for method in others])
        axis.set(xlim=(-1.05 * self.reach, 1.05 * self.reach))
        axis.set_xlabel("RFAM's accuracy less the method's, points")
        axis.invert_yaxis()


def _ranks(axis: Axes, found: Standing) -> None:
    order = sorted(found.mean_ranks.items(), key=lambda one: one[1])
    for place, (method, rank) in enumerate(order):
        colour = _OWN if method == REFERENCE else _POINT
        axis.plot([rank], [place], "o", color=colour, markersize=6)
    axis.set_yticks(range(len(order)), [TITLES[method] for method, _ in order])
    axis.set_xlabel(f"Mean rank on {len(found.complete)} tables")
    axis.invert_yaxis()
    if len(order) > 1:
        best, length = order[0][1], critical_difference(len(order), len(found.complete))
        axis.plot([best, best + length], [-0.6, -0.6], color=_LINE, linewidth=2.0)
        axis.annotate(
            "critical difference", (best, -0.6), xytext=(0, 3),
            textcoords="offset points", fontsize="x-small",
        )  # fmt: skip
