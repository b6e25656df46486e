"""Stored results: one file for each run, found by the key of the run, and archives.

Files are written atomically. A damaged file is renamed, never read and never
overwritten; its run is missing, unless an archive has it. An archive stores once what
its records share, and a list of similar mappings as columns.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from normalign_reproduction._errors import complaint, require
from normalign_reproduction.files import (
    DamagedFile,
    read_checked,
    settings_hash,
    write_checked,
)
from normalign_reproduction.spec import Record, Run

__all__ = [
    "Store", "pack_archive", "read_archive", "unpack_archive", "write_archive",
]  # fmt: skip

FORMAT, ARCHIVE = 2, 3
_log = logging.getLogger(__name__)


class Store:
    """Results by the key of their run, in a folder, with archives to read from.

    Parameters
    ----------
    folder : Path
        Made when the first result is written.
    archives : iterable of Path
        Files of :func:`write_archive`, or folders of them. Results in the folder take
        precedence.
    """

    def __init__(self, folder: Path, *, archives: Iterable[Path] = ()) -> None:
        self.folder = Path(folder)
        self._archives = [file for path in archives for file in _files(Path(path))]
        self._archived: dict[str, dict[str, Any]] | None = None

    def path(self, run: Run) -> Path:
        """Return the path of the result of a run."""
        return self.folder / run.experiment / f"{run.key}.json"

    def has(self, run: Run) -> bool:
        """Say whether a run is finished."""
        return self.read(run) is not None

    def read(self, run: Run) -> Record | None:
        """Return the result of a run, or ``None`` if it is missing."""
        path = self.path(run)
        stored = _entry(path) if path.is_file() else None
        stored = stored or self._from_archive(run.key)
        if stored is None:
            return None
        return Record(run, stored["result"], stored["made"])

    def write(self, run: Run, result: dict[str, Any], made: dict[str, Any]) -> Path:
        """Store the result of a run."""
        return write_checked(self.path(run), _entry_of(Record(run, result, made)))

    def records(self, runs: Sequence[Run]) -> list[Record]:
        """Return the records of those runs that are finished, in the order given."""
        found = (self.read(run) for run in runs)
        return [record for record in found if record is not None]

    def _from_archive(self, key: str) -> dict[str, Any] | None:
        if self._archived is None:
            self._archived = {}
            for file in self._archives:
                for entry in _archive_entries(file):
                    self._archived.setdefault(entry["key"], entry)
        return self._archived.get(key)


def write_archive(path: Path, records: Iterable[Record], **about: Any) -> Path:
    """Write records into one file.

    Parameters
    ----------
    about
        Further entries of the file, such as ``item="table1"``.
    """
    kept = sorted(records, key=lambda record: record.run.key)
    whole = {"format": ARCHIVE, **about, **pack_archive(kept)}
    return write_checked(path, whole, indent=None)


def read_archive(path: Path) -> list[Record]:
    """Return the records in a file of :func:`write_archive`.

    Raises
    ------
    ValueError
        If the file is damaged or is not an archive.
    """
    try:
        return [
            Record(Run(**entry["run"]), entry["result"], entry["made"])
            for entry in _archive_entries(path)
        ]
    except TypeError as error:  # no run
        raise _no_archive(path, error) from error


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.glob("*.json") if file.is_file())


def _archive_entries(path: Path) -> list[dict[str, Any]]:
    try:
        content = read_checked(path)
        of, records = content["format"], content["records"]
    except (ValueError, KeyError) as error:
        raise _no_archive(path, error) from error
    rule = f"of format {ARCHIVE}"
    require(of == ARCHIVE, "read_archive", "path", rule, f"{path} of format {of}")
    try:
        joined = unpack_archive(content)
        whole = isinstance(records, list) and all(map(_is_whole, joined))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _no_archive(path, error) from error
    if not whole:
        error = TypeError("a part is missing, has another type or is of another run")
        raise _no_archive(path, error)
    return joined


def _no_archive(path: Path, error: Exception) -> ValueError:
    """Return the error for a file that is not an archive."""
    damaged = isinstance(error, DamagedFile)
    reason = error.reason if damaged else f"{type(error).__name__}: {error}"
    got = f"{path} ({reason})"
    remedy = "If it is an archive, restore it from a copy."
    rule = "an archive of results"
    return ValueError(complaint("read_archive", "path", rule, got, remedy))


def _entry_of(record: Record) -> dict[str, Any]:
    return {
        "format": FORMAT, "key": record.run.key, "run": record.run.to_dict(),
        "result": record.result, "made": dict(record.made),
    }  # fmt: skip


def _is_whole(entry: dict[str, Any]) -> bool:
    """Return whether an entry has all its parts and the key of its run."""
    parts = [entry.get(name) for name in ("run", "result", "made")]
    kinds = all(isinstance(part, dict) for part in parts)
    return kinds and entry.get("key") == settings_hash(entry["run"])


def _entry(path: Path) -> dict[str, Any] | None:
    """Return a stored result, or rename a file that is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:  # another process has just set it aside
        return None
    try:
        entry = read_checked(path)
        named = entry["format"] == FORMAT and entry["key"] == path.stem
        if named and _is_whole(entry):
            return entry
        reason = "it is incomplete" if named else "it has another format or key"
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    aside = path.with_suffix(".damaged")
    number = 1
    while aside.exists():  # from an earlier time
        number += 1
        aside = path.with_suffix(f".{number}.damaged")
    with suppress(FileNotFoundError):
        path.replace(aside)
        if aside.read_bytes() != content:  # another process has just stored it anew
            with suppress(FileExistsError):
                os.link(aside, path)
            aside.unlink()
            return _entry(path)
    _log.warning("%s was renamed to %s: %s", path, aside.name, reason)
    return None


