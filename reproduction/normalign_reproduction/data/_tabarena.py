"""TabArena's tables: the facts about each task, their files, and a loader."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from normalign.data import Source, search_path

if TYPE_CHECKING:
    import pandas as pd

# The checksum of each table is asked from OpenML.
TABARENA = Source(
    name="tabarena",
    title="51 tables of TabArena v0.1, 748 to 150000 rows",
    files=(),
    mirrors=("https://www.openml.org/api/v1/xml",),
    licence="as each table says",
    citation="Erickson et al.: TabArena: a living benchmark for machine learning on "
    "tabular data (2025)",
    page="https://tabarena.ai",
)
# TabArena's metric by the type of the task; "roc_auc" enters its tables as 1 - AUC.
METRICS = {"binary": "roc_auc", "multiclass": "log_loss", "regression": "rmse"}


@dataclass(frozen=True)
class TabArenaFacts:
    """One task of TabArena as its curators describe it.

    Parameters
    ----------
    name : str
        As on OpenML, such as ``"credit-g"``.
    openml_dataset_id, openml_task_id : int
        OpenML's numbers of the table, and of the task with its folds.
    target : str
        The column to predict.
    problem_type : {"binary", "multiclass", "regression"}
    n_rows, n_inputs : int
        Shape of the table without the target.
    n_classes : int or None
        ``None`` for regression.
    licence : str
    """

    name: str
    openml_dataset_id: int
    openml_task_id: int
    target: str
    problem_type: str
    n_rows: int
    n_inputs: int
    n_classes: int | None
    licence: str

    @property
    def metric(self) -> str:
        """``"roc_auc"``, ``"log_loss"`` or ``"rmse"``."""
        return METRICS[self.problem_type]


@dataclass(frozen=True)
class TabArenaEntry(TabArenaFacts):
    """A table in a folder, as the folder's manifest describes it."""

    file: str
    matches_tabarena: bool
    note: str

    def to_json(self) -> str:
        """Return the text of the ``NAME.json`` of the table."""
        fields = asdict(self)
        fields["n_features"] = fields.pop("n_inputs")
        return json.dumps(fields, indent=1) + "\n"


@dataclass(frozen=True, eq=False, repr=False)
class TabArenaTable(TabArenaEntry):
    """One table of TabArena, with its target apart.

    Missing values stay missing, categories are neither coded nor merged, nothing is
    scaled: that belongs inside the folds.

    Parameters
    ----------
    name, openml_dataset_id, openml_task_id, target, problem_type, licence
        As in :class:`TabArenaFacts`.
    n_rows, n_inputs, n_classes
        Of this copy of the table.
    file : str
    matches_tabarena : bool
        Whether rows, columns and classes are as many as TabArena's.
    note : str
        What is partial or otherwise different; empty if nothing is.
    X : DataFrame of shape (n, d)
        Inputs: numbers or pandas categories.
    y : Series of shape (n,)
        Pandas categories for classes, float64 for regression; never missing.
    categorical : tuple of str
        The columns of categories, text among them.
    """

    X: pd.DataFrame
    y: pd.Series
    categorical: tuple[str, ...]

    def __repr__(self) -> str:
        classes = f"{self.n_classes} classes, " if self.n_classes else ""
        return (
            f"TabArenaTable({self.name}: {self.n_rows} rows, {self.n_inputs} columns "
            f"({len(self.categorical)} categorical), {classes}{self.metric}, "
            f"{'as' if self.matches_tabarena else 'not as'} TabArena's)"
        )


@cache
def _facts() -> dict[str, TabArenaFacts]:
    path = files("normalign_reproduction.data").joinpath("tabarena.csv")
    found = {}
    for row in csv.DictReader(path.read_text("utf-8").splitlines()):
        numbers: dict[str, Any] = {
            key: int(value) if value else None
            for key, value in row.items()
            if key.startswith(("openml_", "n_"))
        }
        found[row["name"]] = TabArenaFacts(**{**row, **numbers})
    return found


def tabarena_facts() -> dict[str, TabArenaFacts]:
    """Return the 51 tasks of TabArena v0.1 by name.

    References
    ----------
    [1] Erickson et al., TabArena: a living benchmark for machine learning on tabular
    data, 2025 (arXiv 2506.16791)

    Examples
    --------
    >>> task = tabarena_facts()["credit-g"]
    >>> task.n_rows, task.n_inputs, task.metric
    (1000, 20, 'roc_auc')
    """
    return dict(_facts())


