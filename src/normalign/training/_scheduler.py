"""The scheduler: ensembles interleaved on one device, with checkpoints and Ctrl-C."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign.training._checkpoint import (
    read_checkpoint,
    require_same_run,
    write_checkpoint,
)
from normalign.training._stack import Measure, Stack
from normalign.training._validation import check_calls
from normalign.training.history import History

if TYPE_CHECKING:
    from normalign.training.ensemble import Ensemble, Member

__all__ = ["Group", "Interrupts", "Plan", "Record", "Trained", "train_together"]

Row = dict[str, float]


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of one network of an ensemble.

    Parameters
    ----------
    member : Member
    history : History
        One row per evaluated epoch.
    stopped : str
        Why it ended: ``"criterion"`` (``until`` was met), ``"epochs"`` (all were
        trained), ``"diverged"`` (its loss was not finite), ``"callback"`` or
        ``"interrupted"``.
    weights : dict of str to Tensor
        Its parameters at the end, by name, on the CPU.
    """

    member: Member
    history: History
    stopped: str
    weights: dict[str, Tensor]


def train_together(
    ensembles: Sequence[Ensemble],
    *,
    checkpoints: Sequence[str | Path | None] | None = None,
    checkpoint_seconds: float = 60.0,
    callback: Callable[[int, int, Row], bool | None] | None = None,
) -> list[list[Trained]]:
    """Train several ensembles, interleaved on one device.

    On CUDA each kind of member has a stream of its own: small networks fill a large
    device together. Ctrl-C ends training between two epochs: what was done comes back,
    with ``interrupted`` set in the histories of those that had not finished, and the
    checkpoints are written.

    Parameters
    ----------
    ensembles : sequence of Ensemble
    checkpoints : sequence of path or None, optional
        A file for each ensemble. It is written about every ``checkpoint_seconds``
        and at the end; where it exists already, and was made by the same settings on
        the same data, training goes on from it, bit for bit as if never interrupted on
        the same machine. Networks, losses, ``measure`` and ``prepare`` count by their
        content: functions by their code and the values that they read, objects by what
        their ``describe()`` returns or by their attributes. ``until`` and callbacks do
        not count. A lambda or a local function cannot be compared with that of another
        process; define it at the top level of a module, or as a class.
    callback : callable
        ``callback(e, i, row)`` is called with the number of the ensemble, of the
        member in it, and its new row; returning ``True`` ends that member's training.

    Returns
    -------
    list of list of Trained
        For each ensemble, its members in their order.

    Raises
    ------
    ValueError
        If a checkpoint belongs to other settings or is damaged.
    TypeError
        If there is a checkpoint, and a network, loss, ``measure`` or ``prepare`` that
        it cannot identify.
    """
    files = list(checkpoints) if checkpoints is not None else [None] * len(ensembles)
    rule = f"one for each of the {len(ensembles)} ensembles"
    fits = len(files) == len(ensembles)
    require(fits, "train_together", "checkpoints", rule, f"{len(files)}")
    check_calls("train_together", callback=callback)
    for file in files:
        is_valid = file is None or isinstance(file, str | os.PathLike)
        require_kind(is_valid, "train_together", "checkpoints", "paths", file)
        folder, got = file is not None and Path(file).is_dir(), f"the folder {file}"
        require(not folder, "train_together", "a checkpoint", "a file", got)
    named = [Path(file).resolve() for file in files if file is not None]
    rule, apart = "a file of its own for each ensemble", len(set(named)) == len(named)
    require(apart, "train_together", "checkpoints", rule, f"{files}")
    runs = [
        Run(ensemble, None if file is None else Path(file))
        for ensemble, file in zip(ensembles, files, strict=True)
    ]
    start = saved = time.perf_counter()
    with Interrupts() as interrupts:
        for e, group in _ready_groups(runs):
            _collect(runs[e], e, group, callback, time.perf_counter() - start)
            now = time.perf_counter()
            if interrupts.came:
                break
            if now - saved > checkpoint_seconds:
                saved = now
                for run in runs:
                    run.save(now - start)
        for e, run in enumerate(runs):
            for group in run.groups:
                _collect(run, e, group, callback, time.perf_counter() - start)
            run.save(time.perf_counter() - start)
    return [run.results(time.perf_counter() - start) for run in runs]


