"""Mixed tables: what must happen to columns before a kernel can measure them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from normalign._checks import complaint, require, require_kind

__all__ = ["ColumnsOfKind", "as_floats", "as_texts", "make_tabular_pipeline"]

_MISSING = "<missing>"


def make_tabular_pipeline(
    estimator: Any,
    *,
    categorical: Sequence[Any] = (),
    max_categories: int = 100,
    missing_indicator: bool = False,
) -> Pipeline:
    """Return a pipeline that takes a table as it is to an estimator.

    Numeric columns (pandas' nullable ones too) have missing values filled by the
    median and are scaled to unit variance. Texts, categories, objects and booleans
    become one indicator column per category; missing is a category, and one that was
    not there in ``fit`` gets zeros (or the rare ones' column, if there is one). Which
    column is what is decided in ``fit``, for DataFrames by their types and for arrays
    by their values.

    Parameters
    ----------
    estimator : estimator
        What stands at the end, as the step ``machine``.
    categorical : sequence of column names (or positions, for arrays)
        Numeric columns that are codes of categories.
    max_categories : int, default=100
        Categories of a column beyond the most frequent ones share one indicator.
    missing_indicator : bool, default=False
        Add a column that says where a number was missing.

    Returns
    -------
    Pipeline
        With the steps ``columns`` and ``machine``. The names of what the machine sees
        are ``pipeline[:-1].get_feature_names_out()``.

    Raises
    ------
    TypeError
        If the estimator is none.
    ValueError
        In ``fit``, if a column holds dates or something else with no place here.

    Examples
    --------
    >>> from sklearn.dummy import DummyClassifier
    >>> table = np.array([[1.0, "a"], [None, "b"]], dtype=object)
    >>> pipeline = make_tabular_pipeline(DummyClassifier()).fit(table, [0, 1])
    >>> pipeline[:-1].transform(table)
    array([[0., 1., 0.],
           [0., 0., 1.]])
    """
    callee = "make_tabular_pipeline"
    require_kind(
        hasattr(estimator, "fit") and not isinstance(estimator, type), callee,
        "estimator", "an estimator", estimator, "Pass an instance, not its class.",
    )  # fmt: skip
    require(max_categories > 1, callee, "max_categories", "2 or more", max_categories)
    require_kind(
        not isinstance(categorical, str), callee, "categorical",
        "a sequence of columns", categorical, "Put the name in a list.",
    )  # fmt: skip
    numbers = make_pipeline(
        FunctionTransformer(as_floats, feature_names_out="one-to-one"),
        SimpleImputer(
            strategy="median",
            add_indicator=missing_indicator,
            keep_empty_features=True,
        ),
        StandardScaler(),
    )
    categories = make_pipeline(
        FunctionTransformer(as_texts, feature_names_out="one-to-one"),
        OneHotEncoder(
            handle_unknown="infrequent_if_exist",
            max_categories=max_categories,
            sparse_output=False,
        ),
    )
    codes = tuple(categorical)
    columns = ColumnTransformer(
        [
            ("numbers", numbers, ColumnsOfKind("number", codes)),
            ("categories", categories, ColumnsOfKind("category", codes)),
        ]
    )
    return Pipeline([("columns", columns), ("machine", estimator)])


class ColumnsOfKind:
    """The columns of a table that hold numbers, or categories.

    Parameters
    ----------
    kind : {"number", "category"}
    categorical : tuple
        Columns that are categories whatever they hold.

    Examples
    --------
    >>> ColumnsOfKind("category")(np.array([[1.0, "a"]], dtype=object))
    [1]
    """

    def __init__(self, kind: str, categorical: tuple = ()) -> None:
        self.kind = kind
        self.categorical = categorical

    def __call__(self, X: Any) -> list[Any]:
        """Return their names, or positions if they have no names."""
        names = [name for name, _, _ in _columns(X)]
        unknown = [name for name in self.categorical if name not in names]
        require(
            not unknown, "make_tabular_pipeline", "categorical", "columns of the table",
            repr(unknown),
        )  # fmt: skip
        return [
            name
            for name, dtype, values in _columns(X)
            if self.kind == self._kind(name, dtype, values)
        ]

    def _kind(self, name: Any, dtype: Any, values: Iterable[Any]) -> str:
        if name in self.categorical:
            return "category"
        letter = getattr(dtype, "kind", "O")
        if letter in "iuf":
            return "number"
        if letter in "bUS":
            return "category"
        if letter == "O":
            whole = str(dtype) == "object" and all(map(_like_number, values))
            return "number" if whole else "category"
        raise ValueError(
            complaint(
                "make_tabular_pipeline", f"column {name!r}",
                "of numbers, booleans, texts or categories", f"{dtype}",
                "Turn dates into numbers (years, days since ...) first.",
            )
        )  # fmt: skip


def _columns(X: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Name or position, type and values of every column."""
    if hasattr(X, "iloc"):
        for i, name in enumerate(X.columns):
            yield name, X.dtypes.iloc[i], X.iloc[:, i]
    else:
        for i in range(X.shape[1]):
            yield i, X.dtype, X[:, i]


def _like_number(value: Any) -> bool:
    if isinstance(value, bool | np.bool_ | str | bytes):
        return False
    return _is_missing(value) or isinstance(value, int | float | np.number)


def _is_missing(value: Any) -> bool:
    # pandas' NA, which need not be there to import, is told by its name
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def as_floats(block: Any) -> np.ndarray:
    """Numeric columns as float64, missing ones as NaN.

    Examples
    --------
    >>> as_floats(np.array([[1, None]], dtype=object))
    array([[ 1., nan]])
    """
    if hasattr(block, "iloc"):
        return block.to_numpy(dtype=np.float64, na_value=np.nan)
    if block.dtype.kind != "O":
        return np.asarray(block, dtype=np.float64)
    filled = [np.nan if _is_missing(value) else value for value in block.flat]
    return np.array(filled, dtype=np.float64).reshape(block.shape)


def as_texts(block: Any) -> np.ndarray:
    """Columns of categories as texts, missing ones as a text of their own.

    Examples
    --------
    >>> as_texts(np.array([["a", None, True]], dtype=object))
    array([['a', '<missing>', 'True']], dtype=object)
    """
    values = block.to_numpy(dtype=object) if hasattr(block, "iloc") else block
    texts = [_MISSING if _is_missing(value) else str(value) for value in values.flat]
    return np.array(texts, dtype=object).reshape(values.shape)
