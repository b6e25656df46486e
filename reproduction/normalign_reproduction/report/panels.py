"""Figures of several panels: curves and final values of several seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from normalign_reproduction._errors import require
from normalign_reproduction.spec import Record, Records
from normalign_reproduction.statistics import column, final, group_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = [
    "Curve", "Line", "Panel", "Panels", "PointsPanel", "Spread", "bands", "final_value",
    "mean_curve", "spread",
]  # fmt: skip

# Fewer seeds than this have no standard deviation worth drawing.
_FEW = 5


@dataclass(frozen=True)
class Spread:
    """The mean of some seeds, and how far they reach.

    ``low`` and ``high`` are the least and the greatest of fewer than five numbers, else
    one standard deviation to each side.
    """

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Curve:
    """A mean with its band along an axis, over at most ``n`` seeds."""

    x: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    n: int


def spread(values: Sequence[float], scale: float = 1.0) -> Spread | None:
    """Return mean and reach of those numbers that are finite; ``None`` of none.

    Examples
    --------
    >>> spread([1.0, 3.0, float("nan")])
    Spread(mean=2.0, low=1.0, high=3.0, n=2)
    """
    finite = [scale * value for value in values if math.isfinite(value)]
    if not finite:
        return None
    middle, low, high = statistics.fmean(finite), min(finite), max(finite)
    if len(finite) >= _FEW:
        reach = statistics.stdev(finite)
        low, high = middle - reach, middle + reach
    return Spread(middle, low, high, len(finite))


def bands(points: Sequence[tuple[float, Spread]]) -> Curve:
    """Return spreads along an axis as a curve."""
    return Curve(
        [x for x, _ in points],
        [s.mean for _, s in points],
        [s.low for _, s in points],
        [s.high for _, s in points],
        max((s.n for _, s in points), default=0),
    )


def mean_curve(
    records: Records, x: str, y: str, *, log: bool = False, scale: float = 1.0
) -> Curve:
    """Return the mean curve of some seeds of the same variant.

    Seeds that were not evaluated at the same places are read between theirs, on a
    straight line of the axis; none is drawn beyond its own ends. With ``log``, what is
    not positive along the axis is left out.
    """
    curves = [_finite(column(r, x), column(r, y), log) for r in records]
    places = sorted({at for curve in curves for at, _ in curve})
    points = []
    for at in places:
        here = spread([_read(curve, at, log) for curve in curves], scale)
        if here is not None:
            points.append((at, here))
    return bands(points)


def final_value(record: Record, name: str) -> float:
    """Return a number of a result, or the last finite one of a column; else NaN.

    Raises
    ------
    ValueError
        If the result has neither.
    """
    if name in record.result:
        value = record.result[name]
        return math.nan if value is None else float(value)
    rule = f"one of {', '.join(record.result)} or a column of the history"
    require("history" in record.result, "settled", "name", rule, repr(name))
    return final(record, name)


def _finite(
    x: Sequence[float], y: Sequence[float], log: bool
) -> list[tuple[float, float]]:
    pairs = zip(x, y, strict=True)
    return [
        (at, value)
        for at, value in pairs
        if math.isfinite(value) and (at > 0 or not log)
    ]


def _read(curve: Sequence[tuple[float, float]], at: float, log: bool) -> float:
    """Return a curve's value at a place, between its neighbours; NaN outside."""
    if not curve or not curve[0][0] <= at <= curve[-1][0]:
        return math.nan
    place = math.log if log else float
    for (left, low), (right, high) in zip(curve, [*curve[1:], curve[-1]], strict=True):
        if at == left:
            return low
        if left < at < right:
            share = (place(at) - place(left)) / (place(right) - place(left))
            return low + share * (high - low)
    return math.nan


# Told apart in print, by the colour-blind, and on light and dark ground alike.
COLOURS = (
    "#d9762b", "#2f86c6", "#3f9e6b", "#b05aa0", "#8a8f98", "#b8962e", "#5a6fd0",
)  # fmt: skip
STYLES = ("-", "--", ":", "-.")
# The ends of viridis vanish, one on dark ground and the other on light.
_DARK, _LIGHT = 0.2, 0.84
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Line:
    """One line of a figure: the value of the setting, its name and its colour."""

    value: Any
    label: str
    colour: str


