"""What of the paper is there, what is missing, and in which batches it is computed.

Runs that were computed together before stay together: the batches of an item are those
of all its runs, of which the finished ones are left out; and a batch that was begun and
not finished is formed again exactly as it was, for only then does its checkpoint fit.
"""

from __future__ import annotations

import logging
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from normalign_reproduction.context import experiment_named
from normalign_reproduction.files import read_json, settings_hash, write_json
from normalign_reproduction.spec import Item, Record, Run
from normalign_reproduction.store import Store

__all__ = [
    "Batch", "ItemPlan", "Plan", "checkpoints", "forget", "make_plan", "open_batches",
    "remember",
]  # fmt: skip

FORMAT = 1
_NAME = re.compile("[0-9a-f]{12}")  # of a batch; checkpoints have longer ones
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """Runs that are computed together.

    Parameters
    ----------
    runs : tuple of Run
        Of one experiment.
    device : {"cpu", "cuda"}
        Where: a checkpoint is gone on from on the kind of device that wrote it.
    missing : int
        How many of the runs are not stored.
    begun : bool
        Whether it was begun before.
    item : str
        Which item it is computed for.
    seconds : float, optional
        How long it may take.
    """

    runs: tuple[Run, ...]
    device: str
    missing: int
    begun: bool = False
    item: str = ""
    seconds: float | None = None

    @cached_property
    def key(self) -> str:
        """Twelve hexadecimal digits that name the batch, by its runs and device."""
        return settings_hash(
            {"runs": [run.key for run in self.runs], "device": self.device}
        )

    @property
    def experiment(self) -> str:
        """The experiment that computes it."""
        return self.runs[0].experiment


@dataclass(frozen=True)
class ItemPlan:
    """What is to be done for one item.

    Parameters
    ----------
    item : Item
    runs : sequence of Run
        All of the item.
    finished : int
        How many of them are stored.
    batches : tuple of Batch
        What is to be computed; runs that an earlier item computes, too, are there.
    seconds : float, optional
        How long that may take; ``None`` where nothing is known.
    """

    item: Item
    runs: Sequence[Run]
    finished: int
    batches: tuple[Batch, ...]
    seconds: float | None


@dataclass(frozen=True)
class Plan:
    """What is to be done for several items.

    Parameters
    ----------
    parts : tuple of Part
    """

    parts: tuple[ItemPlan, ...]

    @property
    def batches(self) -> list[Batch]:
        """All that is to be computed, in the order of the items."""
        return [batch for part in self.parts for batch in part.batches]

    @property
    def missing(self) -> int:
        """How many runs are not stored; one that two items share counts once."""
        return sum(batch.missing for batch in self.batches)

    @property
    def seconds(self) -> float | None:
        """How long all may take; ``None`` where nothing is known of an item."""
        known = [part.seconds for part in self.parts if part.batches]
        if any(seconds is None for seconds in known):
            return None
        return sum(seconds or 0.0 for seconds in known)


def make_plan(
    items: Iterable[Item],
    *,
    size: str,
    preset: str,
    digits: str,
    device: str,
    store: Store,
    work: Path,
    seeds: int | None = None,
    jobs: int = 1,
) -> Plan:
    """Return what is missing of some items, and in which batches it is computed.

    Nothing is written, and torch is imported only where something is missing. A batch
    that was begun is taken up again if all its missing runs are wanted, and is left
    alone otherwise.

    Parameters
    ----------
    items : iterable of Item
    size, preset, digits, seeds
        As in :meth:`normalign_reproduction.spec.Item.runs`.
    device : {"cpu", "cuda"}
    store : Store
        What is finished.
    work : Path
        The folder of batches that were begun.
    jobs : int
        How many batches are computed at a time; for the estimate.
    """
    chosen = list(items)
    runs = [
        item.runs(size=size, preset=preset, digits=digits, seeds=seeds)
        for item in chosen
    ]
    asked = {run.key: run for all_of_one in runs for run in all_of_one}
    found = {key: store.read(run) for key, run in asked.items()}
    wanted = {key for key, record in found.items() if record is None}
    taken: set[str] = set()
    begun = []
    for batch in open_batches(work) if wanted else []:
        lacking = {run.key for run in batch.runs if not store.has(run)}
        if batch.device == device and lacking and lacking <= wanted - taken:
            taken |= lacking
            own_runs = tuple(asked.get(run.key, run) for run in batch.runs)
            begun.append(replace(batch, runs=own_runs, missing=len(lacking)))
    parts = []
    for item, all_of_one in zip(chosen, runs, strict=True):
        own = {run.key for run in all_of_one}
        mine = [b for b in begun if any(run.key in own for run in b.runs)]
        begun = [batch for batch in begun if batch not in mine]
        open_runs = wanted - taken
        taken |= open_runs & own
        batches = mine + _form_batches(all_of_one, open_runs, device)
        records = [r for key in own if (r := found[key]) is not None]
        # What the item says is said of its own number of seeds.
        told = item.runs(size=size, preset=preset, digits=digits)
        usual = len({run.key for run in told})
        each = _seconds_per_run(item, size, records, usual, device, jobs)
        seconds = each and each * sum(batch.missing for batch in batches)
        named = tuple(
            replace(b, item=item.name, seconds=each and each * b.missing)
            for b in batches
        )
        finished = sum(found[run.key] is not None for run in all_of_one)
        parts.append(ItemPlan(item, all_of_one, finished, named, seconds))
    return Plan(tuple(parts))


