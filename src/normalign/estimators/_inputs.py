"""The caller's data and parameters: arrays, frames, labels, targets, weights."""

from __future__ import annotations

import datetime
import inspect
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from numbers import Complex, Integral, Rational, Real
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import sklearn
import torch
from scipy import sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.validation import validate_data

from normalign._errors import as_float, complaint, describe, require
from normalign.kernels import KERNELS
from normalign.kernels._memory import SMALL_BYTES, available_bytes

_DATES = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    np.datetime64,
    np.timedelta64,
)

_DATE_FIRST = re.compile(r"\d{4}-\d\d-\d\d(?!\d)", re.ASCII)

# Those of pandas, which may not be installed, are recognised by their names.
_ABSENT = ("NoneType", "NAType", "NaTType", "MaskedConstant")

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?", re.ASCII | re.I)

# Booleans in text files.
_BOOLEANS = {"True": "1", "False": "0"}


def scalar(value: Any) -> Any:
    """The value of an array or tensor without dimensions; all else as it is.

    Examples
    --------
    >>> scalar(np.array(2)), scalar(torch.tensor(True)), scalar("a")
    (np.int64(2), True, 'a')
    """
    if isinstance(value, np.ndarray):
        return value[()] if value.ndim == 0 else value
    if isinstance(value, torch.Tensor):
        return value.item() if value.ndim == 0 else value
    return value


def is_missing(value: Any) -> bool:
    """Say whether a value stands for none: None, NaN, NA, NaT, masked.

    Examples
    --------
    >>> is_missing(None), is_missing(float("nan")), is_missing("")
    (True, True, False)
    """
    value = scalar(value)
    if type(value).__name__ in _ABSENT:
        return True
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    if isinstance(value, Decimal):
        return value.is_nan()
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


@cache
def type_kind(kind: type) -> str:
    """Say what values of a type are.

    Examples
    --------
    >>> type_kind(bool), type_kind(Decimal), type_kind(dict)
    ('boolean', 'number', 'other')
    """
    # A timedelta of numpy counts as an integer there, so dates come first.
    if issubclass(kind, _DATES) or kind.__name__ == "Period":
        return "date"
    for name, types in (
        ("boolean", (bool, np.bool_)),
        ("text", (str,)),
        ("bytes", (bytes,)),
        ("number", (Real, Decimal)),
        ("complex", (Complex,)),
    ):
        if issubclass(kind, types):
            return name
    return "other"


def kinds_of(values: Iterable[Any]) -> set[str]:
    """Kinds of the values that are not missing.

    Examples
    --------
    >>> sorted(kinds_of([1, None, "a"]))
    ['number', 'text']
    """
    return {type_kind(type(scalar(value))) for value in values if not is_missing(value)}


def first_date(values: Iterable[Any]) -> str | None:
    """The first of texts that are all ISO dates, or date-times; None if one is not.

    Missing ones do not count.

    Examples
    --------
    >>> first_date(["2020-02-29", None, "2020-03-01 08:30"])
    '2020-02-29'
    >>> first_date(["2020-02-30"]), first_date(["2020-02-29", "soon"])
    (None, None)
    """
    first = None
    for value in values:
        if is_missing(value):
            continue
        if not (isinstance(value, str) and _is_date(value.strip())):
            return None
        first = first or value
    return first


def _is_date(text: str) -> bool:
    if not _DATE_FIRST.match(text):
        return False  # 20200229 may be a code
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def text_of(value: Any) -> str:
    """Text of a category that does not depend on how its code is stored.

    A code of integers becomes one of floats as soon as one is missing, and booleans
    become integers or texts in many files: ``1``, ``1.0`` and ``True`` are one
    category, and so are ``"1"``, ``"True"`` and ``b"1"``. Bytes are texts in UTF-8. A
    float beyond the integers that its type can tell apart is no integer.

    Examples
    --------
    >>> text_of(1), text_of(1.0), text_of(True), text_of("1"), text_of("True")
    ('1', '1', '1', '1', '1')
    >>> text_of(2**53 + 1), text_of(2.0**53)
    ('9007199254740993', '9007199254740992.0')
    """
    value = scalar(value)
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return str(value)
    if isinstance(value, str):
        text = str.__str__(value)  # the text itself, also where an enumeration is one
        return _BOOLEANS.get(text, text)
    if _is_integer(value):
        return str(int(value))
    return str(float(value) if isinstance(value, Decimal) else value)


def _is_integer(value: Any) -> bool:
    """Whether a value is a number that stands for one integer only."""
    if isinstance(value, float | np.floating):
        limit = _integer_limit(type(value))
        return bool(abs(value) < limit and value == np.floor(value))
    if isinstance(value, Decimal):
        return value.is_finite() and value == value.to_integral_value()
    return isinstance(value, Rational) and value.denominator == 1


@cache
def _integer_limit(kind: type) -> float:
    """Below which floats of a type tell all integers apart."""
    return 2.0 ** (np.finfo(kind if issubclass(kind, np.floating) else float).nmant + 1)


