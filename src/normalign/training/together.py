"""Training ensembles on one device: turns, rows, checkpoints and Ctrl-C."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from normalign._errors import require, require_kind
from normalign.training.checkpoint import read_checkpoint, write_checkpoint
from normalign.training.group import Group, Record
from normalign.training.history import History
from normalign.training.identity import require_same_run
from normalign.training.interrupts import Interrupts
from normalign.training.refusals import check_calls

if TYPE_CHECKING:
    from normalign.training.ensemble import Ensemble, Member

__all__ = ["Trained", "train_together"]

Row = dict[str, float]


@dataclass(frozen=True, eq=False)
class Trained:
    """What became of one network of an ensemble.

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
        the same machine. Networks, losses, ``measure`` and ``prepare`` are compared by
        content: functions by their code and the values that they read, objects by what
        their ``describe()`` returns or by their attributes. ``until`` and callbacks are
        not compared. A lambda or a local function cannot be compared with that of
        another process; define it at the top level of a module, or as a class.
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
        told = file is None or isinstance(file, str | os.PathLike)
        require_kind(told, "train_together", "checkpoints", "paths", file)
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
        for e, group in _turns(runs):
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


def _turns(runs: Sequence[Run]) -> Iterator[tuple[int, Group]]:
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
    """Record what a group has done, and tell the callback."""
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
        """Return what became of every member."""
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
        for record, kept in zip(self.records, stored.record["members"], strict=True):
            record.history = History.from_dict(kept["history"])
            record.stopped = kept["stopped"]
        for i, record in enumerate(self.records):
            record.row = stored.tensors.get(f"final{i}")
        for g, (group, kept) in enumerate(
            zip(self.groups, stored.record["groups"], strict=True)
        ):
            prefix = f"group{g}."
            state = {
                name.removeprefix(prefix): value
                for name, value in stored.tensors.items()
                if name.startswith(prefix)
            }
            group.restore(kept["positions"], state, kept["epoch"])
