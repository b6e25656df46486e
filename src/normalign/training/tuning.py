"""The weight of GrokAlign by a pilot: all weights of a grid train side by side."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normalign._errors import require, require_kind
from normalign._torch_compat import unwrap
from normalign.regularizers import PenaltyForm
from normalign.regularizers._call import check_call
from normalign.training.ensemble import Ensemble, Member
from normalign.training.group import Group, Record
from normalign.training.history import History
from normalign.training.holdout import Halves, class_numbers, held_out
from normalign.training.interrupts import Interrupts
from normalign.training.loop import evaluation_mode
from normalign.training.refusals import check_calls
from normalign.training.rules import SGD, AdamW
from normalign.training.verdict import Candidate, Course, TunedWeight, verdict

__all__ = ["TunedWeight", "tune_weight"]

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
    counted = None not in (ensembles[0].answers[half] for half in ("train", "test"))
    chance = _chance(classes) if counted else None
    tuned = verdict(
        courses, n_held=n_held, chance=chance, stopped=stopped,
        seconds=time.perf_counter() - start,
    )  # fmt: skip
    for remark in tuned.remarks:
        warnings.warn(remark, stacklevel=2)
    return tuned


@dataclass(frozen=True, eq=False)
class _Entry:
    """One candidate in one repeat, and what became of it."""

    repeat: int
    candidate: int
    split: Halves
    member: Member
    record: Record = field(default_factory=lambda: Record(History()))

    def told(self, row: dict[str, float]) -> dict[str, Any]:
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
    """Return the data split in two, anew for each repeat."""
    kinds = torch.zeros(len(x), dtype=torch.int64) if classes is None else classes
    splits = []
    for _ in range(n_repeats):
        held = held_out(kinds, fraction, generator=generator)
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
                part[i].told(row)
                for group, part in active
                for i, row in group.collect()
            ]
            answers = [] if callback is None else [callback(row) for row in news]
            if interrupts.came:
                return "interrupted"
            if any(answers):
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
