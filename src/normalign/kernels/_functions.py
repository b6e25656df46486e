r"""Kernels under a metric, evaluated tile by tile, and checks of their arguments.

A kernel is a frozen dataclass. A caller prepares the two *sides* of its points once;
any tile of the kernel matrix, or of its slopes, is then one small matrix product and a
few element-wise passes over a buffer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from numbers import Real
from typing import Self

import torch
from torch import Tensor

from normalign._errors import describe
from normalign.kernels._metric import metric_root, through_metric
from normalign.kernels._sides import NEAR, Sides, recompute_near_
from normalign.kernels.cuda import Kernels, kernels_for

__all__ = [
    "KERNELS",
    "Gaussian",
    "Kernel",
    "Laplace",
    "ProductLaplace",
    "Radial",
    "require_expansion",
    "require_points",
    "require_table",
]


@dataclass(frozen=True)
class Kernel(ABC):
    """A similarity of two points under a metric, in ``(0, 1]``, one at distance 0.

    Parameters
    ----------
    bandwidth : float, default=10.0
        The unit in which distances in the metric are measured.
    """

    bandwidth: float = 10.0

    def __post_init__(self) -> None:
        callee = type(self).__name__
        _require_number(callee, "bandwidth", self.bandwidth)
        # its square must be a number, too
        if not 1e-150 < self.bandwidth < 1e150:
            raise ValueError(
                f"{callee}: bandwidth must be positive and finite (1e-150 to 1e150), "
                f"got {describe(self.bandwidth)}."
            )

    def rescaled(self, factor: float) -> Self:
        """The same kernel with its bandwidth multiplied."""
        return replace(self, bandwidth=self.bandwidth * factor)

    @abstractmethod
    def sides(self, x: Tensor, metric: Tensor | None) -> Sides:
        """Return the operands of points: one for rows of a tile, one for columns."""

    @abstractmethod
    def values_(self, rows: Sides, columns: Sides, out: Tensor) -> Tensor:
        """Fill ``out`` with kernel values of some points against others."""

    @abstractmethod
    def distances_(self, rows: Sides, columns: Sides, out: Tensor) -> Tensor:
        """Fill ``out`` with distances in units of the bandwidth."""


@dataclass(frozen=True)
class Radial(Kernel):
    r"""A kernel :math:`\kappa(u)` of the squared distance in the metric.

    .. math:: u = (x - z)^\top M (x - z) / \ell^2 = s_x + s_z - 2 x^\top M z / \ell^2

    The three terms are one product of operands with two extra columns. For points so
    near that it has no correct digits, distances are computed again, see
    :mod:`~normalign.kernels.sides`: the distance of exact duplicates is exactly zero.
    """

    def sides(self, x: Tensor, metric: Tensor | None) -> Sides:
        """``(-2 x^T M, squares, 1)`` and ``(x, 1, squares)``."""
        n, d = x.shape
        image = through_metric(x, metric) * (1 / self.bandwidth**2)
        squares = (x * image).sum(1, keepdim=True)
        left, right = x.new_ones(n, d + 2), x.new_ones(n, d + 2)
        torch.mul(image, -2, out=left[:, :d])
        left[:, d : d + 1], right[:, :d], right[:, d + 1 :] = squares, x, squares
        scaled = None if metric is None else metric / self.bandwidth**2
        return Sides(left, right, None if scaled is None else (x, scaled))

    def values_(self, rows: Sides, columns: Sides, out: Tensor) -> Tensor:
        """The profile of squared distances."""
        return self._profile_(self._squared_(rows, columns, out).clamp_(min=0))

    def distances_(self, rows: Sides, columns: Sides, out: Tensor) -> Tensor:
        """Roots of squared distances."""
        return self._squared_(rows, columns, out).clamp_(min=0).sqrt_()

    def slopes_(
        self, rows: Sides, columns: Sides, out: Tensor, scratch: Tensor
    ) -> Tensor:
        r"""Fill ``out`` with :math:`w = -2 \kappa'(u)`, zero where :math:`u = 0`.

        The gradient of the kernel in its first argument is
        :math:`w \, M (z - x) / \ell^2`. At :math:`u = 0` it is zero or, where the
        kernel has a kink, taken to be zero: a point's own term never counts.
        """
        # Every slope is exactly zero at infinity, which therefore replaces u = 0.
        squared = self._squared_(rows, columns, out)
        torch.threshold_(squared, 0.0, math.inf)
        return self.slope_(squared, scratch)

    def values_and_slopes_(
        self, rows: Sides, columns: Sides, values: Tensor, slopes: Tensor
    ) -> None:
        """Fill both buffers; overridden where one distance is enough for both."""
        self.slopes_(rows, columns, slopes, values)
        self.values_(rows, columns, values)

    def _squared_(self, rows: Sides, columns: Sides, out: Tensor) -> Tensor:
        """Squared distances; not above zero at a point's duplicates."""
        squared = torch.mm(rows.left, columns.right.T, out=out)
        return recompute_near_(squared, rows, columns)

    @abstractmethod
    def _profile_(self, squared: Tensor) -> Tensor: ...

    @abstractmethod
    def slope_(self, squared: Tensor, scratch: Tensor) -> Tensor:
        r"""Overwrite squared distances by :math:`w`, which decreases with them."""


