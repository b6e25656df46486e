"""The two collections in ``normalign data``: how they are found and downloaded."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from normalign.cli import note, say
from normalign.data import Collection, cache_dir, locate
from normalign_reproduction.data._openml import fetch_tabarena
from normalign_reproduction.data._tabarena import (
    TABARENA,
    tabarena_entries,
    tabarena_facts,
)
from normalign_reproduction.data._uci import UCI, UCICollection

__all__ = ["TABARENA_TABLES", "UCI_TABLES"]


def _find_uci(data_dir: Path | None) -> dict[str, Any]:
    folder = locate(UCI, data_dir)
    if folder is None:
        return {"folder": None, "exact": None, "tables": 0}
    try:
        tables = len(UCICollection.locate(folder))
    except ValueError as error:  # a listing continues after a damaged archive
        return {"folder": str(folder), "exact": False, "tables": 0, "error": str(error)}
    about = f"{tables} tables, no published checksum"
    return {"folder": str(folder), "exact": None, "tables": tables, "about": about}


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
    if arguments.task is not None:
        raise ValueError(
            "normalign data fetch: --task must be left out for uci, which is one file."
        )
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
    """Download table by table; an error with one does not stop the others."""
    mirrors = arguments.mirror or [None]
    if len(mirrors) > 1:
        raise ValueError(
            "normalign data fetch: --mirror must be one address of OpenML's XML "
            f"interface, got {len(mirrors)}."
        )
    known = tabarena_facts()
    names = arguments.task or [*known]
    for name in names:
        if name not in known:
            raise ValueError(
                f"normalign data fetch: --task must be one of the {len(known)} tasks "
                f"of TabArena, got {name!r}. See tabarena.ai."
            )
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
        _note_other_copy(name, folder, arguments.data_dir)
    if failed:
        note(f"{failed} of {len(names)} tables failed; the others need no repeat")
    return 1 if failed else 0


def _note_other_copy(name: str, folder: Path, data_dir: Path | None) -> None:
    """Report another copy of a table that is found before the one just downloaded."""
    try:
        first, entry = tabarena_entries(data_dir)[name]
    except ValueError as error:  # another folder's manifest is damaged
        note(str(error))
        return
    if first != folder:
        partial = "" if entry.matches_tabarena else ", which is partial"
        note(
            f"{name}: {first / entry.file}{partial}, comes before it: remove that copy"
        )


UCI_TABLES = Collection(UCI, _find_uci, _fetch_uci)
TABARENA_TABLES = Collection(TABARENA, _find_tabarena, _fetch_tabarena)