def remember(batch: Batch, work: Path) -> Path:
    """Write down what a batch is made of, to form it again after a crash."""
    runs = [run.to_dict() for run in batch.runs]
    content = {"format": FORMAT, "device": batch.device, "runs": runs}
    return write_json(work / f"{batch.key}.json", content, indent=None)


def open_batches(work: Path) -> list[Batch]:
    """Return the batches that were begun and not finished, in the order of their keys.

    A file that is damaged, or not named by what it holds, is passed over.
    """
    batches = []
    for path in sorted(Path(work).glob("*.json")):
        if not _NAME.fullmatch(path.stem):
            continue
        try:
            content = read_json(path)
            runs = tuple(Run(**run) for run in content["runs"])
            batch = Batch(runs, content["device"], len(runs), begun=True)
            known = content["format"] == FORMAT and batch.key == path.stem
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("%s is no batch: %s: %s", path, type(error).__name__, error)
            continue
        if known:
            batches.append(batch)
    return batches


def checkpoints(batch: Batch, work: Path) -> list[Path]:
    """Return the files that a batch has kept to go on from."""
    ours = {f"{batch.key}{suffix}" for suffix in (".json", ".progress", ".error")}
    return [
        path for path in sorted(work.glob(f"{batch.key}*")) if path.name not in ours
    ]


def forget(batch: Batch, work: Path) -> None:
    """Remove all that is kept of a batch: its checkpoints, and last its description."""
    hidden = work.glob(f".{batch.key}*")  # half-written when a process was killed
    notes = (work / f"{batch.key}{suffix}" for suffix in (".progress", ".error"))
    for path in (*checkpoints(batch, work), *hidden, *notes):
        path.unlink(missing_ok=True)
    (work / f"{batch.key}.json").unlink(missing_ok=True)


def _form_batches(runs: Sequence[Run], wanted: set[str], device: str) -> list[Batch]:
    """Return the batches of what is wanted of an item's runs."""
    distinct = list({run.key: run for run in runs}.values())
    lacking = [run for run in distinct if run.key in wanted]
    if not lacking:
        return []
    from torch import device as torch_device

    experiment, place = experiment_named(lacking[0].experiment), torch_device(device)
    whole = experiment.batches(distinct, place)
    missing = [group for group in whole if all(run.key in wanted for run in group)]
    apart = {run.key for group in missing for run in group}
    rest = [run for run in lacking if run.key not in apart]
    if rest:
        missing += experiment.batches(rest, place)
    return [Batch(tuple(group), device, len(group)) for group in missing]


def _seconds_per_run(
    item: Item,
    size: str,
    records: Sequence[Record],
    total: int,
    device: str,
    jobs: int,
) -> float | None:
    """Return how long a run may take: as stored ones took, else as the item says.

    The item says it of all its runs, `total` in number.
    """
    took = [
        record.made["seconds"] / record.made["n_runs"]
        for record in records
        if record.made.get("device_kind") == device
        and record.made.get("seconds") is not None
        and record.made.get("n_runs")
    ]
    if took:
        return statistics.fmean(took) / jobs
    said = item.sizes[size].seconds.get(device)
    return None if said is None or not total else said / total
