"""Algorithm 1 on a processor, compiled: no operations in between.

A table of a few hundred rows is solved in less time than it takes to call the hundred
tensor operations of an iteration, and a large one is factorised at nearly the speed at
which the processor multiplies. With numba (the extra ``fast``) an iteration is a few
calls of compiled code, which fills the kernel, factorises, and sums the gradients;
:mod:`normalign.kernels` does without it, more slowly, where numba is missing or a
kernel is not one of those here.

From the inside out: ``tile`` (one product in registers), ``vectors`` (plain passes),
``products`` (tables), ``profiles`` (kernel values), ``sums`` (over centers), ``team``
(threads), ``factor`` (Cholesky), ``learning`` (the metric), ``machine`` (an iteration);
``layout``, ``memory``, ``solution`` and ``expansion`` (arrays and tensors around them).
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

from normalign.kernels.functions import Gaussian, Kernel, Laplace

__all__ = [
    "GAUSSIAN",
    "LAPLACE",
    "is_available",
    "profile_of",
    "seconds_of_compiling",
]

LAPLACE, GAUSSIAN = 0, 1

waits: list[float] = []  # for the compiler in this process, seconds each


def profile_of(kernel: Kernel) -> int | None:
    """The number of a kernel's profile, if there is compiled code for it."""
    if isinstance(kernel, Laplace) and kernel.exponent == 1:
        return LAPLACE
    return GAUSSIAN if isinstance(kernel, Gaussian) else None


def seconds_of_compiling() -> float:
    """Seconds for which this process has waited for the compiler so far."""
    return sum(waits)


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether numba is there and may compile."""
    if find_spec("numba") is None:
        return False
    from numba import config

    return not getattr(config, "DISABLE_JIT")  # noqa: B009, made at run time