def category_type(value: Any) -> str | None:
    """Name the type within which equal categories have equal texts.

    None if there is no such type: one date, or object, may have several texts.

    Examples
    --------
    >>> category_type(1), category_type(1.0), category_type(1.5), category_type(b"a")
    ('integer', 'integer', 'float64', 'text')
    >>> category_type(np.float32(1.5)), category_type(datetime.date(2020, 1, 1))
    ('float32', None)
    """
    value = scalar(value)
    kind = type_kind(type(value))
    if kind == "bytes":
        return None if text_of(value) == str(value) else "text"
    if kind in ("text", "boolean"):
        return kind
    if kind != "number":
        return None
    if _is_integer(value):
        return "integer"
    return "float64" if isinstance(value, float | Decimal) else type(value).__name__


def number_text(text: str) -> str:
    """The text of the number that a text of a category is; other texts as they are.

    Examples
    --------
    >>> number_text("01.50"), number_text("2e1"), number_text("a1")
    ('1.5', '20', 'a1')
    """
    return text_of(Decimal(text)) if _NUMBER.fullmatch(text) else text


def with_nan(values: np.ndarray) -> np.ndarray:
    """Objects that are numbers, or missing, as float64; infinite ones beyond it.

    Examples
    --------
    >>> with_nan(np.array([1, None, 10**400], dtype=object))
    array([ 1., nan, inf])
    """
    fill_objects = [
        np.nan if is_missing(value) else as_float(scalar(value))
        for value in values.flat
    ]
    return np.array(fill_objects, dtype=np.float64).reshape(values.shape)


def fill_mask(values: np.ma.MaskedArray) -> np.ndarray:
    """A masked array as a plain one, with NaN (None for objects) under the mask.

    Examples
    --------
    >>> fill_mask(np.ma.masked_equal([1, 2], 2))
    array([ 1., nan])
    """
    plain, mask = np.asarray(values.data), np.ma.getmaskarray(values)
    if not mask.any():
        return plain
    if plain.dtype.kind in "biu":
        return np.where(mask, np.nan, plain.astype(np.float64))
    if plain.dtype.kind in "fc":
        return np.where(mask, plain.dtype.type(np.nan), plain)
    objects = plain.astype(object)
    objects[mask] = None
    return objects


# How frames of polars, pyarrow and libraries like them are recognised.
_EXCHANGES = ("__dataframe__", "__arrow_c_stream__")


def in_pandas(callee: str, values: Any) -> Any:
    """Return a frame of another library as pandas has it; leave all else alone.

    Types of columns (dates, texts, categories) are then found in one way. Without
    pandas, or what converts the frame, a frame of numbers becomes an array.

    Examples
    --------
    >>> in_pandas("fit", [[1.0, 2.0]])
    [[1.0, 2.0]]
    """
    if not _is_foreign(type(values)):
        return values
    if not hasattr(values, "to_pandas"):
        raise TypeError(_refusal(callee, values, "which has no to_pandas()"))
    try:
        return values.to_pandas()
    except ImportError as error:
        array = np.asarray(values)
        if array.dtype.kind in "biuf":
            return array
        reason = f"whose to_pandas() fails ({error})"
        raise TypeError(_refusal(callee, values, reason)) from error


def _is_foreign(kind: type) -> bool:
    """Whether a type is that of a frame or column, but not of pandas.

    It looks at the type: the columns of a value may take work.
    """
    framed = any(hasattr(kind, name) for name in _EXCHANGES)
    if not framed and not hasattr(kind, "columns"):
        return False
    if not framed and not (hasattr(kind, "to_pandas") or hasattr(kind, "collect")):
        return False
    return all(base.__module__.partition(".")[0] != "pandas" for base in kind.__mro__)


def _refusal(callee: str, values: Any, reason: str) -> str:
    kind = type(values)
    name = f"a {kind.__name__} of {kind.__module__.partition('.')[0]}, {reason}"
    lazy = hasattr(kind, "collect") and not hasattr(kind, "to_pandas")
    remedy = "Pass X.collect()." if lazy else "Pass a pandas DataFrame, or an array."
    return complaint(callee, "X", "a table that pandas or numpy has", name, remedy)


# Weights by which any ridge can be divided in single precision.
_WEIGHTS = (1e-20, 1e20)
# Kinds of arrays that are numbers to a kernel.
_NUMBERS = "biuf"