def _ready_groups(runs: Sequence[Run]) -> Iterator[tuple[int, Group]]:
    """Yield groups whose launched work is done, until every network has finished.

    On CUDA all groups have work in flight; on the CPU one group runs at a time.
    """
    active = [(e, group) for e, run in enumerate(runs) for group in run.groups]
    while active := [(e, group) for e, group in active if not group.is_done]:
        on_cuda = active[0][1].stack.rows.device.type == "cuda"
        waited = True
        for e, group in active if on_cuda else active[:1]:
            if group.is_idle:
                group.launch()
            if group.is_ready():
                waited = False
                yield e, group
                if on_cuda and not group.is_done:
                    group.launch()
        if waited:
            time.sleep(1e-4)


def _collect(
    run: Run,
    e: int,
    group: Group,
    callback: Callable[[int, int, Row], bool | None] | None,
    seconds: float,
) -> None:
    """Record the new rows of a group and pass them to the callback."""
    for i, row in group.collect():
        run.records[i].history.seconds = run.earlier + seconds
        if callback is not None and callback(e, i, row):
            group.stop(i, "callback")


class Run:
    """An ensemble being trained: its groups and records, and where they are kept."""

    def __init__(self, ensemble: Ensemble, file: Path | None) -> None:
        self.ensemble, self.file = ensemble, file
        self.records = [Record(History()) for _ in ensemble.members]
        self.groups = ensemble.groups(self.records)
        self.earlier = 0.0
        self.identity = {} if file is None else ensemble.identity()
        if file is not None and file.exists():
            self._resume(file)
        else:  # a path that cannot be written is found now, not after the training
            self.save(0.0)

    def save(self, seconds: float) -> None:
        """Write all that is needed to go on, if there is a file to write to."""
        if self.file is None:
            return
        tensors = {
            f"group{g}.{name}": value
            for g, group in enumerate(self.groups)
            for name, value in group.stack.state().items()
        }
        for i, record in enumerate(self.records):
            if record.row is not None:
                tensors[f"final{i}"] = record.row
        record = {
            "identity": self.identity,
            "seconds": self.earlier + seconds,
            "groups": [
                {"positions": group.positions, "epoch": group.stack.epoch}
                for group in self.groups
            ],
            "members": [
                {"stopped": record.stopped, "history": record.history.to_dict()}
                for record in self.records
            ],
        }
        write_checkpoint(self.file, tensors, record)

    def results(self, seconds: float) -> list[Trained]:
        """Return the result of every member."""
        final: dict[int, Tensor] = {}
        for group in self.groups:
            group.stack.wait()
            for k, i in enumerate(group.positions):
                final[i] = group.stack.rows[k]
        trained = []
        for i, (member, record) in enumerate(
            zip(self.ensemble.members, self.records, strict=True)
        ):
            row = record.row if record.row is not None else final[i].cpu()
            if not record.stopped:
                record.history.interrupted = True
                record.history.seconds = self.earlier + seconds
            parts = self.ensemble.networks.split(row[None])
            named = zip(self.ensemble.networks.shapes, parts, strict=True)
            weights = {name: part[0].clone() for name, part in named}
            stopped = record.stopped or "interrupted"
            trained.append(Trained(member, record.history, stopped, weights))
        return trained

    def _resume(self, file: Path) -> None:
        stored = read_checkpoint(file)
        found = stored.record.get("identity")
        require_same_run("Ensemble.train", file, found, self.identity)
        self.earlier = float(stored.record["seconds"])
        for record, saved in zip(self.records, stored.record["members"], strict=True):
            record.history = History.from_dict(saved["history"])
            record.stopped = saved["stopped"]
        for i, record in enumerate(self.records):
            record.row = stored.tensors.get(f"final{i}")
        for g, (group, saved) in enumerate(
            zip(self.groups, stored.record["groups"], strict=True)
        ):
            prefix = f"group{g}."
            state = {
                name.removeprefix(prefix): value
                for name, value in stored.tensors.items()
                if name.startswith(prefix)
            }
            group.restore(saved["positions"], state, saved["epoch"])


