"""How functions of this folder are compiled, and where that is remembered."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event
from numba.extending import intrinsic, register_jitable

from normalign.kernels.compiled import waits

__all__ = ["also_python", "compiled", "instruction", "remembered"]

_log = logging.getLogger(__name__)

# What a decorated function is called with is not what it is declared with: it is told
# the types of its arguments, and answers with code.
instruction: Any = intrinsic

# Other threads may run meanwhile; to divide by zero is no error; a product and a sum
# may be rounded once, and the sign of a zero is nobody's business.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz"},
}

compiled = njit(**_OPTIONS)

# For what Python and compiled code both want to know: each has it in its own way, and
# Python need not wait for a compiler.
also_python: Any = register_jitable

_LONG: list[Callable[..., Any]] = []  # functions that take seconds to compile
_LONG_MODULES = {f"{__package__}.{name}" for name in ("machine", "learning")}


def remembered(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, once for all processes of this machine.

    To compile takes seconds. What comes out is kept on disk, beside this file or in the
    user's cache, and belongs to the processor, the version of numba and the sources of
    this folder. Where nothing can be written every process compiles for itself.
    """
    if function.__module__ in _LONG_MODULES:
        _LONG.append(function)
    try:
        dispatcher: Any = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # numba found no folder that it may write to
        return compiled(function)
    # numba looks at the function's own file alone, not at those of what it calls.
    dispatcher._cache._cache_file._source_stamp = _digest()
    _survive_damage(dispatcher._cache)
    return dispatcher


def _survive_damage(cache: Any) -> None:
    """Compile where nothing can be read, and go on where nothing can be written.

    A full disk, a process killed while it wrote, files that are not one's own: numba
    lets all of that reach who wanted a model.
    """
    load, save = cache.load_overload, cache.save_overload

    def loaded(*args: Any) -> Any:
        try:
            return load(*args)
        except Exception as error:  # noqa: BLE001, whatever a broken file gives rise to
            _tell_once(_UNREAD, error)
            with suppress(OSError):
                cache.flush()
            return None

    def saved(*args: Any) -> None:
        try:
            save(*args)
        except Exception as error:  # noqa: BLE001, as above
            _tell_once(_UNKEPT, error)

    cache.load_overload, cache.save_overload = loaded, saved


_UNREAD = "normalign could not read compiled code (%r) and makes it again."
_UNKEPT = (
    "normalign could not keep compiled code (%r), so every process compiles for "
    "itself. Free disk space, or set NUMBA_CACHE_DIR to a folder that can be written."
)
_told: set[str] = set()


def _tell_once(message: str, error: Exception) -> None:
    if message not in _told:
        _told.add(message)
        _log.warning(message, error)


class _Notice(event.Listener):
    """Says so when somebody has to wait for a compiler.

    A warning of the log is on stderr unless somebody wants it elsewhere, and unlike a
    warning of Python it is no error in anybody's tests.
    """

    def __init__(self) -> None:
        self.inside, self.began = 0, 0.0
        self.told: set[Any] = set()  # precisions

    def on_start(self, event: Any) -> None:
        """Of what takes seconds, and of the outermost function alone."""
        function, kinds = event.data["dispatcher"].py_func, event.data["args"]
        precision = getattr(kinds[0], "dtype", None) if kinds else None
        if self.inside == 0:
            self.began = time.monotonic()
        if self.inside == 0 and function in _LONG and precision not in self.told:
            self.told.add(precision)
            _log.warning(
                "normalign compiles its code for tables, once on this machine "
                "for each precision: about 15 seconds."
            )
        self.inside += 1

    def on_end(self, event: Any) -> None:
        """One function is done."""
        self.inside -= 1
        if self.inside == 0:
            waits.append(time.monotonic() - self.began)


event.register("numba:compile", _Notice())


@lru_cache(maxsize=1)
def _digest() -> str:
    """Of all sources of this folder."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