@dataclass(frozen=True)
class Origin:
    """The array library and device of a caller's table, for results to go back to.

    Parameters
    ----------
    namespace : module or None
        The array-API namespace, torch among them; ``None`` for numpy and all that
        becomes numpy (lists, DataFrames).
    device : object
        The device in that namespace's own terms.

    Examples
    --------
    >>> Origin.of(torch.zeros(2)).restore(np.array([1.0, 2.0]))
    tensor([1., 2.], dtype=torch.float64)
    """

    namespace: Any = None
    device: Any = None

    @classmethod
    def of(cls, values: Any) -> Origin:
        """The origin of an array."""
        if isinstance(values, torch.Tensor):
            return cls(torch, values.device)
        if isinstance(values, np.ndarray) or not hasattr(values, "__array_namespace__"):
            return cls()
        return cls(values.__array_namespace__(), values.device)

    def restore(self, values: np.ndarray, *, exact: bool = False) -> Any:
        """Values as an array of this origin; strings stay numpy's.

        Some devices have nothing of 64 bits: there it is rounded, unless it must be
        exact, as labels must.
        """
        if self.namespace is None or values.dtype.kind not in "biuf":
            return values
        try:
            return self._convert(values)
        except (TypeError, ValueError) as error:
            if values.dtype.itemsize < 8:
                raise
            with np.errstate(over="ignore"):
                narrow = values.astype(
                    f"{values.dtype.kind}{values.dtype.itemsize // 2}"
                )
            lost = narrow != values if exact else np.isinf(narrow) & ~np.isinf(values)
            if lost.any():
                raise ValueError(
                    f"predict: X must be on a device that holds {values.dtype}, "
                    f"got {self.device}, which has no {values[lost][0]}. Pass it "
                    "as a numpy array."
                ) from error
            return self._convert(narrow)

    def _convert(self, values: np.ndarray) -> Any:
        if self.namespace is torch:
            return torch.as_tensor(values, device=self.device)
        return self.namespace.asarray(values, device=self.device)


def as_numpy(values: Any) -> Any:
    """Copy or view an array of any library as numpy; leave lists and frames alone.

    What is masked becomes NaN: a mask says that there is no value.

    Examples
    --------
    >>> as_numpy(torch.tensor([1.0, 2.0]))
    array([1., 2.], dtype=float32)
    """
    if isinstance(values, torch.Tensor):
        plain = values.detach().cpu().resolve_conj().resolve_neg()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    if isinstance(values, np.ma.MaskedArray):
        return fill_mask(values)
    if isinstance(values, np.ndarray) or not hasattr(values, "__array_namespace__"):
        return values
    if hasattr(values, "get"):  # cupy: the only way off its device
        return values.get()
    try:
        return np.from_dlpack(values)
    except (AttributeError, BufferError, RuntimeError, TypeError):
        return np.asarray(values)  # not exchanged that way, or on another device


def check_features(estimator: Any, X: Any, *, reset: bool) -> np.ndarray:
    """Return X as a finite float table, and keep or compare its columns' names.

    Numbers in any form pass (float32 stays float32, all else is float64): integers,
    booleans, pandas' nullable types. Errors for other columns name what encodes or
    fills them.
    """
    callee = type(estimator).__name__
    refuse_records(callee, X)
    given = X if type(X) is np.ndarray else _read(callee, X)
    _require_numbers(callee, given)
    table: Any
    if reset and _is_plain(given):
        # scikit-learn would find nothing either, and takes longer than a small fit
        table, estimator.n_features_in_ = given, given.shape[1]
        vars(estimator).pop("feature_names_in_", None)
    else:
        table = _validate(estimator, given, reset=reset)
    _require_finite(callee, table, getattr(estimator, "feature_names_in_", None))
    return table


def _validate(estimator: Any, given: Any, *, reset: bool) -> np.ndarray:
    """The table by scikit-learn's checks, with errors in this library's form."""
    try:
        table: Any = validate_data(
            estimator,
            fill_objects(given),
            reset=reset,
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
        )
    except (TypeError, ValueError) as error:
        rule = "a table of rows and columns" if reset else "a table as in fit"
        kind = TypeError if isinstance(error, TypeError) else ValueError
        came, said = describe(given), str(error).strip()
        if _is_frame(given):
            came = f"a {type(given).__name__} of shape {given.shape}"
        # what it says is what scikit-learn's users know
        raise kind(
            complaint(type(estimator).__name__, "X", rule, came, said)
        ) from error
    return table


def _is_plain(table: Any) -> bool:
    """Whether a table is of floats and of two dimensions, without names."""
    if type(table) is not np.ndarray or table.dtype.char not in "df":
        return False
    return table.dtype.isnative and table.ndim == 2 and table.size > 0


def refuse_records(callee: str, X: Any) -> None:
    """Refuse rows that name their values: they are no table yet."""
    rows = isinstance(X, list | tuple) and len(X) > 0 and isinstance(X[0], Mapping)
    fields = getattr(getattr(X, "dtype", None), "names", None)
    if rows or fields is not None:
        raise TypeError(
            f"{callee}: X must be a table of rows and columns, got "
            f"{'a list of dicts' if rows else f'an array with the fields {fields}'}. "
            f"Use pandas.DataFrame({'rows' if rows else 'X'})."
        )


