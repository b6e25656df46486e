"""Tables of frame libraries other than pandas, turned into pandas' at the door."""

from __future__ import annotations

from typing import Any

import numpy as np

from normalign._errors import complaint

__all__ = ["in_pandas"]

# How polars, pyarrow and those who exchange tables with them can be told.
_EXCHANGES = ("__dataframe__", "__arrow_c_stream__")


def in_pandas(callee: str, values: Any) -> Any:
    """Return a frame of another library as pandas has it; leave all else alone.

    What columns hold (dates, texts, categories) is then told in one way. Where pandas,
    or what takes a frame there, is not installed, a frame of numbers is an array.

    Raises
    ------
    TypeError
        If the frame is not to be turned into one of pandas.

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
        told = f"whose to_pandas() fails ({error})"
        raise TypeError(_refusal(callee, values, told)) from error


def _is_foreign(kind: type) -> bool:
    """Whether a type is that of a frame or column, but not of pandas.

    The type is asked and not the value, whose columns may be work to find out.
    """
    framed = any(hasattr(kind, name) for name in _EXCHANGES)
    if not framed and not hasattr(kind, "columns"):
        return False
    if not framed and not (hasattr(kind, "to_pandas") or hasattr(kind, "collect")):
        return False
    return all(base.__module__.partition(".")[0] != "pandas" for base in kind.__mro__)


def _refusal(callee: str, values: Any, told: str) -> str:
    kind = type(values)
    name = f"a {kind.__name__} of {kind.__module__.partition('.')[0]}, {told}"
    lazy = hasattr(kind, "collect") and not hasattr(kind, "to_pandas")
    remedy = "Pass X.collect()." if lazy else "Pass a pandas DataFrame, or an array."
    return complaint(callee, "X", "a table that pandas or numpy has", name, remedy)
