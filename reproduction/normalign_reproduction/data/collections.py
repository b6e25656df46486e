"""The two collections in ``normalign data``: how they are found and fetched."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from normalign.cli import note, say
from normalign.data import Collection, cache_dir, locate
from normalign_reproduction._errors import require
from normalign_reproduction.data.openml import fetch_tabarena
from normalign_reproduction.data.tabarena import (
    TABARENA,
    tabarena_entries,
    tabarena_facts,
)
from normalign_reproduction.data.uci import UCI, uci_names

__all__ = ["TABARENA_TABLES", "UCI_TABLES"]


def _find_uci(data_dir: Path | None) -> dict[str, Any]:
    folder = locate(UCI, data_dir)
    if folder is None:
        return {"folder": None, "exact": None, "tables": 0}
    try:
        tables = len(uci_names(data_dir=folder))
    except ValueError as error:  # a listing continues after a damaged archive
        return {"folder": str(folder), "exact": False, "tables": 0, "error": str(error)}
    return {
        "folder": str(folder), "exact": None, "tables": tables,
        "about": f"{tables} tables, no published checksum",
    }  # fmt: skip


def _find_tabarena(data_dir: Path | None) -> dict[str, Any]:
    try:
        here = tabarena_entries(data_dir)
    except ValueError as error:
        return {"folder": None, "exact": False, "tables": 0, "error": str(error)}
    tasks = [here[name] for name in tabarena_facts() if name in here]
    if not tasks:
        return {"folder": None, "exact": None, "tables": 0}
    whole = sum(entry.matches_tabarena for _, entry in tasks)
    return {
        "folder": str(tasks[0][0].parent),
        "exact": whole == len(tabarena_facts()),
        "tables": len(tasks),
        "whole": whole,
        "about": f"{len(tasks)} tables, {whole} as TabArena's",
    }


def _fetch_uci(arguments: argparse.Namespace) -> int:
    require(
        arguments.task is None, "normalign data fetch", "--task",
        "left out for uci, which is one file", f"{arguments.task}",
    )  # fmt: skip
    path = UCI.files[0].path
    note(
        "The UCI collection is not downloaded: its authors published no checksum, so "
        "that no download could be verified.\n"
        f"By hand: get data.tar.gz from {UCI.page} and put it at {cache_dir() / path} "
        f"or at $NORMALIGN_DATA/{path}.\n"
        "Then `normalign data where uci` says how many of the 121 tables it holds."
    )
    return 1


def _fetch_tabarena(arguments: argparse.Namespace) -> int:
    """Fetch table by table; one that fails is told of and does not stop the others."""
    mirrors = arguments.mirror or [None]
    require(
        len(mirrors) == 1, "normalign data fetch", "--mirror",
        "one address of OpenML's XML interface", f"{len(mirrors)}",
    )  # fmt: skip
    known = tabarena_facts()
    names = arguments.task or [*known]
    for name in names:
        require(
            name in known, "normalign data fetch", "--task",
            f"one of the {len(known)} tasks of TabArena", repr(name),
            "See tabarena.ai, or normalign_reproduction.data.tabarena_facts().",
        )  # fmt: skip
    failed = 0
    for name in names:
        note(f"{name} ({known[name].licence})")
        try:
            folder = fetch_tabarena(
                name,
                data_dir=arguments.data_dir,
                server=mirrors[0],
                timeout=arguments.timeout,
                progress=True,
            )
        except OSError as error:
            if len(names) == 1:
                raise
            note(str(error))
            failed += 1
            continue
        say(str(folder / f"{name}.parquet"))
        _note_hidden(name, folder, arguments.data_dir)
    if failed:
        note(f"{failed} of {len(names)} tables were not had; the others need no repeat")
    return 1 if failed else 0


def _note_hidden(name: str, folder: Path, data_dir: Path | None) -> None:
    """Say so if another copy of a table is found before the one just fetched."""
    try:
        first, entry = tabarena_entries(data_dir, callee="normalign data fetch")[name]
    except ValueError as error:  # another folder's manifest is damaged
        note(str(error))
        return
    if first != folder:
        whole = "" if entry.matches_tabarena else ", which is partial"
        note(f"{name}: {first / entry.file}{whole}, comes before it: remove that copy")


UCI_TABLES = Collection(UCI, _find_uci, _fetch_uci)
TABARENA_TABLES = Collection(TABARENA, _find_tabarena, _fetch_tabarena)