def require_dense(callee: str, values: Any, *, name: str = "X") -> None:
    """Refuse what is sparse, or has no values."""
    tensor = isinstance(values, torch.Tensor)
    loose = sparse.issparse(values) or (tensor and values.layout is not torch.strided)
    if loose:
        raise TypeError(
            f"{callee}: {name} must be dense, not sparse, got a sparse "
            f"{type(values).__name__}. Pass {name}.toarray(), {name}.to_dense() in "
            "torch."
        )
    if tensor and values.device.type == "meta":
        raise TypeError(
            f"{callee}: {name} must be a tensor with values, got one on the meta "
            "device."
        )
    if not tensor and _is_frame(values):
        thin = [str(kind).startswith("Sparse") for kind in values.dtypes]
        if thin and all(thin):
            raise TypeError(
                f"{callee}: {name} must be dense, not sparse, got a DataFrame of "
                f"sparse columns. Pass {name}.sparse.to_dense()."
            )


def _require_columns(callee: str, X: Any) -> None:
    """Refuse a frame without columns, or with equal names."""
    # the second sentence is scikit-learn's
    if X.shape[1] == 0:
        raise ValueError(
            f"{callee}: X must be a table of rows and columns, got a DataFrame of "
            f"shape {X.shape}. Found array with 0 feature(s) (shape={X.shape}) "
            "while a minimum of 1 is required."
        )
    again = [repr(name) for name in X.columns[X.columns.duplicated()]]
    if again:
        raise ValueError(
            f"{callee}: X must be a table of columns with different names, got "
            f"{_some(again)} more than once."
        )


def _is_frame(X: Any) -> bool:
    return hasattr(X, "iloc") and hasattr(X, "dtypes") and getattr(X, "ndim", 0) == 2


def _read(callee: str, X: Any) -> Any:
    """Arrays as numpy's and lists as arrays, frames as those of pandas.

    The rest is for scikit-learn to read.
    """
    X = in_pandas(callee, X)
    require_dense(callee, X)
    if _is_frame(X):
        _require_columns(callee, X)
    if isinstance(X, list | tuple):
        try:
            return np.asarray(X)
        except ValueError:  # rows of different lengths
            return X
    return as_numpy(X)


def fill_objects(table: Any) -> Any:
    """A table whose objects are NaN where something is missing, for float() to know.

    Examples
    --------
    >>> fill_objects(np.array([[1.5, None]], dtype=object))
    array([[1.5, nan]])
    """
    if _is_frame(table):
        places = [i for i, kind in enumerate(table.dtypes) if str(kind) == "object"]
        made = table.copy() if places else table
        for i in places:
            made.isetitem(i, with_nan(table.iloc[:, i].to_numpy()))
        return made
    if isinstance(table, np.ndarray) and table.dtype.kind == "O" and table.ndim == 2:
        return with_nan(table)
    return table


def _require_numbers(callee: str, X: Any) -> None:
    wrong: dict[str, set[str]] = {}
    if _is_frame(X):
        for i, (name, dtype) in enumerate(zip(X.columns, X.dtypes, strict=True)):
            wrong[f"{name!r} ({dtype})"] = _non_numeric_kinds(dtype, X.iloc[:, i])
    elif isinstance(X, np.ndarray) and X.dtype.kind not in _NUMBERS:
        wrong[f"an array of {X.dtype}"] = _non_numeric_kinds(X.dtype, X.flat)
    wrong = {name: kinds for name, kinds in wrong.items() if kinds}
    if not wrong:
        return
    found = set().union(*wrong.values())
    if found == {"other"}:
        # the second sentence is scikit-learn's
        raise TypeError(
            f"{callee}: X must be numbers, got objects in {_some(list(wrong))}. "
            "float(): argument must be a string or a real number."
        )
    remedies = []
    if "complex" in found:
        # the first words are scikit-learn's
        remedies += ["Complex data not supported: make two columns of each."]
    if "date" in found:
        remedies += ["Turn dates into numbers (years, days since ...) first."]
    if found - {"complex", "date"}:
        remedies += [f"make_tabular_pipeline({callee}()) encodes texts and categories."]
    raise ValueError(
        f"{callee}: X must be numbers, got {_some(list(wrong))}. {' '.join(remedies)}"
    )


def _non_numeric_kinds(dtype: Any, values: Iterable[Any]) -> set[str]:
    """What there is besides booleans, integers, floats, and objects of these."""
    letter = getattr(dtype, "kind", "O")
    if letter in _NUMBERS:
        return set()
    if letter in "mMc":
        return {"complex" if letter == "c" else "date"}
    if letter != "O":
        return {"text"}
    if str(dtype) == "object":
        return kinds_of(values) - {"boolean", "number"}
    # an extension of pandas; its categories are texts to us, even those of numbers
    kind = type_kind(getattr(dtype, "type", object))
    return {"text"} if kind == "other" else {kind} - {"number"}


def _require_finite(callee: str, table: np.ndarray, names: Any) -> None:
    finite = np.isfinite(table)
    if finite.all():
        return
    columns = np.flatnonzero(~finite.all(axis=0))
    named = [repr(str(names[j])) if names is not None else str(j) for j in columns]
    kinds = " and ".join(
        word
        for word, found in (("NaN", np.isnan(table)), ("inf", np.isinf(table)))
        if found.any()
    )
    raise ValueError(
        f"{callee}: X must be finite, without NaN and inf, got {kinds} in "
        f"{(~finite).sum()} places, in the columns {_some(named)}. Fill or drop "
        f"them; make_tabular_pipeline({callee}()) fills NaN."
    )


