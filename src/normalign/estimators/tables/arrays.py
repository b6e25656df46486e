"""Tables in, tables out: what a caller's arrays are, and how answers go back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.utils.validation import validate_data

from normalign._errors import complaint, describe, require, require_kind
from normalign.estimators.tables.cells import kinds_of, type_kind, unmasked, with_nan
from normalign.estimators.tables.frames import in_pandas

__all__ = [
    "Origin",
    "as_numpy",
    "checked_features",
    "checked_weights",
    "filled",
    "refuse_records",
    "require_dense",
]

# Weights by which any ridge can be divided in single precision.
_WEIGHTS = (1e-20, 1e20)
# Kinds of arrays that are numbers to a kernel.
_NUMBERS = "biuf"


@dataclass(frozen=True)
class Origin:
    """Where a caller's table came from, so that answers can go back there.

    Parameters
    ----------
    namespace : module or None
        The array-API namespace, torch among them; ``None`` for numpy and all that
        becomes numpy (lists, DataFrames).
    device : object
        The device in that namespace's own terms.

    Examples
    --------
    >>> Origin.of(torch.zeros(2)).restored(np.array([1.0, 2.0]))
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

    def restored(self, answer: np.ndarray, *, exact: bool = False) -> Any:
        """The answer as an array of this origin; strings have none but numpy's.

        Some devices have nothing of 64 bits: there it is rounded, unless it must be
        exact, as labels must.
        """
        if self.namespace is None or answer.dtype.kind not in "biuf":
            return answer
        try:
            return self._placed(answer)
        except (TypeError, ValueError) as error:
            if answer.dtype.itemsize < 8:
                raise
            with np.errstate(over="ignore"):
                narrow = answer.astype(
                    f"{answer.dtype.kind}{answer.dtype.itemsize // 2}"
                )
            lost = narrow != answer if exact else np.isinf(narrow) & ~np.isinf(answer)
            if lost.any():
                raise ValueError(
                    complaint(
                        "predict", "X", f"on a device that holds {answer.dtype}",
                        f"{self.device}, which has no {answer[lost][0]}",
                        "Pass it as a numpy array.",
                    )
                ) from error  # fmt: skip
            return self._placed(narrow)

    def _placed(self, answer: np.ndarray) -> Any:
        if self.namespace is torch:
            return torch.as_tensor(answer, device=self.device)
        return self.namespace.asarray(answer, device=self.device)


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
        return unmasked(values)
    if isinstance(values, np.ndarray) or not hasattr(values, "__array_namespace__"):
        return values
    if hasattr(values, "get"):  # cupy: the only way off its device
        return values.get()
    try:
        return np.from_dlpack(values)
    except (AttributeError, BufferError, RuntimeError, TypeError):
        return np.asarray(values)  # not exchanged that way, or on another device


