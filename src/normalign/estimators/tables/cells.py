"""Single values of a table: which are missing, numbers, texts or dates."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from decimal import Decimal
from functools import cache
from numbers import Complex, Rational, Real
from typing import Any

import numpy as np
import torch

from normalign._errors import as_float

__all__ = [
    "category_type",
    "first_date",
    "is_missing",
    "kinds_of",
    "number_text",
    "scalar",
    "text_of",
    "type_kind",
    "unmasked",
    "with_nan",
]

_DATES = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    np.datetime64,
    np.timedelta64,
)

_DATE_FIRST = re.compile(r"\d{4}-\d\d-\d\d(?!\d)", re.ASCII)

# Those of pandas, which need not be there to import, are told by their names.
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

    Returns
    -------
    {"date", "boolean", "text", "bytes", "number", "complex", "other"}

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
    filled = [
        np.nan if is_missing(value) else as_float(scalar(value))
        for value in values.flat
    ]
    return np.array(filled, dtype=np.float64).reshape(values.shape)


def unmasked(values: np.ma.MaskedArray) -> np.ndarray:
    """A masked array as a plain one, with NaN (None for objects) under the mask.

    Examples
    --------
    >>> unmasked(np.ma.masked_equal([1, 2], 2))
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
