"""Classes that complain in their own name, whatever they inherit."""

from __future__ import annotations

from inspect import getattr_static
from types import FunctionType
from typing import TypeVar

__all__ = ["under_its_own_name"]

_Kind = TypeVar("_Kind")


def under_its_own_name(kind: type[_Kind]) -> type[_Kind]:
    """Give a class what it inherits from this package under its own name.

    Python complains of unknown and of missing arguments in the name of the function
    that it called, and the classes in which these stand are known to nobody.

    Examples
    --------
    >>> from normalign.estimators.base import KernelMachine
    >>> @under_its_own_name
    ... class Public(KernelMachine): ...
    >>> Public.fit.__qualname__
    'Public.fit'
    """
    for name in dir(kind):
        function = getattr_static(kind, name)
        public = name == "__init__" or not name.startswith("_")
        if not (public and isinstance(function, FunctionType)):
            continue
        if function.__module__.startswith(f"{__package__}."):
            setattr(kind, name, _named(function, f"{kind.__qualname__}.{name}"))
    return kind


def _named(function: FunctionType, qualname: str) -> FunctionType:
    """The same function under another name."""
    same = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    same.__kwdefaults__ = function.__kwdefaults__
    same.__annotations__, same.__doc__ = function.__annotations__, function.__doc__
    vars(same).update(vars(function))  # what it wraps, of which the signature is told
    same.__qualname__ = qualname
    return same
