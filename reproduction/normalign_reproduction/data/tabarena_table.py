"""One table of TabArena, and the checks that make a data frame one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from normalign_reproduction._errors import require
from normalign_reproduction.data.tabarena_manifest import TabArenaEntry
from normalign_reproduction.data.tabarena_tasks import METRICS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TabArenaTable", "table_from"]


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
