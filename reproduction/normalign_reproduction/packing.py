"""Many records in one small file: what they share is said once.

Shared are parts of the runs' descriptions, what made all of them, and what made all of
a batch; and a list of alike mappings is kept as one mapping of columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normalign_reproduction.spec import Record

__all__ = ["packed_archive", "unpacked_archive"]

_COLUMNS = "by column"  # the only key of a list of mappings that was turned


def packed_archive(records: Sequence[Record]) -> dict[str, Any]:
    """Return what a file holds of some records."""
    runs = [record.run.to_dict() for record in records]
    settings = _shared([run["settings"] for run in runs])
    made, common = _shared([record.made for record in records]), _shared(runs)
    batches: dict[str, dict[str, Any]] = {}
    entries = []
    for record, run in zip(records, runs, strict=True):
        own = _without(record.made, made)
        said = {"made": own}
        if "batch" in own and batches.setdefault(own["batch"], own) == own:
            said = {"batch": own["batch"]}
        run = _without(run, common) | {"settings": _without(run["settings"], settings)}
        result = _turned(record.result)
        entries.append({"key": record.run.key, "run": run, **said, "result": result})
    return {
        "made": made, "batches": batches, "run": common | {"settings": settings},
        "records": entries,
    }  # fmt: skip


def unpacked_archive(content: Mapping[str, Any]) -> list[dict[str, Any]]:
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
        result = _turned_back(one["result"])
        made = {**everywhere, **own}
        entries.append({"key": one["key"], "run": run, "result": result, "made": made})
    return entries


def _shared(several: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the items that all of some mappings have."""
    first = several[0] if several else {}
    return {
        name: value
        for name, value in first.items()
        if all(name in one and one[name] == value for one in several)
    }


def _without(whole: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in whole.items() if name not in shared}


def _turned(value: Any) -> Any:
    """Return lists of mappings with the same keys as one mapping of lists.

    Examples
    --------
    >>> _turned([{"a": 1}, {"a": 2}])
    {'by column': {'a': [1, 2]}}
    """
    if isinstance(value, dict):
        return {name: _turned(part) for name, part in value.items()}
    if not isinstance(value, list):
        return value
    alike = len(value) > 1 and all(isinstance(one, dict) and one for one in value)
    if alike and all(list(one) == list(value[0]) for one in value):
        return {_COLUMNS: {n: [_turned(one[n]) for one in value] for n in value[0]}}
    return [_turned(part) for part in value]


def _turned_back(value: Any) -> Any:
    if isinstance(value, list):
        return [_turned_back(part) for part in value]
    if not isinstance(value, dict):
        return value
    if list(value) == [_COLUMNS]:
        columns = value[_COLUMNS]
        rows = zip(*columns.values(), strict=True)
        return [
            {n: _turned_back(v) for n, v in zip(columns, row, strict=True)}
            for row in rows
        ]
    return {name: _turned_back(part) for name, part in value.items()}
