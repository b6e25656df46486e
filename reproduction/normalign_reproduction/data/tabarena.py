"""TabArena's tables: what is known of each, their files, and a loader."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normalign.data import Source, search_path
from normalign_reproduction._errors import complaint, require

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "MANIFEST", "METRICS", "TABARENA", "TabArenaEntry", "TabArenaFacts",
    "TabArenaTable", "entries", "entry_from", "load_tabarena", "read_tabarena",
    "tabarena_entries", "tabarena_facts", "tabarena_names", "table_from",
]  # fmt: skip

# Every table has a checksum of its own, which OpenML states when it is asked for it.
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
# TabArena's measure of each kind of task; "roc_auc" enters its tables as 1 - AUC.
METRICS = {"binary": "roc_auc", "multiclass": "log_loss", "regression": "rmse"}


@dataclass(frozen=True)
class TabArenaFacts:
    """One task of TabArena as its curators describe it.

    Parameters
    ----------
    name : str
        As on OpenML, such as ``"credit-g"``.
    openml_dataset_id, openml_task_id : int
        Under which OpenML keeps the table, and the task with its folds.
    target : str
        The column to predict.
    problem_type : {"binary", "multiclass", "regression"}
        The kind of task.
    n_rows, n_inputs : int
        Shape of the table without the target.
    n_classes : int or None
        ``None`` for regression.
    licence : str
        Terms of use.
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
        """``"roc_auc"``, ``"log_loss"`` or ``"rmse"``, by the kind of task."""
        return METRICS[self.problem_type]


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
    return dict(_tasks())


@cache
def _tasks() -> dict[str, TabArenaFacts]:
    text = (
        files("normalign_reproduction.data").joinpath("tabarena.csv").read_text("utf-8")
    )
    return {row["name"]: _facts(row) for row in csv.DictReader(text.splitlines())}


def _facts(row: dict[str, str]) -> TabArenaFacts:
    return TabArenaFacts(
        name=row["name"],
        openml_dataset_id=int(row["openml_dataset_id"]),
        openml_task_id=int(row["openml_task_id"]),
        target=row["target"],
        problem_type=row["problem_type"],
        n_rows=int(row["n_rows"]),
        n_inputs=int(row["n_inputs"]),
        n_classes=int(row["n_classes"]) if row["n_classes"] else None,
        licence=row["licence"],
    )


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
        listed = _read_manifest(callee, manifest)
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
            entry = entry_from(callee, alone.name, _read_manifest(callee, alone))
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


