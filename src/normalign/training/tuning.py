"""The weight of GrokAlign by a pilot: all weights of a grid train side by side."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import signature
from itertools import pairwise
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normalign._errors import module_of_extra, require, require_kind
from normalign._torch_compat import unwrap
from normalign.regularizers import GrokAlign, PenaltyForm
from normalign.regularizers._call import check_call
from normalign.training._scheduler import Group, Interrupts, Record
from normalign.training._targets import class_encoding
from normalign.training._validation import check_calls
from normalign.training.ensemble import Ensemble, Member
from normalign.training.history import History
from normalign.training.loop import evaluation_mode
from normalign.training.rules import SGD, AdamW

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Candidate",
    "Course",
    "Halves",
    "TunedWeight",
    "class_numbers",
    "hold_out",
    "late_mean",
    "tune_weight",
    "tuning_result",
]

_NAME = "tune_weight"
_EVENLY, _PER_DECADE = 50, 20  # evaluations in the pilot, and in a decade of epochs
_COPIES = 2**30  # bytes of data that the members of one ensemble may hold twice

# What the ensemble advises does not help to find a weight.
_BY_HAND = "Choose the weight by hand: 0.01 is the default of GrokAlign."
_REMEDY = (
    "or train with normalign.training.train.",
    "as it would be in use, or choose the weight by hand.",
)

Pair = tuple[Tensor, Tensor]


def tune_weight(  # noqa: PLR0913  (what a training run is made of)
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    loss: str | Callable[[Tensor, Tensor], Tensor] = "cross_entropy",
    weights: Sequence[float] = (0, 1e-4, 1e-3, 1e-2, 0.1, 1, 10),
    powers: Sequence[int | str] = (1, 2),
    form: PenaltyForm = PenaltyForm(),  # noqa: B008  (frozen)
    optimizer: SGD | AdamW | Optimizer = AdamW(),  # noqa: B008  (frozen)
    epochs: int = 300,
    batch_size: int | None = None,
    validation_fraction: float = 0.2,
    validation: Pair | None = None,
    n_repeats: int = 2,
    seed: int = 0,
    device: torch.device | str | None = None,
    callback: Callable[[dict[str, Any]], bool | None] | None = None,
    time_limit_s: float | None = None,
) -> TunedWeight:
    r"""Find the weight and the power of GrokAlign for a model, its data and its loop.

    Every candidate starts at the model as given and trains on the same part of the
    data, in the same order and with the same probes, beside the others in one
    :class:`Ensemble`; the rest of the data is held out. That is done ``n_repeats``
    times, with other splits. What counts are the means of validation loss and accuracy
    over the second half of the epochs:

    1. Those whose accuracy is within one standard error of the best stay.
    2. So do those of them that beat the control, weight 0 on the same splits, by more
       than the standard deviation of the difference over the repeats, in loss or in
       accuracy.
    3. The lowest loss wins. If none is left, or none predicts better than the most
       frequent class does, the answer is 0.

    Where training memorises first, the training set says nothing, and the accuracy on a
    few held-out samples moves late and in steps; the validation loss is on its way long
    before. But the loss also falls when a penalty only makes a network less sure of
    everything: hence the first step. A single epoch would be noise, and the first half
    would be won by whoever starts fast, whatever becomes of it. Where targets are not
    classes, the loss alone decides.

    The validation data have chosen, so they flatter the choice: judge the final model
    on others. Weights that suit the pilot may be too large for training many times as
    long, where a penalty goes on acting after all is learned.

    Parameters
    ----------
    model : torch.nn.Module
        Copied, not changed. All parameters are trained; dropout and batch statistics
        must be in ``eval`` mode.
    x, y : Tensor of shape (n, ...)
        Training data. Classes are integers (n,), one-hot rows, or -1.0 and 1.0 for
        models of one output, or 0.0 and 1.0: above 0.5 then means 1 with the squared
        error, above 0 with a loss of one's own.
    loss : {"cross_entropy", "squared_error"} or callable
        As in :class:`Ensemble`.
    weights : sequence of float
        0 is always among them.
    powers : sequence of {1, 2, "ratio"}
    form : PenaltyForm
        All else about the penalty: its probes, or ``at`` for models of tokens.
    optimizer : SGD or AdamW of normalign.training.rules, or a torch.optim optimizer
        Of the latter SGD, AdamW and Adam, for their settings alone: it is not used.
        The learning rate is what it is now, and stays.
    epochs : int, default=300
        Of the pilot: long enough that something moves on the validation set.
    batch_size : int, optional
        All samples at once by default.
    validation_fraction : float, default=0.2
        Share of the data held out, class by class; of each class one sample at least
        is kept for training.
    validation : (x, y), optional
        Data to validate on instead. The repeats then differ in order and probes only.
    n_repeats : int, default=2
    seed : int, default=0
        Of the splits, orders and probes.
    device : torch.device or str, optional
        Where to train; by default where the model is.
    callback : callable, optional
        Called with each new row: ``weight``, ``power``, ``repeat``, ``epoch`` and
        losses and accuracies. Returning True ends the pilot.
    time_limit_s : float, optional
        Ends the pilot, after the epoch at hand. It is judged by what all candidates
        have done until then, as it is after Ctrl-C.

    Returns
    -------
    TunedWeight

    Raises
    ------
    ValueError, TypeError
        If an argument is not of the kind described. Candidates that diverge raise
        nothing and are never chosen.

    Warns
    -----
    UserWarning
        If the weight found is 0, or at the edge of the grid.

    Examples
    --------
    A second input that is 0 in training and 1 later: the data say nothing of its slope,
    the penalty takes it away.

    >>> from normalign.nn import mlp
    >>> x, later = torch.tensor([[2.0, 0.0]]), torch.tensor([[2.0, 1.0]])
    >>> start = mlp([2, 1], generator=torch.Generator().manual_seed(1))
    >>> tuned = tune_weight(
    ...     start, x, x[:, 0], loss="squared_error", validation=(later, x[:, 0]),
    ...     optimizer=SGD(0.1), weights=(1e-5, 1e-2, 10), powers=(2,))
    >>> tuned.penalty()
    GrokAlign(weight=0.01, estimator='output', power=2)
    """
    start = time.perf_counter()
    _check_counts({"epochs": epochs, "n_repeats": n_repeats, "seed": seed})
    require(seed < 2**64, _NAME, "seed", "below 2**64", seed)
    check_calls(_NAME, callback=callback)
    _check_number("validation_fraction", validation_fraction)
    share, rule = 0 < validation_fraction < 1, "between 0 and 1"
    require(share, _NAME, "validation_fraction", rule, validation_fraction)
    if time_limit_s is not None:
        _check_number("time_limit_s", time_limit_s)
    candidates = _candidates(weights, powers, form)
    network = _checked_copy(model, x, y, candidates[-1].form)
    rule = _as_rule(optimizer, model)
    classes = class_numbers(y, _output_size(network, x))
    generator = torch.Generator().manual_seed(seed)
    if validation is not None:
        splits = [Halves(x, y, *_pair(validation, x))] * n_repeats
    else:
        splits = _splits(x, y, classes, validation_fraction, n_repeats, generator)
    seeds = torch.randint(2**62, (n_repeats,), generator=generator).tolist()
    entries = [
        _Entry(r, c, splits[r], Member(seeds[r], rule, each.weight, each.form))
        for r in range(n_repeats)
        for c, each in enumerate(candidates)
    ]
    parts = _together(entries)
    ensembles = [
        _ensemble(
            network, part, loss=loss, epochs=epochs, batch_size=batch_size,
            device=device, evaluate=_evaluated_epochs(epochs).__contains__,
        )
        for part in parts
    ]  # fmt: skip
    stopped = _train(ensembles, parts, start, time_limit_s, callback)

    courses = [
        Course(each, [e.record.history for e in entries if e.candidate == c])
        for c, each in enumerate(candidates)
    ]
    n_held = len(splits[0].x_test) * (1 if validation is not None else n_repeats)
    counted = None not in (ensembles[0].encodings[half] for half in ("train", "test"))
    chance = _chance(classes) if counted else None
    tuned = tuning_result(
        courses, n_held=n_held, chance=chance, stopped=stopped,
        seconds=time.perf_counter() - start,
    )  # fmt: skip
    for remark in tuned.remarks:
        warnings.warn(remark, stacklevel=2)
    return tuned


@dataclass(frozen=True, eq=False)
class _Entry:
    """One candidate in one repeat, and its record."""

    repeat: int
    candidate: int
    split: Halves
    member: Member
    record: Record = field(default_factory=lambda: Record(History()))

    def callback_row(self, row: dict[str, float]) -> dict[str, Any]:
        """Return a row of the ensemble as the callback sees it."""
        member = self.member
        power = member.penalty.power if member.weight > 0 else None
        named = {name.replace("test_", "validation_"): v for name, v in row.items()}
        place = {"weight": member.weight, "power": power, "repeat": self.repeat}
        return {**place, **named}


def _candidates(
    weights: Sequence[float], powers: Sequence[int | str], form: PenaltyForm
) -> list[Candidate]:
    """Return the control and all penalties, by power and rising weight."""
    require_kind(isinstance(form, PenaltyForm), _NAME, "form", "a PenaltyForm", form)
    for name, values in (("weights", weights), ("powers", powers)):
        listed = isinstance(values, Sequence) and not isinstance(values, str)
        require_kind(listed, _NAME, name, "a sequence", values)
        require(len(values) > 0, _NAME, name, "non-empty", values)
    for weight in weights:
        _check_number("weights", weight)
        legal = 0 <= weight < math.inf
        require(legal, _NAME, "weights", "at least 0 and finite", weight)
    # Built anew: replace() has no way to say in whose name a power is refused.
    settings = {entry.name: getattr(form, entry.name) for entry in fields(form)}
    forms = [
        PenaltyForm(**{**settings, "power": power}, callee=_NAME)
        for power in dict.fromkeys(powers)
    ]
    penalties = sorted({float(weight) for weight in weights if weight > 0})
    control = Candidate(0.0, forms[0])
    return [control, *(Candidate(w, each) for each in forms for w in penalties)]


def _splits(
    x: Tensor,
    y: Tensor,
    classes: Tensor | None,
    fraction: float,
    n_repeats: int,
    generator: torch.Generator,
) -> list[Halves]:
    """Return the data split in two, with new draws for each repeat."""
    kinds = torch.zeros(len(x), dtype=torch.int64) if classes is None else classes
    splits = []
    for _ in range(n_repeats):
        held = hold_out(kinds, fraction, generator=generator)
        rule, got = "enough that some can be held out", f"{len(x)} of different classes"
        remedy = "Give validation=(x, y)."
        require(bool(held.any()), _NAME, "the samples", rule, got, remedy)
        splits.append(Halves.of(x, y, held))
    return splits


def _together(entries: list[_Entry]) -> list[list[_Entry]]:
    """Return what to train in one ensemble each: everything, if the data allow it.

    Where members of one ensemble differ in their data, each holds a copy.
    """
    split = entries[0].split
    shared = all(entry.split is split for entry in entries)
    size = len(entries) * (split.x_train.nbytes + split.x_test.nbytes)
    if shared or size <= _COPIES:
        return [entries]
    repeats = sorted({entry.repeat for entry in entries})
    return [[entry for entry in entries if entry.repeat == r] for r in repeats]


def _ensemble(network: nn.Module, entries: list[_Entry], **settings: Any) -> Ensemble:
    """Return an ensemble; what it refuses is refused in the name of tune_weight."""
    splits = [entry.split for entry in entries]
    members = [entry.member for entry in entries]
    try:
        return Ensemble([network] * len(entries), splits, members, **settings)
    except (ValueError, TypeError) as error:
        text = str(error).removeprefix("Ensemble: ").replace(*_REMEDY)
        text = text.replace("Train it with normalign.training.train.", _BY_HAND)
        for theirs, ours in (("networks[0]", "model"), ("targets", "y")):
            text = ours + text.removeprefix(theirs) if text.startswith(theirs) else text
        raise type(error)(f"{_NAME}: {text}") from error


def _train(
    ensembles: list[Ensemble],
    parts: list[list[_Entry]],
    start: float,
    time_limit_s: float | None,
    callback: Callable[[dict[str, Any]], bool | None] | None,
) -> str:
    """Train all candidates at one pace, and say why training ended.

    When it is ended early, all of them have come equally far; ``train_together`` may
    train one kind of member after the other.
    """
    groups: list[tuple[Group, list[_Entry]]] = []
    for ensemble, part in zip(ensembles, parts, strict=True):
        records = [entry.record for entry in part]
        groups += [(group, part) for group in ensemble.groups(records)]
    with Interrupts() as interrupts:
        while active := [pair for pair in groups if not pair[0].is_done]:
            for group, _ in active:
                group.launch()
            news = [
                part[i].callback_row(row)
                for group, part in active
                for i, row in group.collect()
            ]
            replies = [] if callback is None else [callback(row) for row in news]
            if interrupts.came:
                return "interrupted"
            if any(replies):
                return "callback"
            spent = time.perf_counter() - start
            if time_limit_s is not None and spent >= time_limit_s:
                return "time limit"
    return "epochs"


def _evaluated_epochs(epochs: int) -> set[int]:
    """Return epoch 0 and others, some evenly spaced, some evenly by their logarithm."""
    even = {round(epochs * step / _EVENLY) for step in range(_EVENLY + 1)}
    n_steps = math.ceil(_PER_DECADE * math.log10(epochs))
    spaced = {round(10 ** (step / _PER_DECADE)) for step in range(n_steps)}
    return even | {epoch for epoch in spaced if epoch < epochs}


def _chance(classes: Tensor | None) -> float | None:
    """Return the accuracy of naming the most frequent class every time."""
    if classes is None:
        return None
    counts = classes.unique(return_counts=True)[1]
    return int(counts.max()) / len(classes)


def _checked_copy(model: Any, x: Any, y: Any, form: PenaltyForm) -> nn.Module:
    """Return a copy of the model, if it can be penalised on x and y fits to x."""
    require_kind(isinstance(model, nn.Module), _NAME, "model", "a module", model)
    network = copy.deepcopy(unwrap(model, parallel=False))
    assert isinstance(network, nn.Module)
    with torch.enable_grad():
        check_call(network, x, form, _NAME)
    require(len(x) >= 1, _NAME, "x", "non-empty", x)
    require_kind(isinstance(y, Tensor), _NAME, "y", "a tensor", y)
    fits = y.ndim >= 1 and len(y) == len(x)
    require(fits, _NAME, "y", f"as long as x ({len(x)} samples)", y)
    return network


def _output_size(network: nn.Module, x: Tensor) -> int:
    """Return the number of outputs, found by sending one sample through."""
    like = next(network.parameters(), x)
    first = x[:1].to(like if x.is_floating_point() else like.device)
    with evaluation_mode(network), torch.no_grad():
        return network(first).flatten(1).shape[1]


def _pair(validation: Any, x: Tensor) -> Pair:
    pair = isinstance(validation, Sequence) and len(validation) == 2
    pair = pair and all(isinstance(value, Tensor) for value in validation)
    require_kind(pair, _NAME, "validation", "a pair (x, y) of tensors", validation)
    shape = ", ".join(map(str, ("m", *x.shape[1:])))
    same = validation[0].shape[1:] == x.shape[1:]
    rule = f"as x, of shape ({shape})"
    require(same, _NAME, "the x of validation", rule, validation[0])
    return validation[0], validation[1]


def _as_rule(optimizer: Any, model: nn.Module) -> SGD | AdamW:
    """Return the update rule of an optimizer, read off its settings."""
    if isinstance(optimizer, SGD | AdamW):
        return optimizer
    optim = torch.optim
    known = type(optimizer) in (optim.SGD, optim.AdamW, optim.Adam)
    rule = "an SGD, AdamW or Adam of torch.optim, or a rule of normalign.training.rules"
    require_kind(known, _NAME, "optimizer", rule, optimizer)

    def demand(condition: bool, rule: str, got: str) -> None:
        remedy = "Give the nearest of normalign.training.rules, such as AdamW(1e-3)."
        require(condition, _NAME, "optimizer", rule, got, remedy)

    groups = optimizer.param_groups
    names = ("lr", "momentum", "betas", "eps", "weight_decay")
    settings = [tuple(group.get(name) for name in names) for group in groups]
    alike = all(each == settings[0] for each in settings)
    demand(alike, "of the same settings for all parameters", "groups that differ")
    held = {id(p) for group in groups for p in group["params"]}
    whole = held == {id(p) for p in model.parameters()}
    demand(whole, "made for the parameters of the model", "one made for others")
    plain = not optimizer._optimizer_step_pre_hooks
    demand(plain, "without step hooks", "one with a gradient filter")
    group = groups[0]
    for name in ("nesterov", "dampening", "amsgrad", "maximize"):
        demand(not group.get(name), f"one without {name}", f"{name}={group.get(name)}")
    rate, decay = float(group["lr"]), float(group["weight_decay"])
    if type(optimizer) is optim.SGD:
        return SGD(rate, momentum=float(group["momentum"]), weight_decay=decay)
    decoupled = type(optimizer) is optim.AdamW or group.get("decoupled_weight_decay")
    got = f"Adam, which adds its weight decay of {decay:g} to the gradient"
    demand(bool(decoupled) or decay == 0, "one of decoupled weight decay", got)
    beta1, beta2 = (float(beta) for beta in group["betas"])
    return AdamW(rate, beta1, beta2, float(group["eps"]), decay)


def _check_number(name: str, value: Any) -> None:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    require_kind(real, _NAME, name, "a number", value)


def _check_counts(counts: dict[str, Any]) -> None:
    for name, value in counts.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        require_kind(whole, _NAME, name, "an integer", value)
        least = 0 if name == "seed" else 1
        require(value >= least, _NAME, name, f"at least {least}", value)


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


def tuning_result(
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


@dataclass(frozen=True, eq=False)
class Halves:
    """Data to train on, and the held-out part under the names of a test set."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor, held: Tensor) -> Halves:
        """Return samples in two halves: those where ``held`` is False, and the rest."""
        halves = [index.nonzero()[:, 0] for index in (~held, held)]
        parts = [value[i.to(value.device)] for i in halves for value in (x, y)]
        return cls(*parts)


