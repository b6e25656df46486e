"""Argument checks: the only place where error texts are formatted.

Every complaint has one form: *who* complains, *which* argument, the *rule*, what
*came*, and (if useful) what to *do*. Checks stand at the public boundary, once;
private functions trust their callers.
"""

from __future__ import annotations

import math
from typing import Any

__all__ = ["as_float", "complaint", "describe", "require", "require_kind"]


def as_float(value: Any) -> float:
    """Return a real number as a float; beyond what one can hold it is infinite.

    Examples
    --------
    >>> as_float(3), as_float(-(10**400))
    (3.0, -inf)
    """
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def describe(value: Any) -> str:
    """Say in a few words what a value is: tensors by dtype and shape, others by repr.

    Examples
    --------
    >>> describe(3), describe("rows")
    ('3', "'rows'")
    """
    shape = getattr(value, "shape", None)
    # of a class, shape is no shape
    if isinstance(shape, tuple) and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a {dtype} {type(value).__name__} of shape {tuple(shape)}"
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits has none
        text = ""
    if 0 < len(text) <= 80:
        return text
    if isinstance(value, int):
        return f"an integer of {value.bit_length()} bits"
    return f"a {type(value).__name__}"


def complaint(callee: str, argument: str, rule: str, got: Any, remedy: str = "") -> str:
    """Return ``"<callee>: <argument> must be <rule>, got <got>. <remedy>"``.

    Parameters
    ----------
    got : object
        The value as given, described by :func:`describe`; a ``str`` is taken as a
        description already made.

    Examples
    --------
    >>> complaint("effective_rank", "jacobian", "at least 2-D", "shape (3,)")
    'effective_rank: jacobian must be at least 2-D, got shape (3,).'
    """
    came = got if isinstance(got, str) else describe(got)
    text = f"{callee}: {argument} must be {rule}, got {came}."
    return f"{text} {remedy}" if remedy else text


def require(
    condition: bool, callee: str, argument: str, rule: str, got: Any, remedy: str = ""
) -> None:
    """Raise a ``ValueError`` in the house form unless the condition holds."""
    if not condition:
        raise ValueError(complaint(callee, argument, rule, got, remedy))


def require_kind(
    condition: bool, callee: str, argument: str, rule: str, got: Any, remedy: str = ""
) -> None:
    """Raise a ``TypeError`` in the house form unless the condition holds."""
    if not condition:
        raise TypeError(complaint(callee, argument, rule, got, remedy))
