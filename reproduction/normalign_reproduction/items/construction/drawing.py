"""The picture of Appendix A: points on a circle and the lines where neurons wake up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from normalign_reproduction._errors import require
from normalign_reproduction.spec import Record, Records
from normalign_reproduction.statistics import group_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ConstructionFigure"]

# Seen on light and dark ground alike.
_LINE, _POINT = "#8a8f98", "#d9762b"
_REACH = 1.35


@dataclass(frozen=True)
class ConstructionFigure:
    """Two panels for each number of points: the points, then the network built on them.

    In the second the points are coloured by the norm of the last layer that output 1
    takes, on one logarithmic scale for all panels. The least seed is drawn.

    Parameters
    ----------
    by : str
        The setting that is the number of points.

    Examples
    --------
    >>> ConstructionFigure(by="n_points").by
    'n_points'
    """

    by: str

    def __call__(self, records: Records) -> Figure:
        """Draw the records.

        Raises
        ------
        ValueError
            If there are none.
        """
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure

        require(len(records) > 0, "LevelSets", "records", "non-empty", list(records))
        groups = group_by(records, self.by)
        shown = [groups[values][0] for values in sorted(groups)]
        norms = [norm for record in shown for norm in record.result["norms"]]
        colours = ScalarMappable(LogNorm(min(norms), max(norms)), "viridis")
        figure = Figure(figsize=(3.0 * 2 * len(shown), 2.9), layout="constrained")
        axes = figure.subplots(1, 2 * len(shown), squeeze=False)[0]
        for i, record in enumerate(shown):
            n, plain, built = record[self.by], axes[2 * i], axes[2 * i + 1]
            _points(plain, record, _POINT)
            plain.set_title(f"{n} sample training data", fontsize="medium")
            _lines(built, record)
            _points(built, record, colours.to_rgba(record.result["norms"]))
            built.set_title("normal-aligned network", fontsize="medium")
        figure.colorbar(colours, ax=list(axes), label="norm of last layer", pad=0.01)
        return figure


def _points(axis: Axes, record: Record, colour: Any) -> None:
    from matplotlib.patches import Circle

    axis.add_patch(Circle((0, 0), 1, fill=False, color=_LINE, linewidth=0.6))
    x, y = zip(*record.result["points"], strict=True)
    axis.scatter(x, y, c=colour, s=36, zorder=3, edgecolors=_LINE, linewidths=0.6)
    axis.set(xlim=(-_REACH, _REACH), ylim=(-_REACH, _REACH), xticks=[], yticks=[])
    axis.set_aspect("equal")
    axis.spines[:].set_visible(False)


def _lines(axis: Axes, record: Record) -> None:
    """Draw the line of each neuron: all z with <x_i, z> = offset_i."""
    for normal, offset in zip(
        record.result["points"], record.result["offsets"], strict=True
    ):
        ends = _ends(normal, offset)
        x, y = zip(*ends, strict=True)
        axis.plot(x, y, color=_LINE, linewidth=1.0, zorder=2)


def _ends(normal: Sequence[float], offset: float) -> list[tuple[float, float]]:
    """Return where a line leaves the disc that the panel shows."""
    a, b = normal
    half = math.sqrt(_REACH**2 - offset**2)
    return [(offset * a - s * half * b, offset * b + s * half * a) for s in (-1, 1)]
