"""Argument checks: the only place where error texts are formatted.

Every complaint has one form: *who* complains, *which* argument, the *rule*, what
*came*, and (if useful) what to *do*. Checks stand at the public boundary, once;
private functions trust their callers.
"""

from __future__ import annotations

from typing import Any

__all__ = ["complaint", "describe", "require", "require_kind"]


def describe(value: Any) -> str:
    """Say in a few words what a value is: tensors by dtype and shape, others by repr.

    Examples
    --------
    >>> describe(3), describe("rows")
    ('3', "'rows'")
    """
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a {dtype} {type(value).__name__} of shape {tuple(shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"


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
