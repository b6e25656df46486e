r"""Outputs and Jacobians of a kernel expansion, in closed form, tile by tile.

.. math:: f(x) = \sum_j a_j \, \phi_M(x, x_j), \qquad a_j \in \mathbb{R}^k

For a radial kernel with slope :math:`w = -2 \kappa'(u)`

.. math:: J_x = \sum_j w_j \, a_j (x_j - x)^\top M / \ell^2

so one product of a tile of slopes with the table ``a_j (x_j, 1)^T`` gives the Jacobian
at many points; autograd through the kernel is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from normalign._errors import complaint
from normalign.kernels._arguments import require_expansion
from normalign.kernels._functions import Kernel, ProductLaplace, Radial
from normalign.kernels._metric import metric_root, through_metric
from normalign.kernels._sides import NEAR, Sides, middle
from normalign.kernels._tiles import spans, square_spans, tile_shape

__all__ = [
    "expansion",
    "expansion_jacobian",
    "gradients_of_slopes",
    "pulled_back",
    "raw_gradients",
]

_COLUMNS = 1 << 24  # entries of a table of outer products a_j (x_j, 1)^T held at once
_PAIRS = 1 << 22  # entries of the gradients of near pairs held at once


def expansion(
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Kernel,
    *,
    metric: Tensor | None = None,
) -> Tensor:
    r"""Return :math:`f(x) = \sum_j a_j \phi_M(x, x_j)` for every row.

    The kernel matrix is never held: one tile at a time is filled and multiplied.

    Parameters
    ----------
    x : Tensor of shape (n, d)
    centers : Tensor of shape (m, d)
    coef : Tensor of shape (m, k)

    Returns
    -------
    Tensor of shape (n, k)
    """
    require_expansion("expansion", x, centers, coef, kernel, metric)
    shift = middle(centers)
    points, others = (kernel.sides(part - shift, metric) for part in (x, centers))
    return expansion_of_sides(points, others, coef, kernel)


def expansion_of_sides(
    points: Sides, centers: Sides, coef: Tensor, kernel: Kernel
) -> Tensor:
    """The same from sides already made, for callers that ask again and again."""
    height, width = tile_shape(points.device)
    buffer = coef.new_empty(min(height, len(points)) * min(width, len(centers)))
    out = coef.new_zeros(len(points), coef.shape[1])
    for rows in spans(len(points), height):
        part = points[rows]
        for columns in spans(len(centers), width):
            other = centers[columns]
            tile = buffer[: len(part) * len(other)].view(len(part), len(other))
            kernel.values_(part, other, tile)
            out[rows].addmm_(tile, coef[columns])
    return out


def expansion_jacobian(
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Kernel,
    *,
    metric: Tensor | None = None,
) -> Tensor:
    r"""Return the Jacobian of the expansion at every row, in closed form.

    At a center the kernel of that center itself contributes nothing (where it has a
    kink that is a convention, and the one of Algorithm 1's released code).

    Parameters
    ----------
    x : Tensor of shape (n, d)
    centers : Tensor of shape (m, d)
    coef : Tensor of shape (m, k)

    Returns
    -------
    Tensor of shape (n, k, d)

    Examples
    --------
    >>> from normalign.kernels import Gaussian
    >>> x, center, one = torch.ones(1, 1), torch.zeros(1, 1), torch.ones(1, 1)
    >>> expansion_jacobian(x, center, one, Gaussian(bandwidth=1.0))
    tensor([[[-0.6065]]])
    """
    require_expansion("expansion_jacobian", x, centers, coef, kernel, metric)
    shift = middle(centers)
    x, centers = x - shift, centers - shift
    k, d = coef.shape[1], x.shape[1]
    jacobian = x.new_empty(len(x), k, d)
    sides = kernel.sides(x, metric), kernel.sides(centers, metric)
    for outputs in spans(k, outputs_at_once(len(centers), d)):
        for rows, part in raw_gradients(x, centers, coef[:, outputs], kernel, sides):
            jacobian[rows, outputs] = part
    return pulled_back(jacobian, kernel, metric)


def outputs_at_once(n_centers: int, d: int) -> int:
    """How many outputs share a pass, so that their table stays small."""
    return max(_COLUMNS // max(n_centers * (d + 1), 1), 1)


def pulled_back(gradients: Tensor, kernel: Kernel, metric: Tensor | None) -> Tensor:
    """Raw gradients times what every one of them shares: the metric, the bandwidth."""
    if isinstance(kernel, ProductLaplace):
        root = None if metric is None else metric_root(metric)
        return through_metric(gradients, root) / kernel.bandwidth
    return through_metric(gradients, metric) / kernel.bandwidth**2


def raw_gradients(
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Kernel,
    sides: tuple[Sides, Sides],
) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(rows, gradients)``: the Jacobians before :func:`pulled_back`.

    ``gradients`` has shape ``(rows, k, d)``. Both tables should be centred: the
    differences ``x_j - x`` come out of a cancellation. ``sides`` are the kernel's, of
    ``x`` and of ``centers``.
    """
    if isinstance(kernel, Radial):
        yield from _radial_gradients(x, centers, coef, kernel, *sides)
    elif isinstance(kernel, ProductLaplace):
        yield from _product_gradients(coef, kernel, *sides)
    else:
        raise TypeError(
            complaint("raw_gradients", "kernel", "Radial or ProductLaplace", kernel)
        )


def _radial_gradients(
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Radial,
    points: Sides,
    others: Sides,
) -> Iterator[tuple[slice, Tensor]]:
    (m, d), k = centers.shape, coef.shape[1]
    table = _outer_products(coef, centers)
    height, width = tile_shape(x.device)
    size = min(height, x.shape[0]) * min(width, m)
    buffer, scratch = x.new_empty(size), x.new_empty(size)
    sums = x.new_empty(min(height, x.shape[0]), k * (d + 1))
    for rows in spans(x.shape[0], height):
        part = points[rows]
        total = sums[: len(part)]
        for columns in spans(m, width):
            other = others[columns]
            shape = len(part), len(other)
            tile, spare = (
                b[: shape[0] * shape[1]].view(shape) for b in (buffer, scratch)
            )
            kernel.slopes_(part, other, tile, spare)
            torch.addmm(
                total, tile, table[columns], beta=float(columns.start > 0), out=total
            )
        yield rows, _differences(total.view(-1, k, d + 1), x[rows])


def _outer_products(coef: Tensor, centers: Tensor) -> Tensor:
    """The table ``a_j (x_j, 1)^T``, a row for each center."""
    (m, d), k = centers.shape, coef.shape[1]
    table = coef.new_empty(m, k, d + 1)
    torch.mul(coef[:, :, None], centers[:, None, :], out=table[..., :d])
    table[..., d] = coef
    return table.view(m, k * (d + 1))


def _differences(moments: Tensor, x: Tensor) -> Tensor:
    """``sum_j w_j a_j x_j^T - (sum_j w_j a_j) x^T`` from both sums in one table."""
    d = x.shape[1]
    return torch.addcmul(moments[..., :d], moments[..., d:], x[:, None, :], value=-1)


def gradients_of_slopes(
    centers: Tensor, coef: Tensor, slopes: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Yield raw gradients at the centers, from a square of slopes already made.

    The square is symmetric, and only its tiles up to the diagonal are read: each is
    used for its rows and, turned, for its columns. The sums are as large as the table
    of outer products, which is smaller than the square wherever this form is cheaper
    than the one by pairs.
    """
    table = _outer_products(coef, centers)
    sums = torch.empty_like(table)
    for rows in square_spans(len(slopes)):
        upto, before = slice(0, rows.stop), slice(0, rows.start)
        torch.mm(slopes[rows, upto], table[upto], out=sums[rows])
        if rows.start:
            sums[before].addmm_(slopes[rows, before].T, table[rows])
    moments = sums.view(len(centers), coef.shape[1], -1)
    for rows in square_spans(len(slopes)):
        yield rows, _differences(moments[rows], centers[rows])


def _product_gradients(
    coef: Tensor, kernel: ProductLaplace, points: Sides, centers: Sides
) -> Iterator[tuple[slice, Tensor]]:
    """One coordinate at a time: the sign of its difference times the kernel.

    Where the root of a full metric has mixed the coordinates, a difference that is no
    more than rounding has no sign: that of the sums (3 roundings at most, of random
    points with up to 100 columns), and, because the root mixes even columns that have
    nothing to do with each other, that of the other differences of the pair.
    """
    height, width = tile_shape(points.device)
    d, eps = points.left.shape[1], torch.finfo(coef.dtype).eps
    for rows in spans(len(points), height):
        part = points[rows]
        total = coef.new_zeros(d, len(part), coef.shape[1])
        for columns in spans(len(centers), width):
            other = centers[columns]
            tile = coef.new_empty(len(part), len(other))
            kernel.distances_(part, other, tile)
            sizes = None
            if part.mixed is not None and other.mixed is not None:
                sizes = part.left.abs().amax(1)[:, None] + other.right.abs().amax(1)
                pairs = (tile <= NEAR[tile.dtype] * sizes).nonzero(as_tuple=True)
                values = tile[pairs].neg_().exp_()
                placing = part.mixed[0], other.mixed[0], part.mixed[1]
                _add_near_(total, pairs, values, coef[columns], kernel, *placing)
                sizes.mul_((3 + d**0.5 / 4) * eps).add_(tile, alpha=8 * eps)
                tile[pairs] = math.inf  # they have been counted
            tile.neg_().exp_()
            for axis in range(d):
                towards = other.right[None, :, axis] - part.left[:, axis, None]
                if sizes is not None:
                    towards.mul_(towards.abs() > sizes)
                total[axis].addmm_(towards.sign_().mul_(tile), coef[columns])
        yield rows, total.permute(1, 2, 0)


def _add_near_(
    total: Tensor,
    pairs: tuple[Tensor, ...],
    values: Tensor,
    coef: Tensor,
    kernel: ProductLaplace,
    x: Tensor,
    centers: Tensor,
    root: Tensor,
) -> None:
    """Add near pairs to sums of shape (d, n, k): differences first, then the root.

    Of the difference of two placed points too few digits would be left.
    """
    noise = torch.finfo(coef.dtype).eps * 8
    size = max(_PAIRS // max(root.shape[0] * coef.shape[1], 1), 1)
    for some in spans(len(values), size):
        i, j = (part[some] for part in pairs)
        apart = centers[j] - x[i]
        differ = apart.any(1)  # no duplicates, which may be many
        i, j = i[differ], j[differ]
        towards = kernel.placed(apart[differ], root)
        towards.mul_(towards.abs() > noise * towards.abs().sum(1, keepdim=True))
        weighted = values[some][differ, None] * coef[j]
        total.index_add_(1, i, towards.sign_().T[:, :, None] * weighted)
