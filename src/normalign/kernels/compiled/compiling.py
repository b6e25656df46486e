"""How functions of this folder are compiled, and where that is remembered."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.extending import intrinsic

__all__ = ["compiled", "instruction", "remembered"]

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


def remembered(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, once for all processes of this machine.

    To compile takes seconds. What comes out is kept on disk, beside this file or in the
    user's cache, and belongs to the processor, the version of numba and the sources of
    this folder. Where nothing can be written every process compiles for itself.
    """
    try:
        dispatcher: Any = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # numba found no folder that it may write to
        return compiled(function)
    # numba looks at the function's own file alone, not at those of what it calls.
    dispatcher._cache._cache_file._source_stamp = _digest()
    return dispatcher


@lru_cache(maxsize=1)
def _digest() -> str:
    """Of all sources of this folder."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