def checked_features(estimator: Any, X: Any, *, reset: bool) -> np.ndarray:
    """Return X as a finite float table, and keep or compare its columns' names.

    Numbers in any form pass (float32 stays float32, all else is float64): integers,
    booleans, pandas' nullable types. What must be encoded or filled first is refused,
    with the name of what does that.

    Raises
    ------
    TypeError
        If X is sparse, a frame that pandas cannot take over, or holds objects that are
        no values at all.
    ValueError
        If X has text, dates, categories, complex, missing or infinite values; with
        scikit-learn's words if its shape or its columns' names are wrong.
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
        table = _validated(estimator, given, reset=reset)
    _require_finite(callee, table, getattr(estimator, "feature_names_in_", None))
    return table


def _validated(estimator: Any, given: Any, *, reset: bool) -> np.ndarray:
    """What scikit-learn makes of a table; what it refuses in the form of the house."""
    try:
        table: Any = validate_data(
            estimator,
            filled(given),
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
    """Complain of rows that name their values: they are no table yet.

    Raises
    ------
    TypeError
        If X is a list of dicts, or a structured array.
    """
    rows = isinstance(X, list | tuple) and len(X) > 0 and isinstance(X[0], Mapping)
    fields = getattr(getattr(X, "dtype", None), "names", None)
    require_kind(
        not rows and fields is None, callee, "X", "a table of rows and columns",
        "a list of dicts" if rows else f"an array with the fields {fields}",
        f"Use pandas.DataFrame({'rows' if rows else 'X'}).",
    )  # fmt: skip


def require_dense(callee: str, values: Any, *, name: str = "X") -> None:
    """Complain of what is sparse, or has no values.

    Raises
    ------
    TypeError
        If it is a sparse array, tensor or frame, or a tensor on the meta device.
    """
    tensor = isinstance(values, torch.Tensor)
    loose = sparse.issparse(values) or (tensor and values.layout is not torch.strided)
    require_kind(
        not loose, callee, name, "dense, not sparse",
        f"a sparse {type(values).__name__}",
        f"Pass {name}.toarray(), {name}.to_dense() in torch.",
    )  # fmt: skip
    require_kind(
        not (tensor and values.device.type == "meta"), callee, name,
        "a tensor with values", "one on the meta device",
    )  # fmt: skip
    if not tensor and _is_frame(values):
        thin = [str(kind).startswith("Sparse") for kind in values.dtypes]
        require_kind(
            not (thin and all(thin)), callee, name, "dense, not sparse",
            "a DataFrame of sparse columns", f"Pass {name}.sparse.to_dense().",
        )  # fmt: skip


def _require_columns(callee: str, X: Any) -> None:
    """Complain of a frame without columns, or with equal names."""
    # the second sentence is the one that scikit-learn's users know
    require(
        X.shape[1] > 0, callee, "X", "a table of rows and columns",
        f"a DataFrame of shape {X.shape}",
        f"Found array with 0 feature(s) (shape={X.shape}) while a minimum of 1 is "
        "required.",
    )  # fmt: skip
    again = [repr(name) for name in X.columns[X.columns.duplicated()]]
    require(
        not again, callee, "X", "a table of columns with different names",
        f"{_some(again)} more than once",
    )  # fmt: skip


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


def filled(table: Any) -> Any:
    """A table whose objects are NaN where something is missing, for float() to know.

    Examples
    --------
    >>> filled(np.array([[1.5, None]], dtype=object))
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
            wrong[f"{name!r} ({dtype})"] = _strange(dtype, X.iloc[:, i])
    elif isinstance(X, np.ndarray) and X.dtype.kind not in _NUMBERS:
        wrong[f"an array of {X.dtype}"] = _strange(X.dtype, X.flat)
    wrong = {name: kinds for name, kinds in wrong.items() if kinds}
    if not wrong:
        return
    found = set().union(*wrong.values())
    if found == {"other"}:
        # the second sentence is the one that scikit-learn's users know
        raise TypeError(
            complaint(
                callee, "X", "numbers", f"objects in {_some(list(wrong))}",
                "float(): argument must be a string or a real number.",
            )
        )  # fmt: skip
    remedies = []
    if "complex" in found:
        # the first words are those that scikit-learn's users know
        remedies += ["Complex data not supported: make two columns of each."]
    if "date" in found:
        remedies += ["Turn dates into numbers (years, days since ...) first."]
    if found - {"complex", "date"}:
        remedies += [f"make_tabular_pipeline({callee}()) encodes texts and categories."]
    raise ValueError(
        complaint(callee, "X", "numbers", _some(list(wrong)), " ".join(remedies))
    )


def _strange(dtype: Any, values: Iterable[Any]) -> set[str]:
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
        complaint(
            callee, "X", "finite, without NaN and inf",
            f"{kinds} in {(~finite).sum()} places, in the columns {_some(named)}",
            f"Fill or drop them; make_tabular_pipeline({callee}()) fills NaN.",
        )
    )  # fmt: skip


def _some(items: list[str], most: int = 5) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def checked_weights(callee: str, sample_weight: Any, n: int) -> np.ndarray | None:
    """Return one finite weight of at least zero per row, or None if none are given.

    Raises
    ------
    TypeError
        If they are no real numbers.
    ValueError
        If their shape or a value is wrong, or all are zero.
    """
    if sample_weight is None:
        return None
    require_dense(callee, sample_weight, name="sample_weight")
    try:
        given = np.asarray(as_numpy(sample_weight))
    except ValueError as error:
        rule, got = f"one number for each of the {n} rows", "items of different lengths"
        raise ValueError(complaint(callee, "sample_weight", rule, got)) from error
    strange = _strange(given.dtype, given.flat)
    require_kind(
        not strange, callee, "sample_weight", "real numbers",
        f"an array of {given.dtype}",
    )  # fmt: skip
    objects = given.dtype.kind == "O"
    weights = with_nan(given) if objects else np.asarray(given, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(n, float(weights))
    require(
        weights.shape == (n,), callee, "sample_weight",
        f"one number for each of the {n} rows", f"shape {weights.shape}",
    )  # fmt: skip
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        told = f"{bad.sum()} that are not, {weights[bad][0]} among them"
        raise ValueError(
            complaint(callee, "sample_weight", "finite and not negative", told)
        )
    used = weights[weights > 0]
    require(
        len(used) > 0, callee, "sample_weight", "positive for some row",
        "only zero weights",
    )  # fmt: skip
    require(
        bool(used.min() >= _WEIGHTS[0] and used.max() <= _WEIGHTS[1]), callee,
        "sample_weight", f"zero or from {_WEIGHTS[0]:g} to {_WEIGHTS[1]:g}",
        f"weights from {used.min():g} to {used.max():g}",
        "They act as repetitions: divide them all by their mean.",
    )  # fmt: skip
    return weights