@dataclass(frozen=True)
class Laplace(Radial):
    r"""The (generalised) Laplace kernel of the paper's section on RFMs.

    .. math:: \phi_M(x, z) = \exp\bigl(-(\|x - z\|_M / \ell)^q\bigr),
              \qquad \|x - z\|_M^2 = (x - z)^\top M (x - z)

    The paper prints the plain norm on the right; the metric's is meant. With
    exponent 1 it is the Laplace kernel of Algorithm 1.

    Parameters
    ----------
    exponent : float in (0, 2], default=1.0
        Below 1 sharper at the point, towards 2 smoother; 2 is a Gaussian.

    Examples
    --------
    >>> from normalign.kernels import kernel_matrix
    >>> x = torch.tensor([[0.0], [3.0]])
    >>> kernel_matrix(x, x, Laplace(bandwidth=3.0))[0]
    tensor([1.0000, 0.3679])
    """

    exponent: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_number("Laplace", "exponent", self.exponent)
        # Beyond 2 the function is not positive definite.
        if not 0 < self.exponent <= 2:
            raise ValueError(
                f"Laplace: exponent must be in (0, 2], got {describe(self.exponent)}."
            )

    def values_and_slopes_(
        self, rows: Sides, columns: Sides, values: Tensor, slopes: Tensor
    ) -> None:
        """Both from one distance: the slope is the value divided by it."""
        if self.exponent != 1:
            super().values_and_slopes_(rows, columns, values, slopes)
            return
        root = self.distances_(rows, columns, slopes)
        torch.neg(root, out=values).exp_()
        torch.threshold_(root, 0.0, math.inf)
        torch.div(values, root, out=slopes)

    def values_(self, rows: Sides, columns: Sides, out: Tensor) -> Tensor:
        """The profile of squared distances, in one pass if a GPU kernel exists."""
        kernels = self._kernels(out)
        if kernels is None:
            return super().values_(rows, columns, out)
        squared = torch.mm(rows.left, columns.right.T, out=out)
        share = NEAR[out.dtype]
        return kernels.laplace_values_(squared, rows.both, columns.both, share)

    def slopes_(
        self, rows: Sides, columns: Sides, out: Tensor, scratch: Tensor
    ) -> Tensor:
        """Slopes, zero where the distance is; in one pass if a GPU kernel exists."""
        kernels = self._kernels(out)
        if kernels is None:
            return super().slopes_(rows, columns, out, scratch)
        squared = torch.mm(rows.left, columns.right.T, out=out)
        share = NEAR[out.dtype]
        return kernels.laplace_slopes_(squared, rows.both, columns.both, share)

    def _kernels(self, out: Tensor) -> Kernels | None:
        return kernels_for(out) if self.exponent == 1 and out.is_contiguous() else None

    def _profile_(self, squared: Tensor) -> Tensor:
        if self.exponent == 1:
            return squared.sqrt_().neg_().exp_()
        return squared.pow_(self.exponent / 2).neg_().exp_()

    def slope_(self, squared: Tensor, scratch: Tensor) -> Tensor:
        r""":math:`q u^{q/2 - 1} e^{-u^{q/2}}`."""
        if self.exponent == 1:
            root = squared.sqrt_()
            torch.neg(root, out=scratch).exp_()
            return torch.div(scratch, root, out=squared)
        torch.pow(squared, self.exponent / 2, out=scratch).neg_().exp_()
        squared.pow_(self.exponent / 2 - 1).mul_(self.exponent)
        # at infinity exponent 2 gives inf^0 * exp(-inf) = 0, like every other exponent
        return squared.mul_(scratch)


@dataclass(frozen=True)
class Gaussian(Radial):
    r"""The Gaussian kernel, :math:`\exp(-\|x - z\|_M^2 / (2 \ell^2))`.

    Examples
    --------
    >>> from normalign.kernels import kernel_matrix
    >>> x = torch.tensor([[0.0], [2.0]])
    >>> kernel_matrix(x, x, Gaussian(bandwidth=2.0))[0]
    tensor([1.0000, 0.6065])
    """

    def _profile_(self, squared: Tensor) -> Tensor:
        return squared.mul_(-0.5).exp_()

    def slope_(self, squared: Tensor, scratch: Tensor) -> Tensor:
        """The same as the value."""
        return squared.mul_(-0.5).exp_()