_COLUMNS = "by column"  # the only key of a list of mappings that was turned


def pack_archive(records: Sequence[Record]) -> dict[str, Any]:
    """Return what a file holds of some records."""
    runs = [record.run.to_dict() for record in records]
    settings = _common([run["settings"] for run in runs])
    made, common = _common([record.made for record in records]), _common(runs)
    batches: dict[str, dict[str, Any]] = {}
    entries = []
    for record, run in zip(records, runs, strict=True):
        own = _without(record.made, made)
        said = {"made": own}
        if "batch" in own and batches.setdefault(own["batch"], own) == own:
            said = {"batch": own["batch"]}
        run = _without(run, common) | {"settings": _without(run["settings"], settings)}
        result = _to_columns(record.result)
        entries.append({"key": record.run.key, "run": run, **said, "result": result})
    return {
        "made": made, "batches": batches, "run": common | {"settings": settings},
        "records": entries,
    }  # fmt: skip


def unpack_archive(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a file as the store has them: key, run, result, made.

    Raises
    ------
    AttributeError, KeyError, TypeError, ValueError
        If a part is missing or of another kind.
    """
    everywhere: dict[str, Any] = {} | content["made"]
    common = {} | content.get("run", {})
    settings, batches = common.pop("settings", {}), content.get("batches", {})
    entries = []
    for one in content["records"]:
        own = batches[one["batch"]] if "batch" in one else one["made"]
        run = {**common, **one["run"]}
        run["settings"] = {**settings, **run["settings"]}
        result = _to_rows(one["result"])
        made = {**everywhere, **own}
        entries.append({"key": one["key"], "run": run, "result": result, "made": made})
    return entries


def _common(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the items that all of some mappings have."""
    first = several[0] if several else {}
    return {
        name: value
        for name, value in first.items()
        if all(name in one and one[name] == value for one in several)
    }


def _without(whole: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in whole.items() if name not in shared}


def _to_columns(value: Any) -> Any:
    """Return lists of mappings with the same keys as one mapping of lists.

    Examples
    --------
    >>> _to_columns([{"a": 1}, {"a": 2}])
    {'by column': {'a': [1, 2]}}
    """
    if isinstance(value, dict):
        return {name: _to_columns(part) for name, part in value.items()}
    if not isinstance(value, list):
        return value
    alike = len(value) > 1 and all(isinstance(one, dict) and one for one in value)
    if alike and all(list(one) == list(value[0]) for one in value):
        return {_COLUMNS: {n: [_to_columns(one[n]) for one in value] for n in value[0]}}
    return [_to_columns(part) for part in value]


def _to_rows(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_rows(part) for part in value]
    if not isinstance(value, dict):
        return value
    if list(value) == [_COLUMNS]:
        columns = value[_COLUMNS]
        rows = zip(*columns.values(), strict=True)
        return [
            {n: _to_rows(v) for n, v in zip(columns, row, strict=True)} for row in rows
        ]
    return {name: _to_rows(part) for name, part in value.items()}
