"""The three kinds of step that make up a continuous piecewise-affine network.

An affine map of one or more earlier results, an elementwise function with kinks, and a
maximum over windows. Results live in numbered registers, so that shortcuts are nothing
special.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Affine", "Kinked", "Maximum", "PiecewiseAffine", "Step"]


@dataclass(frozen=True)
class Affine:
    """The target is a linear function of the sources, plus a shift."""

    path: str
    sources: tuple[int, ...]
    target: int
    linear: Callable[..., Tensor]
    shift: Tensor | None


@dataclass(frozen=True)
class Kinked:
    r"""The target is :math:`a_j z + b_j` for :math:`t_{j-1} \le z \le t_j`, by unit.

    Parameters
    ----------
    kinks : Tensor of shape (p,)
        The :math:`t_j`, ascending.
    slopes, intercepts : Tensor of shape (p + 1, units) or (p + 1, 1)
    """

    path: str
    sources: tuple[int]
    target: int
    kinks: Tensor
    slopes: Tensor
    intercepts: Tensor


@dataclass(frozen=True)
class Maximum:
    """Each unit of the target is the maximum over a window of units of the source.

    Parameters
    ----------
    windows : Tensor of shape (units of the target, q)
        Units of the source, flattened; -1 where the window hangs over the edge.
    shape : tuple of int
        The shape of the target.
    """

    path: str
    sources: tuple[int]
    target: int
    windows: Tensor
    shape: tuple[int, ...]


Step = Affine | Kinked | Maximum


@dataclass(frozen=True)
class PiecewiseAffine:
    """The steps of a network, in order, from register 0 to register ``output``.

    Parameters
    ----------
    steps : tuple of Step
    output : int
    shapes : tuple of tuple of int
        The shape of each register, without the batch.
    """

    steps: tuple[Step, ...]
    output: int
    shapes: tuple[tuple[int, ...], ...]

    def needed_after(self, position: int) -> set[int]:
        """The registers that the steps after ``position`` read, and the output."""
        later = self.steps[position + 1 :]
        return {source for step in later for source in step.sources} | {self.output}
