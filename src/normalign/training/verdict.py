"""What a pilot over weights says: the scores of its candidates, and the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from normalign.regularizers import GrokAlign, PenaltyForm
from normalign.training.history import History

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Candidate", "Course", "TunedWeight", "log_mean", "verdict"]

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
        One for each candidate, the control first: ``weight``; ``power``, None for the
        control; ``score`` and ``spread``, mean and standard deviation over the
        repeats, higher is better; ``gain`` and ``gain_spread``, of the difference from
        the control in the same repeat; ``train_accuracy``, ``validation_accuracy`` and
        ``validation_loss`` at the end; ``epochs``, the mean of when the repeats came
        to the threshold, NaN if one never did; ``diverged``.
    histories : list of list of History
        The curves behind each row of the table, one for each repeat. The validation set
        is called ``test`` there.
    measure : {"accuracy", "loss"}
        Of the validation set: what the score is made of.
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
        names = ("estimator", "power", "offset", "n_probes", "probe", "std", "at")
        form = {name: getattr(self.form, name) for name in names}
        return GrokAlign(self.weight, **{**form, **settings})

    def to_frame(self) -> pd.DataFrame:
        """Return the table as a pandas DataFrame, one row per candidate."""
        import pandas as pd

        return pd.DataFrame(self.table)

    def __repr__(self) -> str:
        first = (
            f"TunedWeight(weight={self.weight:g}, power={self.power!r}), by validation "
            f"{self.measure}: {len(self.histories[0])} repeats of {self.epochs} epochs "
            f"in {self.seconds:.1f} s"
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
    "epochs": "epochs",
    "train_accuracy": "train acc",
    "validation_accuracy": "valid acc",
    "validation_loss": "valid loss",
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
    measure : {"accuracy", "loss"}
    """

    candidate: Candidate
    histories: list[History]
    measure: str

    @property
    def diverged(self) -> bool:
        """Whether a loss was not finite in one of the repeats."""
        losses = [h[name] for h in self.histories for name in _LOSSES]
        return not all(math.isfinite(value) for each in losses for value in each)

    @property
    def reached(self) -> int:
        """The last epoch that was evaluated in all repeats."""
        return int(min(h["epoch"][-1] for h in self.histories))

    @property
    def column(self) -> str:
        """The measure's name in a history."""
        return f"test_{self.measure}"

    @property
    def sign(self) -> float:
        """1 where more is better, -1 where less is."""
        return 1.0 if self.measure == "accuracy" else -1.0

    def scores(self, horizon: int) -> list[float]:
        """Return the score of each repeat; minus infinity if one diverged."""
        if self.diverged:
            return [-math.inf] * len(self.histories)
        return [self.sign * log_mean(h, self.column, horizon) for h in self.histories]

    def loss(self, horizon: int) -> float:
        """Return the validation loss by which ties are decided."""
        return fmean(log_mean(h, "test_loss", horizon) for h in self.histories)

    def at(self, epoch: int, column: str) -> float:
        """Return the mean of a column over the repeats at an evaluated epoch."""
        return fmean(h[column][h["epoch"].index(epoch)] for h in self.histories)

    def epochs_to(self, threshold: float) -> float:
        """Return the mean epoch at which the measure gets there; NaN if one never."""
        firsts = [
            h.first(lambda row: self.sign * (row[self.column] - threshold) >= 0)
            for h in self.histories
        ]
        found = [row["epoch"] for row in firsts if row is not None]
        return fmean(found) if len(found) == len(firsts) else math.nan


_LOSSES = ("train_loss", "test_loss")


