"""Archives of finished runs: one file for each item, size and preset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from normalign.cli import note
from normalign_reproduction._errors import require

if TYPE_CHECKING:
    from normalign_reproduction.plan import ItemPlan, Plan
    from normalign_reproduction.store import Store

__all__ = ["check", "write"]


def check(plan: Plan, folder: Path, *, callee: str) -> None:
    """Refuse to write an archive in place of one that has further runs.

    Raises
    ------
    ValueError
        If runs would be lost, or an archive there is damaged.
    """
    from normalign_reproduction.store import read_archive

    for part in plan.parts:
        path = _path(part, folder)
        if not path.exists():
            continue
        held = {record.run.key for record in read_archive(path)}
        lost = len(held - {run.key for run in part.runs})
        require(
            not lost, callee, "--archive", "a folder whose archives lose no runs",
            f"{path}, which has {lost} runs that are not asked for here",
            "Ask for the same --seeds and --digits, name another folder, or move that "
            "file away.",
        )  # fmt: skip


def write(plan: Plan, store: Store, folder: Path) -> None:
    """Write the archives of what was planned, and note where they are."""
    from normalign_reproduction.store import write_archive

    for part in plan.parts:
        run = part.runs[0]
        about = {"item": part.item.name, "size": run.size, "preset": run.preset}
        records = store.records(part.runs)
        path = write_archive(_path(part, folder), records, **about)
        note(f"archive: {path}")


def _path(part: ItemPlan, folder: Path) -> Path:
    run = part.runs[0]
    return folder / f"{part.item.name}-{run.size}-{run.preset}.json"
