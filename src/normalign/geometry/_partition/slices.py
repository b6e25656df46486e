"""Planes in the input space of a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normalign._errors import require, require_kind

__all__ = ["Slice"]


@dataclass(frozen=True)
class Slice:
    r"""A plane of inputs with two coordinates.

    .. math:: p \mapsto \text{origin} + p_1 \text{axis}_1 + p_2 \text{axis}_2

    Parameters
    ----------
    origin : Tensor
        An input, without the batch.
    axes : Tensor of shape (2, *origin.shape)
        Two linearly independent directions. Areas and angles in the plane are those of
        the input space if they are orthonormal.

    Examples
    --------
    >>> plane = Slice(torch.tensor([0.0, 0.0, 5.0]), torch.eye(3)[:2])
    >>> plane.embed(torch.tensor([[1.0, 2.0]]))
    tensor([[1., 2., 5.]])
    """

    origin: Tensor
    axes: Tensor

    def __post_init__(self) -> None:
        for name in ("origin", "axes"):
            value = getattr(self, name)
            real = isinstance(value, Tensor) and value.is_floating_point()
            require_kind(real, "Slice", name, "a floating-point tensor", value)
        rule = f"of shape {(2, *self.origin.shape)}, two directions like the origin"
        matching = self.axes.shape == (2, *self.origin.shape)
        require(matching, "Slice", "axes", rule, self.axes)
        finite = bool(self.axes.isfinite().all() and self.origin.isfinite().all())
        require(finite, "Slice", "origin and axes", "finite", "nan or infinity")
        first, second = self.axes.detach().double().flatten(1)
        square = first.dot(first) * second.dot(second)
        # The squared sine of the angle; below this the plane is a line to rounding.
        apart = bool(square > 0 and 1 - first.dot(second) ** 2 / square > 1e-12)
        require(apart, "Slice", "axes", "linearly independent", self.axes)

    @classmethod
    def through(cls, a: Tensor, b: Tensor, c: Tensor, *, margin: float = 1.25) -> Slice:
        """The plane through three inputs.

        The origin is their mean and the axes are orthogonal and of equal length, such
        that the point farthest from the origin has distance ``1 / margin``: with the
        default all three lie within the bounds (-1, 1, -1, 1). The first axis points
        from ``a`` to ``b``, and ``c`` lies on the positive side of it.

        Parameters
        ----------
        a, b, c : Tensor
            Inputs of one shape, without the batch, not on one line.

        Examples
        --------
        >>> square = torch.tensor([[0.0, 0.0], [4.0, 0.0], [2.0, 3.0]])
        >>> plane = Slice.through(*square, margin=1.0)
        >>> plane.origin, plane.coordinates(square)[2]
        (tensor([2., 1.]), tensor([0.0000, 0.8944]))
        """
        require(margin > 0, "Slice.through", "margin", "positive", margin)
        same = a.shape == b.shape == c.shape
        shapes = f"{tuple(a.shape)}, {tuple(b.shape)}, {tuple(c.shape)}"
        require(same, "Slice.through", "a, b and c", "of one shape", shapes)
        points = torch.stack([a, b, c]).detach()
        flat = points.flatten(1).double()
        origin = flat.mean(0)
        along, aside = flat[1] - flat[0], flat[2] - flat[0]
        first = along / along.norm()
        aside = aside - first * first.dot(aside)
        aside = aside - first * first.dot(aside)  # twice is enough for rounding
        apart = bool(aside.norm() > 1e-7 * along.norm()) and bool(along.norm() > 0)
        require(
            apart, "Slice.through", "a, b and c", "three points not on one line",
            "points on one line",
        )  # fmt: skip
        reach = (flat - origin).norm(dim=1).max() * margin
        axes = torch.stack([first, aside / aside.norm()]) * reach
        return cls(origin.view(a.shape).to(points), axes.view(2, *a.shape).to(points))

    @classmethod
    def around(
        cls, x: Tensor, *, radius: float = 1.0, generator: torch.Generator | None = None
    ) -> Slice:
        """A random plane through an input.

        The axes are orthogonal, of length ``radius``, and uniformly distributed.

        Parameters
        ----------
        x : Tensor
            An input, without the batch, of at least two entries.
        generator : torch.Generator, optional
            On the CPU; by default a fresh one with seed 0, hence always one plane.

        Examples
        --------
        >>> plane = Slice.around(torch.zeros(5), radius=2.0)
        >>> plane.axes.norm(dim=1)
        tensor([2., 2.])
        """
        require(radius > 0, "Slice.around", "radius", "positive", radius)
        wide = x.numel() >= 2
        require(wide, "Slice.around", "x", "of at least two entries", x)
        if generator is None:
            generator = torch.Generator().manual_seed(0)
        draws = torch.randn(x.numel(), 2, dtype=torch.float64, generator=generator)
        axes = torch.linalg.qr(draws).Q.T * radius
        return cls(x.detach(), axes.reshape(2, *x.shape).to(x.detach()))

    def embed(self, points: Tensor) -> Tensor:
        """The inputs at points of the plane.

        Parameters
        ----------
        points : Tensor of shape (m, 2)

        Returns
        -------
        Tensor of shape (m, *origin.shape)
        """
        shaped = points.ndim == 2 and points.shape[1] == 2
        require(shaped, "Slice.embed", "points", "of shape (m, 2)", points)
        moves = points.to(self.axes) @ self.axes.flatten(1)
        return self.origin + moves.view(len(points), *self.origin.shape)

    def coordinates(self, x: Tensor) -> Tensor:
        """The coordinates of the point of the plane nearest to each input.

        The inverse of :meth:`embed` for inputs that lie in the plane.

        Parameters
        ----------
        x : Tensor of shape (m, *origin.shape)

        Returns
        -------
        Tensor of shape (m, 2)
        """
        matching = x.shape[1:] == self.origin.shape
        rule = f"of shape (m, *{tuple(self.origin.shape)})"
        require(matching, "Slice.coordinates", "x", rule, x)
        frame = self.axes.flatten(1)
        moves = (x.to(self.origin) - self.origin).flatten(1)
        return torch.linalg.solve(frame @ frame.T, frame @ moves.T).T

    def to(self, device: torch.device, dtype: torch.dtype) -> Slice:
        """The same plane on another device, in another dtype."""
        return Slice(
            self.origin.detach().to(device, dtype), self.axes.detach().to(device, dtype)
        )
