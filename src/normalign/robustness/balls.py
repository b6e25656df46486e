"""The balls in which an attack moves: where it starts, steps and is held back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "NORMS", "Ball", "Bound", "direction", "distance", "drawn_in", "unit_offsets",
]  # fmt: skip

NORMS = ("linf", "l2")

Bound = float | Tensor | None


def unit_offsets(x: Tensor, norm: str, generator: torch.Generator) -> Tensor:
    """Return offsets like x, drawn uniformly from the unit ball of a norm.

    They are drawn where the generator is, so that a generator of the processor gives
    every device the same.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> bool(unit_offsets(torch.zeros(2, 3), "l2", generator).norm(dim=1).max() <= 1)
    True
    """
    place = {"generator": generator, "device": generator.device, "dtype": drawn_in(x)}
    if norm == "linf":
        return (2 * torch.rand(x.shape, **place) - 1).to(x)
    n, d = len(x), x[:1].numel() if len(x) else 1
    normal = torch.randn((n, d), **place)
    # The share of a ball's volume within radius r is r^d.
    length = torch.rand((n, 1), **place) ** (1 / d)
    return (torch.nn.functional.normalize(normal, dim=1) * length).to(x).view_as(x)


def drawn_in(x: Tensor) -> torch.dtype:
    """The precision of draws: that of x, or single where x is in half."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def direction(gradient: Tensor, norm: str) -> Tensor:
    """Return the step of length 1 along which the loss rises most, for every row.

    Zero where the gradient is zero or not a number: the point then stays.

    Examples
    --------
    >>> direction(torch.tensor([[3.0, -4.0]]), "l2")
    tensor([[ 0.6000, -0.8000]])
    """
    gradient = torch.nan_to_num(gradient, nan=0.0)
    if norm == "linf":
        return gradient.sign()
    flat = gradient.flatten(1)
    tiny = torch.finfo(flat.dtype).tiny
    # Scaled before they are squared: gradients may be very small or very large.
    flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(tiny)
    return (flat / flat.norm(dim=1, keepdim=True).clamp_min(tiny)).view_as(gradient)


def distance(points: Tensor, x: Tensor, norm: str) -> Tensor:
    """Return the distance of each row of points to that of x in a norm, (n,).

    Examples
    --------
    >>> distance(torch.tensor([[3.0, -4.0]]), torch.zeros(1, 2), "linf")
    tensor([4.])
    """
    step = (points - x).flatten(1)
    order = float("inf") if norm == "linf" else 2.0
    return torch.linalg.vector_norm(step, ord=order, dim=1)


@dataclass(frozen=True)
class Ball:
    """Balls of one norm around rows, cut off at the range of legal inputs.

    Parameters
    ----------
    norm : {"linf", "l2"}
    low, high : float or Tensor of the shape of one row, optional
    """

    norm: str
    low: Bound = None
    high: Bound = None

    def project(self, points: Tensor, x: Tensor, radius: float | Tensor) -> Tensor:
        """Return the points brought back into the balls of a radius, or (n, 1, ...)."""
        if self.norm == "linf":
            return self.legal(torch.clamp(points, x - radius, x + radius))
        step = points - x
        length = step.flatten(1).norm(dim=1).view(-1, *[1] * (x.ndim - 1))
        shrunk = x + step * (radius / length.clamp_min(torch.finfo(x.dtype).tiny))
        # Where x is legal, clipping moves every entry towards it: the ball is kept.
        return self.legal(torch.where(length > radius, shrunk, points))

    def legal(self, points: Tensor) -> Tensor:
        """Return the points clipped to the range of legal inputs."""
        if self.low is not None:
            points = torch.clamp(points, min=self.low)  # pyright: ignore
        if self.high is not None:
            points = torch.clamp(points, max=self.high)  # pyright: ignore
        return points
