"""Tables in unusual containers and types, against the same numbers as a plain array.

Two parts:

``containers``
    A kernel machine is given a table, targets and weights in some container. What
    ``TABLES``, ``ANSWERS`` and ``WEIGHTS`` call valid must be fitted without a warning
    and give the same predictions as float64 arrays. What is invalid there must raise an
    error that names the callee and the argument.

``columns``
    ``make_tabular_pipeline`` is given a mixed table, each column in one form in ``fit``
    and in another one later. The machine at its end is compared with one that was
    fitted to the table as this module encodes it.

The rules for columns. The form in ``fit`` says what a column is: a number, if its
values are numbers (and not pandas' categories) and it is not listed as categorical;
else a category. Dates and complex numbers have no place unless listed.

1. A number may come later in any form that holds the same number, a text too. Other
   texts, dates and complex numbers are refused. Numbers in a column that had none in
   ``fit`` give a warning.
2. A category is the same one in all ``plain`` forms of its family. In the others
   (``"TRUE"``, ``"3.0"``, a date, floats that round an integer) it is another one.
3. A category that was not in ``fit`` gets zeros: with a warning if no value of ``fit``
   was of its type (a date or an object has none), or if it is a text of the same
   number; else without one.
4. A missing number is the median; a missing category is a category.
5. Columns are found by their names, if these are texts, else by their order.
"""

from __future__ import annotations

import datetime
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import sparse

from normalign.estimators import (
    RFAMClassifier,
    RFAMRegressor,
    RFMClassifier,
    RFMRegressor,
    make_tabular_pipeline,
)

try:
    import pyarrow
except ImportError:
    pyarrow = None
try:
    import polars
except ImportError:
    polars = None

MACHINES = {
    kind.__name__: kind
    for kind in (RFMClassifier, RFMRegressor, RFAMClassifier, RFAMRegressor)
}


