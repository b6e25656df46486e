"""The tables of TabArena, read from parquet files or had from OpenML."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from normalign.data import search_path
from normalign_reproduction._errors import complaint, require
from normalign_reproduction.data.tabarena_manifest import TabArenaEntry, entries
from normalign_reproduction.data.tabarena_table import TabArenaTable, table_from
from normalign_reproduction.data.tabarena_tasks import tabarena_facts

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "load_tabarena",
    "read_tabarena",
    "tabarena_entries",
    "tabarena_names",
]

_MAGIC = b"PAR1"


def load_tabarena(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> TabArenaTable:
    """Load one table of TabArena.

    ``tabarena/NAME.parquet`` is looked for in `data_dir`, ``$NORMALIGN_DATA`` and the
    cache; what is in none of them is fetched from OpenML, checked against the
    checksum that OpenML states, and kept.  A table may
    be partial: see its `matches_tabarena` and `note`.

    Parameters
    ----------
    name : str
        One of :func:`tabarena_facts`, or another that a manifest lists.
    data_dir : path, optional
        Looked in first, and fetched into if given.
    download : bool, default=True
        Whether to ask OpenML for what is nowhere.

    Returns
    -------
    TabArenaTable

    Raises
    ------
    FileNotFoundError
        If the table is nowhere and cannot be fetched; says where it was looked for.
    ValueError
        If there is no such table, or a file is damaged or not what is said of it.
    """
    callee = "load_tabarena"
    found = tabarena_entries(data_dir, callee=callee)
    if name in found:
        return read_tabarena(*found[name], callee=callee)
    known = tabarena_facts()
    require(
        name in known, callee, "name",
        f"one of the {len(known)} tasks of TabArena", repr(name),
        "`normalign_reproduction.data.tabarena_facts()` lists them.",
    )  # fmt: skip
    if not download:
        raise _missing(callee, name, data_dir, "download=False")
    from normalign_reproduction.data.tabarena_openml import fetch_tabarena

    try:
        folder = fetch_tabarena(name, data_dir=data_dir)
    except OSError as error:  # no network, a lying server, no room, no right to write
        reason = f"OpenML did not send it [{error}]"
        raise _missing(callee, name, data_dir, reason) from error
    return read_tabarena(folder, entries(callee, folder)[name], callee=callee)


def _missing(
    callee: str, name: str, data_dir: str | os.PathLike[str] | None, reason: str
) -> FileNotFoundError:
    folders = ", ".join(str(folder) for folder in search_path(data_dir))
    text = complaint(
        callee, "data_dir",
        f"a folder with tabarena/{name}.parquet and its entry in "
        "tabarena/manifest.json",
        f"none in {folders}, and {reason}",
        f"Run `normalign data fetch tabarena --task {name}` where there is a network, "
        "or set NORMALIGN_DATA to a folder that has the files.",
    )  # fmt: skip
    return FileNotFoundError(text)


def tabarena_names(*, data_dir: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the names of the tables at hand, sorted; empty where there are none.

    A folder may hold variants beside the tasks: only the names that
    :func:`tabarena_facts` has are TabArena's.

    Parameters
    ----------
    data_dir : path, optional
        Looked in before ``$NORMALIGN_DATA`` and the cache.

    Raises
    ------
    ValueError
        If a manifest is damaged or unsafe.
    """
    return sorted(tabarena_entries(data_dir, callee="tabarena_names"))


def tabarena_entries(
    data_dir: str | os.PathLike[str] | None = None, *, callee: str = "tabarena_entries"
) -> dict[str, tuple[Path, TabArenaEntry]]:
    """Return, for each table at hand, the first folder that has it and its entry.

    Raises
    ------
    ValueError
        If a manifest is damaged or unsafe; `callee` complains.
    """
    found: dict[str, tuple[Path, TabArenaEntry]] = {}
    for place in search_path(data_dir):
        folder = place / "tabarena"
        for name, entry in entries(callee, folder).items():
            found.setdefault(name, (folder, entry))
    return found


def read_tabarena(
    folder: Path, entry: TabArenaEntry, *, callee: str = "read_tabarena"
) -> TabArenaTable:
    """Read the file of an entry and check it against what the entry says.

    Columns are taken from the file itself: pyarrow does not look at what pandas may
    have noted in it about indices and types.

    Raises
    ------
    ValueError
        If the file is damaged or not what the entry says.
    """
    path = folder / entry.file
    _check_whole(callee, path)
    return table_from(callee, _frame(callee, path), entry)


def _check_whole(callee: str, path: Path) -> None:
    """A parquet file begins and ends with its mark, a footer's length before it."""
    with path.open("rb") as stream:
        size = path.stat().st_size
        first = stream.read(4)
        stream.seek(max(size - 8, 0))
        tail = stream.read(8)
    footer = int.from_bytes(tail[:4], "little")
    whole = size >= 12 and first == tail[4:] == _MAGIC and footer <= size - 12
    require(
        whole, callee, path.name, "a whole parquet file",
        f"{size} bytes without the marks of one",
        "The file is truncated or damaged: get it again.",
    )  # fmt: skip


def _frame(callee: str, path: Path) -> pd.DataFrame:
    import pyarrow.parquet as pq

    try:
        # one file, not a data set: folder names such as a=1 are no columns
        return pq.ParquetFile(path).read().replace_schema_metadata(None).to_pandas()
    except (OSError, ValueError, NotImplementedError) as error:
        text = complaint(
            callee, path.name, "a parquet file", f"one that does not read ({error})",
            "The file is damaged: get it again.",
        )  # fmt: skip
        raise ValueError(text) from error
