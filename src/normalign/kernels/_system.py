r"""The linear system behind every machine, how to solve it, and what a solution is.

.. math:: (K + \rho \, \mathrm{diag}(1 / w)) \, a = y

Algorithm 1 of the paper prints ``alpha = K y``; the inverse is meant. Sample weights
enter where they do in weighted least squares, so that a row of weight two is the same
as the row twice. Who solves it: :mod:`normalign.kernels._solve`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from normalign._errors import require
from normalign.kernels._functions import Kernel
from normalign.kernels._sides import Sides

__all__ = [
    "OVERWRITTEN",
    "RidgeTooSmall",
    "Solution",
    "Solved",
    "Solver",
    "Spare",
    "System",
]

# What a solution says whose inverse is asked for too late.
OVERWRITTEN = (
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
        """Let go of the sides; who asks for them again has them made again."""
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
        In whose name is complained: whom the user called.
    """

    name: Literal["auto", "cholesky", "cg"] = "auto"
    memory_limit: int | None = None
    tolerance: float = 1e-4
    max_steps: int = 500
    rank: int | None = None
    callee: str = "solve"

    def __post_init__(self) -> None:
        require(
            self.name in ("auto", "cholesky", "cg"),
            "Solver",
            "name",
            '"auto", "cholesky" or "cg"',
            repr(self.name),
        )
        require(
            self.memory_limit is None or self.memory_limit > 0,
            "Solver",
            "memory_limit",
            "a positive number of bytes, or None",
            self.memory_limit,
        )
        require(self.tolerance > 0, "Solver", "tolerance", "positive", self.tolerance)
        require(self.max_steps >= 1, "Solver", "max_steps", "1 or more", self.max_steps)
        require(
            self.rank is None or (isinstance(self.rank, int) and self.rank >= 1),
            "Solver",
            "rank",
            "an integer of 1 or more, or None",
            self.rank,
        )


@dataclass(frozen=True)
class Solved:
    """What a solver did: read it, log it, put it into a table.

    ``jitter`` is what had to be added to the diagonal (0.0 almost always), ``steps``
    and ``residual`` (relative, the worst output) belong to conjugate gradients.
    ``caution`` is what a user should know of; it is for those to tell whom the user
    called, and who know whether they have told it before.
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
        """Let go of it, whoever still refers to this object."""
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