def _some(items: list[str], most: int = 5) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def check_weights(callee: str, sample_weight: Any, n: int) -> np.ndarray | None:
    """Return one finite weight of at least zero per row, or None if none are given."""
    if sample_weight is None:
        return None
    require_dense(callee, sample_weight, name="sample_weight")
    try:
        given = np.asarray(as_numpy(sample_weight))
    except ValueError as error:
        rule, got = f"one number for each of the {n} rows", "items of different lengths"
        raise ValueError(
            f"{callee}: sample_weight must be {rule}, got {got}."
        ) from error
    strange = _non_numeric_kinds(given.dtype, given.flat)
    if strange:
        raise TypeError(
            f"{callee}: sample_weight must be real numbers, got an array of "
            f"{given.dtype}."
        )
    objects = given.dtype.kind == "O"
    weights = with_nan(given) if objects else np.asarray(given, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(n, float(weights))
    if weights.shape != (n,):
        raise ValueError(
            f"{callee}: sample_weight must be one number for each of the {n} rows, "
            f"got shape {weights.shape}."
        )
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        found = f"{bad.sum()} that are not, {weights[bad][0]} among them"
        raise ValueError(
            f"{callee}: sample_weight must be finite and not negative, got {found}."
        )
    used = weights[weights > 0]
    if len(used) == 0:
        raise ValueError(
            f"{callee}: sample_weight must be positive for some row, got only zero "
            "weights."
        )
    if used.min() < _WEIGHTS[0] or used.max() > _WEIGHTS[1]:
        raise ValueError(
            f"{callee}: sample_weight must be zero or from {_WEIGHTS[0]:g} to "
            f"{_WEIGHTS[1]:g}, got weights from {used.min():g} to {used.max():g}. "
            "They act as repetitions: divide them all by their mean."
        )
    return weights


_COLUMN = (
    "A column-vector y was passed when a 1d array was expected. Please change the "
    "shape of y to (n_samples, ), for example using ravel()."
)
_MANY_CLASSES = (
    "The number of unique classes is greater than 50% of the number of samples. `y` "
    "could represent a regression problem, not a classification problem."
)
_SETS = (
    "Make indicators of sets of labels: sklearn.preprocessing.MultiLabelBinarizer()."
)
_RAGGED = "Give every row as many numbers."
# Rows up to which many classes are no wonder.
_FEW_ROWS = 20


@dataclass(frozen=True)
class Targets:
    """The training targets of n rows as k columns of numbers.

    Parameters
    ----------
    columns : ndarray of shape (n, k)
        The numbers themselves, or one indicator column per class.
    codes : ndarray of shape (n, o), optional
        For labels: the index of each row's class, for each of o label columns.
    classes : tuple of ndarray
        For labels: the sorted classes of each label column.
    flat : bool
        Whether the targets came as one column, (n,).
    cautions : tuple of Warning
        Warnings for the caller.
    """

    columns: np.ndarray
    codes: np.ndarray | None = None
    classes: tuple[np.ndarray, ...] = ()
    flat: bool = True
    cautions: tuple[Warning, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many classes each label column has; empty for numbers."""
        return tuple(len(part) for part in self.classes)


def label_targets(
    callee: str, y: Any, *, n: int | None = None, used: np.ndarray | None = None
) -> Targets:
    r"""Return labels as indicator columns, one per class.

    .. math:: Y_{ic} = 1 \text{ if row } i \text{ is of class } c, \text{ else } 0

    as in the experiments with Algorithm 1. Several label columns (multi-output, also
    multi-label) stand side by side, each with its own classes.

    Parameters
    ----------
    y : array-like of shape (n,) or (n, o)
        Labels: integers, booleans, texts; of one kind in each column. Missing ones
        are refused.
    n : int, optional
        How many there must be.
    used : ndarray of bool of shape (n,), optional
        Rows that count. A class without any is no class.

    Examples
    --------
    >>> label_targets("fit", ["b", "a", "b"]).columns
    array([[0., 1.],
           [1., 0.],
           [0., 1.]])
    """
    labels = _label_array(callee, y)
    _require_length(callee, labels, n)
    flat = labels.ndim == 1 or labels.shape[1] == 1
    found = []
    for column in _label_columns(callee, labels.reshape(len(labels), -1)):
        counted = column if used is None else column[used]
        found.append(np.unique(counted, return_inverse=True))
    for j, (classes, _) in enumerate(found):
        if len(classes) <= 1:
            raise ValueError(
                f"{callee}: {'y' if flat else f'column {j} of y'} must be of at "
                f"least two classes, got one class, {classes[:1].tolist()[0]!r}. "
                "There is nothing to tell apart."
            )
    codes = np.stack([codes for _, codes in found], axis=1)
    sizes = [len(classes) for classes, _ in found]
    _require_room(callee, len(codes), sum(sizes))
    columns = np.zeros((len(codes), sum(sizes)))
    np.put_along_axis(columns, codes + np.cumsum([0, *sizes[:-1]]), 1.0, axis=1)
    return Targets(
        columns,
        codes,
        tuple(classes for classes, _ in found),
        flat,
        _cautions(flat and labels.ndim == 2, found),
    )


def _require_room(callee: str, n: int, k: int) -> None:
    """Refuse classes whose indicators, targets and coefficients will not fit."""
    needed = 3 * 8 * n * k
    if needed <= SMALL_BYTES:
        return
    allowed = available_bytes(torch.device("cpu"))
    if needed > allowed:
        raise ValueError(
            f"{callee}: y must be of so few classes that their columns fit into "
            f"{allowed / 1e6:.3g} MB, got {k} classes in {n} rows, which "
            f"take {needed / 1e6:.3g} MB. A regressor takes numbers."
        )


def _cautions(column: bool, found: list[tuple[np.ndarray, np.ndarray]]) -> tuple:
    """What scikit-learn would warn of, in its words: its users may look for these."""
    cautions = []
    if column:
        cautions += [DataConversionWarning(_COLUMN)]
    n = len(found[0][1])
    if n > _FEW_ROWS and any(len(classes) > round(n / 2) for classes, _ in found):
        cautions += [UserWarning(_MANY_CLASSES)]
    return tuple(cautions)


def plain_labels(callee: str, y: Any, *, n: int | None = None) -> np.ndarray:
    """Return labels as plain arrays have them, of the kind that a machine predicts.

    Objects that are all integers, floats or booleans become these. There must be n.

    Examples
    --------
    >>> plain_labels("score", np.array([True, False], dtype=object))
    array([ True, False])
    """
    labels = _label_array(callee, y)
    _require_length(callee, labels, n)
    if labels.ndim == 1:
        return _label_columns(callee, labels[:, None])[0]
    return side_by_side(_label_columns(callee, labels))


def side_by_side(columns: list[np.ndarray]) -> np.ndarray:
    """Stack columns; as objects if they are not of one kind.

    Examples
    --------
    >>> side_by_side([np.array([1, 2]), np.array(["a", "b"])])
    array([[1, 'a'],
           [2, 'b']], dtype=object)
    """
    kinds = {
        "number" if column.dtype.kind in "biuf" else column.dtype.kind
        for column in columns
    }
    if len(kinds) > 1:
        columns = [column.astype(object) for column in columns]
    return np.stack(columns, axis=1)


def numbers(
    callee: str, y: Any, *, n: int | None = None, used: np.ndarray | None = None
) -> Targets:
    """Return targets of a regression as float64 columns.

    Examples
    --------
    >>> numbers("fit", [1, 2]).columns
    array([[1.],
           [2.]])
    """
    values = plain_numbers(callee, y)
    _require_length(callee, values, n)
    values = values if used is None else values[used]
    bad = ~np.isfinite(values)
    if bad.any():
        raise ValueError(
            f"{callee}: y must be finite, without NaN and inf, got {bad.sum()} "
            "values that are not. Drop the rows without an answer."
        )
    return Targets(values.reshape(len(values), -1), flat=values.ndim == 1)


def plain_numbers(callee: str, y: Any) -> np.ndarray:
    """Return targets as float64, in the shape in which they came; some may be missing.

    Examples
    --------
    >>> plain_numbers("fit", [1, None])
    array([ 1., nan])
    """
    _require_targets(callee, y)
    values = _number_array(callee, y).astype(np.float64, copy=False)
    if values.ndim not in (1, 2) or not values.size:
        rule, got = "of shape (n,) or (n, k), not empty", f"shape {values.shape}"
        raise ValueError(f"{callee}: y must be {rule}, got {got}.")
    return values


def split_blocks(outputs: np.ndarray, sizes: tuple[int, ...]) -> list[np.ndarray]:
    """Cut columns into the blocks of each label column.

    Examples
    --------
    >>> [part.shape for part in split_blocks(np.zeros((4, 5)), (2, 3))]
    [(4, 2), (4, 3)]
    """
    return np.split(outputs, np.cumsum(sizes)[:-1], axis=1)


def _require_targets(callee: str, y: Any) -> None:
    if y is None:
        # the second sentence is scikit-learn's
        raise ValueError(
            f"{callee}: y must be given, got None. This estimator requires y to be "
            "passed, but the target y is None."
        )
    require_dense(callee, y, name="y")
    if type(y).__name__ == "MultiIndex":
        raise TypeError(
            f"{callee}: y must be a column, or a table, got a MultiIndex. Pass "
            "y.to_frame(index=False)."
        )


def _array(callee: str, y: Any, remedy: str) -> np.ndarray:
    """Targets as numpy has them; `remedy` is for rows that do not make a table."""
    try:
        array = np.asarray(y)
        if isinstance(y, list | tuple) and array.dtype.kind in "US":
            # numpy makes texts of numbers, and of what is missing, beside texts
            objects = np.asarray(y, dtype=object)
            if not all(isinstance(value, str | bytes) for value in objects.flat):
                return objects
        return array
    except ValueError as error:
        rule, got = "of one shape in all rows", "rows of different lengths"
        raise ValueError(complaint(callee, "y", rule, got, remedy)) from error


def _require_length(callee: str, y: np.ndarray, n: int | None) -> None:
    if n is not None and len(y) != n:
        raise ValueError(
            f"{callee}: y must be as long as X, which has {n} rows, got {len(y)} "
            "targets."
        )


def _number_array(callee: str, y: Any) -> np.ndarray:
    given = _array(callee, as_numpy(y), _RAGGED)
    letter = given.dtype.kind
    if letter in "biuf":
        return given
    kinds = kinds_of(given.flat) if letter == "O" else set()
    remedy = _RAGGED if "other" in kinds else "A classifier takes labels."
    if letter == "c" or "complex" in kinds:
        remedy = "Make two targets of each."
    if letter in "mM" or "date" in kinds:
        remedy = "Turn dates into numbers (years, days since ...) first."
    require(
        letter == "O" and kinds <= {"boolean", "number"}, callee, "y", "real numbers",
        f"an array of {given.dtype}", remedy,
    )  # fmt: skip
    return with_nan(given)


def _label_array(callee: str, y: Any) -> np.ndarray:
    _require_targets(callee, y)
    missing = np.asarray(y.isna()) if hasattr(y, "isna") else None
    labels = _plain(callee, as_numpy(y))
    if labels.ndim not in (1, 2) or not labels.size:
        rule, got = "of shape (n,) or (n, o), not empty", f"shape {labels.shape}"
        raise ValueError(f"{callee}: y must be {rule}, got {got}.")
    if missing is None:
        missing = _missing(labels)
    if missing.any():
        raise ValueError(
            f"{callee}: y must be labels without missing ones, got {missing.sum()} "
            "missing. Drop those rows."
        )
    return labels


def _plain(callee: str, y: Any) -> np.ndarray:
    # pandas' way keeps its missing values; that of pyarrow refuses to copy
    labels = y.to_numpy() if hasattr(y, "isna") else _array(callee, y, _SETS)
    # numpy's texts of variable width, and bytes in foreign order, are known to few
    if labels.dtype.kind == "T":
        return labels.astype(object)
    return labels.astype(labels.dtype.newbyteorder("="), copy=False)


def _missing(labels: np.ndarray) -> np.ndarray:
    if labels.dtype.kind == "f":
        return np.isnan(labels)
    if labels.dtype.kind in "mM":
        return np.isnat(labels)
    if labels.dtype.kind != "O":
        return np.zeros(labels.shape, dtype=bool)
    absent = [is_missing(value) for value in labels.flat]
    return np.reshape(np.array(absent, dtype=bool), labels.shape)


def _label_columns(callee: str, labels: np.ndarray) -> list[np.ndarray]:
    """The columns, each as an array of its own kind."""
    columns = list(labels.T)
    for j, column in enumerate(columns):
        name = "y" if len(columns) == 1 else f"column {j} of y"
        kinds = {"bytes"} if column.dtype.kind == "S" else set()
        if column.dtype.kind == "O":
            kinds = kinds_of(column)
        if "bytes" in kinds:
            raise ValueError(
                f"{callee}: {name} must be integers, booleans or texts, got bytes. "
                "Decode them into texts."
            )
        numeric = kinds <= {"boolean", "number"}
        if column.dtype.kind == "O" and column.size:
            types = sorted({type(value).__name__ for value in column})
            sets = {"list", "tuple", "set", "frozenset", "ndarray"} & set(types)
            require(
                numeric or kinds == {"text"}, callee, name,
                "labels of one kind: integers, booleans or texts",
                f"objects of type {' and '.join(types)}",
                _SETS if sets else "Turn them into texts.",
            )  # fmt: skip
            # nullable numbers, and columns beside texts, arrive as objects
            columns[j] = np.array(column.tolist()) if numeric else column
        _require_discrete(callee, name, columns[j])
    return columns


def _require_discrete(callee: str, name: str, column: np.ndarray) -> None:
    kind = column.dtype.kind
    plain = kind in "biufUmM" or (kind == "O" and isinstance(column.flat[0], str))
    if not plain:
        raise ValueError(
            f"{callee}: {name} must be integers, booleans or texts, got an array "
            f"of {column.dtype}. Turn them into texts."
        )
    if kind != "f":
        return
    infinite = np.isinf(column)
    if infinite.any():
        raise ValueError(
            f"{callee}: {name} must be finite labels, got {infinite.sum()} "
            "infinite. Turn them into texts."
        )
    # the last words are scikit-learn's
    if not (column == np.floor(column)).all():
        raise ValueError(
            f"{callee}: {name} must be labels, got numbers with fractions. A "
            "regressor takes numbers. (Unknown label type: continuous)"
        )


_CHOICES = {
    "kernel": tuple(KERNELS),
    "bandwidth_rule": ("fixed", "median"),
    "solver": ("auto", "cholesky", "cg"),
    "dtype": ("auto", "float32", "float64"),
}
_INTERVALS = {
    "bandwidth": "(0, inf)",
    "ridge": "(0, inf)",
    "identity_weight": "[0, 1]",
    "exponent": "(0, 2]",
    "time_limit_s": "(0, inf)",
    "validation_fraction": "(0, 1)",
}
_OPTIONAL = ("time_limit_s", "validation_fraction")


def check_parameters(estimator: Any) -> None:
    """Raise a TypeError or ValueError for the first invalid parameter."""
    callee = type(estimator).__name__
    given = vars(estimator)  # every parameter is there, and nothing needs looking up
    for name, choices in _CHOICES.items():
        value = given[name]
        if not (isinstance(value, str) and value in choices):
            rule = "one of " + ", ".join(f'"{choice}"' for choice in choices)
            raise ValueError(f"{callee}: {name} must be {rule}, got {describe(value)}.")
    for name, interval in _INTERVALS.items():
        if name in given and not (given[name] is None and name in _OPTIONAL):
            _check_number(callee, name, given[name], interval)
    if given["exponent"] != 1 and given["kernel"] != "laplace":
        raise ValueError(
            f'{callee}: exponent must be 1.0 for kernel="{given["kernel"]}", got '
            f'{given["exponent"]}. Only kernel="laplace" has an exponent.'
        )
    _check_count(callee, "n_iter", given["n_iter"], 0)
    _check_count(callee, "agop_samples", given["agop_samples"], 1)
    if (limit := given["memory_limit"]) is not None:
        # bytes are often written as 1e9
        integral = isinstance(limit, float | np.floating) and limit.is_integer()
        _check_count(callee, "memory_limit", int(limit) if integral else limit, 1)
    size = given["max_leaf_size"]
    if isinstance(size, str) and size != "auto":
        rule = 'a number of rows, "auto", or None for no parts'
        raise TypeError(f"{callee}: max_leaf_size must be {rule}, got {size!r}.")
    if not (size is None or isinstance(size, str)):
        _check_count(callee, "max_leaf_size", size, 1)
    verbose, n_jobs = given["verbose"], given["n_jobs"]
    if not isinstance(verbose, Integral | np.bool_):
        raise TypeError(
            f"{callee}: verbose must be an integer, got {describe(verbose)}."
        )
    if not (n_jobs is None or isinstance(n_jobs, Integral)):
        rule = "an integer or None"
        raise TypeError(f"{callee}: n_jobs must be {rule}, got {describe(n_jobs)}.")
    if n_jobs == 0:
        rule = "a number of workers, or -1 for all cores"
        raise ValueError(f"{callee}: n_jobs must be {rule}, got {describe(n_jobs)}.")
    _check_random_state(callee, given["random_state"])
    for name in ("diagonal", "center"):
        if not isinstance(given[name], bool | np.bool_):
            rule = "True or False"
            raise TypeError(
                f"{callee}: {name} must be {rule}, got {describe(given[name])}."
            )


def _check_random_state(callee: str, state: Any) -> None:
    if state is None or isinstance(state, np.random.RandomState) or state is np.random:
        return
    if isinstance(state, Integral):
        if not 0 <= int(state) < 2**32:
            rule = "in [0, 2**32)"
            raise ValueError(
                f"{callee}: random_state must be {rule}, got {describe(int(state))}."
            )
        return
    remedy = ""
    if isinstance(state, np.random.Generator):
        remedy = "Draw a seed: int(generator.integers(2**32))."
    rule = "an integer, a RandomState or None"
    raise TypeError(complaint(callee, "random_state", rule, describe(state), remedy))


def _check_count(callee: str, name: str, value: Any, least: int) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{callee}: {name} must be an integer, got {describe(value)}.")
    if int(value) < least:
        raise ValueError(
            f"{callee}: {name} must be {least} or more, got {describe(value)}."
        )


def _check_number(callee: str, name: str, value: Any, interval: str) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{callee}: {name} must be a number, got {describe(value)}.")
    number, (low, high) = as_float(value), map(float, interval[1:-1].split(", "))
    above = low <= number if interval[0] == "[" else low < number
    below = number <= high if interval[-1] == "]" else number < high
    if not (above and below):
        raise ValueError(
            f"{callee}: {name} must be in {interval}, got {describe(value)}."
        )


# Folders whose lines are not the caller's: of all estimators, and of those who call
# them for others (pipelines, searches, workers).
_BETWEEN = tuple(
    str(Path(file).parent) + os.sep
    for file in (__file__, sklearn.__file__, joblib.__file__)
)


def warn_caller(warning: str | Warning) -> None:
    """Warn at the line that called an estimator, a pipeline or a search."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level + 1)