# Epochs put on a CUDA stream before the next look: enough to keep the device busy,
# few enough that several stacks alternate and Ctrl-C takes effect soon.
_SLICE = 32


@dataclass(frozen=True)
class Plan:
    """How long to train, when to evaluate, and when a network is done.

    Parameters
    ----------
    epochs : int
    evaluate : callable
        Says at which epochs a row is made; the last epoch always makes one.
    until : callable, optional
        ``until(row)`` ends the training of the network whose row it is.
    measure : callable, optional
        Further columns from the stack, one number per network.
    measure_at : callable
        At which of the evaluated epochs to measure; elsewhere the columns are NaN.
    """

    epochs: int
    evaluate: Callable[[int], bool]
    until: Callable[[Row], bool] | None = None
    measure: Measure | None = None
    measure_at: Callable[[int], bool] = lambda epoch: True

    def is_due(self, epoch: int) -> bool:
        """Say whether a row is made at this epoch."""
        return epoch == self.epochs or bool(self.evaluate(epoch))

    def ahead(self, epoch: int, most: int) -> int:
        """Return how many epochs lie before the next row, counting no further."""
        due = (e for e in range(1, most) if self.is_due(epoch + e))
        return next(due, most)


@dataclass
class Record:
    """The history of one network, and its final weights once it has stopped."""

    history: History
    stopped: str = ""
    row: Tensor | None = None


