"""Machines and their peers on tables: one run is one method on one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from normalign_reproduction.context import Context
from normalign_reproduction.experiments.kept import Kept
from normalign_reproduction.experiments.tabular_data import table_named
from normalign_reproduction.experiments.tabular_machines import machine_result
from normalign_reproduction.experiments.tabular_peers import peer_result
from normalign_reproduction.spec import Run

__all__ = ["batches", "compute"]


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return the runs of a method on a table together, large tables first."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        place = run.data, run["dataset"], run["method"]
        groups.setdefault(place, []).append(run)
    return sorted(groups.values(), key=lambda group: -group[0]["rows"])


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return the result of each run, keeping every one as soon as it is there."""
    table = table_named(batch[0]["dataset"], batch[0].data)
    kept, results = Kept(context), []
    for number, run in enumerate(batch):

        def hear(share: float, words: str, done: int = number) -> None:
            said = f"{table.name}, {words}"
            context.progress((done + share) / len(batch), said)

        found = kept.get(run)
        if found is None:
            method = machine_result if run["method"] == "rfam" else peer_result
            found = kept.put(
                run, method(run, table, device=context.device, progress=hear)
            )
        results.append(found)
        hear(1.0, "done")
    return results