def log_mean(history: History, column: str, horizon: int) -> float:
    r"""Return the mean of a column over log-epochs, from the root of the horizon on.

    .. math:: \frac{2}{\log E} \int_{\log \sqrt E}^{\log E} v(e) \; d \log e

    by trapezoids between the evaluated epochs.

    Examples
    --------
    >>> history = History({"epoch": [0, 1, 10, 100], "v": [9.0, 9.0, 2.0, 4.0]})
    >>> log_mean(history, "v", 100)
    3.0
    """
    points = [
        (math.log(max(epoch, 1)), value)
        for epoch, value in zip(history["epoch"], history[column], strict=True)
        if math.sqrt(horizon) <= epoch <= horizon
    ]
    if len(points) == 1:
        return points[0][1]
    parts = [(b - a) * (v + w) / 2 for (a, v), (b, w) in pairwise(points)]
    return sum(parts) / (points[-1][0] - points[0][0])


def verdict(
    courses: Sequence[Course], *, least_gain: float, stopped: str, seconds: float
) -> TunedWeight:
    """Return the best candidate of a pilot.

    Parameters
    ----------
    courses : sequence of Course
        The control first.
    least_gain : float
        What a penalty must gain on the control besides the spread of its gain.
    stopped, seconds
        As in :class:`TunedWeight`.
    """
    control = courses[0]
    sound = [course for course in courses if not course.diverged]
    horizon = min((course.reached for course in sound), default=0)
    begin = control.at(0, control.column)
    ends = [course.at(horizon, course.column) for course in sound]
    best_end = max(ends, key=lambda value: control.sign * value, default=begin)
    threshold = begin + 0.9 * (best_end - begin)
    table = [_table_row(course, control, horizon, threshold) for course in courses]

    def merit(c: int) -> tuple[float, float]:
        return table[c]["score"], -courses[c].loss(horizon)

    better = [
        c
        for c, row in enumerate(table)
        if c > 0 and row["gain"] > max(row["gain_spread"], least_gain)
    ]
    best = max(better, key=merit, default=0)
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
        measure=control.measure,
        threshold=threshold,
        at_edge=at_edge,
        epochs=horizon,
        stopped=stopped,
        seconds=seconds,
        remarks=edge if best else [_why_none(table, horizon)],
    )


def _table_row(course: Course, control: Course, horizon: int, threshold: float) -> Row:
    diverged, by_accuracy = course.diverged, course.measure == "accuracy"
    scores, gains = course.scores(horizon), [math.inf] * len(course.histories)
    if diverged:
        gains = scores
    elif not control.diverged:
        theirs = control.scores(horizon)
        gains = [a - b for a, b in zip(scores, theirs, strict=True)]

    def end(column: str, known: bool = True) -> float:
        return course.at(horizon, column) if known and not diverged else math.nan

    return {
        "weight": course.candidate.weight,
        "power": course.candidate.power,
        "score": fmean(scores),
        "spread": _spread(scores),
        "gain": fmean(gains),
        "gain_spread": _spread(gains),
        "train_accuracy": end("train_accuracy", by_accuracy),
        "validation_accuracy": end("test_accuracy", by_accuracy),
        "validation_loss": end("test_loss"),
        "epochs": math.nan if diverged else course.epochs_to(threshold),
        "diverged": diverged,
    }


def _spread(values: list[float]) -> float:
    known = len(values) > 1 and all(map(math.isfinite, values))
    return stdev(values) if known else 0.0


def _why_none(table: list[Row], horizon: int) -> str:
    """Say why the weight is 0, and what to do."""
    alive = [row for row in table[1:] if not row["diverged"]]
    if not alive:
        return (
            "tune_weight: all penalties diverged, so the weight is 0. Lower the "
            "learning rate or the weights."
        )
    if horizon == 0:
        return (
            "tune_weight: the pilot ended before its first epoch, so the weight is 0. "
            "Raise time_limit_s, or try fewer weights."
        )
    near = max(alive, key=lambda row: row["gain"])
    return (
        f"tune_weight: no penalty beat weight 0 by more than chance (the nearest, "
        f"weight {near['weight']:g} with power {near['power']!r}, gained "
        f"{near['gain']:.2g} with a spread of {near['gain_spread']:.2g} over the "
        f"repeats), so the weight is 0. If validation had not moved yet after "
        f"{horizon} epochs, raise epochs."
    )


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
