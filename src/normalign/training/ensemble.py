"""Many networks at once: seeds, methods and weights train in lockstep.

Every network is a row of one tensor and trains independently: its start, its order of
samples, its probes, its learning rate and its penalty depend on its own settings only,
never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normalign._errors import complaint, describe, require, require_kind
from normalign.regularizers import PenaltyForm
from normalign.training._checkpoint import digest, identify_run, identify_structure
from normalign.training._networks import Networks, Objective, stack_networks
from normalign.training._scheduler import Group, Plan, Record, Trained, train_together
from normalign.training._stack import Measure, Points, Prepare, Stack
from normalign.training._targets import (
    ClassEncoding,
    class_encodings,
    prepared_target,
    stacked_loss,
    threshold_of,
)
from normalign.training._validation import (
    CALLEE,
    check_calls,
    check_counts,
    check_listed,
    check_outputs,
    check_sets,
    check_whole,
    working_dtype,
)
from normalign.training.history import History
from normalign.training.loop import Split, is_evaluated
from normalign.training.rules import SGD, AdamW, Grokfast, OrthoGrad, StackedRule

__all__ = [
    "Ensemble",
    "Member",
    "Pair",
    "Tables",
    "named_sets",
    "one_each",
    "with_targets",
]

Row = dict[str, float]


@dataclass(frozen=True)
class Member:
    """How one network of an ensemble is trained.

    Parameters
    ----------
    seed : int
        Of the order of its samples and of the probes of its penalty.
    optimizer : SGD or AdamW
        From :mod:`normalign.training.rules`.
    weight : float, default=0
        Weight of the penalty; 0 is none.
    penalty : PenaltyForm
        Which penalty. Members with one form share their kernels, whatever their weight.
    gradient_filter : Grokfast, OrthoGrad or None
        From :mod:`normalign.training.rules`.

    Examples
    --------
    >>> Member(seed=3, optimizer=SGD(0.1), weight=0.01).penalty.power
    2
    """

    seed: int
    optimizer: SGD | AdamW
    weight: float = 0.0
    penalty: PenaltyForm = PenaltyForm()  # noqa: RUF009  (frozen)
    gradient_filter: Grokfast | OrthoGrad | None = None

    def __post_init__(self) -> None:
        kind = isinstance(self.seed, int) and not isinstance(self.seed, bool)
        require_kind(kind, "Member", "seed", "an integer", self.seed)
        kind = isinstance(self.optimizer, SGD | AdamW)
        rule = "an SGD or AdamW of normalign.training.rules"
        require_kind(kind, "Member", "optimizer", rule, self.optimizer)
        kind = isinstance(self.gradient_filter, Grokfast | OrthoGrad | None)
        rule = "a Grokfast or OrthoGrad of normalign.training.rules, or None"
        require_kind(kind, "Member", "gradient_filter", rule, self.gradient_filter)
        kind = isinstance(self.penalty, PenaltyForm)
        require_kind(kind, "Member", "penalty", "a PenaltyForm", self.penalty)
        kind = isinstance(self.weight, int | float)
        kind = kind and not isinstance(self.weight, bool)
        require_kind(kind, "Member", "weight", "a number", self.weight)
        legal = 0 <= self.weight < float("inf")
        require(legal, "Member", "weight", "finite and at least 0", self.weight)
        legal = -(2**63) <= self.seed < 2**63
        require(legal, "Member", "seed", "a 64-bit integer", self.seed)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What networks must have in common to share their kernels."""
        form = self.penalty if self.weight > 0 else None
        return type(self.optimizer), type(self.gradient_filter), form


