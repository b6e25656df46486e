"""Small tables on a processor, compiled: Algorithm 1 without operations in between.

A table of a few hundred rows is solved in less time than it takes to call the hundred
tensor operations of an iteration. With numba (the extra ``fast``) an iteration is two
calls of compiled code, which fills the kernel, factorises, and sums the gradients at
nearly the speed at which the processor multiplies; :mod:`normalign.kernels` does
without it, more slowly, where numba is missing or a kernel is not one of those here.

From the inside out: ``tile`` (one product in registers), ``vectors`` (plain passes),
``products`` (tables), ``profiles`` (kernel values), ``team`` (threads), ``factor``
(Cholesky), ``machine`` (an iteration), ``memory`` and ``solution`` (arrays and tensors
around it).
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

__all__ = ["is_available"]


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether numba is there and may compile."""
    if find_spec("numba") is None:
        return False
    from numba import config

    return not getattr(config, "DISABLE_JIT")  # noqa: B009, made at run time