class Group:
    """Some networks of an ensemble that share a stack.

    Parameters
    ----------
    stack : Stack
    records : list of Record
        Of all networks of the ensemble.
    plan : Plan
    """

    def __init__(self, stack: Stack, records: list[Record], plan: Plan) -> None:
        self.stack, self.records, self.plan = stack, records, plan
        self._launched = False
        self._due: tuple[list[str], Tensor] | None = None
        self._event: torch.cuda.Event | None = None
        self._columns: list[str] = []

    @property
    def positions(self) -> list[int]:
        """The number in the ensemble of the network in each row of the stack."""
        return self.stack.positions

    @property
    def is_done(self) -> bool:
        """Whether every network of the group has finished."""
        return all(self.records[i].stopped for i in self.positions)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was launched that is not collected yet."""
        return not self._launched

    def launch(self) -> None:
        """Put the work up to the next evaluation, or a slice of it, on the device."""
        stack, plan = self.stack, self.plan
        on_cpu = stack.rows.device.type == "cpu"
        if not (plan.is_due(stack.epoch) and self._last_recorded_epoch() < stack.epoch):
            stack.advance(plan.ahead(stack.epoch, 1 if on_cpu else _SLICE))
        if plan.is_due(stack.epoch):
            self._due = self._evaluate()
        self._launched = True
        if not on_cpu:
            with stack.work():
                self._event = torch.cuda.Event()
                self._event.record()

    def _last_recorded_epoch(self) -> float:
        """Return the last epoch that has a row; -1 if none has."""
        running = (i for i in self.positions if not self.records[i].stopped)
        history = self.records[next(running)].history
        return history["epoch"][-1] if len(history) else -1

    def is_ready(self) -> bool:
        """Whether what was launched is done."""
        return self._event is None or self._event.query()

    def collect(self) -> list[tuple[int, Row]]:
        """Wait for what was launched; record its rows, and who has finished.

        Returns
        -------
        list of (int, dict)
            The number in the ensemble and the new row of each network still in the
            running; empty between evaluations.
        """
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        self._launched = False
        if self._due is None:
            return []
        (names, values), self._due = self._due, None
        table = values.tolist()
        news = []
        for i, numbers in zip(self.positions, table, strict=True):
            record = self.records[i]
            if record.stopped:
                continue
            row = {"epoch": self.stack.epoch, **dict(zip(names, numbers, strict=True))}
            record.history.append(row)
            record.stopped = self._stop_reason(row)
            news.append((i, row))
        self._drop_finished()
        return news

    def stop(self, position: int, reason: str) -> None:
        """End the training of one network of the ensemble."""
        if not self.records[position].stopped:
            self.records[position].stopped = reason
            self._drop_finished()

    def restore(
        self, positions: list[int], state: Mapping[str, Tensor], epoch: int
    ) -> None:
        """Go on from where a checkpoint was written."""
        self.stack.keep([self.positions.index(i) for i in positions])
        self.stack.restore(state, epoch)

    def _stop_reason(self, row: Row) -> str:
        """Return why a network ends with this row, or nothing."""
        if not math.isfinite(row["train_loss"]):
            return "diverged"
        if self.plan.until is not None and self.plan.until(row):
            return "criterion"
        return "epochs" if row["epoch"] >= self.plan.epochs else ""

    def _evaluate(self) -> tuple[list[str], Tensor]:
        """Return names and values (s, columns) of a row, on the way to the host."""
        names, values = self.stack.score_names(), self.stack.scores()
        with self.stack.work():
            if self.plan.measure is not None:
                extra = self._measure(self.plan.measure, values)
                names = [*names, *extra]
                columns = [column[:, None] for column in extra.values()]
                values = torch.cat([values, *columns], dim=1)
            if values.device.type == "cuda":
                host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
                values = host.copy_(values, non_blocking=True)
        return names, values

    def _measure(self, measure: Measure, scores: Tensor) -> dict[str, Tensor]:
        """Return the further columns; NaN at epochs without a measurement."""
        at_this_epoch = self.plan.measure_at(self.stack.epoch)
        if self._columns and not at_this_epoch:
            missing = torch.full_like(scores[:, 0], math.nan)
            return dict.fromkeys(self._columns, missing)
        found = measure(self.stack)
        argument, rule = "what measure returns", "a mapping of names to tensors"
        is_valid = isinstance(found, Mapping)
        require_kind(is_valid, "Ensemble", argument, rule, describe(found))
        for name, value in found.items():
            is_valid, argument = isinstance(name, str), "a name that measure returns"
            require_kind(is_valid, "Ensemble", argument, "a string", describe(name))
            taken = name in ("epoch", *self.stack.score_names())
            rule = "named otherwise than the columns of every row"
            require(not taken, "Ensemble", "what measure returns", rule, repr(name))
            fits = isinstance(value, Tensor) and value.shape == (self.stack.size,)
            rule, argument = f"of shape ({self.stack.size},)", f"measure's {name!r}"
            require(fits, "Ensemble", argument, rule, value)
            real = not value.is_complex()
            require_kind(real, "Ensemble", argument, "of a real dtype", value)
        self._columns = list(found)
        found = {name: value.to(scores) for name, value in found.items()}
        if not at_this_epoch:  # it was asked for its names
            found = {name: torch.full_like(v, math.nan) for name, v in found.items()}
        return found

    def _drop_finished(self) -> None:
        """Keep the parameters of networks that finished; drop them when it pays.

        Dropping costs new graphs on CUDA, so there half must have finished.
        """
        for k, i in enumerate(self.positions):
            if self.records[i].stopped and self.records[i].row is None:
                self.stack.wait()
                self.records[i].row = self.stack.rows[k].detach().cpu().clone()
        alive = [k for k, i in enumerate(self.positions) if not self.records[i].stopped]
        eager = self.stack.rows.device.type == "cpu"
        few = len(alive) <= (1.0 if eager else 0.5) * len(self.positions)
        if alive and few and len(alive) < len(self.positions):
            self.stack.keep(alive)


class Interrupts:
    """Turn the first Ctrl-C into a flag, so that work can stop between two epochs.

    An epoch updates its parameters in place; broken off in the middle it would leave a
    state that no uninterrupted run has. A second Ctrl-C interrupts at once. Nothing is
    changed outside the main thread, where Python delivers no signals, nor where the
    process ignores Ctrl-C, as one in the background may.

    Examples
    --------
    >>> before = signal.signal(signal.SIGINT, signal.default_int_handler)
    >>> with Interrupts() as interrupts:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interrupts.came
    True
    >>> _ = signal.signal(signal.SIGINT, before)
    """

    def __init__(self) -> None:
        self.came = False
        self._previous: object = None

    def __enter__(self) -> Self:
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *reason: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True