# --- the forms of a column -----------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """How the codes of a family are stored.

    ``scalar`` makes a value of a code, ``dtype`` is that of pandas (None: as pandas
    infers it). ``type`` is what rule 3 calls the type of the values. ``number`` says
    whether the form is one of numbers (rule 1).
    """

    scalar: Callable[[Any], Any]
    dtype: Any = None
    type: str | None = "integer"
    plain: bool = True
    number: bool = True
    holes: bool = True
    read: bool = False  # a text, but of a number
    arrow: bool = False  # pyarrow takes it over

    def key(self, code: Any, name: str) -> tuple[str, Any]:
        """What a category is: equal keys must be encoded equally, others must not."""
        if self.plain:
            return ("plain", code)
        if name in ("rounded", "dates"):  # which hold no more of a code than this
            return (name, self.scalar(code))
        return (name, code)


def _text(kind: Callable[[Any], str], **options: Any) -> dict[str, Form]:
    # A text of each code, in all forms of texts.
    def raw(code: Any) -> bytes:
        return kind(code).encode()

    shared = {"type": "text", "number": False, **options}
    forms = {
        "texts": Form(kind, arrow=True, **shared),
        "object texts": Form(kind, object, arrow=True, **shared),
        "string": Form(kind, "string", arrow=True, **shared),
        "category of texts": Form(kind, "category", **shared),
        "numpy texts": Form(lambda code: np.str_(kind(code)), object, **shared),
        "bytes": Form(raw, object, **shared),
        "numpy bytes": Form(lambda code: np.bytes_(raw(code)), object, **shared),
    }
    if pyarrow is not None:
        forms["arrow texts"] = Form(kind, "string[pyarrow]", **shared)
    return forms


def _real(kind: Callable[[Any], Any], **options: Any) -> dict[str, Form]:
    # A number of each code, in all forms of numbers that hold it.
    def narrow(name: str) -> Callable[[Any], Any]:
        return lambda code: getattr(np, name)(kind(code))

    def of(name: str) -> str | None:
        return name if options.get("fractions") else "integer"

    forms = {
        "float64": Form(kind, "float64", of("float64"), arrow=True),
        "float32": Form(narrow("float32"), "float32", of("float32"), arrow=True),
        "float16": Form(narrow("float16"), "float16", of("float16")),
        "Float64": Form(kind, "Float64", of("float64")),
        "Float32": Form(narrow("float32"), "Float32", of("float32")),
        "objects": Form(kind, object, of("float64")),
        "decimals": Form(lambda code: Decimal(str(kind(code))), object, of("float64")),
        "arrays": Form(lambda code: np.array(kind(code)), object, of("float64")),
        "category": Form(kind, "category", of("float64"), number=False, read=True),
    }
    if pyarrow is not None:
        forms["arrow floats"] = Form(kind, "double[pyarrow]", of("float64"))
        forms["arrow halves"] = Form(narrow("float32"), "float[pyarrow]", of("float32"))
    return forms


_INTEGERS = {
    **{
        name: Form(int, name, holes=False, arrow=True)
        for name in ("int8", "int64", "uint8", "int16", "uint64")
    },
    "Int64": Form(int, "Int64", arrow=True),
    "UInt8": Form(int, "UInt8"),
    "object integers": Form(int, object),
    "numpy integers": Form(np.int64, object),
    "quotients": Form(Fraction, object),
    "tensors": Form(lambda code: torch.tensor(int(code)), object),
    **({"arrow integers": Form(int, "int64[pyarrow]")} if pyarrow is not None else {}),
}
_BOOLEANS = {
    "bool": Form(
        bool, "bool", "boolean", number=False, holes=False, read=True, arrow=True
    ),
    "boolean": Form(bool, "boolean", "boolean", number=False, read=True),
    "objects of bool": Form(bool, object, "boolean", number=False, read=True),
    "numpy bool": Form(np.bool_, object, "boolean", number=False, read=True),
    "category of bool": Form(bool, "category", "boolean", number=False, read=True),
    "arrays of bool": Form(
        lambda code: np.array(bool(code)), object, "boolean", number=False, read=True
    ),
    **(
        {"arrow bool": Form(bool, "bool[pyarrow]", "boolean", number=False, read=True)}
        if pyarrow is not None
        else {}
    ),
}


def _other(kind: Callable[[Any], Any], dtype: Any = object) -> Form:
    # Values that are no texts and no numbers.
    return Form(kind, dtype, None, plain=False, number=False)


_DAY = datetime.datetime(2020, 1, 1)
_STRANGE = {
    "dates": _other(lambda code: (_DAY + datetime.timedelta(float(code))).date()),
    "times": _other(
        lambda code: _DAY + datetime.timedelta(float(code)), "datetime64[ns]"
    ),
    "durations": _other(lambda code: pd.Timedelta(float(code), "D"), "timedelta64[ns]"),
    "complex": _other(lambda code: complex(code, 1.0)),
    "tuples": _other(lambda code: (code,)),
}
_WORDS = ("Rome", "Oslo", "", "nan", "None", " Rome", "Ürümqi", "rome", "2e", "-")


def _odd(kind: Callable[[Any], str], *, read: bool = False) -> Form:
    return Form(kind, object, "text", plain=False, number=False, read=read)


# The codes of a family, one that is never in fit, and the forms of all.
FAMILIES: dict[str, tuple[list[Any], Any, dict[str, Form]]] = {
    "words": (list(_WORDS), "Atlantis", _text(str)),
    "flags": (
        [0, 1],
        7,
        {
            **_BOOLEANS,
            **_INTEGERS,
            **_real(float),
            **_text(lambda code: str(int(code)), read=True),
            "words": Form(lambda code: str(bool(code)), object, "text", number=False),
            "shouted": _odd(lambda code: str(bool(code)).upper()),
            "yes and no": _odd(lambda code: "yes" if code else "no"),
            **_STRANGE,
        },
    ),
    "digits": (
        [0, 1, 2, 3, 10],
        9,
        {
            **_INTEGERS,
            **_real(float),
            **_text(lambda code: str(int(code)), read=True),
            "texts of floats": _odd(lambda code: str(float(code)), read=True),
            "padded": _odd(lambda code: f"0{int(code)}", read=True),
            "named": _odd(lambda code: f"no. {int(code)}"),
            **_STRANGE,
        },
    ),
    "fractions": (
        [0.5, 0.1, 2.25, 1.3],
        7.5,
        {**_real(float, fractions=True), **_text(str, read=True), **_STRANGE},
    ),
    "large": (
        [2**53 + 1 + 2 * step for step in range(4)],
        2**53 + 101,
        {
            **{name: _INTEGERS[name] for name in ("int64", "uint64", "Int64")},
            "object integers": _INTEGERS["object integers"],
            "decimals": Form(Decimal, object),
            **_text(str, read=True),
            "rounded": Form(float, "float64", "float64", plain=False),
        },
    ),
}


def _draw_column(rng: np.random.Generator) -> dict:
    family = str(rng.choice(list(FAMILIES), p=[0.2, 0.25, 0.3, 0.15, 0.1]))
    forms = FAMILIES[family][2]
    before, later = rng.choice(list(forms), 2)
    others = [name for name, form in forms.items() if not form.plain]
    if others and rng.random() < 0.2:
        later = rng.choice(others)
    if rng.random() < 0.3:
        later = before
    return {
        "family": family,
        "forms": [str(before), str(later)],
        "missing": rng.choice([0.0, 0.0, 0.2, 0.5], 2).tolist(),
        "unseen": bool(rng.random() < 0.2),
        "listed": bool(family == "large" or rng.random() < 0.4),
        "empty": bool(rng.random() < 0.03),
    }


def _draw_columns(rng: np.random.Generator) -> dict:
    return {
        "part": "columns",
        "seed": int(rng.integers(2**32)),
        "machine": str(rng.choice(list(MACHINES))),
        "n_iter": int(rng.integers(3)),
        "rows": [int(rng.integers(4, 31)), int(rng.integers(1, 12))],
        "columns": [_draw_column(rng) for _ in range(rng.choice([1, 1, 2, 3, 5]))],
        "container": str(
            rng.choice(["frame", "frame", "numbered", "array", "list", "arrow"])
        ),
        "change": str(
            rng.choice(
                ["none"] * 6 + ["order", "more", "fewer", "twice", "unnamed", "named"]
            )
        ),
        "missing_indicator": bool(rng.random() < 0.3),
        "categorical_first": bool(rng.random() < 0.5),
    }


class _Column:
    """The codes of a column in fit and later, and what becomes of them."""

    def __init__(
        self, spec: dict, rows: list[int], rng: np.random.Generator, *, framed: bool
    ) -> None:
        codes, unseen, forms = FAMILIES[spec["family"]]
        self.names, self.listed = spec["forms"], spec["listed"]
        self.forms = [forms[name] for name in self.names]
        if not framed:  # where pandas' categories are the numbers that they are
            self.forms = [
                replace(form, number=True) if name == "category" else form
                for name, form in zip(self.names, self.forms, strict=True)
            ]
        self.codes = []
        for form, n, share in zip(self.forms, rows, spec["missing"], strict=True):
            drawn = [codes[place] for place in rng.integers(len(codes), size=n)]
            holes = (rng.random(n) < share) & form.holes
            holes[0] = False  # a column of objects without any value would be numbers
            self.codes.append(
                [
                    None if hole else code
                    for code, hole in zip(drawn, holes, strict=True)
                ]
            )
        later = self.forms[1]
        truth = later.type == "boolean" or (later.type == "text" and not later.read)
        # 7 is no flag that such a form can hold
        if spec["unseen"] and not (spec["family"] == "flags" and truth):
            self.codes[1][0] = unseen
        first = self.forms[0]
        self.number = first.number and not self.listed
        # of a type that says so: objects that are all missing could be anything
        if spec["empty"] and self.number and first.dtype in ("float64", "Int64"):
            self.codes[0] = [None] * rows[0]

    def scalars(self, when: int) -> list[Any]:
        form = self.forms[when]
        return [
            None if code is None else form.scalar(code) for code in self.codes[when]
        ]

    def series(self, when: int) -> pd.Series:
        form, values = self.forms[when], self.scalars(when)
        if form.dtype == "category":
            # in pandas' own order, and with one that no row has
            return pd.Series(pd.Categorical(values)).cat.add_categories(["unused"])
        if form.dtype == object:
            made = np.empty(len(values), dtype=object)
            for place, value in enumerate(values):
                made[place] = value
            return pd.Series(made, dtype=object)
        return pd.Series(values, dtype=form.dtype)

    def refused(self, when: int) -> bool:
        """Whether the form has no place in the table (the last word of rule 1)."""
        name, form = self.names[when], self.forms[when]
        if when == 0:
            return not self.listed and name in (
                "dates",
                "times",
                "durations",
                "complex",
            )
        if not self.number:
            return False
        given = any(code is not None for code in self.codes[1])
        return given and not (form.number or form.read)

    def encoded(self, *, indicator: bool) -> tuple[np.ndarray, np.ndarray, bool]:
        """What the column becomes in fit and later, and whether there is a warning."""
        return self._numbers(indicator) if self.number else self._indicators()

    def _numbers(self, indicator: bool) -> tuple[np.ndarray, np.ndarray, bool]:
        before = np.array([_float(self.forms[0], code) for code in self.codes[0]])
        later = np.full(len(self.codes[1]), np.nan)
        if not self.refused(1):
            later[:] = [_float(self.forms[1], code) for code in self.codes[1]]
        holes, strange = np.isnan(before), False
        middle = 0.0 if holes.all() else float(np.median(before[~holes]))
        if holes.all():
            strange = bool(np.isfinite(later).any())
        made = [
            np.where(np.isnan(values), middle, values) for values in (before, later)
        ]
        parts = [made]
        if indicator and holes.any():
            parts.append([np.isnan(values).astype(float) for values in (before, later)])
        scaled = []
        for first, second in parts:
            constant = bool((first == first[0]).all())
            mean, scale = first.mean(), 1.0 if constant else first.std()
            scaled.append([(values - mean) / scale for values in (first, second)])
        return (
            *(np.stack(part, axis=1) for part in zip(*scaled, strict=True)),
            strange,
        )

    def _indicators(self) -> tuple[np.ndarray, np.ndarray, bool]:
        keys = [
            [
                None if code is None else form.key(code, name)
                for code in codes
            ]
            for form, name, codes in zip(
                self.forms, self.names, self.codes, strict=True
            )
        ]  # fmt: skip
        known = list(dict.fromkeys(keys[0]))
        tables = [
            np.array([[float(key == other) for other in known] for key in part])
            for part in keys
        ]
        return (*tables, self._non_numeric_kinds(keys))

    def _non_numeric_kinds(self, keys: list[list[Any]]) -> bool:
        # Rule 3 for the values that are not in fit.
        first, second = self.forms
        values = [key for key in keys[0] if key is not None]
        types = set(self._types(first, values))
        before = {
            _read_number(first, code) for code in self.codes[0] if code is not None
        }
        for key, code in zip(keys[1], self.codes[1], strict=True):
            if key is None or key in values:
                continue
            same = _read_number(second, code)
            kind = next(iter(self._types(second, [key])), None)
            both_texts = first.type == second.type == "text"
            if kind not in types or (
                both_texts and same is not None and same in before
            ):
                return True
        return False

    @staticmethod
    def _types(form: Form, values: list[Any]) -> list[str]:
        if form.type is None or not values:
            return []
        return [form.type, *(["integer"] if form.type.startswith("float") else [])]


def _float(form: Form, code: Any) -> float:
    # As the form holds it: 0.1 is another number in single precision.
    if code is None:
        return np.nan
    value = form.scalar(code)
    return float(value.decode() if isinstance(value, bytes) else value)


def _read_number(form: Form, code: Any) -> float | None:
    # The number that a value is, or whose text it is.
    return code if form.number or form.read else None


def _table(columns: list[_Column], when: int, container: str) -> Any:
    names = [f"c{place}" for place in range(len(columns))]
    if container in ("array", "list"):
        rows = list(zip(*(column.scalars(when) for column in columns), strict=True))
        if container == "list":
            return [list(row) for row in rows]
        table = np.empty((len(rows), len(columns)), dtype=object, order="F")
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                table[i, j] = value
        return table
    series = [column.series(when) for column in columns]
    frame = pd.concat(series, axis=1)
    frame.columns = [3 * place for place in range(len(columns))]
    if container == "numbered":
        return frame
    frame.columns = names
    if container == "arrow":
        return pyarrow.Table.from_pandas(frame)
    return frame


def _change_columns(table: Any, change: str) -> tuple[Any, str]:
    """A table with other columns, and the words of the refusal, if it is one."""
    named = not isinstance(table, np.ndarray | list)
    if change == "none":
        return table, ""
    if not named:
        if change in ("more", "fewer"):
            width = len(table[0]) - 1 if change == "fewer" else len(table[0]) + 1
            return [[*row, 1.0][:width] for row in table], "X must be a table"
        return table, ""
    frame = table if isinstance(table, pd.DataFrame) else table.to_pandas()
    texts = isinstance(frame.columns[0], str)
    if change == "order":
        words = "" if texts or frame.shape[1] == 1 else "X must be a table with the"
        return frame[frame.columns[::-1]], words
    if change == "more":
        more = frame.assign(more=1.0) if texts else frame.assign(**{"1": 1.0})
        return more, "" if texts else "X must be a table"
    if change == "fewer":
        return frame.iloc[:, 1:], "X must be a table"
    if change == "twice":
        return pd.concat([frame, frame.iloc[:, :1]], axis=1), "X must be a table of col"
    if change == "unnamed":
        values = frame.astype(object).to_numpy()
        return (values, "X must be a table with the columns") if texts else (frame, "")
    return frame, ""


def _check_columns(case: dict) -> None:
    rng = np.random.default_rng(case["seed"])
    container = case["container"]
    framed = container not in ("array", "list")
    columns = [
        _Column(spec, case["rows"], rng, framed=framed) for spec in case["columns"]
    ]
    if container == "arrow" and not (
        pyarrow is not None and all(f.arrow for c in columns for f in c.forms)
    ):
        container = "frame"
    numbered = container in ("numbered", "array", "list")
    places = [3 * j if container == "numbered" else j for j in range(len(columns))]
    listed = [
        places[j] if numbered else f"c{j}"
        for j, column in enumerate(columns)
        if column.listed
    ]
    if case["categorical_first"]:
        listed = listed[::-1]
    machine = MACHINES[case["machine"]](n_iter=case["n_iter"], dtype="float64")
    answers = rng.normal(size=case["rows"][0])
    if "Classifier" in case["machine"]:
        answers = np.where(answers > np.median(answers), "b", "a")
        answers[:2] = "a", "b"
    pipeline = make_tabular_pipeline(
        machine, categorical=listed, missing_indicator=case["missing_indicator"]
    )
    before = _table(columns, 0, container)
    later, words = _change_columns(_table(columns, 1, container), case["change"])

    # to numpy lists of nothing but tuples are a cube
    cubes = [
        container == "list"
        and all(isinstance(cell, tuple) for c in columns for cell in c.scalars(when))
        for when in (0, 1)
    ]
    if cubes[0] or any(column.refused(0) for column in columns):
        _require_refusal(
            lambda: pipeline.fit(before, answers),
            "make_tabular_pipeline",
            "X must be a table" if cubes[0] else "column",
        )
        return
    copy = _content(before)
    _, said = _record_warnings(lambda: pipeline.fit(before, answers))
    assert _content(before) == copy, "fit changed the table"
    parts = [column.encoded(indicator=case["missing_indicator"]) for column in columns]
    tables = [
        np.concatenate(part, axis=1) for part in list(zip(*parts, strict=True))[:2]
    ]
    bare = MACHINES[case["machine"]](n_iter=case["n_iter"], dtype="float64")
    _, wanted = _record_warnings(lambda: bare.fit(tables[0], answers))
    assert said == wanted, f"warnings in fit: {said}, of the plain table: {wanted}"

    name = "decision_function" if "Classifier" in case["machine"] else "predict"
    if words:
        _require_refusal(
            lambda: getattr(pipeline, name)(later), "make_tabular_pipeline", words
        )
        return
    if cubes[1] or any(column.refused(1) for column in columns):
        _require_refusal(
            lambda: getattr(pipeline, name)(later),
            "make_tabular_pipeline",
            "(column|X) ?",
        )
        return
    copy = _content(later)
    found, said = _record_warnings(lambda: getattr(pipeline, name)(later))
    assert _content(later) == copy, "predict changed the table"
    for place, (column, part) in enumerate(zip(columns, parts, strict=True)):
        label = repr(places[place] if numbered else f"c{place}")
        told = [text for text in said if f": column {label} must" in text]
        assert bool(told) == part[2], (
            f"column {label}, {column.names}: {told or 'no warning'}"
        )
    others = [
        text for text in said if not text.startswith("make_tabular_pipeline: col")
    ]
    assert not others, others
    # another order of the columns changes sums by rounding, and the solver (condition
    # up to 30 rows / ridge 1e-3) what is rounded
    np.testing.assert_allclose(
        found, getattr(bare, name)(tables[1]), rtol=1e-8, atol=1e-8
    )


# --- containers ----------------------------------------------------------------------


def _slice_of_larger(array: np.ndarray) -> np.ndarray:
    wide = np.zeros((2 * len(array), *array.shape[1:]), dtype=array.dtype)
    wide[::2] = array
    return wide[::2]


def _read_only(array: np.ndarray) -> np.ndarray:
    made = array.copy()
    made.flags.writeable = False
    return made


def _memory_map(array: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        np.save(path := Path(folder) / "table.npy", array)
        return np.load(path, mmap_mode="r")


def _as_frame(dtype: Any) -> Callable[[np.ndarray], pd.DataFrame]:
    return lambda array: pd.DataFrame(array).add_prefix("c").astype(dtype)


def _objects(kind: Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    def made(array: np.ndarray) -> np.ndarray:
        found = np.empty(array.shape, dtype=object)
        for place, value in np.ndenumerate(array):
            found[place] = kind(value.item())
        return found

    return made


def _with_dtype(dtype: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: array.astype(dtype)


_ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    **{
        dtype: _with_dtype(dtype)
        for dtype in (
            *("float64", "float32", "float16", "longdouble", ">f8", "<f4", ">i4"),
            *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        )
    },
    "fortran": np.asfortranarray,
    "reversed": lambda array: np.ascontiguousarray(array[::-1])[::-1],
    "sliced": _slice_of_larger,
    "read only": _read_only,
    "mapped": _memory_map,
    "masked": lambda array: np.ma.array(array, mask=False),
    "objects": _with_dtype(object),
    "decimals": _objects(Decimal),
    "quotients": _objects(Fraction),
    "list": np.ndarray.tolist,
    "tensor": lambda array: torch.tensor(array),
    "single tensor": lambda array: torch.tensor(array, dtype=torch.float32),
    "half tensor": lambda array: torch.tensor(array, dtype=torch.float16),
    "brain tensor": lambda array: torch.tensor(array, dtype=torch.bfloat16),
    "tensor with gradient": lambda array: torch.tensor(array, requires_grad=True),
    "transposed tensor": lambda array: torch.tensor(array.T.copy()).t(),
    "integer tensor": lambda array: torch.tensor(array.astype(np.int64)),
    "list of arrays": list,
    "list of scalars": lambda array: [
        list(row) if array.ndim == 2 else row for row in array
    ],
}
# Those that keep the sign of every number but not its fractions; unsigned: neither.
_WHOLE = ("int", ">i4", "integer tensor")


def _records(array: np.ndarray) -> np.ndarray:
    return np.array(
        [tuple(row) for row in array],
        dtype=[(f"f{j}", float) for j in range(array.shape[1])],
    )


def _hole(array: np.ndarray, value: Any) -> np.ndarray:
    made = array.astype(object if value is None else np.float64)
    made.flat[0] = value
    return made


TABLES: dict[str, tuple[bool, Callable[[np.ndarray], Any]]] = {
    **{name: (True, make) for name, make in _ARRAYS.items()},
    **{
        f"frame of {dtype}": (True, _as_frame(dtype))
        for dtype in ("float64", "float32", "Int64", "Float64", "object", "int8")
    },
    "transposed": (True, lambda array: np.ascontiguousarray(array.T).T),
    "tuples": (True, lambda array: tuple(map(tuple, array.tolist()))),
    "frame with an index": (
        True,
        lambda array: pd.DataFrame(array, index=np.arange(len(array))[::-1] * 7),
    ),
    "frame of levels": (
        True,
        lambda array: pd.DataFrame(
            array,
            columns=pd.MultiIndex.from_product([["a"], range(array.shape[1])]),
        ),
    ),
    "columns": (True, lambda array: pd.concat(list(map(pd.Series, array.T)), axis=1)),
    "frame of decimals": (True, lambda array: pd.DataFrame(_objects(Decimal)(array))),
    "expanded tensor": (
        True,
        lambda array: torch.tensor(array[:, :1]).expand(-1, array.shape[1]),
    ),
    "complex": (False, _with_dtype(complex)),
    "dates": (False, _with_dtype("M8[s]")),
    "durations": (False, _with_dtype("m8[s]")),
    "texts": (False, _with_dtype(str)),
    "bytes": (False, _with_dtype("S")),
    "object texts": (False, _objects(str)),
    "records": (False, _records),
    "sparse": (False, sparse.csr_array),
    "sparse matrix": (False, sparse.coo_matrix),
    "sparse tensor": (False, lambda array: torch.tensor(array).to_sparse()),
    "meta tensor": (False, lambda array: torch.tensor(array).to("meta")),
    "complex tensor": (False, lambda array: torch.tensor(array) + 1j),
    "matrix": (False, np.asmatrix),
    "NaN": (False, lambda array: _hole(array, np.nan)),
    "inf": (False, lambda array: _hole(array, np.inf)),
    "None": (False, lambda array: _hole(array, None)),
    "NA": (False, lambda array: _hole(array.astype(object), None)),
    "masked value": (
        False,
        lambda array: np.ma.array(array, mask=array == array[0, 0]),
    ),
    "frame of texts": (False, _as_frame(str)),
    "frame of categories": (False, _as_frame("category")),
    "frame of dates": (False, lambda array: pd.DataFrame(array.astype("M8[s]"))),
    "names twice": (
        False,
        lambda array: pd.DataFrame(
            np.tile(array, 2), columns=["a"] * 2 * array.shape[1]
        ),
    ),
    "names of two kinds": (
        False,
        lambda array: pd.DataFrame(np.tile(array[:, :1], 2), columns=["a", 1]),
    ),
    "one column": (False, lambda array: array[:, 0]),
    "series": (False, lambda array: pd.Series(array[:, 0])),
    "cube": (False, lambda array: array[:, :, None]),
    "ragged": (False, lambda array: [*array.tolist(), [1.0] * (array.shape[1] + 1)]),
    "ragged array": (
        False,
        lambda array: np.array([[1.0], *array[:, 0].tolist()], dtype=object),
    ),
    "dicts": (False, lambda array: [dict(enumerate(row)) for row in array]),
    "dict": (False, lambda array: dict(enumerate(array.T))),
    "nested": (False, lambda array: pd.DataFrame({"a": [list(row) for row in array]})),
    "no rows": (False, lambda array: array[:0]),
    "no columns": (False, lambda array: array[:, :0]),
    "frame without rows": (False, lambda array: pd.DataFrame(array[:0])),
    "frame without columns": (
        False,
        lambda array: pd.DataFrame(index=range(len(array))),
    ),
    "empty list": (False, lambda _: []),
    "list of nothing": (False, lambda array: [[] for _ in array]),
    "nothing": (False, lambda _: None),
    "number": (False, lambda _: 3.0),
    "text": (False, lambda _: "table"),
    "function": (False, lambda _: len),
    "type": (False, lambda _: np.ndarray),
    **(
        {
            "arrow table": (
                True,
                lambda array: pyarrow.table(dict(_name_values(array))),
            ),
            "frame of arrow": (True, _as_frame("double[pyarrow]")),
            "arrow texts": (
                False,
                lambda array: pyarrow.table(dict(_name_values(array.astype(str)))),
            ),
        }
        if pyarrow is not None
        else {}
    ),
    **(
        {
            "polars": (True, lambda array: polars.DataFrame(dict(_name_values(array)))),
            "polars later": (
                False,
                lambda array: polars.LazyFrame(dict(_name_values(array))),
            ),
        }
        if polars is not None
        else {}
    ),
}


def _name_values(array: np.ndarray) -> list[tuple[str, np.ndarray]]:
    return [(f"c{j}", np.ascontiguousarray(column)) for j, column in enumerate(array.T)]


_FLAT: dict[str, tuple[bool, Callable[[np.ndarray], Any]]] = {
    **{name: (True, make) for name, make in _ARRAYS.items()},
    "tuple": (True, tuple),
    "series": (True, lambda array: pd.Series(array, index=np.arange(len(array)) + 5)),
    "index": (True, pd.Index),
    "Float64": (True, lambda array: pd.array(array, dtype="Float64")),
    "Int64": (True, lambda array: pd.array(array.astype(np.int64), dtype="Int64")),
    "complex": (False, _with_dtype(complex)),
    "cube": (False, lambda array: array[:, None, None]),
    "ragged": (False, lambda array: [[1.0, 2.0], *([[1.0]] * (len(array) - 1))]),
    "short": (False, lambda array: array[:-1]),
    "long": (False, lambda array: np.append(array, 1.0)),
    "empty": (False, lambda _: []),
    "NaN": (False, lambda array: _hole(array, np.nan)),
    "inf": (False, lambda array: _hole(array, np.inf)),
    "None": (False, lambda array: _hole(array, None)),
    "all missing": (False, lambda array: [None] * len(array)),
    "all NA": (False, lambda array: pd.array([pd.NA] * len(array), dtype="Float64")),
    "masked value": (False, lambda array: np.ma.array(array, mask=array == array[0])),
    "records": (False, lambda array: np.zeros(len(array), dtype=[("a", float)])),
    "sparse": (False, lambda array: sparse.csr_array(array[None])),
    "sparse tensor": (False, lambda array: torch.tensor(array).to_sparse()),
    "meta tensor": (False, lambda array: torch.tensor(array).to("meta")),
    "text": (False, lambda _: "text"),
    "dict": (False, lambda array: dict(enumerate(array))),
    "type": (False, lambda _: np.ndarray),
    **(
        {
            "arrow": (True, pyarrow.array),
            "arrow series": (
                True,
                lambda array: pd.Series(array, dtype="double[pyarrow]"),
            ),
        }
        if pyarrow is not None
        else {}
    ),
    **({"polars": (True, polars.Series)} if polars is not None else {}),
}
WEIGHTS = {
    **_FLAT,
    "nothing": (True, lambda _: None),
    "negative": (False, lambda array: -array),
    "zeros": (False, lambda array: 0 * array),
    "a column": (False, lambda array: array[:, None]),
    "texts": (False, lambda array: array.astype(str)),
    "dates": (False, lambda array: array.astype("M8[s]")),
}
NUMBERS = {
    **_FLAT,
    "frame": (True, lambda array: pd.DataFrame({"a": array})),
    "nothing": (False, lambda _: None),
    "number": (False, lambda _: 1.0),
    "texts": (False, lambda array: array.astype(str)),
    "dates": (False, lambda array: array.astype("M8[s]")),
}
_WORDED = ("Rome", "Oslo", "Lima")


def _labels(make: Callable[[list[str]], Any]) -> Callable[[np.ndarray], Any]:
    return lambda array: make([_WORDED[int(code)] for code in array])


LABELS = {
    **{name: _FLAT[name] for name in _FLAT if name not in ("decimals", "quotients")},
    "decimals": (False, _ARRAYS["decimals"]),
    "texts": (True, _labels(np.array)),
    "list of texts": (True, _labels(list)),
    "object texts": (True, _labels(lambda words: np.array(words, dtype=object))),
    "series of texts": (True, _labels(pd.Series)),
    "string": (True, _labels(lambda words: pd.array(words, dtype="string"))),
    "categories": (True, _labels(pd.Categorical)),
    "index of texts": (True, _labels(pd.Index)),
    "fractions": (False, lambda array: array + 0.5),
    "bytes": (False, lambda array: array.astype("S")),
    "texts and numbers": (False, lambda array: ["Rome", *array[1:].tolist()]),
    "texts and NaN": (
        False,
        lambda array: ["Rome", np.nan, *["Oslo"] * (len(array) - 2)],
    ),
    "one class": (False, lambda array: np.ones(len(array))),
    "sets": (False, lambda array: [{code} for code in array]),
    "nothing": (False, lambda _: None),
    "number": (False, lambda _: 1),
    **(
        {"arrow texts": (True, _labels(lambda w: pyarrow.array(w)))}
        if pyarrow is not None
        else {}
    ),
}


def _draw_name(rng: np.random.Generator, names: dict) -> str:
    # two of three are valid, so that most cases are about one thing only
    good = bool(rng.random() < 0.67)
    return str(rng.choice([name for name in names if names[name][0] == good]))


def _draw_containers(rng: np.random.Generator) -> dict:
    machine = str(rng.choice(list(MACHINES)))
    answers = LABELS if "Classifier" in machine else NUMBERS
    case = {
        "part": "containers",
        "seed": int(rng.integers(2**32)),
        "machine": machine,
        "n_iter": int(rng.integers(3)),
        "shape": [int(rng.integers(4, 31)), int(rng.integers(1, 5))],
        "table": "float64",
        "answers": "float64",
        "weights": str(rng.choice(["nothing", "float64"])),
        "later": "float64",
    }
    # one or two things are unusual
    for part in rng.choice(
        ["table", "answers", "weights", "later"], rng.integers(1, 3)
    ):
        names = {"answers": answers, "weights": WEIGHTS}.get(part, TABLES)
        case[str(part)] = _draw_name(rng, names)
    return case


def _values(rng: np.random.Generator, name: str, shape: Any) -> np.ndarray:
    # Exact in half precision; whole numbers for a container of integers.
    values = rng.integers(-12, 13, size=shape) / 4
    if name in ("int8", "frame of Int64", "frame of int8") or name.startswith(_WHOLE):
        values = np.trunc(values)
    if name.startswith("uint"):
        values = np.abs(np.trunc(values))
    return values


def _check_containers(case: dict) -> None:
    rng = np.random.default_rng(case["seed"])
    n, d = case["shape"]
    kind = MACHINES[case["machine"]]
    labels = "Classifier" in case["machine"]
    answers = LABELS if labels else NUMBERS
    x = _values(rng, case["table"], (n, d))
    x[0, 0], x[1, 0] = 1.0, 2.0  # never one row only
    if case["table"] == "expanded tensor":
        x[:] = x[:, :1]
    fresh = _values(rng, case["later"], (5, d))
    fresh[0, 0] = 1.0
    if case["later"] == "expanded tensor":
        fresh[:] = fresh[:, :1]
    if labels:
        y = rng.integers(3, size=n).astype(float)
        y[:3] = 0, 1, 2
    else:
        y = _values(rng, case["answers"], n)
        if case["answers"] == "Int64":
            y = np.trunc(y)
    weights = rng.integers(1, 4, size=n).astype(float)

    given = [
        table[case[part]][1](values)
        for part, table, values in (
            ("table", TABLES, x),
            ("answers", answers, y),
            ("weights", WEIGHTS, weights),
        )
    ]  # fmt: skip
    machine = kind(n_iter=case["n_iter"], dtype="float64")

    def fit() -> Any:
        return machine.fit(given[0], given[1], sample_weight=given[2])

    valid = [
        TABLES[case["table"]][0],
        answers[case["answers"]][0],
        WEIGHTS[case["weights"]][0],
    ]
    if not all(valid):
        wrong = [
            name
            for name, right in zip(["X", "y", "sample_weight"], valid, strict=True)
            if not right
        ]
        words = rf"(column \d of )?({'|'.join(wrong)}) must be"
        if "X" in wrong:  # its length is unknown
            words = r"(column \d of )?(X|y|sample_weight) must be"
        _require_refusal(fit, kind.__name__, words)
        assert not [name for name in vars(machine) if name.endswith("_")]
        return
    copies = list(map(_content, given))
    _, said = _record_warnings(fit)
    assert list(map(_content, given)) == copies, "fit changed what it was given"

    plain = kind(n_iter=case["n_iter"], dtype="float64")
    weight = None if given[2] is None else weights
    _, wanted = _record_warnings(lambda: plain.fit(x, y, sample_weight=weight))
    assert said == wanted, f"warnings: {said}, of plain arrays: {wanted}"
    if labels:
        words = "text" in case["answers"] or case["answers"] in ("string", "categories")
        classes = sorted(_WORDED) if words else [0, 1, 2]
        assert list(machine.classes_) == classes, machine.classes_

    name = "decision_function" if labels else "predict"
    later = TABLES[case["later"]][1](fresh)
    if not TABLES[case["later"]][0]:
        _require_refusal(
            lambda: getattr(machine, name)(later), kind.__name__, "X must be"
        )
        return
    copy = _content(later)
    found, said = _record_warnings(lambda: getattr(machine, name)(later))
    assert _content(later) == copy, "predict changed what it was given"
    # scikit-learn's own rule: names that are there once only cannot be compared
    lost = (_names(given[0]) is None) != (_names(later) is None)
    assert ["feature names" in text for text in said] == [True] * lost, said
    expected = np.asarray(getattr(plain, name)(fresh))
    if labels and words:
        expected = expected[:, [_WORDED.index(word) for word in classes]]
    found = (
        found.detach().double().numpy() if isinstance(found, torch.Tensor) else found
    )
    if case["answers"] == "frame":  # one column of answers
        found = found[:, 0]
    # answers are of the type of the table, and its sums may have another order
    narrow = np.asarray(found).dtype.itemsize < 8 or "single" in case["later"]
    rounded = any(word in case["later"] for word in ("half", "brain", "16", "single"))
    tolerance = 1e-2 if rounded else 1e-5 if narrow else 1e-8
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


# --- shared --------------------------------------------------------------------------


def _names(table: Any) -> list[str] | None:
    if pyarrow is not None and isinstance(table, pyarrow.Table):
        return table.column_names
    names = list(getattr(table, "columns", []))
    return names if all(isinstance(name, str) for name in names) and names else None


def _content(values: Any) -> str:
    """All of a container that a mutation could change, as a text."""
    if isinstance(values, pd.DataFrame):
        columns = [repr(list(values.iloc[:, j])) for j in range(values.shape[1])]
        return f"{list(values.columns)} {list(values.dtypes)} {values.index} {columns}"
    if isinstance(values, np.ndarray | torch.Tensor) and not isinstance(
        values, np.ma.MaskedArray
    ):
        flags = (
            getattr(values, "flags", None) if isinstance(values, np.ndarray) else None
        )
        return f"{values.dtype} {flags} {values.tolist()}"
    if isinstance(values, list | tuple):
        return f"{type(values)} {list(map(_content, values))}"
    return repr(values)


def _record_warnings(call: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What a call returns, and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    return found, [str(warning.message) for warning in caught]


def _require_refusal(call: Callable[[], Any], callee: str, words: str) -> None:
    """Require an error that names callee and argument, and no other error."""
    form = rf"(?s)^{callee}: {words}.*, got .+"
    try:
        found, _ = _record_warnings(call)
    except (TypeError, ValueError) as error:
        if type(error) in (TypeError, ValueError) and re.match(form, str(error)):
            return
        raise AssertionError(f"{form!r} does not match {error!r}") from error
    raise AssertionError(f"no error, but {found!r}; expected {form!r}")


def draw(rng: np.random.Generator) -> dict:
    """A case of one of the two parts."""
    part = _draw_columns if rng.random() < 0.6 else _draw_containers
    return part(rng)


def check(case: dict) -> None:
    """Raise if the library gets it wrong."""
    check_part = _check_columns if case["part"] == "columns" else _check_containers
    check_part(case)
