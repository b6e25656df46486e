"""Error messages of the form ``<callee>: <argument> must be <rule>, got <value>.``."""

from __future__ import annotations

from typing import Any

__all__ = ["complaint", "require", "require_kind"]


def complaint(callee: str, argument: str, rule: str, got: Any, remedy: str = "") -> str:
    """Return the message; a string in `got` describes the value already.

    Tensors and arrays are described by their shape.

    Examples
    --------
    >>> complaint("normalign show", "--seeds", "at least 1", 0)
    'normalign show: --seeds must be at least 1, got 0.'
    """
    value = got if isinstance(got, str) else repr(got)
    if isinstance(shape := getattr(got, "shape", None), tuple):
        dtype = getattr(got, "dtype", "")
        value = f"a {type(got).__name__} of {dtype} and shape {tuple(shape)}"
    text = f"{callee}: {argument} must be {rule}, got {value}."
    return f"{text} {remedy}" if remedy else text


def require(
    condition: bool, callee: str, argument: str, rule: str, got: Any, remedy: str = ""
) -> None:
    """Raise a ``ValueError`` with that message unless the condition holds."""
    if not condition:
        raise ValueError(complaint(callee, argument, rule, got, remedy))


def require_kind(
    condition: bool, callee: str, argument: str, rule: str, got: Any, remedy: str = ""
) -> None:
    """Raise a ``TypeError`` with that message unless the condition holds."""
    if not condition:
        raise TypeError(complaint(callee, argument, rule, got, remedy))
