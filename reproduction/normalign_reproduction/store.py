"""Stored results: one JSON file for each run, and archives with many runs.

The file of a run is named by its key and written atomically, with a checksum. A damaged
file counts as missing, so its run is computed again. An archive contains each value
that all its records share once, and a list of similar mappings as columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from normalign_reproduction.files import (
    load_cache,
    read_checked,
    settings_hash,
    write_checked,
)
from normalign_reproduction.spec import Record, Run

__all__ = ["Store", "pack_archive", "read_archive", "unpack_archive", "write_archive"]

FORMAT, ARCHIVE_FORMAT = 2, 3


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
        self._archives = list(archives)
        self._archived: dict[str, dict[str, Any]] | None = None

    def path(self, run: Run) -> Path:
        """Return the path of the result of a run."""
        return self.folder / run.experiment / f"{run.key}.json"

    def has(self, run: Run) -> bool:
        """Return whether a run is finished."""
        return self.read(run) is not None

    def read(self, run: Run) -> Record | None:
        """Return the result of a run, or ``None`` if it is missing or damaged."""
        entry = load_cache(self.path(run))
        if not (entry and entry.get("format") == FORMAT and _is_of(entry, run.key)):
            entry = self._read_archives().get(run.key)
        return Record(run, entry["result"], entry["made"]) if entry else None

    def write(self, run: Run, result: dict[str, Any], made: dict[str, Any]) -> Path:
        """Store the result of a run."""
        entry = {"key": run.key, "run": run.to_dict(), "result": result, "made": made}
        return write_checked(self.path(run), {"format": FORMAT, **entry})

    def records(self, runs: Sequence[Run]) -> list[Record]:
        """Return the records of those runs that are finished, in the order given."""
        found = (self.read(run) for run in runs)
        return [record for record in found if record is not None]

    def _read_archives(self) -> dict[str, dict[str, Any]]:
        if self._archived is None:
            self._archived = {}
            for path in self._archives:
                files = sorted(path.glob("*.json")) if path.is_dir() else [path]
                for file in filter(Path.is_file, files):
                    for entry in _read_entries(file):
                        self._archived.setdefault(entry["key"], entry)
        return self._archived


def write_archive(path: Path, records: Iterable[Record], **about: Any) -> Path:
    """Write records into one file.

    Parameters
    ----------
    about
        Further entries of the file, such as ``item="table1"``.
    """
    ordered = sorted(records, key=lambda record: record.run.key)
    content = {"format": ARCHIVE_FORMAT, **about, **pack_archive(ordered)}
    return write_checked(path, content, indent=None)


def read_archive(path: Path) -> list[Record]:
    """Return the records in a file of :func:`write_archive`.

    Raises
    ------
    ValueError
        If the file is damaged or is not an archive; the message names it.
    """
    return [
        Record(Run(**entry["run"]), entry["result"], entry["made"])
        for entry in _read_entries(path)
    ]


def _read_entries(path: Path) -> list[dict[str, Any]]:
    content = read_checked(path)
    if content.get("format") == ARCHIVE_FORMAT:
        try:
            entries = unpack_archive(content)
            if all(_is_of(entry, Run(**entry["run"]).key) for entry in entries):
                return entries
        except (AttributeError, KeyError, TypeError, ValueError):
            pass  # written by another program
    raise ValueError(f"{path} must be an archive of results.")


def _is_of(entry: Mapping[str, Any], key: str) -> bool:
    """Return whether an entry is complete and belongs to the run of a key."""
    parts = [entry.get(name) for name in ("run", "result", "made")]
    if not all(isinstance(part, dict) for part in parts):
        return False
    return entry.get("key") == key == settings_hash(entry["run"])


_COLUMNS = "by column"  # the only key of a list of mappings stored as columns


def pack_archive(records: Sequence[Record]) -> dict[str, Any]:
    """Return the content of an archive: values shared by all records, and the rest."""
    runs = [record.run.to_dict() for record in records]
    settings = _common([run["settings"] for run in runs])
    made, common = _common([record.made for record in records]), _common(runs)
    batches: dict[str, dict[str, Any]] = {}
    entries = []
    for record, run in zip(records, runs, strict=True):
        own_made = _without(record.made, made)
        origin: dict[str, Any] = {"made": own_made}
        if "batch" in own_made:
            name = own_made["batch"]
            if batches.setdefault(name, own_made) == own_made:
                origin = {"batch": name}
        run = _without(run, common) | {"settings": _without(run["settings"], settings)}
        result = _to_columns(record.result)
        entries.append({"key": record.run.key, "run": run, **origin, "result": result})
    return {
        "made": made,
        "batches": batches,
        "run": common | {"settings": settings},
        "records": entries,
    }


def unpack_archive(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of an archive: mappings with key, run, result and made."""
    common, batches = {**content.get("run", {})}, content.get("batches", {})
    settings = common.pop("settings", {})
    entries = []
    for one in content["records"]:
        made = batches[one["batch"]] if "batch" in one else one["made"]
        run = {**common, **one["run"]}
        run["settings"] = {**settings, **run["settings"]}
        entries.append(
            {
                "key": one["key"],
                "run": run,
                "result": _to_rows(one["result"]),
                "made": {**content["made"], **made},
            }
        )
    return entries


def _common(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the items that are in every mapping."""
    first = mappings[0] if mappings else {}
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in mappings)
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
    """Undo :func:`_to_columns`."""
    if isinstance(value, list):
        return [_to_rows(part) for part in value]
    if not isinstance(value, dict):
        return value
    if list(value) == [_COLUMNS]:
        names, columns = value[_COLUMNS].keys(), value[_COLUMNS].values()
        rows = zip(*columns, strict=True)
        return [dict(zip(names, map(_to_rows, row), strict=True)) for row in rows]
    return {name: _to_rows(part) for name, part in value.items()}