def _read_manifest(callee: str, path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        text = complaint(callee, path.name, "JSON", f"{path} ({error})")
        raise ValueError(text) from error


@dataclass(frozen=True, eq=False, repr=False)
class TabArenaTable:
    """One table of TabArena: inputs as they are, the target apart from them.

    Missing values are left missing, categories are neither coded nor merged, nothing
    is scaled: that belongs inside the folds.

    Parameters
    ----------
    name : str
        As on OpenML.
    X : DataFrame of shape (n, d)
        Inputs: numbers or pandas categories.
    y : Series of shape (n,)
        Pandas categories for classes, float64 for regression; never missing.
    target : str
        The column that `y` was.
    problem_type : {"binary", "multiclass", "regression"}
        As TabArena has it, even where a partial copy lacks a class.
    categorical : tuple of str
        The columns of categories, text among them.
    matches_tabarena : bool
        Whether rows, columns and classes are as many as TabArena's.
    note : str
        What is partial or otherwise different, empty if nothing is.
    openml_dataset_id, openml_task_id : int
        Under which OpenML keeps the table and the task.
    licence : str
        Terms of use.
    origin : str
        One sentence for a report.

    Examples
    --------
    >>> import pandas as pd
    >>> X, y = pd.DataFrame({"size": [1.0, None]}), pd.Series([3.0, 4.0])
    >>> TabArenaTable("toy", X, y, "price", "regression", (), True, "", 1, 2, "", "")
    TabArenaTable(toy: 2 rows, 1 columns (0 categorical), rmse, as TabArena's)
    """

    name: str
    X: pd.DataFrame
    y: pd.Series
    target: str
    problem_type: str
    categorical: tuple[str, ...]
    matches_tabarena: bool
    note: str
    openml_dataset_id: int
    openml_task_id: int
    licence: str
    origin: str

    @property
    def metric(self) -> str:
        """TabArena's measure: ``"roc_auc"``, ``"log_loss"`` or ``"rmse"``.

        The error of ``"roc_auc"`` is 1 - AUC; the other two are errors already.
        """
        return METRICS[self.problem_type]

    @property
    def n_classes(self) -> int | None:
        """Classes that occur in `y`, or ``None`` for regression."""
        return None if self.problem_type == "regression" else self.y.nunique()

    @property
    def missing_fraction(self) -> float:
        """Share of the cells of `X` that are missing."""
        return float(self.X.isna().to_numpy().mean())

    def __repr__(self) -> str:
        n, d = self.X.shape
        k = self.n_classes
        return (
            f"TabArenaTable({self.name}: {n} rows, {d} columns "
            f"({len(self.categorical)} categorical), "
            f"{'' if k is None else f'{k} classes, '}{self.metric}, "
            f"{'as' if self.matches_tabarena else 'not as'} TabArena's)"
        )


def table_from(callee: str, frame: pd.DataFrame, entry: TabArenaEntry) -> TabArenaTable:
    """The table that a frame holds, once it has what its entry promises."""
    import pandas as pd

    file, target = entry.file, entry.target
    require(
        bool(frame.columns.is_unique), callee, file, "of distinct columns",
        "one name twice",
    )  # fmt: skip
    require(
        target in frame.columns, callee, file, f"a table with the target {target!r}",
        "one without it",
    )  # fmt: skip
    n, d = len(frame), frame.shape[1] - 1
    require(
        (n, d) == (entry.n_rows, entry.n_inputs), callee, file,
        f"{entry.n_rows} rows of {entry.n_inputs} inputs and a target",
        f"{n} rows of {d}",
    )  # fmt: skip
    frame = frame.reset_index(drop=True)
    columns = {str(n): _column(callee, file, part) for n, part in frame.items()}
    y = _target(callee, entry, columns.pop(target))
    return TabArenaTable(
        name=entry.name,
        X=pd.DataFrame(columns, index=frame.index, copy=False),
        y=y,
        target=target,
        problem_type=entry.problem_type,
        categorical=tuple(n for n, c in columns.items() if _is_category(c)),
        matches_tabarena=entry.matches_tabarena,
        note=entry.note,
        openml_dataset_id=entry.openml_dataset_id,
        openml_task_id=entry.openml_task_id,
        licence=entry.licence,
        origin=_origin(entry),
    )


def _is_category(column: pd.Series) -> bool:
    return column.dtype.name == "category"


def _column(callee: str, file: str, column: pd.Series) -> pd.Series:
    """Numbers and categories as they are, text as categories, nothing else.

    Booleans are numbers, but with gaps among them pyarrow makes objects of them.
    """
    from pandas.api.types import infer_dtype, is_numeric_dtype

    if _is_category(column) or is_numeric_dtype(column.dtype):
        return column
    kind = infer_dtype(column, skipna=True)
    require(
        kind in ("string", "boolean", "empty"), callee, file,
        "of numbers, categories and text",
        f"{kind} in the column {column.name!r}",
    )  # fmt: skip
    return column.astype("category")


def _target(callee: str, entry: TabArenaEntry, y: pd.Series) -> pd.Series:
    require(
        not y.isna().any(), callee, entry.file, f"without gaps in {entry.target!r}",
        f"{int(y.isna().sum())} of them",
    )  # fmt: skip
    if entry.problem_type == "regression":
        require(
            not _is_category(y), callee, entry.file,
            f"a table with numbers in {entry.target!r}", "categories",
        )  # fmt: skip
        return y.astype("float64")
    y = y.astype("category").cat.remove_unused_categories()
    require(
        len(y.cat.categories) == entry.n_classes, callee, entry.file,
        f"a table of {entry.n_classes} classes", len(y.cat.categories),
    )  # fmt: skip
    return y


def _origin(entry: TabArenaEntry) -> str:
    text = f"{entry.name} of TabArena v0.1 (OpenML {entry.openml_dataset_id})"
    if entry.matches_tabarena:
        return text
    return f"{text}, not as TabArena has it: {entry.note or 'other shape'}"


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
    from normalign_reproduction.data.openml import fetch_tabarena

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