@dataclass(frozen=True)
class ProductLaplace(Kernel):
    r"""The product of one-dimensional Laplace kernels: L1 distance after the metric.

    .. math:: \exp\bigl(-\|M^{1/2} (x - z)\|_1 / \ell\bigr)

    With the symmetric root of the metric. Unlike the radial kernels it knows the
    axes, which suits tables in which each column has a meaning of its own.

    Examples
    --------
    >>> from normalign.kernels import kernel_matrix
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    >>> kernel_matrix(x, x, ProductLaplace(bandwidth=2.0))[0]
    tensor([1.0000, 0.3679])
    """

    def sides(self, x: Tensor, metric: Tensor | None) -> Sides:
        """Placed points, twice."""
        root = None if metric is None else metric_root(metric)
        placed = self.placed(x, root)
        if root is None or root.ndim == 1:
            return Sides(placed, placed)
        return Sides(placed, placed, (x, root))

    def placed(self, x: Tensor, root: Tensor | None) -> Tensor:
        """Where points stand once the metric's root and the bandwidth are applied."""
        if root is None or root.ndim == 1:
            return through_metric(x, root) / self.bandwidth
        # Column by column, not as one product, in which a row's last bits depend on
        # where it stands: a point and its duplicates must come to the same place. The
        # root of the metric costs more.
        placed = torch.zeros_like(x)
        for column, row in zip(x.T, root, strict=True):
            placed.addcmul_(column[:, None], row)
        return placed / self.bandwidth

    def values_(self, rows: Sides, columns: Sides, out: Tensor) -> Tensor:
        """Exponentials of L1 distances."""
        return self.distances_(rows, columns, out).neg_().exp_()

    def distances_(self, rows: Sides, columns: Sides, out: Tensor) -> Tensor:
        """L1 distances of placed points."""
        return out.copy_(torch.cdist(rows.left, columns.right, p=1))


KERNELS: dict[str, type[Kernel]] = {
    "laplace": Laplace,
    "gaussian": Gaussian,
    "product_laplace": ProductLaplace,
}


def require_table(callee: str, argument: str, x: Tensor, d: int | None = None) -> None:
    """Raise unless an argument is a floating-point table of ``d`` columns."""
    if not (isinstance(x, Tensor) and x.dtype in (torch.float32, torch.float64)):
        raise TypeError(
            f"{callee}: {argument} must be a float32 or float64 tensor, "
            f"got {describe(x)}."
        )
    if x.ndim != 2 or (d is not None and x.shape[1] != d):
        raise ValueError(
            f"{callee}: {argument} must be of shape (n, {'d' if d is None else d}), "
            f"got {describe(x)}."
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{callee}: {argument} must be without requires_grad, since tiles are "
            f"overwritten, got {describe(x)}. Use .detach(), jacobian() in closed "
            "form, or estimators.as_torch."
        )


def require_points(
    callee: str,
    x: Tensor,
    z: Tensor,
    kernel: Kernel,
    metric: Tensor | None,
    *,
    other: str = "z",
) -> None:
    """Raise unless two tables, a kernel and a metric fit together."""
    require_table(callee, "x", x)
    width = x.shape[1]
    require_table(callee, other, z, width)
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"{callee}: kernel must be a Kernel, as Laplace(), got {describe(kernel)}."
        )
    tables = {other: z} if metric is None else {other: z, "metric": metric}
    for argument, value in tables.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{callee}: {argument} must be a tensor, got {describe(value)}."
            )
        if (value.dtype, value.device) != (x.dtype, x.device):
            raise ValueError(
                f"{callee}: {argument} must be {str(x.dtype)[6:]} on {x.device}, like "
                f"x, got {str(value.dtype)[6:]} on {value.device}."
            )
    if metric is not None and metric.shape not in {(width,), (width, width)}:
        raise ValueError(
            f"{callee}: metric must be of shape ({width}, {width}), or ({width},) for "
            f"a diagonal one, got {describe(metric)}."
        )


def require_expansion(
    callee: str,
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Kernel,
    metric: Tensor | None,
) -> None:
    """Raise unless points and the parts of an expansion fit together."""
    require_points(callee, x, centers, kernel, metric, other="centers")
    require_table(callee, "coef", coef)
    if len(coef) != len(centers) or coef.dtype != x.dtype:
        raise ValueError(
            f"{callee}: coef must be of shape ({len(centers)}, k) in "
            f"{str(x.dtype)[6:]}, one row per center, got {describe(coef)}."
        )


def _require_number(callee: str, argument: str, value: object) -> None:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(
            f"{callee}: {argument} must be a number, got {describe(value)}."
        )