def load_tabarena(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> TabArenaTable:
    """Load one table of TabArena.

    ``tabarena/NAME.parquet`` is looked for in `data_dir`, ``$NORMALIGN_DATA`` and the
    cache. If none of them has it, it is downloaded from OpenML, checked against
    OpenML's checksum, and kept. A table may be partial: see its `matches_tabarena` and
    `note`.

    Parameters
    ----------
    name : str
        One of :func:`tabarena_facts`, or another that a manifest lists.
    data_dir : path, optional
        Looked in first, and downloaded into if given.
    download : bool, default=True
        Whether to ask OpenML for a missing table.

    Returns
    -------
    TabArenaTable

    Raises
    ------
    FileNotFoundError
        If the table is missing and cannot be downloaded.
    ValueError
        If there is no such table, or a file is damaged or contradicts its manifest.
    """
    found = tabarena_entries(data_dir)
    if name in found:
        return read_table(*found[name])
    if name not in tabarena_facts():
        raise ValueError(
            f"load_tabarena: name must be one of the {len(tabarena_facts())} tasks of "
            f"TabArena, got {name!r}. See normalign_reproduction.data.tabarena_facts()."
        )
    from normalign_reproduction.data._openml import fetch_tabarena

    reason, cause = "download=False", None
    if download:
        try:
            folder = fetch_tabarena(name, data_dir=data_dir)
        except OSError as error:  # no network, a bad server, no space, no permission
            reason, cause = f"OpenML did not send it [{error}]", error
        else:
            return read_table(folder, read_entries(folder)[name])
    folders = ", ".join(str(folder) for folder in search_path(data_dir))
    raise FileNotFoundError(
        f"load_tabarena: data_dir must hold tabarena/{name}.parquet and its entry in "
        f"tabarena/manifest.json, found none in {folders}, and {reason}. Run "
        f"`normalign data fetch tabarena --task {name}` where there is a network, or "
        "set NORMALIGN_DATA to a folder that has the files."
    ) from cause


def tabarena_names(*, data_dir: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the names of the tables that are on this machine, sorted.

    A folder may have variants besides the tasks of :func:`tabarena_facts`.

    Parameters
    ----------
    data_dir : path, optional
        Looked in before ``$NORMALIGN_DATA`` and the cache.

    Raises
    ------
    ValueError
        If a manifest is damaged or unsafe.
    """
    return sorted(tabarena_entries(data_dir))


def tabarena_entries(
    data_dir: str | os.PathLike[str] | None = None,
) -> dict[str, tuple[Path, TabArenaEntry]]:
    """Return the first folder that has each table, and the table's entry."""
    found: dict[str, tuple[Path, TabArenaEntry]] = {}
    for place in search_path(data_dir):
        folder = place / "tabarena"
        for name, entry in read_entries(folder).items():
            found.setdefault(name, (folder, entry))
    return found


def read_entries(folder: Path) -> dict[str, TabArenaEntry]:
    """Return the entries of a folder whose files exist.

    They come from ``manifest.json``, and from a ``NAME.json`` beside ``NAME.parquet``,
    which takes precedence.
    """
    entries: dict[str, TabArenaEntry] = {}
    manifest = folder / "manifest.json"
    if manifest.is_file():
        listed = _read_json(manifest)
        if not isinstance(listed, list):
            raise ValueError(f"{manifest} must be a list of objects.")
        for fields in listed:
            entry = _parse_entry(manifest, fields)
            if entry.name in entries:
                raise ValueError(
                    f"{manifest} must name {entry.name!r} once, not twice."
                )
            entries[entry.name] = entry
    for path in sorted(folder.glob("*.parquet")):
        alone = path.with_suffix(".json")
        if alone.is_file():
            entry = _parse_entry(alone, _read_json(alone))
            if entry.file != path.name:
                rule = f"file must be {path.name!r}"
                raise ValueError(f"{alone}: {rule}, got {entry.file!r}.")
            entries[entry.name] = entry
    return {n: entry for n, entry in entries.items() if (folder / entry.file).is_file()}


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON, got an error: {error}.") from error


def _parse_entry(path: Path, fields: Any) -> TabArenaEntry:
    """Return an entry of a manifest; nothing in it is trusted."""
    if not isinstance(fields, Mapping):
        raise ValueError(f"{path} must contain objects, got {fields!r}.")
    known: dict[str, Any] = {}
    for name, kind in get_type_hints(TabArenaEntry).items():
        key = "n_features" if name == "n_inputs" else name
        known[name] = value = fields.get(key)
        # True is an int to Python.
        if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
            rule = getattr(kind, "__name__", str(kind))
            raise ValueError(f"{path}: {key} must be of type {rule}, got {value!r}.")
    entry = TabArenaEntry(**known)
    if not entry.file.endswith(".parquet") or set(entry.file) & set("/\\:\0"):
        raise ValueError(
            f"{path}: file must be the name of a .parquet file beside it, got "
            f"{entry.file!r}. Do not use this folder."
        )
    if entry.problem_type not in METRICS:
        raise ValueError(
            f"{path}: problem_type must be one of {', '.join(METRICS)}, got "
            f"{entry.problem_type!r}."
        )
    facts = tabarena_facts().get(entry.name)
    if facts is None:
        return entry
    # A task of TabArena is scored as there, and complete only in its own shape.
    given, task = (
        f"{one.problem_type} with the target {one.target!r}" for one in (entry, facts)
    )
    if given != task:
        raise ValueError(f"{path}: {entry.name} must be {task}, got {given}.")
    given, complete = (
        (one.n_rows, one.n_inputs, one.n_classes) for one in (entry, facts)
    )
    if entry.matches_tabarena and given != complete:
        raise ValueError(
            f"{path}: matches_tabarena of {entry.name} must be false unless rows, "
            f"inputs and classes are {complete}, got true for {given}."
        )
    return entry


def read_table(folder: Path, entry: TabArenaEntry) -> TabArenaTable:
    """Read a table and check it against its entry.

    pandas' own notes in the file, on indices and types, are ignored.
    """
    import pyarrow.parquet as pq

    path = folder / entry.file
    try:
        # One file, not a data set: folder names such as a=1 are no columns.
        table = pq.ParquetFile(path).read()
        frame = table.replace_schema_metadata(None).to_pandas()
    except (OSError, ValueError, NotImplementedError) as error:
        raise ValueError(
            f"{path} must be a whole parquet file, got an error: {error}. The file is "
            "damaged: get it again."
        ) from error
    return table_from_frame(frame, entry)


def table_from_frame(frame: pd.DataFrame, entry: TabArenaEntry) -> TabArenaTable:
    """Return the table in a frame that agrees with its entry."""
    import pandas as pd

    file, target = entry.file, entry.target
    if not frame.columns.is_unique:
        raise ValueError(f"{file} must have distinct columns, got one name twice.")
    if target not in frame.columns:
        raise ValueError(f"{file} must have the target {target!r}, got none.")
    n, d = len(frame), frame.shape[1] - 1
    if (n, d) != (entry.n_rows, entry.n_inputs):
        raise ValueError(
            f"{file} must have {entry.n_rows} rows of {entry.n_inputs} inputs and a "
            f"target, got {n} rows of {d}."
        )
    frame = frame.reset_index(drop=True)
    columns = {str(name): _to_column(file, part) for name, part in frame.items()}
    y = _to_target(entry, columns.pop(target))
    return TabArenaTable(
        **asdict(entry),
        X=pd.DataFrame(columns, index=frame.index, copy=False),
        y=y,
        categorical=tuple(n for n, c in columns.items() if c.dtype.name == "category"),
    )


def _to_column(file: str, column: pd.Series) -> pd.Series:
    """Return numbers and categories unchanged, text as categories."""
    from pandas.api.types import infer_dtype, is_numeric_dtype

    if column.dtype.name == "category" or is_numeric_dtype(column.dtype):
        return column
    kind = infer_dtype(column, skipna=True)
    # Booleans are numbers, but with gaps among them pyarrow makes objects of them.
    if kind not in ("string", "boolean", "empty"):
        raise ValueError(
            f"{file} must have numbers, categories and text, got {kind} in the column "
            f"{column.name!r}."
        )
    return column.astype("category")


def _to_target(entry: TabArenaEntry, y: pd.Series) -> pd.Series:
    if n_missing := int(y.isna().sum()):
        raise ValueError(
            f"{entry.file} must have no missing values in the target "
            f"{entry.target!r}, got {n_missing}."
        )
    if entry.problem_type == "regression":
        if y.dtype.name == "category":
            raise ValueError(
                f"{entry.file} must have numbers in {entry.target!r}, got categories."
            )
        return y.astype("float64")
    y = y.astype("category").cat.remove_unused_categories()
    if len(y.cat.categories) != entry.n_classes:
        raise ValueError(
            f"{entry.file} must have {entry.n_classes} classes, got "
            f"{len(y.cat.categories)}."
        )
    return y
