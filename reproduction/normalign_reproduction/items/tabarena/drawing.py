"""The picture of the TabArena table: what is gained where one chose, and elsewhere."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from normalign_reproduction._errors import require
from normalign_reproduction.items.tabarena.rows import RFM, published_tasks, task_errors
from normalign_reproduction.spec import Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Gains"]

# Seen on light and dark ground alike.
_LINE, _PRINTED, _OTHER = "#8a8f98", "#d9762b", "#2f86c6"
_LOOKS = {
    "printed in the paper": (_PRINTED, True),
    "others": (_OTHER, True),
    "printed in the paper, partial data": (_PRINTED, False),
    "others, partial data": (_OTHER, False),
}
_STRAIGHT = 1.0  # percent about zero that are not logarithmic


@dataclass(frozen=True)
class Gains:
    """A point for each task: the mean gain of its draws' own choices, on two parts.

    Along is the gain in validation error, by which each draw chose; up is that of the
    same choice in test error. Tasks that always chose an RFM have no point. Points
    under the diagonal had luck in validation. Axes are logarithmic beyond one percent.

    Examples
    --------
    >>> Gains().size
    (4.6, 4.0)
    """

    size: tuple[float, float] = (4.6, 4.0)

    def __call__(self, records: Records) -> Figure:
        """Draw the records.

        Raises
        ------
        ValueError
            If there are none.
        """
        from matplotlib.figure import Figure

        require(len(records) > 0, "Gains", "records", "non-empty", list(records))
        figure = Figure(figsize=self.size, layout="constrained")
        axis = figure.subplots()
        groups: dict[str, list[tuple[float, float]]] = {name: [] for name in _LOOKS}
        for task, partial, x, y in _points(records):
            name = "printed in the paper" if task in published_tasks() else "others"
            groups[f"{name}, partial data" if partial else name].append((x, y))
            axis.annotate(
                task[:16], (x, y), xytext=(4, 2), textcoords="offset points",
                fontsize=5.5, alpha=0.8,
            )  # fmt: skip
        for label, points in groups.items():
            if points:
                x, y = zip(*points, strict=True)
                colour, filled = _LOOKS[label]
                face = colour if filled else "none"
                axis.scatter(
                    x, y, s=24, facecolors=face, edgecolors=colour, label=label
                )
        _dress(axis)
        return figure


def _points(records: Records) -> list[tuple[str, bool, float, float]]:
    points = []
    for one in task_errors(records):
        if all(weight == RFM for weight in one.own_choices(one.validation)):
            continue
        validated = one.own_gains(one.validation, one.validation)
        tested = one.own_gains(one.validation, one.test)
        if validated and tested:
            means = statistics.fmean(validated), statistics.fmean(tested)
            points.append((one.task, one.partial, *means))
    return points


def _dress(axis: Axes) -> None:
    axis.set_xscale("symlog", linthresh=_STRAIGHT)
    axis.set_yscale("symlog", linthresh=_STRAIGHT)
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(lambda value, _: f"{value:g}")
    axis.axhline(0, color=_LINE, linewidth=0.8)
    low, high = axis.get_xlim()
    axis.plot([0, high], [0, high], color=_LINE, linewidth=0.8, linestyle=":")
    axis.set_xlim(min(low, 0), high)
    axis.set_xlabel("Gain in validation error, %")
    axis.set_ylabel("Gain in test error, %")
    axis.grid(alpha=0.16, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize="small")
