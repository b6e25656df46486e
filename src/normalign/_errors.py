"""Argument checks and the form of their error messages.

A message names the callee, the argument, the rule, the value given and, if useful, a
remedy: ``"<callee>: <argument> must be <rule>, got <value>. <remedy>"``. Arguments are
checked once, in public functions; private functions trust their callers.
"""

from __future__ import annotations

import importlib
import math
from numbers import Number
from typing import Any

__all__ = [
    "as_float",
    "complaint",
    "describe",
    "installing",
    "missing_extra",
    "module_of_extra",
    "require",
    "require_kind",
]


def as_float(value: Any) -> float:
    """Return a real number as a float, infinite if it is too large for one.

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
    """Describe a value briefly: arrays by dtype and shape, others by their repr.

    Examples
    --------
    >>> describe(3), describe("rows")
    ('3', "'rows'")
    """
    shape, number = getattr(value, "shape", None), isinstance(value, Number)
    # the shape attribute of a class is no shape; scalars of NumPy are shown as numbers
    if isinstance(shape, tuple) and hasattr(value, "dtype") and not number:
        dtype = str(value.dtype).removeprefix("torch.")
        article = "an" if dtype.startswith("int") else "a"
        kind = type(value).__name__
        return f"{article} {dtype} {kind} of shape {tuple(shape)}"
    try:
        text = str(value) if number else repr(value)
    except ValueError:  # an integer of thousands of digits has no text
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
        The value as given, described by :func:`describe`. A ``str`` is used as it is:
        pass ``repr(value)`` for a value that may be a string.

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
    """Raise a ``ValueError`` with a :func:`complaint` unless the condition holds."""
    if not condition:
        raise ValueError(complaint(callee, argument, rule, got, remedy))


def require_kind(
    condition: bool, callee: str, argument: str, rule: str, got: Any, remedy: str = ""
) -> None:
    """Raise a ``TypeError`` with a :func:`complaint` unless the condition holds."""
    if not condition:
        raise TypeError(complaint(callee, argument, rule, got, remedy))


def installing(extra: str) -> str:
    """Return the command that installs an extra, quoted for any shell.

    Examples
    --------
    >>> installing("plots")
    'pip install "normalign[plots]"'
    """
    return f'pip install "normalign[{extra}]"'


def module_of_extra(callee: str, name: str, extra: str) -> Any:
    """Import a module that an extra installs.

    Raises
    ------
    ModuleNotFoundError
        If it is not installed; the message has the command.

    Examples
    --------
    >>> module_of_extra("plot", "math", "plots").__name__
    'math'
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise missing_extra(callee, extra, error) from error


def missing_extra(
    callee: str, extra: str, error: ModuleNotFoundError
) -> ModuleNotFoundError:
    """Return the error for a failed import, which names the extra to install."""
    package = str(error.name).partition(".")[0]
    text = complaint(
        callee, f"the {extra} extra", "installed", f"no module named {package}",
        installing(extra),
    )  # fmt: skip
    return ModuleNotFoundError(text, name=error.name)