@dataclass(frozen=True)
class Panel:
    """Curves over training: the mean over seeds, in a band of their spread.

    Parameters
    ----------
    x : str
        The column along the axis; what is not positive has no place on a logarithmic
        one.
    y : str or mapping of str to str
        The column; or several with their names, drawn in different dashes.
    xlabel, ylabel, title : str
    log_x, log_y : bool
    ylim : pair of float, optional
        By default what fits.
    scale : float
        What numbers are multiplied with: 100 for percentages.
    """

    x: str
    y: str | Mapping[str, str]
    xlabel: str = ""
    ylabel: str = ""
    title: str = ""
    log_x: bool = True
    log_y: bool = False
    ylim: tuple[float, float] | None = None
    scale: float = 1.0

    @property
    def columns(self) -> dict[str, str]:
        """The columns that are drawn, with their names."""
        if isinstance(self.y, str):
            return {self.y: self.ylabel or self.y.replace("_", " ")}
        return dict(self.y)

    def end(self, record: Record, name: str) -> float:
        """Return where a run's curve ends."""
        return self.scale * final(record, name)

    def draw(self, axis: Axes, records: Records, lines: Sequence[Line], by: str | None):
        """Draw into an axis: the colour is the line's, the dashes are the column's."""
        several = len(self.columns) > 1
        for line in lines:
            group = [r for r in records if by is None or r[by] == line.value]
            for k, name in enumerate(self.columns):
                colour = COLOURS[k % len(COLOURS)] if by is None else line.colour
                curve = mean_curve(
                    group, self.x, name, log=self.log_x, scale=self.scale
                )
                _curve(axis, curve, colour, STYLES[k % len(STYLES)])
        if several:
            _own_legend(axis, list(self.columns.values()), coloured=by is None)
        if self.log_x:
            axis.set_xscale("log")
            _plain_ticks(axis.xaxis)


@dataclass(frozen=True)
class PointsPanel:
    """Final values against a setting: a point for each value, a line through them.

    Parameters
    ----------
    x : str
        The setting along the axis.
    ys : mapping of str to str
        What is drawn, with its name: a number in the result, or the last finite value
        of a column of its history.
    zero_at : float, optional
        Where a setting of 0 is drawn on a logarithmic axis, labelled 0.
    xlabel, ylabel, title, log_x, log_y, ylim, scale
        As those of :class:`Panel`.
    """

    x: str
    ys: Mapping[str, str]
    zero_at: float | None = None
    xlabel: str = ""
    ylabel: str = ""
    title: str = ""
    log_x: bool = True
    log_y: bool = False
    ylim: tuple[float, float] | None = None
    scale: float = 1.0

    @property
    def columns(self) -> dict[str, str]:
        """What is drawn, with its names."""
        return dict(self.ys)

    def end(self, record: Record, name: str) -> float:
        """Return the final value of a run."""
        return self.scale * final_value(record, name)

    def place(self, value: float) -> float:
        """Return where a value of the setting stands along the axis."""
        return self.zero_at if value == 0 and self.zero_at is not None else value

    def draw(self, axis: Axes, records: Records, lines: Sequence[Line], by: str | None):
        """Draw into an axis; lines of other panels are of no concern here."""
        groups = {
            values[0]: group for values, group in group_by(records, self.x).items()
        }
        shown = sorted(v for v in groups if not self.log_x or self.place(v) > 0)
        for k, name in enumerate(self.ys):
            ends = {v: spread([self.end(r, name) for r in groups[v]]) for v in shown}
            curve = bands([(self.place(v), s) for v, s in ends.items() if s])
            colour = COLOURS[k % len(COLOURS)]
            _curve(axis, curve, colour, STYLES[k % len(STYLES)], marker="o")
        _own_legend(axis, list(self.ys.values()), coloured=True, marker="o")
        axis.set_xscale("log" if self.log_x else "linear")
        if shown:
            axis.set_xticks([self.place(value) for value in shown])
            axis.set_xticklabels([f"{value:g}" for value in shown])
            axis.minorticks_off()


