r"""The linear system behind every machine, how to solve it, and what a solution is.

.. math:: (K + \rho \, \mathrm{diag}(1 / w)) \, a = y

Algorithm 1 of the paper prints ``alpha = K y``; the inverse is meant. Sample weights
enter where they do in weighted least squares, so that a row of weight two is the same
as the row twice. :mod:`normalign.kernels._solve` solves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from normalign._errors import describe
from normalign.kernels._functions import Kernel
from normalign.kernels._sides import Sides

__all__ = [
    "FACTOR_GONE",
    "RidgeTooSmall",
    "Solution",
    "Solved",
    "Solver",
    "Spare",
    "System",
]

# The error of a request for the inverse after the next solve has begun.
FACTOR_GONE = (
    "left_out and room work until the next iteration is asked for, whose solve takes "
    "the memory of the factor that they need. Ask before, or keep what they return."
)


class RidgeTooSmall(ValueError):
    """Raised by a solver that came no nearer to a solution; a search goes on."""


@dataclass(frozen=True)
class System:
    """The matrix of a machine: centred points, a kernel, a metric, a ridge per row."""

    points: Tensor
    kernel: Kernel
    metric: Tensor | None
    ridges: Tensor

    def to(self, dtype: torch.dtype) -> System:
        """The same system in another precision."""
        metric = None if self.metric is None else self.metric.to(dtype)
        return System(self.points.to(dtype), self.kernel, metric, self.ridges.to(dtype))

    @cached_property
    def sides(self) -> Sides:
        """Its points as both sides of the kernel's tiles."""
        return self.kernel.sides(self.points, self.metric)

    def release(self) -> None:
        """Free the sides; they are computed again when needed."""
        vars(self).pop("sides", None)


@dataclass(frozen=True)
class Solver:
    """How linear systems are to be solved.

    Parameters
    ----------
    name : {"auto", "cholesky", "cg"}
        "auto" takes the direct solver where its triangle fits, conjugate gradients
        elsewhere.
    memory_limit : int, optional
        Bytes that may be allocated above the data; by default what is free now.
    tolerance : float
        Relative residual at which conjugate gradients stop.
    max_steps : int
        Steps after which they stop in any case, with a warning.
    rank : int, optional
        Points of the Nyström preconditioner; by default as memory allows, at most
        2000.
    callee : str
        The function that the user called, for error messages.
    """

    name: Literal["auto", "cholesky", "cg"] = "auto"
    memory_limit: int | None = None
    tolerance: float = 1e-4
    max_steps: int = 500
    rank: int | None = None
    callee: str = "solve"

    def __post_init__(self) -> None:
        rules = {
            "name": (
                self.name in ("auto", "cholesky", "cg"), '"auto", "cholesky" or "cg"'
            ),
            "memory_limit": (
                self.memory_limit is None or self.memory_limit > 0,
                "a positive number of bytes, or None",
            ),
            "tolerance": (self.tolerance > 0, "positive"),
            "max_steps": (self.max_steps >= 1, "1 or more"),
            "rank": (
                self.rank is None or (isinstance(self.rank, int) and self.rank >= 1),
                "an integer of 1 or more, or None",
            ),
        }  # fmt: skip
        for argument, (holds, rule) in rules.items():
            if not holds:
                raise ValueError(
                    f"Solver: {argument} must be {rule}, "
                    f"got {describe(getattr(self, argument))}."
                )


@dataclass(frozen=True)
class Solved:
    """What a solver did: read it, log it, put it into a table.

    ``jitter`` is what had to be added to the diagonal (0.0 almost always), ``steps``
    and ``residual`` (relative, the worst output) belong to conjugate gradients.
    ``caution`` is a warning for the user. The public functions issue it, once.
    """

    solver: str
    dtype: torch.dtype
    jitter: float = 0.0
    steps: int = 0
    residual: float | None = None
    converged: bool = True
    caution: str = ""


class Spare(Protocol):
    """Memory of a solve that the next one may overwrite."""

    def release(self) -> None:
        """Free it, even if this object is still referred to."""
        ...


class Solution(Protocol):
    """Coefficients, and what else the solver can say while its factor is alive."""

    coef: Tensor
    solved: Solved
    spare: Spare

    def forget(self) -> None:
        """Take no more questions about the inverse: its memory is needed."""
        ...

    def inverse_diagonal(self, rows: Tensor) -> Tensor:
        """Entries of the diagonal of the inverse."""
        ...

    def next_metric(self, weights: Tensor | None) -> Tensor | None:
        """What is learned from the gradients at all rows, if that comes for little."""
        ...
