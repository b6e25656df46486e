"""What a folder says of the TabArena tables in it.

A folder holds ``NAME.parquet`` files and tells about them in ``manifest.json``, a list
of entries, or in a ``NAME.json`` of one entry beside a file that was fetched alone;
the latter comes first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from normalign_reproduction._errors import complaint, require
from normalign_reproduction.data.tabarena_tasks import METRICS, tabarena_facts

__all__ = ["MANIFEST", "TabArenaEntry", "entries", "entry_from"]

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class TabArenaEntry:
    """What a manifest says of one file."""

    name: str
    file: str
    target: str
    problem_type: str
    n_rows: int
    n_inputs: int
    n_classes: int | None
    openml_dataset_id: int
    openml_task_id: int
    licence: str
    matches_tabarena: bool
    note: str

    def as_json(self) -> str:
        """The text of the ``NAME.json`` that says the same."""
        fields = asdict(self)
        fields["n_features"] = fields.pop("n_inputs")
        return json.dumps(fields, indent=1) + "\n"


def entries(callee: str, folder: Path) -> dict[str, TabArenaEntry]:
    """All that a folder tells of; empty where it tells nothing."""
    found: dict[str, TabArenaEntry] = {}
    manifest = folder / MANIFEST
    if manifest.is_file():
        listed = _parsed(callee, manifest)
        require(isinstance(listed, list), callee, MANIFEST, "a list", "something else")
        for fields in listed:
            entry = entry_from(callee, MANIFEST, fields)
            require(
                entry.name not in found, callee, MANIFEST, "a list of distinct names",
                f"{entry.name!r} twice",
            )  # fmt: skip
            found[entry.name] = entry
    for path in sorted(folder.glob("*.parquet")):
        alone = path.with_suffix(".json")
        if alone.is_file():
            entry = entry_from(callee, alone.name, _parsed(callee, alone))
            require(
                entry.file == path.name, callee, f"file in {alone.name}", path.name,
                repr(entry.file),
            )  # fmt: skip
            found[entry.name] = entry
    return {n: e for n, e in found.items() if (folder / e.file).is_file()}


def entry_from(callee: str, source: str, fields: Any) -> TabArenaEntry:
    """One entry of a manifest, checked: nothing of it is taken on trust."""
    require(isinstance(fields, Mapping), callee, source, "of objects", "something else")
    entry = TabArenaEntry(
        name=_field(callee, source, fields, "name", str),
        file=_field(callee, source, fields, "file", str),
        target=_field(callee, source, fields, "target", str),
        problem_type=_field(callee, source, fields, "problem_type", str),
        n_rows=_field(callee, source, fields, "n_rows", int),
        n_inputs=_field(callee, source, fields, "n_features", int),
        n_classes=_field(callee, source, fields, "n_classes", int | None),
        openml_dataset_id=_field(callee, source, fields, "openml_dataset_id", int),
        openml_task_id=_field(callee, source, fields, "openml_task_id", int),
        licence=_field(callee, source, fields, "licence", str),
        matches_tabarena=_field(callee, source, fields, "matches_tabarena", bool),
        note=_field(callee, source, fields, "note", str),
    )
    plain = entry.file.endswith(".parquet") and not set(entry.file) & set("/\\:\0")
    require(
        plain, callee, f"file in {source}", "the name of a .parquet file beside it",
        repr(entry.file), "Do not use this folder.",
    )  # fmt: skip
    require(
        entry.problem_type in METRICS, callee, f"problem_type in {source}",
        f"one of {', '.join(METRICS)}", repr(entry.problem_type),
    )  # fmt: skip
    require(
        (entry.n_classes is None) == (entry.problem_type == "regression"), callee,
        f"n_classes in {source}", "null for regression and a count otherwise",
        f"{entry.n_classes} for {entry.name}",
    )  # fmt: skip
    _check_known(callee, source, entry)
    return entry


def _check_known(callee: str, source: str, entry: TabArenaEntry) -> None:
    """A task of TabArena is scored as there, and whole only in its own shape."""
    facts = tabarena_facts().get(entry.name)
    if facts is None:
        return
    require(
        (entry.target, entry.problem_type) == (facts.target, facts.problem_type),
        callee, f"{entry.name} in {source}",
        f"{facts.problem_type} with the target {facts.target!r}",
        f"{entry.problem_type} with {entry.target!r}",
        "Give another name to what is not TabArena's.",
    )  # fmt: skip
    shape = entry.n_rows, entry.n_inputs, entry.n_classes
    whole = facts.n_rows, facts.n_inputs, facts.n_classes
    require(
        shape == whole or not entry.matches_tabarena, callee,
        f"matches_tabarena of {entry.name} in {source}",
        f"false unless rows, inputs and classes are {whole}", f"true of {shape}",
    )  # fmt: skip


def _field(
    callee: str, source: str, fields: Mapping[str, Any], key: str, kind: Any
) -> Any:
    value = fields.get(key)
    # True is an int to Python, but a count of True is a mistake
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    require(
        fits, callee, f"{key} in {source}",
        f"of the kind {getattr(kind, '__name__', kind)}",
        repr(value) if key in fields else "nothing",
    )  # fmt: skip
    return value


def _parsed(callee: str, path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        text = complaint(callee, path.name, "JSON", f"{path} ({error})")
        raise ValueError(text) from error