@dataclass(frozen=True)
class Panels:
    """A figure of panels side by side, with a line for each value of a setting.

    Called with records, it draws. Bands reach over the seeds, from the least to the
    greatest if they are fewer than five, else one standard deviation to each side. A
    run that ended early counts as far as it goes.

    Parameters
    ----------
    panels : sequence of Panel or PointsPanel
        From left to right.
    by : str, optional
        The setting whose values are the lines; by default there is one line.
    labels : mapping of value to str, optional
        What the values are called, in the order of the legend; by default numbers from
        small to large, other values as they come, written as they are.
    legend : int or "below" or None
        The panel that has the legend inside.
    legend_title : str, optional
        By default the name of the setting.
    sequential : bool, optional
        Colours in order, from dark to light, not just different ones. By default where
        the values are numbers.

    Examples
    --------
    >>> figure = Panels(panels=[Panel(x="epoch", y="loss")], by="strength")
    >>> len(figure.panels), figure.by
    (1, 'strength')
    """

    panels: Sequence[Panel | PointsPanel]
    by: str | None = None
    labels: Mapping[Any, str] | None = None
    legend: int | str | None = 0
    legend_title: str | None = None
    sequential: bool | None = None

    def __call__(self, records: Records) -> Figure:
        """Draw the records.

        Raises
        ------
        ValueError
            If there are none, or their histories lack a column.
        """
        from matplotlib.figure import Figure

        require(len(records) > 0, "Panels", "records", "non-empty", list(records))
        n = len(self.panels)
        figure = Figure(figsize=(3.5 * n, 2.8), layout="constrained")
        axes = figure.subplots(1, n, squeeze=False)[0]
        lines = self.lines(records)
        for axis, panel in zip(axes, self.panels, strict=True):
            panel.draw(axis, records, lines, self.by)
            _dress(axis, panel)
        if len(lines) > 1:
            self._legend(figure, axes, lines)
        return figure

    def lines(self, records: Records) -> list[Line]:
        """Return the lines of the figure, in the order of its legend."""
        if self.by is None:
            return [Line(None, "", COLOURS[0])]
        values = [values[0] for values in group_by(records, self.by)]
        named = dict(self.labels or {})
        numbers = all(
            isinstance(value, int | float) and not isinstance(value, bool)
            for value in values
        )
        if named:
            order = list(named)
            values.sort(key=lambda v: order.index(v) if v in named else len(order))
        elif numbers:
            values.sort()
        ordered = numbers if self.sequential is None else self.sequential
        colours = _sequence(len(values)) if ordered else _cycle(len(values))
        return [
            Line(value, named.get(value, _format(value)), colour)
            for value, colour in zip(values, colours, strict=True)
        ]

    def heading(self) -> str:
        """Return what the legend is headed with."""
        if self.legend_title is not None:
            return self.legend_title
        return "" if self.by is None else self.by.replace("_", " ")

    def apart(self) -> list[Panels]:
        """Return each panel as a figure of its own, without the legend they share."""
        return [replace(self, panels=(p,), legend=None) for p in self.panels]

    def _legend(self, figure: Figure, axes: Sequence[Axes], lines: Sequence[Line]):
        from matplotlib.lines import Line2D

        if self.legend is None:
            return
        handles = [
            Line2D([], [], color=line.colour, label=line.label) for line in lines
        ]
        dress: dict[str, Any] = {
            "handles": handles, "title": self.heading() or None, "frameon": False,
            "fontsize": "small", "title_fontsize": "small",
        }  # fmt: skip
        if self.legend == "below":
            figure.legend(loc="outside lower center", ncols=min(6, len(lines)), **dress)
        else:
            axis = axes[int(self.legend)]
            own = axis.get_legend()
            axis.legend(**dress)
            if own is not None:
                axis.add_artist(own)


def _format(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cycle(n: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(n)]


def _sequence(n: int) -> list[str]:
    """Return colours of viridis from dark to light."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if n == 1:
        return [COLOURS[1]]
    step = (_LIGHT - _DARK) / (n - 1)
    return [to_hex(colormaps["viridis"](_DARK + step * i)) for i in range(n)]


def _curve(axis: Axes, curve: Curve, colour: str, style: str, marker: str = ""):
    axis.plot(
        curve.x, curve.mean, color=colour, linestyle=style, linewidth=1.6,
        marker=marker or None, markersize=4,
    )  # fmt: skip
    if curve.n > 1:
        axis.fill_between(
            curve.x, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0
        )


def _own_legend(
    axis: Axes, names: Sequence[str], *, coloured: bool, marker: str = ""
) -> None:
    """Name the lines that differ within a panel."""
    from matplotlib import rcParams
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], label=name, linestyle=STYLES[k % len(STYLES)],
            marker=marker or None, markersize=4,
            color=COLOURS[k % len(COLOURS)] if coloured else rcParams["text.color"],
        )
        for k, name in enumerate(names)
    ]  # fmt: skip
    axis.legend(handles=handles, frameon=False, fontsize="small")


def _plain_ticks(axis: Axis) -> None:
    """Write powers of ten as text, not as mathematics: shorter, and drawn faster."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    # A range within one decade has no power of ten to be labelled with.
    low, high = axis.get_view_interval()
    decades = math.floor(math.log10(high)) - math.ceil(math.log10(low))
    if low > 0 and decades >= 1:
        axis.set_minor_formatter(NullFormatter())
        axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))


def _power(value: float) -> str:
    if value <= 0:
        return ""
    exponent = round(math.log10(value))
    if not math.isclose(value, 10.0**exponent) or -3 < exponent < 4:
        return f"{value:g}"
    return "10" + str(exponent).translate(_RAISED)


def _dress(axis: Axes, panel: Panel | PointsPanel) -> None:
    axis.set_xlabel(panel.xlabel or panel.x.replace("_", " ").capitalize())
    axis.set_ylabel(panel.ylabel)
    if panel.title:
        axis.set_title(panel.title, fontsize="medium")
    if panel.log_y:
        axis.set_yscale("log")
        _plain_ticks(axis.yaxis)
    if panel.ylim is not None:
        axis.set_ylim(panel.ylim)
    axis.grid(alpha=0.16, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
