"""Which runs of some items are missing, and in which batches they are computed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from normalign_reproduction.context import experiment_named
from normalign_reproduction.files import settings_hash
from normalign_reproduction.spec import Item, Record, Run, Size
from normalign_reproduction.store import Store

__all__ = ["Batch", "ItemPlan", "expected_seconds", "make_plan"]


@dataclass(frozen=True)
class Batch:
    """Runs of one experiment that are computed together."""

    runs: tuple[Run, ...]
    device: str  # "cpu" or "cuda"
    item: str = ""  # for which it is computed
    seconds: float | None = None  # expected time in one process

    @cached_property
    def key(self) -> str:
        """Twelve hexadecimal digits that name the batch, by its runs and device."""
        return settings_hash(
            {"runs": [run.key for run in self.runs], "device": self.device}
        )


@dataclass(frozen=True)
class ItemPlan:
    """The runs of an item and the batches of those that are missing.

    A run that an earlier item of the plan computes, too, is in that item's batches.
    """

    item: Item
    runs: Sequence[Run]
    n_finished: int
    batches: tuple[Batch, ...]


def make_plan(
    items: Iterable[Item],
    *,
    size: str,
    preset: str,
    digits: str,
    device: str,
    store: Store,
    seeds: int | None = None,
) -> list[ItemPlan]:
    """Return what is missing of some items.

    `size`, `preset`, `digits` and `seeds` are those of
    :meth:`normalign_reproduction.spec.Item.runs`.
    """
    plans: list[ItemPlan] = []
    planned: set[str] = set()
    for item in items:
        runs = item.runs(size=size, preset=preset, digits=digits, seeds=seeds)
        records = {run.key: store.read(run) for run in runs}
        missing = {
            run.key: run
            for run in runs
            if records[run.key] is None and run.key not in planned
        }
        planned |= missing.keys()
        groups = _group(list(missing.values()), device)
        seconds = _measured_seconds(records.values(), device)
        if seconds is None:
            usual = item.runs(size=size, preset=preset, digits=digits)
            seconds = _declared_seconds(item.sizes[size], device, usual, len(groups))
        batches = tuple(
            Batch(tuple(group), device, item.name, seconds and seconds * len(group))
            for group in groups
        )
        n_finished = sum(records[run.key] is not None for run in runs)
        plans.append(ItemPlan(item, runs, n_finished, batches))
    return plans


def expected_seconds(batches: Sequence[Batch], jobs: int) -> float | None:
    """Return the time that batches take in some processes, ``None`` if unknown."""
    seconds = [batch.seconds for batch in batches if batch.seconds is not None]
    if len(seconds) < len(batches):
        return None
    return max([sum(seconds) / jobs, *seconds])


def _group(runs: list[Run], device: str) -> list[list[Run]]:
    if not runs:
        return []
    import torch

    experiment = experiment_named(runs[0].experiment)
    return experiment.batches(runs, torch.device(device))


def _measured_seconds(records: Iterable[Record | None], device: str) -> float | None:
    """Return the mean time of the stored runs on a kind of device."""
    seconds = [
        record.made["seconds"] / record.made["n_runs"]
        for record in records
        if record is not None
        and record.made.get("device_kind") == device
        and record.made.get("seconds") is not None
        and record.made.get("n_runs")
    ]
    return statistics.fmean(seconds) if seconds else None


def _declared_seconds(
    size: Size, device: str, runs: Sequence[Run], n_batches: int
) -> float | None:
    """Return the time of a run in one process, from that of all runs of the item.

    The item's time was measured with two processes on a CPU, and one on a GPU.
    """
    if device not in size.seconds:
        return None
    n_processes = min(n_batches, 2) if device == "cpu" else 1
    return n_processes * size.seconds[device] / len({run.key for run in runs})
