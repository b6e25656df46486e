"""What a pilot over weights says: the scores of its candidates, and the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature
from itertools import pairwise
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from normalign._errors import module_of_extra
from normalign.regularizers import GrokAlign, PenaltyForm
from normalign.training.history import History

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Candidate", "Course", "TunedWeight", "late_mean", "verdict"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Candidate:
    """A penalty to try; with weight 0 the control."""

    weight: float
    form: PenaltyForm

    @property
    def power(self) -> int | str | None:
        """Of the penalty; the control has none."""
        return self.form.power if self.weight > 0 else None


@dataclass(frozen=True, eq=False, repr=False)
class TunedWeight:
    """The weight that a pilot found, and what it saw.

    Made by :func:`normalign.training.tune_weight`.

    Parameters
    ----------
    weight : float
        0 where no penalty did better than none.
    power : {1, 2, "ratio"}
        With weight 0, the first that was tried.
    form : PenaltyForm
        The penalty, with that power.
    table : list of dict
        One for each candidate, the control first. Means over the repeats, in the second
        half of the epochs: ``score``, minus the validation loss, and its ``spread``
        (standard deviation over the repeats); ``gain`` and ``gain_spread``, of the
        difference from the control in the same repeat; ``validation_accuracy``,
        ``accuracy_gain`` and ``accuracy_gain_spread``. At the end:
        ``train_accuracy``; ``epochs``, the mean of when the repeats came to the
        threshold, NaN if one never did; ``diverged``. And ``weight`` and ``power``,
        None for the control.
    histories : list of list of History
        The curves behind each row of the table, one for each repeat. The validation set
        is called ``test`` there.
    measure : {"accuracy", "loss"}
        Of the validation set: what the threshold is about.
    threshold : float
        Nine tenths of the way from the measure of the model as given to the best one.
    at_edge : bool
        Whether the weight is the smallest or the largest penalty of the grid.
    epochs : int
        How far all candidates were trained.
    stopped : {"epochs", "time limit", "callback", "interrupted"}
        Why not further.
    seconds : float
    remarks : list of str
        What the pilot warned of.
    """

    weight: float
    power: int | str
    form: PenaltyForm
    table: list[Row]
    histories: list[list[History]]
    measure: str
    threshold: float
    at_edge: bool
    epochs: int
    stopped: str
    seconds: float
    remarks: list[str]

    def penalty(self, **settings: Any) -> GrokAlign:
        """Return the penalty, ready for a training loop.

        Parameters
        ----------
        **settings
            Of :class:`normalign.regularizers.GrokAlign`, such as ``generator``.
        """
        names = [entry.name for entry in fields(self.form)]
        form = {name: getattr(self.form, name) for name in names}
        known = signature(GrokAlign).parameters
        taken = {name: value for name, value in form.items() if name in known}
        penalty = GrokAlign(**{"weight": self.weight, **taken, **settings})
        # What only a PenaltyForm can say, such as released.
        further = {name: value for name, value in form.items() if name not in known}
        penalty.form = replace(penalty.form, **further)
        return penalty

    def to_frame(self) -> pd.DataFrame:
        """Return the table as a pandas DataFrame, one row per candidate."""
        pd = module_of_extra("TunedWeight.to_frame", "pandas", "frames")
        return pd.DataFrame(self.table)

    def __repr__(self) -> str:
        first = (
            f"TunedWeight(weight={self.weight:g}, power={self.power!r}): "
            f"{len(self.histories[0])} repeats of {self.epochs} epochs in "
            f"{self.seconds:.1f} s, epochs to {self.measure} {self.threshold:.3g}"
        )
        names = [name for name in _SHOWN if any(map(_is_known, self._column(name)))]
        lines = ["  " + "".join(f"{_SHOWN[name]:>11}" for name in names)]
        for row in self.table:
            best = row["weight"] == self.weight and row["power"] in (None, self.power)
            cells = [_cell(row[name]) for name in names]
            cells = [*cells[:2], "diverged"] if row["diverged"] else cells
            lines.append("* " if best else "  ")
            lines[-1] += "".join(f"{cell:>11}" for cell in cells)
        early = "" if self.stopped == "epochs" else f", ended by {self.stopped}"
        return "\n".join([first + early, *lines, *self.remarks])

    def _column(self, name: str) -> list[Any]:
        return [row[name] for row in self.table]


_SHOWN = {
    "weight": "weight",
    "power": "power",
    "score": "score",
    "spread": "spread",
    "gain": "gain",
    "gain_spread": "its spread",
    "validation_accuracy": "valid acc",
    "train_accuracy": "train acc",
    "epochs": "epochs",
}


def _is_known(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _cell(value: Any) -> str:
    if not _is_known(value):
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, eq=False)
class Course:
    """How one candidate fared in all repeats.

    Parameters
    ----------
    candidate : Candidate
    histories : list of History
        One for each repeat; at least epoch 0 was evaluated.
    """

    candidate: Candidate
    histories: list[History]

    @property
    def diverged(self) -> bool:
        """Whether a loss was not finite in one of the repeats."""
        losses = [h[f"{half}_loss"] for h in self.histories for half in _HALVES]
        return not all(math.isfinite(value) for each in losses for value in each)

    @property
    def reached(self) -> int:
        """The last epoch that was evaluated in all repeats."""
        return int(min(h["epoch"][-1] for h in self.histories))

    def late(self, column: str, horizon: int) -> list[float]:
        """Return the mean of a column over the second half, for each repeat."""
        return [late_mean(h, column, horizon) for h in self.histories]

    def at(self, epoch: int, column: str) -> float:
        """Return the mean of a column over the repeats at an evaluated epoch."""
        return fmean(h[column][h["epoch"].index(epoch)] for h in self.histories)

    def epochs_to(self, threshold: float, column: str, sign: float) -> float:
        """Return the mean epoch at which a column gets there; NaN if one never."""
        firsts = [
            h.first(lambda row: sign * (row[column] - threshold) >= 0)
            for h in self.histories
        ]
        found = [row["epoch"] for row in firsts if row is not None]
        return fmean(found) if len(found) == len(firsts) else math.nan


_HALVES = ("train", "test")


def late_mean(history: History, column: str, horizon: int) -> float:
    r"""Return the mean of a column over the second half of the epochs.

    .. math:: \frac{2}{E} \int_{E/2}^{E} v(e) \; de

    up to the horizon E, by trapezoids between the evaluated epochs.

    Examples
    --------
    >>> history = History({"epoch": [0, 1, 2, 4], "v": [9.0, 9.0, 2.0, 4.0]})
    >>> late_mean(history, "v", 4)
    3.0
    """
    points = [
        (epoch, value)
        for epoch, value in zip(history["epoch"], history[column], strict=True)
        if horizon / 2 <= epoch <= horizon
    ]
    if len(points) == 1:
        return points[0][1]
    parts = [(b - a) * (v + w) / 2 for (a, v), (b, w) in pairwise(points)]
    return sum(parts) / (points[-1][0] - points[0][0])


def verdict(
    courses: Sequence[Course],
    *,
    n_held: int,
    chance: float | None,
    stopped: str,
    seconds: float,
) -> TunedWeight:
    """Return the best candidate of a pilot, by the rule of ``tune_weight``.

    Parameters
    ----------
    courses : sequence of Course
        The control first.
    n_held : int
        How many samples the validation accuracies are shares of, in all repeats.
    chance : float or None
        The accuracy without learning; ``None`` where targets are not classes.
    stopped, seconds
        As in :class:`TunedWeight`.
    """
    control = courses[0]
    sound = [course for course in courses if not course.diverged]
    horizon = min((course.reached for course in sound), default=0)
    measure, sign = ("loss", -1.0) if chance is None else ("accuracy", 1.0)
    threshold = _threshold(control, sound, f"test_{measure}", sign, horizon)
    table = [
        _table_row(course, control, horizon, threshold, measure) for course in courses
    ]
    error, able = 0.0, [c for c, row in enumerate(table) if not row["diverged"]]
    learned = True
    if chance is not None and able:
        top = max(table[c]["validation_accuracy"] for c in able)
        error = _standard_error(top, n_held)
        able = [c for c in able if table[c]["validation_accuracy"] >= top - error]
        learned = top - error > chance
    better = [c for c in able if c > 0 and learned and _beats_none(table[c], error)]
    best = max(better, key=lambda c: table[c]["score"], default=0)
    chosen = courses[best].candidate
    grid = sorted({course.candidate.weight for course in courses[1:]})
    at_edge = best > 0 and chosen.weight in (grid[0], grid[-1])
    edge = [_beyond(chosen.weight, grid)] if at_edge else []
    return TunedWeight(
        weight=chosen.weight,
        power=chosen.form.power,
        form=chosen.form,
        table=table,
        histories=[course.histories for course in courses],
        measure=measure,
        threshold=threshold,
        at_edge=at_edge,
        epochs=horizon,
        stopped=stopped,
        seconds=seconds,
        remarks=edge if best else [_why_none(table, horizon, learned)],
    )


def _standard_error(share: float, n: int) -> float:
    """Return the standard error of a share of n samples.

    With one more sample right and one more wrong, so that of ten right out of ten
    one is not certain.
    """
    smooth = (share * n + 1) / (n + 2)
    return math.sqrt(smooth * (1 - smooth) / n)


def _beats_none(row: Row, error: float) -> bool:
    """Say whether a candidate does better than the control, by more than chance."""
    sooner = row["gain"] > row["gain_spread"]
    return sooner or row["accuracy_gain"] > max(row["accuracy_gain_spread"], error)


def _threshold(
    control: Course, sound: Sequence[Course], column: str, sign: float, horizon: int
) -> float:
    """Return nine tenths of the way from the model as given to the best."""
    begin = control.at(0, column)
    ends = [course.at(horizon, column) for course in sound]
    best = max(ends, key=lambda value: sign * value, default=begin)
    return begin + 0.9 * (best - begin)


def _table_row(
    course: Course, control: Course, horizon: int, threshold: float, measure: str
) -> Row:
    """Return what the table says of a candidate."""
    candidate = course.candidate
    row: Row = {"weight": candidate.weight, "power": candidate.power}
    classes, sign = measure == "accuracy", 1.0 if measure == "accuracy" else -1.0
    if course.diverged:
        unknown = dict.fromkeys(_COLUMNS, math.nan)
        worst = {"score": -math.inf, "gain": -math.inf, "accuracy_gain": -math.inf}
        return {**row, **unknown, **worst, "diverged": True}

    def compared(column: str, sign: float) -> list[float]:
        if control.diverged:
            return [math.inf] * len(course.histories)
        ours, theirs = course.late(column, horizon), control.late(column, horizon)
        return [sign * (a - b) for a, b in zip(ours, theirs, strict=True)]

    losses, gains = course.late("test_loss", horizon), compared("test_loss", -1.0)
    rights = course.late("test_accuracy", horizon) if classes else [math.nan]
    more = compared("test_accuracy", 1.0) if classes else [math.nan]
    column = f"test_{measure}"
    values = (
        -fmean(losses), _spread(losses), fmean(gains), _spread(gains),
        fmean(rights), fmean(more), _spread(more),
        course.at(horizon, "train_accuracy") if classes else math.nan,
        course.epochs_to(threshold, column, sign),
    )  # fmt: skip
    return {**row, **dict(zip(_COLUMNS, values, strict=True)), "diverged": False}


_COLUMNS = (
    "score", "spread", "gain", "gain_spread",
    "validation_accuracy", "accuracy_gain", "accuracy_gain_spread",
    "train_accuracy", "epochs",
)  # fmt: skip


def _spread(values: list[float]) -> float:
    known = len(values) > 1 and all(map(math.isfinite, values))
    return stdev(values) if known else 0.0


def _why_none(table: list[Row], horizon: int, learned: bool) -> str:
    """Say why the weight is 0, and what to do."""
    alive = [row for row in table[1:] if not row["diverged"]]
    if not alive:
        reason = "all penalties diverged"
        remedy = "Lower the learning rate or the weights."
    elif horizon == 0:
        reason = "the pilot ended before its first epoch"
        remedy = "Raise time_limit_s, or try fewer weights."
    elif not learned:
        reason = f"after {horizon} epochs no candidate predicts better than chance"
        remedy = "Raise epochs, or hold out less data."
    else:
        near = max(alive, key=lambda row: row["gain"])
        change = "raised" if near["gain"] < 0 else "lowered"
        reason = (
            "no penalty beat weight 0 by more than the repeats differ (the nearest, "
            f"weight {near['weight']:g} with power {near['power']!r}, {change} the "
            f"loss by {abs(near['gain']):.2g} with a spread of "
            f"{near['gain_spread']:.2g})"
        )
        remedy = "If validation had not moved yet, raise epochs."
    return f"tune_weight: {reason}, so the weight is 0. {remedy}"


def _beyond(weight: float, grid: list[float]) -> str:
    """Say that the best weight is at the edge of the grid, and what to do."""
    if weight == grid[-1]:
        end, other, further = "largest", "larger", (10 * weight, 100 * weight)
    else:
        end, other, further = "smallest", "smaller", (weight / 100, weight / 10)
    more = " and ".join(f"{value:g}" for value in further)
    return (
        f"tune_weight: the best weight, {weight:g}, is the {end} of the grid, and a "
        f"{other} one may be better. Add {more} to weights."
    )
