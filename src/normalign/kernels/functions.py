r"""Kernels that see through a metric, evaluated tile by tile.

A kernel of this folder is a frozen dataclass. Its two *sides* are tables that a
caller prepares once; any tile of the kernel matrix, or of its slopes, is then one
small product and a few passes over a buffer that stays in cache. Nothing here ever
allocates more than the caller hands in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from numbers import Real
from typing import Self

import numpy as np
import torch
from torch import Tensor

from normalign._checks import require, require_kind
from normalign.kernels.cuda import Kernels, kernels_for
from normalign.kernels.metric import metric_root, through_metric

__all__ = [
    "KERNELS",
    "Gaussian",
    "Kernel",
    "Laplace",
    "ProductLaplace",
    "Radial",
    "kernel_matrix",
    "median_distance",
    "middle",
]


@dataclass(frozen=True)
class Kernel(ABC):
    """A similarity of two points under a metric, in ``(0, 1]``, one at distance 0.

    Parameters
    ----------
    bandwidth : float, default=10.0
        The distance, in the metric, at which similarity has dropped to about a third.
    """

    bandwidth: float = 10.0

    def __post_init__(self) -> None:
        callee = type(self).__name__
        _require_number(callee, "bandwidth", self.bandwidth)
        require(
            # its square must be a number, too
            1e-150 < self.bandwidth < 1e150,
            callee,
            "bandwidth",
            "positive and finite (1e-150 to 1e150)",
            self.bandwidth,
        )

    def rescaled(self, factor: float) -> Self:
        """The same kernel with its bandwidth multiplied."""
        return replace(self, bandwidth=self.bandwidth * factor)

    @abstractmethod
    def sides(self, x: Tensor, metric: Tensor | None) -> tuple[Tensor, Tensor]:
        """What points need to give a tile its rows, and to give it its columns."""

    @abstractmethod
    def values_(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """Fill ``out`` with kernel values of ``left`` rows against ``right`` rows."""

    @abstractmethod
    def distances_(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """Fill ``out`` with distances in units of the bandwidth."""


@dataclass(frozen=True)
class Radial(Kernel):
    r"""A kernel :math:`\kappa(u)` of the squared distance in the metric.

    .. math:: u = (x - z)^\top M (x - z) / \ell^2 = s_x + s_z - 2 x^\top M z / \ell^2

    The three terms are one product of tables with two more columns. Cancellation
    leaves noise of the size of a few rounding errors of :math:`s`; that much is taken
    off both squares beforehand, so that a point and its duplicates come out at
    exactly zero after clamping, and no pair moves by more than its own noise.
    """

    def sides(self, x: Tensor, metric: Tensor | None) -> tuple[Tensor, Tensor]:
        """``(-2 x^T M, squares, 1)`` and ``(x, 1, squares)``."""
        n, d = x.shape
        image = through_metric(x, metric) * (1 / self.bandwidth**2)
        squares = _squares(x, image)
        left, right = x.new_ones(n, d + 2), x.new_ones(n, d + 2)
        torch.mul(image, -2, out=left[:, :d])
        left[:, d : d + 1], right[:, :d], right[:, d + 1 :] = squares, x, squares
        return left, right

    def values_(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """The profile of squared distances."""
        return self._profile_(torch.mm(left, right.T, out=out).clamp_(min=0))

    def distances_(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """Roots of squared distances."""
        return torch.mm(left, right.T, out=out).clamp_(min=0).sqrt_()

    def slopes_(
        self, left: Tensor, right: Tensor, out: Tensor, scratch: Tensor
    ) -> Tensor:
        r"""Fill ``out`` with :math:`w = -2 \kappa'(u)`, zero where :math:`u = 0`.

        The gradient of the kernel in its first argument is
        :math:`w \, M (z - x) / \ell^2`. At :math:`u = 0` it is zero or, where the
        kernel has a kink, taken to be zero: a point's own term never counts.
        """
        # At infinity every slope is exactly zero, so that is where u = 0 goes.
        squared = torch.mm(left, right.T, out=out)
        torch.threshold_(squared, 0.0, math.inf)
        return self._slope_(squared, scratch)

    def values_and_slopes_(
        self, left: Tensor, right: Tensor, values: Tensor, slopes: Tensor
    ) -> None:
        """Fill both buffers; a kernel that can make them of one distance overrides."""
        self.slopes_(left, right, slopes, values)
        self.values_(left, right, values)

    @abstractmethod
    def _profile_(self, squared: Tensor) -> Tensor: ...

    @abstractmethod
    def _slope_(self, squared: Tensor, scratch: Tensor) -> Tensor: ...


def _squares(x: Tensor, image: Tensor) -> Tensor:
    """Squared norms less the noise that a product of these rows may carry."""
    terms = x * image
    noise = torch.finfo(x.dtype).eps * (4 + math.sqrt(x.shape[1]))
    return terms.sum(1, keepdim=True).sub_(
        terms.abs_().sum(1, keepdim=True), alpha=noise
    )


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
    >>> x = torch.tensor([[0.0], [3.0]])
    >>> kernel_matrix(x, x, Laplace(bandwidth=3.0))[0]
    tensor([1.0000, 0.3679])
    """

    exponent: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_number("Laplace", "exponent", self.exponent)
        # Beyond 2 the function is not positive definite.
        require(
            0 < self.exponent <= 2, "Laplace", "exponent", "in (0, 2]", self.exponent
        )

    def values_and_slopes_(
        self, left: Tensor, right: Tensor, values: Tensor, slopes: Tensor
    ) -> None:
        """Both from one distance: the slope is the value divided by it."""
        if self.exponent != 1:
            super().values_and_slopes_(left, right, values, slopes)
            return
        root = self.distances_(left, right, slopes)
        torch.neg(root, out=values).exp_()
        torch.threshold_(root, 0.0, math.inf)
        torch.div(values, root, out=slopes)

    def values_(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """The profile of squared distances; in one pass where there is a kernel."""
        kernels = self._kernels(out)
        if kernels is None:
            return super().values_(left, right, out)
        return kernels.laplace_values_(torch.mm(left, right.T, out=out))

    def slopes_(
        self, left: Tensor, right: Tensor, out: Tensor, scratch: Tensor
    ) -> Tensor:
        """Slopes, zero where the distance is; in one pass where there is a kernel."""
        kernels = self._kernels(out)
        if kernels is None:
            return super().slopes_(left, right, out, scratch)
        return kernels.laplace_slopes_(torch.mm(left, right.T, out=out))

    def _kernels(self, out: Tensor) -> Kernels | None:
        return kernels_for(out) if self.exponent == 1 and out.is_contiguous() else None

    def _profile_(self, squared: Tensor) -> Tensor:
        if self.exponent == 1:
            return squared.sqrt_().neg_().exp_()
        return squared.pow_(self.exponent / 2).neg_().exp_()

    def _slope_(self, squared: Tensor, scratch: Tensor) -> Tensor:
        if self.exponent == 1:
            root = squared.sqrt_()
            torch.neg(root, out=scratch).exp_()
            return torch.div(scratch, root, out=squared)
        torch.pow(squared, self.exponent / 2, out=scratch).neg_().exp_()
        squared.pow_(self.exponent / 2 - 1).mul_(self.exponent)
        # exponent 2 leaves inf^0 * exp(-inf) = 0 there, like every other one
        return squared.mul_(scratch)


@dataclass(frozen=True)
class Gaussian(Radial):
    r"""The Gaussian kernel, :math:`\exp(-\|x - z\|_M^2 / (2 \ell^2))`.

    Examples
    --------
    >>> x = torch.tensor([[0.0], [2.0]])
    >>> kernel_matrix(x, x, Gaussian(bandwidth=2.0))[0]
    tensor([1.0000, 0.6065])
    """

    def _profile_(self, squared: Tensor) -> Tensor:
        return squared.mul_(-0.5).exp_()

    def _slope_(self, squared: Tensor, scratch: Tensor) -> Tensor:
        return squared.mul_(-0.5).exp_()


@dataclass(frozen=True)
class ProductLaplace(Kernel):
    r"""The product of one-dimensional Laplace kernels: L1 distance after the metric.

    .. math:: \exp\bigl(-\|M^{1/2} (x - z)\|_1 / \ell\bigr)

    With the symmetric root of the metric. Unlike the radial kernels it knows the
    axes, which suits tables whose columns mean something each.

    Examples
    --------
    >>> x = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    >>> kernel_matrix(x, x, ProductLaplace(bandwidth=2.0))[0]
    tensor([1.0000, 0.3679])
    """

    def sides(self, x: Tensor, metric: Tensor | None) -> tuple[Tensor, Tensor]:
        """Placed points, twice."""
        placed = self.placed(x, metric)
        return placed, placed

    def placed(self, x: Tensor, metric: Tensor | None) -> Tensor:
        """Where points stand once the metric's root and the bandwidth are applied."""
        if metric is None or metric.ndim == 1:
            root = None if metric is None else metric_root(metric)
            return through_metric(x, root) / self.bandwidth
        # Column by column, not as one product, in which a row's last bits depend on
        # where it stands: a point and its duplicates must come to the same place. The
        # root of the metric costs more.
        placed = torch.zeros_like(x)
        for column, row in zip(x.T, metric_root(metric), strict=True):
            placed.addcmul_(column[:, None], row)
        return placed / self.bandwidth

    def values_(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """Exponentials of L1 distances."""
        return self.distances_(left, right, out).neg_().exp_()

    def distances_(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """L1 distances of placed points."""
        return out.copy_(torch.cdist(left, right, p=1))


KERNELS: dict[str, type[Kernel]] = {
    "laplace": Laplace,
    "gaussian": Gaussian,
    "product_laplace": ProductLaplace,
}


def kernel_matrix(
    x: Tensor, z: Tensor, kernel: Kernel, *, metric: Tensor | None = None
) -> Tensor:
    r"""Return the kernel values of every row of one table against every row of another.

    .. math:: K_{ij} = \phi_M(x_i, z_j)

    This is the line ``K <- ...`` of Algorithm 1, whole. The machines of this folder
    never build it; they work tile by tile.

    Parameters
    ----------
    x : Tensor of shape (n, d)
    z : Tensor of shape (m, d)
    metric : Tensor of shape (d, d) or (d,), optional
        Full, or the diagonal of a diagonal one. The identity by default.

    Returns
    -------
    Tensor of shape (n, m)

    Examples
    --------
    >>> x = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    >>> kernel_matrix(x, x, Laplace(bandwidth=1.0), metric=torch.tensor([1.0, 0.0]))
    tensor([[1., 1.],
            [1., 1.]])
    """
    require_points("kernel_matrix", x, z, kernel, metric)
    shift = middle(z)
    left, _ = kernel.sides(x - shift, metric)
    _, right = kernel.sides(z - shift, metric)
    return kernel.values_(left, right, x.new_empty(len(x), len(z)))


def seeded(seed: int = 0) -> torch.Generator:
    """A generator of one's own: no draw here touches the global one."""
    return torch.Generator().manual_seed(seed)


def middle(points: Tensor) -> Tensor:
    """A point in the middle of the others, from which differences are taken.

    Kernels do not see where the origin is, but rounding does: squares of large
    coordinates leave no digits for small distances. Medians (of at most a thousand
    rows) are not moved by an outlier, as means are.
    """
    if not len(points):
        return points.new_zeros(points.shape[1])
    some = points[:: max(points.shape[0] // 1000, 1)]
    if some.device.type != "cpu":
        return some.median(0).values
    # the same number, sooner where there are few rows
    half = (some.shape[0] - 1) // 2
    return torch.from_numpy(np.partition(some.detach().numpy(), half, axis=0)[half])


def _require_number(callee: str, argument: str, value: object) -> None:
    kind = isinstance(value, Real) and not isinstance(value, bool)
    require_kind(kind, callee, argument, "a number", value)


def require_table(callee: str, argument: str, x: Tensor, d: int | None = None) -> None:
    """Complain unless an argument is a floating-point table of ``d`` columns."""
    require_kind(
        isinstance(x, Tensor) and x.dtype in (torch.float32, torch.float64),
        callee,
        argument,
        "a float32 or float64 tensor",
        x,
    )
    width = "d" if d is None else str(d)
    fits = x.ndim == 2 and (d is None or x.shape[1] == d)
    require(fits, callee, argument, f"of shape (n, {width})", x)
    require(
        not (x.requires_grad and torch.is_grad_enabled()),
        callee,
        argument,
        "without requires_grad, since tiles are overwritten",
        x,
        "Use .detach(), jacobian() in closed form, or estimators.as_torch.",
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
    """Complain unless two tables, a kernel and a metric fit together."""
    require_table(callee, "x", x)
    width = x.shape[1]
    require_table(callee, other, z, width)
    require_kind(
        isinstance(kernel, Kernel), callee, "kernel", "a Kernel, as Laplace()", kernel
    )
    tables = {other: z} if metric is None else {other: z, "metric": metric}
    for argument, value in tables.items():
        require_kind(isinstance(value, Tensor), callee, argument, "a tensor", value)
        require(
            (value.dtype, value.device) == (x.dtype, x.device),
            callee,
            argument,
            f"{str(x.dtype)[6:]} on {x.device}, like x",
            f"{str(value.dtype)[6:]} on {value.device}",
        )
    require(
        metric is None or metric.shape in {(width,), (width, width)},
        callee,
        "metric",
        f"of shape ({width}, {width}), or ({width},) for a diagonal one",
        metric,
    )


def require_expansion(
    callee: str,
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Kernel,
    metric: Tensor | None,
) -> None:
    """Complain unless points and the parts of an expansion fit together."""
    require_points(callee, x, centers, kernel, metric, other="centers")
    require_table(callee, "coef", coef)
    require(
        len(coef) == len(centers) and coef.dtype == x.dtype,
        callee,
        "coef",
        f"of shape ({len(centers)}, k) in {str(x.dtype)[6:]}, one row per center",
        coef,
    )


def median_distance(
    x: Tensor,
    kernel: Kernel,
    *,
    metric: Tensor | None = None,
    weights: Tensor | None = None,
    sample: int = 1000,
    generator: torch.Generator | None = None,
) -> float:
    """Return the median distance of two distinct points, as the kernel measures it.

    A scale for the bandwidth that follows the data. Pairs at distance zero do not
    count; weights act as repetitions. Above ``sample`` rows a random sample of that
    size is taken, the same every time unless a generator is given. If all points
    coincide the answer is 1.

    Examples
    --------
    >>> round(median_distance(torch.tensor([[0.0], [1.0], [4.0]]), Laplace()), 3)
    3.0
    """
    require_points("median_distance", x, x, kernel, metric)
    if len(x) > sample:
        generator = generator or seeded()
        rows = torch.randperm(len(x), generator=generator)[:sample].to(x.device)
        x = x[rows]
        weights = None if weights is None else weights[rows]
    x = x - middle(x)
    distances = kernel.distances_(*kernel.sides(x, metric), x.new_empty(len(x), len(x)))
    mass = distances.new_ones(len(x)) if weights is None else weights / weights.max()
    pairs = mass.double().outer(mass.double())
    apart = torch.triu(distances, 1) > 0
    if not bool(apart.any()):
        return 1.0
    values, order = distances[apart].sort()
    mass = pairs[apart][order].cumsum(0)
    half = torch.searchsorted(mass, mass[-1:] / 2).clamp(max=len(values) - 1)
    return float(values[half]) * kernel.bandwidth
