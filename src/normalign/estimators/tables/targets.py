"""What a kernel machine is asked to fit: labels as indicator columns, or numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import DataConversionWarning

from normalign._errors import complaint, require, require_kind
from normalign.estimators.tables.arrays import as_numpy, require_dense
from normalign.estimators.tables.cells import is_missing, kinds_of, with_nan
from normalign.kernels._memory import SMALL_BYTES, available_bytes

__all__ = [
    "Answers",
    "class_labels",
    "numbers",
    "plain_labels",
    "plain_numbers",
    "side_by_side",
    "split_blocks",
]


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
class Answers:
    """The training answers of n rows as k columns of numbers.

    Parameters
    ----------
    columns : ndarray of shape (n, k)
        The numbers themselves, or one indicator column per class.
    codes : ndarray of shape (n, o), optional
        For labels: the index of each row's class, for each of o label columns.
    classes : tuple of ndarray
        For labels: the sorted classes of each label column.
    flat : bool
        Whether the answers came as one column, (n,).
    cautions : tuple of Warning
        What is to be told, once, to whoever gave them.
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


def class_labels(
    callee: str, y: Any, *, n: int | None = None, kept: np.ndarray | None = None
) -> Answers:
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
    kept : ndarray of bool of shape (n,), optional
        Rows that count. A class without any is no class.

    Raises
    ------
    ValueError
        If labels are missing, infinite, continuous, of several kinds, or all the same.

    Examples
    --------
    >>> class_labels("fit", ["b", "a", "b"]).columns
    array([[0., 1.],
           [1., 0.],
           [0., 1.]])
    """
    labels = _label_array(callee, y)
    _require_length(callee, labels, n)
    flat = labels.ndim == 1 or labels.shape[1] == 1
    found = []
    for column in _label_columns(callee, labels.reshape(len(labels), -1)):
        counted = column if kept is None else column[kept]
        found.append(np.unique(counted, return_inverse=True))
    for j, (classes, _) in enumerate(found):
        require(
            len(classes) > 1, callee, "y" if flat else f"column {j} of y",
            "of at least two classes", f"one class, {classes[:1].tolist()[0]!r}",
        )  # fmt: skip
    codes = np.stack([codes for _, codes in found], axis=1)
    sizes = [len(classes) for classes, _ in found]
    _require_room(callee, len(codes), sum(sizes))
    columns = np.zeros((len(codes), sum(sizes)))
    np.put_along_axis(columns, codes + np.cumsum([0, *sizes[:-1]]), 1.0, axis=1)
    return Answers(
        columns,
        codes,
        tuple(classes for classes, _ in found),
        flat,
        _cautions(flat and labels.ndim == 2, found),
    )


def _require_room(callee: str, n: int, k: int) -> None:
    """Complain of classes whose indicators, targets and coefficients will not fit."""
    needed = 3 * 8 * n * k
    if needed <= SMALL_BYTES:
        return
    allowed = available_bytes(torch.device("cpu"))
    require(
        needed <= allowed, callee, "y",
        f"of so few classes that their columns fit into {allowed / 1e6:.3g} MB",
        f"{k} classes in {n} rows, which take {needed / 1e6:.3g} MB",
        "A regressor takes numbers.",
    )  # fmt: skip


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
    """Return labels as plain arrays have them, of the kind of a machine's answers.

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
    callee: str, y: Any, *, n: int | None = None, kept: np.ndarray | None = None
) -> Answers:
    """Return targets of a regression as float64 columns.

    Raises
    ------
    ValueError
        If a target is missing, infinite or not a number, or there is none.

    Examples
    --------
    >>> numbers("fit", [1, 2]).columns
    array([[1.],
           [2.]])
    """
    values = plain_numbers(callee, y)
    _require_length(callee, values, n)
    values = values if kept is None else values[kept]
    bad = ~np.isfinite(values)
    require(
        not bad.any(), callee, "y", "finite, without NaN and inf",
        f"{bad.sum()} values that are not", "Drop the rows without an answer.",
    )  # fmt: skip
    return Answers(values.reshape(len(values), -1), flat=values.ndim == 1)


def plain_numbers(callee: str, y: Any) -> np.ndarray:
    """Return targets as float64, in the shape in which they came; some may be missing.

    Examples
    --------
    >>> plain_numbers("fit", [1, None])
    array([ 1., nan])
    """
    _require_given(callee, y)
    values = _number_array(callee, y).astype(np.float64, copy=False)
    if values.ndim not in (1, 2) or not values.size:
        rule, got = "of shape (n,) or (n, k), not empty", f"shape {values.shape}"
        raise ValueError(complaint(callee, "y", rule, got))
    return values


def split_blocks(outputs: np.ndarray, sizes: tuple[int, ...]) -> list[np.ndarray]:
    """Cut columns into the blocks of each label column.

    Examples
    --------
    >>> [part.shape for part in split_blocks(np.zeros((4, 5)), (2, 3))]
    [(4, 2), (4, 3)]
    """
    return np.split(outputs, np.cumsum(sizes)[:-1], axis=1)


def _require_given(callee: str, y: Any) -> None:
    if y is None:
        # the second sentence is the one that scikit-learn's users know
        raise ValueError(
            complaint(
                callee, "y", "given", "None",
                "This estimator requires y to be passed, but the target y is None.",
            )
        )  # fmt: skip
    require_dense(callee, y, name="y")
    require_kind(
        type(y).__name__ != "MultiIndex", callee, "y", "a column, or a table",
        "a MultiIndex", "Pass y.to_frame(index=False).",
    )  # fmt: skip


def _array(callee: str, y: Any, remedy: str) -> np.ndarray:
    """Answers as numpy has them; `remedy` is for rows that do not make a table."""
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
    require(
        n is None or len(y) == n, callee, "y", f"as long as X, which has {n} rows",
        f"{len(y)} targets",
    )  # fmt: skip


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
    _require_given(callee, y)
    missing = np.asarray(y.isna()) if hasattr(y, "isna") else None
    labels = _plain(callee, as_numpy(y))
    if labels.ndim not in (1, 2) or not labels.size:
        rule, got = "of shape (n,) or (n, o), not empty", f"shape {labels.shape}"
        raise ValueError(complaint(callee, "y", rule, got))
    if missing is None:
        missing = _missing(labels)
    require(
        not missing.any(), callee, "y", "labels without missing ones",
        f"{missing.sum()} missing", "Drop those rows.",
    )  # fmt: skip
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
        require(
            "bytes" not in kinds, callee, name, "integers, booleans or texts", "bytes",
            "Decode them into texts.",
        )  # fmt: skip
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
    require(
        plain, callee, name, "integers, booleans or texts",
        f"an array of {column.dtype}", "Turn them into texts.",
    )  # fmt: skip
    if kind != "f":
        return
    infinite = np.isinf(column)
    require(
        not infinite.any(), callee, name, "finite labels", f"{infinite.sum()} infinite",
        "Turn them into texts.",
    )  # fmt: skip
    # the last words are those that scikit-learn's users know
    require(
        bool((column == np.floor(column)).all()), callee, name, "labels",
        "numbers with fractions",
        "A regressor takes numbers. (Unknown label type: continuous)",
    )  # fmt: skip
