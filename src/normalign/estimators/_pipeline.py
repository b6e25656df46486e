"""Mixed tables: what must happen to columns before a kernel can measure them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.metadata_routing import MetadataRouter
from sklearn.utils.validation import check_is_fitted, validate_data

from normalign._errors import complaint, describe, require
from normalign.estimators._inputs import (
    as_numpy,
    category_type,
    fill_objects,
    first_date,
    in_pandas,
    is_missing,
    kinds_of,
    number_text,
    refuse_records,
    require_dense,
    text_of,
    type_kind,
    warn_caller,
)

_CALLEE = "make_tabular_pipeline"
_MISSING = "<missing>"


def make_tabular_pipeline(
    estimator: Any,
    *,
    categorical: Sequence[Any] = (),
    max_categories: int = 100,
    missing_indicator: bool = False,
) -> Pipeline:
    """Return a pipeline that takes a table as it is to an estimator.

    Numeric columns (pandas' nullable ones too) have missing values fill_objects by the
    median and are scaled to unit variance. Texts, categories, objects and booleans
    become one indicator column per category; missing is a category, and one that was
    not there in ``fit`` gets zeros (or the rare ones' column, if there is one); there
    is a warning if it may be one of those in another form. The codes ``1``, ``1.0``,
    ``True``, ``"1"`` and ``"True"`` are one category, however they are stored. Which
    column is what is decided in ``fit``, for DataFrames by their types (those of polars
    and pyarrow go through pandas) and for arrays by their values. Dates have no place
    here, nor have texts that are all ISO dates: turn them into numbers first.

    Parameters
    ----------
    estimator : estimator
        What stands at the end, as the step ``machine``.
    categorical : sequence of column names (or positions, for arrays)
        Numeric columns, or texts that look like dates, that are codes of categories.
    max_categories : int, default=100
        Categories of a column beyond the most frequent ones share one indicator.
    missing_indicator : bool, default=False
        Add a column that says where a number was missing.

    Returns
    -------
    Pipeline
        With the steps ``columns`` and ``machine``. The names of what the machine sees
        are ``pipeline[:-1].get_feature_names_out()``, and those of the columns that
        these come from ``pipeline["columns"].origins_``.

    Raises
    ------
    TypeError
        If an argument is not of the right kind; in ``fit``, if the table is sparse, a
        frame that pandas cannot take over, or rows with names for their values.
    ValueError
        In ``fit``, if the table is none, its columns have names of several levels, or
        one holds dates or something else with no place here.
        Later, if a numeric column holds texts or infinite numbers.

    Examples
    --------
    >>> from sklearn.dummy import DummyClassifier
    >>> table = np.array([[1.0, "a"], [None, "b"]], dtype=object)
    >>> pipeline = make_tabular_pipeline(DummyClassifier()).fit(table, [0, 1])
    >>> pipeline[:-1].transform(table)
    array([[0., 1., 0.],
           [0., 0., 1.]])
    """
    if not (hasattr(estimator, "fit") and (not isinstance(estimator, type))):
        raise TypeError(
            f"{_CALLEE}: estimator must be an estimator, got "
            f"{describe(estimator)}. Pass an instance, not its class."
        )
    if not isinstance(max_categories, Integral):
        raise TypeError(
            f"{_CALLEE}: max_categories must be an integer, got {max_categories!r}."
        )
    if max_categories <= 1:
        raise ValueError(
            f"{_CALLEE}: max_categories must be 2 or more, got "
            f"{describe(max_categories)}."
        )
    if not (
        isinstance(categorical, Iterable) and (not isinstance(categorical, str | bytes))
    ):
        raise TypeError(
            f"{_CALLEE}: categorical must be a sequence of columns, got "
            f"{categorical!r}. Put the name in a list; () is for none."
        )
    if not isinstance(missing_indicator, bool | np.bool_):
        raise TypeError(
            f"{_CALLEE}: missing_indicator must be True or False, got "
            f"{describe(missing_indicator)}."
        )
    numbers = make_pipeline(
        Numbers(),
        SimpleImputer(
            strategy="median",
            add_indicator=missing_indicator,
            keep_empty_features=True,
        ),
        StandardScaler(),
    )
    categories = make_pipeline(
        CategoryTexts(),
        OneHotEncoder(
            handle_unknown="infrequent_if_exist",
            max_categories=max_categories,
            sparse_output=False,
        ),
    )
    codes = tuple(categorical)
    columns = TableColumns(
        [
            ("numbers", numbers, ColumnsOfKind("number", codes)),
            ("categories", categories, ColumnsOfKind("category", codes)),
        ]
    )
    return Pipeline([("columns", columns), ("machine", estimator)])


class TableColumns(ColumnTransformer):
    """A ``ColumnTransformer`` that takes frames of any library, as pandas has them.

    Examples
    --------
    >>> TableColumns([("all", "passthrough", [0])]).fit_transform(np.ones((1, 2)))
    array([[1.]])
    """

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Fit all transformers."""
        self.fit_transform(X, y, **params)
        return self

    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> Any:
        """Fit all transformers, and put what they make of the table side by side."""
        table = _as_table(X)
        made = super().fit_transform(table, y, **params)
        self.names_ = _names(table)
        for _, steps, chosen in self.transformers_:
            if isinstance(steps, Pipeline) and len(chosen):
                first: Any = steps[0]
                first.names_ = list(chosen)  # arrays arrive there without names
        return made

    def transform(self, X: Any, **params: Any) -> Any:
        """Put what the transformers make of a table side by side."""
        check_is_fitted(self)
        table = _as_table(X)
        self._require_columns_of_fit(table)
        return super().transform(table, **params)

    @property
    def origins_(self) -> list[Any]:
        """For each column that is made, the column of the table that it comes from.

        Importances of its parts (indicators of categories, and of missing numbers) are
        then summed by ``pandas.Series(importances).groupby(origins).sum()``.
        """
        check_is_fitted(self)
        found: list[Any] = []
        for name, steps, chosen in self.transformers_:
            if name == "numbers" and len(chosen):
                marked = getattr(steps[1].indicator_, "features_", ())
                found += [*chosen, *(chosen[place] for place in marked)]
            elif name == "categories" and len(chosen):
                encoder = steps[-1]
                for column, categories, rare in zip(
                    chosen, encoder.categories_, encoder.infrequent_categories_,
                    strict=True,
                ):  # fmt: skip
                    shared = 0 if rare is None else len(rare) - 1
                    found += [column] * (len(categories) - shared)
        return found

    n_features_in_: int

    def _require_columns_of_fit(self, X: Any) -> None:
        rule, names = "a table with the columns of fit", _names(X)
        if hasattr(self, "feature_names_in_"):
            missing = [name for name in self.names_ if name not in names]
            if missing:
                raise ValueError(
                    f"{_CALLEE}: X must be {rule}, got "
                    f"{f'one without {missing}' if names else 'one without names'}. "
                    "Columns are found by their names, in any order."
                )
            return
        width, known = np.shape(X)[1], self.n_features_in_
        # the second sentence is scikit-learn's
        if width != known:
            raise ValueError(
                f"{_CALLEE}: X must be a table of {known} columns, as in fit, got "
                f"one of {width}. X has {width} features, but "
                f"{type(self).__name__} is expecting {known} features as input."
            )
        if names and self.names_ and names != self.names_:
            raise ValueError(
                f"{_CALLEE}: X must be {rule}, in their order, got one with "
                f"{_some(names)}. Only names that are texts are found in any order."
            )

    def get_metadata_routing(self) -> MetadataRouter:
        """Weights and the like are for the machine alone.

        To say so for the scaler itself would put requests into its state, which refer
        back to it and which skops therefore cannot save.
        """
        return MetadataRouter(owner=self)


def _names(X: Any) -> list[str]:
    """Names of a frame's columns, as texts; none for other tables."""
    return [str(name) for name in X.columns] if hasattr(X, "iloc") else []


def _some(names: list[str]) -> str:
    return str(names) if len(names) <= 8 else f"{names[:8]} and more"


def _as_table(X: Any) -> Any:
    """A table whose columns ``ColumnTransformer`` can select: a frame, or an array."""
    refuse_records(_CALLEE, X)
    X = in_pandas(_CALLEE, X)
    is_frame = hasattr(X, "iloc") and getattr(X, "ndim", 0) == 2
    if is_frame:
        _require_rows(X, X.shape)
        _require_names(X.columns)
    require_dense(_CALLEE, X)
    if is_frame:
        return X
    table = _array(X)
    _require_rows(X, None if table is None else table.shape)
    return table


def _array(X: Any) -> np.ndarray | None:
    """Lists, arrays and tensors as an array; None if it is something else."""
    if isinstance(X, list | tuple):
        try:
            # as objects: numbers beside texts stay numbers
            return np.asarray(X, dtype=object)
        except ValueError:  # rows of different shapes
            return np.empty(len(X), dtype=object)
    arrays = hasattr(X, "shape") or hasattr(X, "__array__")
    return np.asarray(as_numpy(X)) if arrays and not isinstance(X, type) else None


def _require_rows(X: Any, shape: tuple[int, ...] | None) -> None:
    rule, name = "a table of rows and columns", type(X).__name__
    if shape is None:  # only then described: that of a frame takes time
        remedy = "Pass a DataFrame, or an array."
        raise ValueError(complaint(_CALLEE, "X", rule, describe(X), remedy))
    # the last words are scikit-learn's
    remedy = (
        "Reshape your data: one row is df.iloc[[0]], or X.reshape(1, -1); one column "
        "is df[['name']], or X.reshape(-1, 1)."
    )
    if isinstance(X, list | tuple):
        remedy = "Give it a list of equal length for each row."
    require(len(shape) == 2, _CALLEE, "X", rule, f"a {name} of shape {shape}", remedy)
    empty = "sample(s)" if shape[0] == 0 else "feature(s)"
    if 0 in shape:
        raise ValueError(
            f"{_CALLEE}: X must be {rule}, got a {name} of shape {shape}. Found "
            f"array with 0 {empty}."
        )


def _require_names(columns: Any) -> None:
    levels = getattr(columns, "nlevels", 1)
    if levels != 1:
        raise ValueError(
            f"{_CALLEE}: X must be a table with one name for each column, got a "
            f"MultiIndex of {levels} levels. Join them: X.columns = "
            '["_".join(map(str, name)) for name in X.columns].'
        )
    again = list(columns[columns.duplicated()])
    if again:
        raise ValueError(
            f"{_CALLEE}: X must be a table of columns with different names, got "
            f"{again} more than once."
        )
    texts = [isinstance(name, str) for name in columns]
    if not all(texts) and any(texts):
        raise ValueError(
            f"{_CALLEE}: X must be a table of columns whose names are all texts, "
            "or none, got both. Make them texts: X.columns = X.columns.astype(str)."
        )


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
        """Return their names, or positions if not all of them have texts for names.

        To scikit-learn a number is a position, even where it is the name of a column.
        """
        names = [name for name, _, _ in _columns(X)]
        unknown = [name for name in self.categorical if name not in names]
        if unknown:
            raise ValueError(
                f"{_CALLEE}: categorical must be columns of the table, got {unknown!r}."
            )
        by_name = all(isinstance(name, str) for name in names)
        return [
            name if by_name else place
            for place, (name, dtype, values) in enumerate(_columns(X))
            if self.kind == self._kind(name, dtype, values)
        ]

    def _kind(self, name: Any, dtype: Any, values: Iterable[Any]) -> str:
        if name in self.categorical:
            return "category"
        kinds = _kinds(name, dtype, values)
        if kinds == {"text"}:
            _refuse_dates(name, values)
        return "number" if kinds <= {"number"} else "category"


def _refuse_dates(name: Any, values: Iterable[Any]) -> None:
    """Refuse texts that are all dates: each would be a category of its own."""
    date = first_date(values)
    if date is not None:
        raise ValueError(
            f"{_CALLEE}: column {name!r} must be of numbers, booleans, texts or "
            f"categories, got dates as texts, as {date!r}. Parse them, "
            f"pandas.to_datetime(X[{name!r}]), and turn them into numbers "
            f"(.dt.year, days since ...); categorical=[{name!r}] keeps them as "
            "codes."
        )


def _kinds(name: Any, dtype: Any, values: Iterable[Any]) -> set[str]:
    """What a column holds; dates and complex numbers have no place here."""
    kinds = _column_kinds(dtype, values)
    strange = kinds & {"date", "complex"}
    if not strange:
        return kinds
    remedy = "Turn dates into numbers (years, days since ...) first."
    if "date" not in strange:
        # the first words are scikit-learn's
        remedy = "Complex data not supported: make two columns of each."
    raise ValueError(
        complaint(
            _CALLEE, f"column {name!r}",
            "of numbers, booleans, texts or categories", f"{dtype}", remedy,
        )
    )  # fmt: skip


def _column_kinds(dtype: Any, values: Iterable[Any]) -> set[str]:
    """Kinds of a column's values; those of objects are found value by value."""
    letter = getattr(dtype, "kind", "O")
    for letters, kind in (
        ("iuf", "number"), ("bUST", "text"), ("mM", "date"), ("c", "complex"),
    ):  # fmt: skip
        if letter in letters:
            return {kind}
    if str(dtype) == "object":
        return kinds_of(values)
    return {type_kind(getattr(dtype, "type", object))}


def _columns(X: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Name or position, type and values of every column."""
    if hasattr(X, "iloc"):
        for i, name in enumerate(X.columns):
            yield name, X.dtypes.iloc[i], X.iloc[:, i]
    else:
        values = as_numpy(X)
        for i in range(values.shape[1]):
            yield i, values.dtype, values[:, i]


class Numbers(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Numeric columns as float64, missing ones as NaN.

    Examples
    --------
    >>> Numbers().fit_transform(np.array([[1, None]], dtype=object))
    array([[ 1., nan]])
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Keep which columns have numbers."""
        self.fit_transform(X)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:  # type: ignore[override]
        """Return numbers, and keep which columns have any."""
        validate_data(self, X, skip_check_array=True)
        floats = as_floats(X)
        self.empty_ = np.isnan(floats).all(axis=0)
        return floats

    def transform(self, X: Any) -> np.ndarray:
        """Return numbers, and warn of those in columns that had none in ``fit``."""
        check_is_fitted(self)
        names = _names_of(self, X)
        floats = as_floats(X, names=names)
        fresh = self.empty_ & ~np.isnan(floats).all(axis=0)
        for name in np.array(names, dtype=object)[fresh]:
            _warn(
                name, "without numbers, as in fit", "numbers",
                "Nothing was learned of them: fit again with them, or drop the column.",
            )  # fmt: skip
        return floats


class CategoryTexts(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Columns of categories as texts, missing ones as a text of their own.

    A category that was not there in ``fit`` is an ordinary one if it is of a type that
    was. Else it may be one of those in another form, so there is a warning.

    Examples
    --------
    >>> CategoryTexts().fit_transform(np.array([["a", None, 2.0]], dtype=object))
    array([['a', '<missing>', '2']], dtype=object)
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Keep the categories of every column, and their types."""
        validate_data(self, X, skip_check_array=True)
        self.texts_ = [sorted(set(column)) for column in as_texts(X).T]
        self.types_ = [_types(values) for values in _value_columns(X)]
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return texts, and warn of categories that may be others in another form."""
        check_is_fitted(self)
        texts = as_texts(X)
        for name, values, column, known, types in zip(
            _names_of(self, X), _value_columns(X), texts.T, self.texts_, self.types_,
            strict=True,
        ):  # fmt: skip
            ordinary, numbers = {_MISSING, *known}, set(map(number_text, known))
            strange = [
                value
                for value, text in zip(values, column, strict=True)
                if text not in ordinary
                and (category_type(value) not in types or number_text(text) in numbers)
            ]
            if strange:
                count, kind = len(strange), type(strange[0]).__name__
                _warn(
                    name, "of categories in the form that they had in fit",
                    f"{count} others, as {strange[0]!r:.60} of type {kind}",
                    "They count as unseen: convert the column to its type in fit.",
                )  # fmt: skip
        return texts


def _types(values: Iterable[Any]) -> list[str]:
    """Types within which values of a column can be compared with its categories."""
    found = {category_type(value) for value in values if not is_missing(value)}
    names = {name for name in found if name is not None}
    if any(name.startswith("float") for name in names):
        names.add("integer")  # floats that happen to have no fraction
    return sorted(names)


def _names_of(step: Any, block: Any) -> list[Any]:
    """Names of a block's columns; those of arrays come from ``TableColumns``."""
    named = getattr(block, "columns", None)
    given = getattr(step, "names_", range(np.shape(block)[1]))
    return list(given if named is None else named)


def _warn(name: Any, rule: str, got: str, remedy: str) -> None:
    warn_caller(complaint(_CALLEE, f"column {name!r}", rule, got, remedy))


def as_floats(block: Any, *, names: Sequence[Any] = ()) -> np.ndarray:
    """Numeric columns as float64, missing ones as NaN.

    Parameters
    ----------
    names : sequence, optional
        Of the columns, for errors; by default those of the block.

    Examples
    --------
    >>> as_floats(np.array([[1, None]], dtype=object))
    array([[ 1., nan]])
    """
    columns = list(names) or [name for name, _, _ in _columns(block)]
    for name, (_, dtype, values) in zip(columns, _columns(block), strict=True):
        _kinds(name, dtype, values)
    try:
        floats = _floats(block)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{_CALLEE}: X must be numbers in the columns that were numbers in "
            f"fit, got a value that is none ({error}). Missing numbers are None or "
            "NaN."
        ) from error
    infinite = np.isinf(floats)
    where = list(np.array(columns, dtype=object)[infinite.any(axis=0)])
    if infinite.any():
        raise ValueError(
            f"{_CALLEE}: X must be without infinite numbers, got inf in "
            f"{infinite.sum()} places, in {where}. Pass NaN for what is not known."
        )
    return floats


def _floats(block: Any) -> np.ndarray:
    values = fill_objects(as_numpy(block))
    if hasattr(values, "iloc"):
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.asarray(values, dtype=np.float64)


def as_texts(block: Any) -> np.ndarray:
    """Columns of categories as texts, missing ones as a text of their own.

    Examples
    --------
    >>> as_texts(np.array([["a", None, 2.0]], dtype=object))
    array([['a', '<missing>', '2']], dtype=object)
    """
    columns = [
        [_MISSING if is_missing(value) else text_of(value) for value in values]
        for values in _value_columns(block)
    ]
    return np.array(columns, dtype=object).T


def _value_columns(block: Any) -> Iterator[Any]:
    """The values of every column; floats of single precision stay such."""
    for _, dtype, values in _columns(block):
        if not hasattr(values, "iloc"):
            yield values
            continue
        objects = values.to_numpy(dtype=object)
        # a category is of the type of all categories
        stored = getattr(getattr(dtype, "categories", None), "dtype", dtype)
        if getattr(stored, "kind", "O") == "f" and stored.itemsize < 8:
            narrow = np.dtype(f"f{stored.itemsize}").type
            objects = [v if is_missing(v) else narrow(v) for v in objects]
        yield objects