def hold_out(classes: Tensor, fraction: float, *, generator: torch.Generator) -> Tensor:
    """Return which samples to hold out: of every class its share, drawn at random.

    As many are held out of each class in every draw. One sample at least of each class
    is left, so that all are trained on; with classes of one sample only, nothing is
    held out.

    Parameters
    ----------
    classes : integer Tensor of shape (n,)
    fraction : float in (0, 1)
        Of all samples; rounded, and at least one.

    Returns
    -------
    bool Tensor of shape (n,), on the CPU

    Examples
    --------
    >>> classes = torch.tensor([5, 5, 5, 5, 7])
    >>> classes[hold_out(classes, 0.4, generator=torch.Generator())]
    tensor([5, 5])
    """
    n = len(classes)
    kinds, sizes = classes.cpu().unique(return_inverse=True, return_counts=True)[1:]
    order = torch.randperm(n, generator=generator)
    held = torch.zeros(n, dtype=torch.bool)
    counts = _shares(sizes.tolist(), max(1, round(fraction * n)))
    for kind, count in enumerate(counts):
        held[order[kinds[order] == kind][:count]] = True
    return held


def _shares(sizes: list[int], wanted: int) -> list[int]:
    """Return how many of each class to hold out: in proportion, and never the last."""
    wanted = min(wanted, sum(sizes) - len(sizes))
    exact = [size * wanted / sum(sizes) for size in sizes]
    counts = [min(int(e), size - 1) for e, size in zip(exact, sizes, strict=True)]
    while sum(counts) < wanted:  # one more from whom most is owed and who has it
        able = [c for c, size in enumerate(sizes) if counts[c] < size - 1]
        counts[max(able, key=lambda c: exact[c] - counts[c])] += 1
    return counts


def class_numbers(target: Tensor, k: int) -> Tensor | None:
    """Return the class of each sample, or ``None`` where targets are quantities.

    Classes are what :func:`normalign.training.accuracy` can count for a model of k
    outputs: for one output the numbers -1 and 1, or 0 and 1; for several integers (n,)
    or one-hot rows (n, k).

    Examples
    --------
    >>> class_numbers(torch.tensor([1.0, -1.0]), 1)
    tensor([1, 0])
    >>> class_numbers(torch.tensor([0.3, -1.0]), 1) is None
    True
    """
    encoding = class_encoding([target], k)
    if encoding is None:
        return None
    if encoding.kind == "classes":
        return target.long()
    if encoding.kind == "rows":
        return target.long().argmax(1)
    return (target.reshape(-1) > 0).long()