class Ensemble:
    r"""Networks of one architecture, ready to be trained in lockstep.

    .. math:: \min_{\theta_i}\; \frac1n \sum_j \ell(f_{\theta_i}(x_j), y_j)
        + w_i\, \frac1n \sum_j R(x_j; \theta_i), \qquad i = 1, \dots, s

    Epoch 0 is the untouched network, epoch ``e`` the network after ``e`` passes
    through its training set. Networks that are chains of linear layers and elementwise
    activations have derivatives in closed form, which is faster; any other module
    without dropout and batch statistics goes through ``torch.func``. On CUDA a whole
    epoch is one captured graph, and the host waits for the device at evaluations only.

    A network's course depends on its own row of the arguments and its seed: alone or
    beside others it takes the same steps, up to the order in which a device sums.

    Accuracies are shares of right predictions. Several outputs predict by the largest,
    where targets are class numbers (n,) or one-hot rows (n, k). One output predicts by
    its sign where targets are -1 and 1; where they are 0 and 1, it predicts 1 above 0.5
    with the squared error and above 0 with a loss of one's own, as logits do. For all
    other targets the accuracy is NaN.

    Parameters
    ----------
    networks : sequence of torch.nn.Module
        The start of each member; copied, not changed. They may differ in their
        parameters only, all of which the output must depend on, and may not change
        their buffers.
    data : Split, or a sequence of one Split for each member
        Objects with four tensors ``x_train, y_train, x_test, y_test``, such as
        :class:`normalign.data.Dataset` or ``types.SimpleNamespace``. Integer
        inputs stay integers, for networks that embed them; a penalty then needs
        ``PenaltyForm(at=...)``.
    members : sequence of Member
    loss : {"cross_entropy", "squared_error"} or callable
        The squared error is the mean over samples and outputs, against one-hot rows
        where targets are class numbers. A callable ``loss(output, target)`` gives the
        mean over its batch, of one network. Outputs of shape (n, t, k) reach it as
        (n, t * k), targets as they are. In the rows it is the mean over chunks of 1024
        samples, weighted by their sizes: for a loss that is no plain mean over samples
        (class weights, ignored targets) that is not its value for the whole set.
    epochs : int
        The most that any member is trained.
    batch_size : int, optional
        All samples at once by default. The last batch of an epoch may be smaller.
    also : dict of str to (x, y), or to a sequence of one (x, y) for each member
        Further sets to evaluate on, for columns ``NAME_loss`` and ``NAME_accuracy``.
    evaluate : callable
        Says at which epochs a row is made; the last epoch always makes one.
    until : callable, optional
        ``until(row)`` says whether the member whose row it is has finished.
    measure : callable, optional
        Further columns, one number per network, from the :class:`Stack`; see
        :func:`normalign.training.stacked_geometry`.
    measure_at : callable, optional
        At which of the evaluated epochs to measure; NaN elsewhere.
    prepare : callable, optional
        ``prepare(stack, x, y, keys)`` changes the inputs (s, b, ...) of each training
        batch before its step: augmentation, or an attack; see
        :class:`Attacked`. Evaluation sees the data as they are.
    device : torch.device or str, optional
        Where to train; by default where the networks are.

    Examples
    --------
    >>> from normalign.data import xor_clusters
    >>> from normalign.nn import mlp
    >>> task = xor_clusters(n_train=8, n_test=8, n_inputs=4)
    >>> ensemble = Ensemble(
    ...     [mlp([4, 16, 1]), mlp([4, 16, 1])], task,
    ...     [Member(0, SGD(0.1)), Member(1, SGD(0.2), weight=0.01)],
    ...     loss="squared_error", epochs=3)
    >>> [trained.history["epoch"][-1] for trained in ensemble.train()]
    [3, 3]
    """

    def __init__(  # noqa: PLR0913  (what a training run is made of)
        self,
        networks: Sequence[nn.Module],
        data: Split | Sequence[Split],
        members: Sequence[Member],
        *,
        loss: str | Callable[[Tensor, Tensor], Tensor],
        epochs: int,
        batch_size: int | None = None,
        also: Mapping[str, Pair | Sequence[Pair]] | None = None,
        evaluate: Callable[[int], bool] = is_evaluated,
        until: Callable[[Row], bool] | None = None,
        measure: Measure | None = None,
        measure_at: Callable[[int], bool] = lambda epoch: True,
        prepare: Prepare | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.members = check_listed("members", members, Member, "a Member")
        networks = check_listed("networks", networks, nn.Module, "a module")
        check_calls(CALLEE, until=until, measure=measure, prepare=prepare)
        check_calls(CALLEE, needed=True, evaluate=evaluate, measure_at=measure_at)
        splits = one_each(data, len(self.members))
        check_counts(networks, splits, len(self.members))
        check_whole("epochs", epochs, 0)
        if batch_size is not None:
            check_whole("batch_size", batch_size, 1)
        sets = named_sets(splits, also or {})
        check_sets(sets, len(self.members))
        x = splits[0].x_train
        start = next(networks[0].parameters(), torch.empty(0)).device
        place = start if device is None else torch.device(device)
        self.networks, self.start = stack_networks(networks, x, device=place)
        self.loss, self._stacked_loss = loss, stacked_loss(loss)
        self.plan = Plan(epochs, evaluate, until, measure, measure_at)
        self.prepare = prepare
        self.batch_size = batch_size or len(x)
        self._place, self._tables = place, Tables(self.start.dtype, place)
        output = _first_output(self.networks, self.start[:1].to(place), x)
        k = output.shape[2]
        self._sets = with_targets(sets, loss, k)
        targets = {name: [y for _, y in pairs] for name, pairs in self._sets.items()}
        self.encodings = class_encodings(targets, k, threshold=threshold_of(loss))
        inputs = [x for x, _ in sets["train"]]
        check_outputs(networks, self.networks, self.start, inputs)
        self._try_out(output)

    def train(
        self,
        *,
        checkpoint: str | Path | None = None,
        checkpoint_seconds: float = 60.0,
        callback: Callable[[int, Row], bool | None] | None = None,
    ) -> list[Trained]:
        """Train all networks; see :func:`train_together` for the parameters.

        ``callback(i, row)`` is called with the number of the member and its new row.
        """
        check_calls("Ensemble.train", callback=callback)
        hooked = None if callback is None else lambda _, i, row: callback(i, row)
        return train_together(
            [self],
            checkpoints=None if checkpoint is None else [checkpoint],
            checkpoint_seconds=checkpoint_seconds,
            callback=hooked,
        )[0]

    def groups(self, records: list[Record] | None = None) -> list[Group]:
        """Return the stacks to train, one for each kind of member, at their start."""
        if records is None:
            records = [Record(History()) for _ in self.members]
        kinds: dict[Any, list[int]] = {}
        for i, member in enumerate(self.members):
            kinds.setdefault(member.kind, []).append(i)
        return [
            Group(self._stack(positions), records, self.plan)
            for positions in kinds.values()
        ]

    def identity(self) -> dict[str, str]:
        """Return a hash of each ingredient that determines how the networks train.

        Raises
        ------
        TypeError
            If one of them cannot be identified; see
            :func:`normalign.training.identify_run`.
        """
        known: dict[int, str] = {}

        def name_of(value: Tensor) -> str:
            if id(value) not in known:
                known[id(value)] = digest(value)
            return known[id(value)]

        callee, plan, network = "Ensemble.train", self.plan, self.networks.network
        due = [e for e in range(plan.epochs + 1) if plan.is_due(e)]
        settings = {
            "loss": self.loss,
            "epochs and evaluate": due,
            "measure": plan.measure,
            "measure_at": plan.measure and [e for e in due if plan.measure_at(e)],
            "prepare": self.prepare,
            "batch_size": self.batch_size,
            "weights": digest(self.start),
            "buffers": [digest(buffer) for buffer in network.buffers()],
        }
        settings |= {
            f"the members' {entry.name}": [getattr(m, entry.name) for m in self.members]
            for entry in fields(Member)
        }
        settings |= {
            f"{name} {part}": [name_of(pair[position]) for pair in pairs]
            for name, pairs in self._sets.items()
            for position, part in enumerate(("inputs", "targets"))
        }
        structure = identify_structure(callee, "networks", network)
        return {"networks": structure, **identify_run(callee, settings)}

    def _stack(self, positions: list[int]) -> Stack:
        members = [self.members[i] for i in positions]
        rows = self.start[positions].to(self._place, copy=True)
        rule = StackedRule(
            [member.optimizer for member in members],  # pyright: ignore
            [member.gradient_filter for member in members],
            sizes=self.networks.sizes,
            like=rows,
        )
        penalised = members[0].weight > 0
        return Stack(
            self.networks,
            rows,
            rule=rule,
            seeds=torch.tensor([m.seed for m in members], device=self._place),
            data={
                name: self._tables.points(
                    [pairs[i] for i in positions], self.encodings[name]
                )
                for name, pairs in self._sets.items()
            },
            loss=self._stacked_loss,
            batch_size=self.batch_size,
            form=members[0].penalty if penalised else None,
            weight=rows.new_tensor([m.weight for m in members]),
            positions=positions,
            prepare=self.prepare,
        )

    def _try_out(self, output: Tensor) -> None:
        """Refuse what fails in a first step, taken on one sample and thrown away."""
        row = self.start[:1].to(self._place)
        x, y = (part[:1].to(self._place)[None] for part in self._sets["train"][0])
        x, y = x.to(working_dtype(x, row)), y.to(working_dtype(y, row))
        value = self._stacked_loss(output, y)
        rule = "the mean over the batch, one number"
        got = f"shape {tuple(value.shape[1:])}"
        require(value.shape == (1,), "Ensemble", "loss(output, target)", rule, got)
        forms = {m.penalty if m.weight > 0 else None for m in self.members}
        for form in forms:
            noise = None
            if form is not None:
                rule, got = "one with at= for inputs that are integers", f"{form}"
                remedy = "Name the embedding: PenaltyForm(at='...')."
                legal = x.is_floating_point() or form.at is not None
                require(legal, "Ensemble", "a member's penalty", rule, got, remedy)
                shape = self.networks.noise_shape(form, x[0], output.shape[2])
                noise = row.new_ones((1, *shape)) if shape else None
            try:
                objective = Objective(self._stacked_loss, form, row.new_ones(1))
                self.networks.gradients(row, x, y, objective, noise=noise)
            except RuntimeError as error:
                name = type(self.networks.network).__name__
                rule, got = f"modules that can be trained by {form}", f"{name}: {error}"
                text = complaint("Ensemble", "networks", rule, got)
                raise ValueError(text) from error


def _first_output(architecture: Networks, row: Tensor, x: Tensor) -> Tensor:
    """Return the output, (1, 1, k), of one network for its first sample, or refuse."""
    first = x[None, :1].to(row.device, working_dtype(x, row))
    rule = "modules that torch.func can run on the inputs"
    remedy = "" if x.is_floating_point() else (
        "Integers stay integers: call x.float() unless the network embeds them."
    )  # fmt: skip
    try:
        with torch.no_grad():
            return architecture.outputs(architecture.split(row), first)
    except (RuntimeError, ValueError, IndexError) as error:
        name, reason = type(architecture.network).__name__, str(error).rstrip(".")
        got = f"{name} on {describe(x)}: {reason}"
        text = complaint("Ensemble", "networks", rule, got, remedy)
        raise ValueError(text) from error


Pair = tuple[Tensor, Tensor]


class Tables:
    """Data brought to the device once, whatever number of stacks reads it."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._made: dict[tuple[int, ...], Tensor] = {}

    def points(
        self, pairs: Sequence[Pair], encoding: ClassEncoding | None = None
    ) -> Points:
        """Return the points of some networks, stacked; shared ones are kept once."""
        x, y = (self._table(values) for values in zip(*pairs, strict=True))
        return Points(x, y, encoding)

    def _table(self, values: Sequence[Tensor]) -> Tensor:
        key = tuple(map(id, values))
        key = key[:1] if len(set(key)) == 1 else key
        if key not in self._made:
            made = torch.stack([v.to(self._device) for v in values[: len(key)]])
            dtype = self._dtype if made.is_floating_point() else made.dtype
            self._made[key] = made.detach().to(dtype)
        return self._made[key]


_HALVES = ("x_train", "y_train", "x_test", "y_test")


def one_each(data: Split | Sequence[Split], s: int) -> list[Split]:
    """Return the split of each of s members.

    Raises
    ------
    TypeError
        If something is no split.
    """
    # A named tuple of four tensors is a Split, though a sequence too.
    shared = _is_split(data) or not isinstance(data, Sequence)
    splits: list[Any] = [data] * s if shared else list(data)  # pyright: ignore
    names = ", ".join(_HALVES)
    rule = f"an object with {names}, or a sequence of one for each member"
    fields = ", ".join(f"{name}=..." for name in _HALVES)
    remedy = f"Pass a normalign.data.Dataset, or types.SimpleNamespace({fields})."
    for split in splits:
        got = describe(split) if isinstance(split, Tensor) else f"a {_kind(split)}"
        require_kind(_is_split(split), "Ensemble", "data", rule, got, remedy)
    return splits


def _is_split(value: Any) -> bool:
    return all(hasattr(value, name) for name in _HALVES)


def _kind(value: Any) -> str:
    return type(value).__name__


def named_sets(
    splits: Sequence[Split], also: Mapping[str, Pair | Sequence[Pair]]
) -> dict[str, list[Pair]]:
    """Return the inputs and targets of every member, by the name of the set."""
    sets: dict[str, list[Pair]] = {
        "train": [(split.x_train, split.y_train) for split in splits],
        "test": [(split.x_test, split.y_test) for split in splits],
    }
    for name, pairs in also.items():
        rule = "sets with names other than train and test"
        require(name not in ("train", "test"), "Ensemble", "also", rule, repr(name))
        one = _is_pair(pairs)
        several = isinstance(pairs, Sequence) and all(map(_is_pair, pairs))
        rule = "a pair (x, y) of tensors, or a sequence of one for each member"
        kind = f"a {_kind(pairs)}"
        require_kind(one or several, "Ensemble", f"also[{name!r}]", rule, kind)
        sets[name] = [pairs] * len(splits) if one else list(pairs)  # pyright: ignore
    return sets


def _is_pair(value: Any) -> bool:
    listed = isinstance(value, Sequence) and len(value) == 2
    return listed and all(isinstance(part, Tensor) for part in value)


def with_targets(
    sets: Mapping[str, Sequence[Pair]],
    loss: str | Callable[[Tensor, Tensor], Tensor],
    k: int,
) -> dict[str, list[Pair]]:
    """Return the sets with targets as the loss takes them, shared ones made once."""
    made: dict[int, Tensor] = {}
    for pairs in sets.values():
        for _, y in pairs:
            if id(y) not in made:
                made[id(y)] = prepared_target(y, loss, k)
    return {name: [(x, made[id(y)]) for x, y in pairs] for name, pairs in sets.items()}
