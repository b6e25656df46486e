r"""Kernel expansions: outputs, Jacobians and vector-Jacobian products in closed form.

.. math:: f(x) = \sum_j a_j \, \phi_M(x, x_j), \qquad a_j \in \mathbb{R}^k

For a radial kernel with slope :math:`w = -2 \kappa'(u)`

.. math:: J_x = \sum_j w_j \, a_j (x_j - x)^\top M / \ell^2

so one product of a tile of slopes with the table ``a_j (x_j, 1)^T`` gives the Jacobians
of many points, without autograd. A single cotangent :math:`v` needs no Jacobian:

.. math:: J_x^\top v = \sum_j w_j \, (a_j \cdot v) \, M (x_j - x) / \ell^2

costs :math:`4 (d + k)` operations for a pair of points instead of :math:`2 k d`, which
is what an attack needs at every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from normalign._errors import describe
from normalign.kernels._functions import (
    Kernel,
    ProductLaplace,
    Radial,
    require_expansion,
    require_table,
)
from normalign.kernels._metric import metric_root, through_metric
from normalign.kernels._precision import full_precision
from normalign.kernels._sides import (
    CLOSE,
    NEAR,
    Sides,
    middle,
    spans,
    square_spans,
    tile_shape,
)

__all__ = [
    "Columns",
    "Cotangent",
    "Machine",
    "apply_factor",
    "expansion",
    "expansion_jacobian",
    "gradients_of_slopes",
    "jacobian_pull_back",
    "pull_back",
    "raw_gradients",
]

_COLUMNS = 1 << 24  # entries of a table of outer products a_j (x_j, 1)^T at a time
_PAIRS = 1 << 22  # entries of the gradients of near pairs at a time


def expansion(
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Kernel,
    *,
    metric: Tensor | None = None,
) -> Tensor:
    r"""Return :math:`f(x) = \sum_j a_j \phi_M(x, x_j)` for every row.

    The kernel matrix is never stored: one tile at a time is filled and multiplied.

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
    return apply_factor(jacobian, kernel, metric)


def outputs_at_once(n_centers: int, d: int) -> int:
    """How many outputs share a pass, so that their table stays small."""
    return max(_COLUMNS // max(n_centers * (d + 1), 1), 1)


def apply_factor(gradients: Tensor, kernel: Kernel, metric: Tensor | None) -> Tensor:
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
    *,
    mapped: bool = False,
) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(rows, gradients)``: the Jacobians before :func:`apply_factor`.

    ``gradients`` has shape ``(rows, k, d)``. Both tables should be centred: the
    differences ``x_j - x`` come out of a cancellation. ``sides`` are the kernel's, of
    ``x`` and of ``centers``; ``mapped`` says that both were multiplied by
    :func:`apply_factor` afterwards.
    """
    if isinstance(kernel, Radial):
        yield from _radial_gradients(x, centers, coef, kernel, *sides, mapped=mapped)
    elif isinstance(kernel, ProductLaplace):
        yield from _product_gradients(coef, kernel, *sides)
    else:
        raise TypeError(
            "raw_gradients: kernel must be Radial or ProductLaplace, "
            f"got {describe(kernel)}."
        )


def _radial_gradients(
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Radial,
    points: Sides,
    others: Sides,
    *,
    mapped: bool,
) -> Iterator[tuple[slice, Tensor]]:
    (m, d), k = centers.shape, coef.shape[1]
    table = _outer_products(coef, centers)
    height, width = tile_shape(x.device)
    size = min(height, x.shape[0]) * min(width, m)
    buffer, scratch = x.new_empty(size), x.new_empty(size)
    sums = x.new_empty(min(height, x.shape[0]), k * (d + 1))
    for rows in spans(x.shape[0], height):
        part, close = points[rows], []
        total = sums[: len(part)]
        for columns in spans(m, width):
            other = others[columns]
            shape = len(part), len(other)
            tile, spare = (
                b[: shape[0] * shape[1]].view(shape) for b in (buffer, scratch)
            )
            kernel.slopes_(part, other, tile, spare)
            close.append((_take_close_(tile, part, kernel), columns))
            torch.addmm(
                total, tile, table[columns], beta=float(columns.start > 0), out=total
            )
        gradients = _differences(total.view(-1, k, d + 1), x[rows])
        for pairs, columns in close:
            for i, j, step in _close_steps(
                pairs, part, others[columns], kernel, mapped, k
            ):
                gradients.index_add_(0, i, coef[columns][j][:, :, None] * step[:, None])
        yield rows, gradients


_Pairs = tuple[Tensor, Tensor]  # indices of rows and of columns


def _take_close_(slopes: Tensor, rows: Sides, kernel: Radial) -> _Pairs | None:
    """Set the slopes of close points to zero, and return which these are.

    A slope decreases with the distance. Kernels without a kink have no larger slope
    than that at the limit, so they have no close points.
    """
    if not slopes.numel():
        return None
    limits = rows.left[:, -2] * (2 * CLOSE[slopes.dtype])
    steepest = kernel.slope_(limits, torch.empty_like(limits))
    # On a GPU this test would wait for the device once more.
    if slopes.device.type == "cpu" and bool(slopes.amax() <= steepest.amin()):
        return None
    i, j = (slopes > steepest[:, None]).nonzero(as_tuple=True)
    if not len(i):
        return None
    slopes[i, j] = 0.0
    return i, j


def _close_steps(
    pairs: _Pairs | None,
    rows: Sides,
    columns: Sides,
    kernel: Radial,
    mapped: bool,
    k: int,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    r"""Yield indices of close pairs and :math:`w_{ij} (x_j - x_i)`, some at a time.

    From differences of coordinates, which are then multiplied by the metric.
    """
    if pairs is None:
        return
    d = rows.right.shape[1] - 2
    for some in spans(len(pairs[0]), max(_PAIRS // max(d * k, 1), 1)):
        i, j = (part[some] for part in pairs)
        apart = columns.right[j, :d] - rows.right[i, :d]
        image = apart / kernel.bandwidth**2
        if rows.mixed is not None:
            image = through_metric(apart, rows.mixed[1])
        squared = (apart * image).sum(1)
        torch.threshold_(squared, 0.0, math.inf)
        slope = kernel.slope_(squared, torch.empty_like(squared))
        yield i, j, slope[:, None] * (image if mapped else apart)


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
    centers: Tensor,
    coef: Tensor,
    slopes: Tensor,
    kernel: Radial,
    sides: Sides,
    *,
    mapped: bool = False,
) -> Iterator[tuple[slice, Tensor]]:
    """Yield raw gradients at the centers, from a square of slopes already made.

    The square is symmetric, and only its tiles up to the diagonal are read: each is
    used for its rows and, turned, for its columns. The sums are as large as the table
    of outer products, which is smaller than the square wherever this form is cheaper
    than the one by pairs. Slopes of close points are overwritten by zero.
    """
    table, k = _outer_products(coef, centers), coef.shape[1]
    sums = torch.empty_like(table)
    close: list[_Pairs] = []
    for rows in square_spans(len(slopes)):
        upto, before = slice(0, rows.stop), slice(0, rows.start)
        pairs = _take_close_(slopes[rows, upto], sides[rows], kernel)
        if pairs is not None:
            i, j = pairs[0] + rows.start, pairs[1]
            left = j < rows.start  # of the diagonal: one entry for both directions
            close.append((torch.cat([i, j[left]]), torch.cat([j, i[left]])))
        torch.mm(slopes[rows, upto], table[upto], out=sums[rows])
        if rows.start:
            sums[before].addmm_(slopes[rows, before].T, table[rows])
    moments = sums.view(len(centers), k, -1)
    for rows in square_spans(len(slopes)):
        gradients = _differences(moments[rows], centers[rows])
        for pairs in close:
            here = (pairs[0] >= rows.start) & (pairs[0] < rows.stop)
            mine = pairs[0][here], pairs[1][here]
            for i, j, step in _close_steps(mine, sides, sides, kernel, mapped, k):
                gradients.index_add_(
                    0, i - rows.start, coef[j][:, :, None] * step[:, None]
                )
        yield rows, gradients


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


# From the outputs of some rows, (r, k), and which rows they are, to (r, k).
Cotangent = Callable[[Tensor, slice], Tensor]

# Bytes of the slopes that are stored until the cotangents are known.
_CPU_WAITING, _DEVICE_WAITING = 1 << 25, 1 << 31


@dataclass(frozen=True)
class Columns:
    """An expansion's centers, prepared once for many calls.

    Parameters
    ----------
    centers : Tensor of shape (m, d)
    coef : Tensor of shape (m, k)
    kernel : Kernel
    metric : Tensor of shape (d, d) or (d,), optional
    shift : Tensor of shape (d,)
        The origin in which distances are taken.
    sides : Sides
        Of the centers, from there.
    """

    centers: Tensor
    coef: Tensor
    kernel: Kernel
    metric: Tensor | None
    shift: Tensor
    sides: Sides

    @classmethod
    def of(
        cls, centers: Tensor, coef: Tensor, kernel: Kernel, *, metric: Tensor | None
    ) -> Columns:
        """Prepare an expansion.

        Raises
        ------
        TypeError, ValueError
            If the parts of the expansion do not fit together.
        """
        with torch.no_grad():  # coefficients may require gradients
            require_table("Columns.of", "centers", centers)
            require_expansion("Columns.of", centers, centers, coef, kernel, metric)
        shift = middle(centers)
        sides = kernel.sides(centers - shift, metric)
        return cls(centers, coef, kernel, metric, shift, sides)

    def outputs(self, x: Tensor) -> Tensor:
        """The expansion at every row, ``(n, k)``."""
        points = self.kernel.sides(x - self.shift, self.metric)
        return expansion_of_sides(points, self.sides, self.coef, self.kernel)

    @cached_property
    def moments(self) -> Tensor:
        """Rows ``(x_j, 1)`` from the same origin, ``(m, d + 1)``."""
        placed = self.centers - self.shift
        return torch.cat([placed, placed.new_ones(len(placed), 1)], 1)


@torch.no_grad()
def pull_back(
    x: Tensor, columns: Columns, cotangent: Cotangent
) -> tuple[Tensor, Tensor]:
    r"""Return the outputs and :math:`J_x^\top v(f(x))` at every row.

    At a center that center's own kernel contributes nothing to the gradient, as in
    :func:`~normalign.kernels.expansion_jacobian`.

    Parameters
    ----------
    x : Tensor of shape (n, d)
    columns : Columns
    cotangent : callable
        From outputs of some rows and a slice, which says which rows, to the gradient
        of a loss in these outputs. Autograd records nothing here; a cotangent that
        needs it enables it.

    Returns
    -------
    tuple of Tensor of shape (n, k) and (n, d)

    Raises
    ------
    TypeError
        If an argument is not of its kind.
    ValueError
        If x does not fit the columns, or the cotangent gives another shape than that
        of the outputs.

    Examples
    --------
    >>> from normalign.kernels import Gaussian
    >>> one, kernel = torch.ones(1, 1), Gaussian(bandwidth=1.0)
    >>> columns = Columns.of(torch.zeros(1, 1), one, kernel, metric=None)
    >>> pull_back(one, columns, lambda outputs, rows: 2 * torch.ones_like(outputs))
    (tensor([[0.6065]]), tensor([[-1.2131]]))
    """
    _require_rows(x, columns, cotangent)
    kernel = columns.kernel
    if not isinstance(kernel, Radial):
        return jacobian_pull_back(
            x,
            cotangent,
            outputs=columns.outputs,
            jacobian=lambda rows: expansion_jacobian(
                rows, columns.centers, columns.coef, kernel,
                metric=columns.metric,
            ),
        )  # fmt: skip
    placed = x - columns.shift
    points = kernel.sides(placed, columns.metric)
    (n, d), (m, k) = x.shape, columns.coef.shape
    outputs, gradient = x.new_empty(n, k), x.new_empty(n, d)
    height = _height(x, m)
    waiting = x.new_empty(min(height, n) * m)
    values = x.new_empty(min(height, n) * min(tile_shape(x.device)[1], m))
    for rows in spans(n, height):
        slopes = waiting[: (rows.stop - rows.start) * m].view(-1, m)
        outputs[rows] = _values_and_slopes(
            points[rows], columns, kernel, values, slopes
        )
        direction = _slope(cotangent, outputs[rows], rows)
        close = _take_close_(slopes, points[rows], kernel)
        sums = _weighted_sum(slopes, columns, direction, values)
        part = torch.addcmul(sums[:, :d], sums[:, d:], placed[rows], value=-1)
        sides = points[rows], columns.sides
        for i, j, step in _close_steps(close, *sides, kernel, False, 1):
            weight = (direction[i] * columns.coef[j]).sum(1)
            part.index_add_(0, i, weight[:, None] * step)
        gradient[rows] = part
    return outputs, apply_factor(gradient, kernel, columns.metric)


def _require_rows(x: Tensor, columns: Columns, cotangent: Cotangent) -> None:
    if not isinstance(columns, Columns):
        raise TypeError(
            "pull_back: columns must be an expansion's Columns, got "
            f"{describe(columns)}. Use Columns.of(centers, coef, kernel, "
            "metric=metric)."
        )
    if not callable(cotangent):
        raise TypeError(
            f"pull_back: cotangent must be callable, got {describe(cotangent)}."
        )
    centers = columns.centers
    require_table("pull_back", "x", x, centers.shape[1])
    if (x.dtype, x.device) != (centers.dtype, centers.device):
        raise ValueError(
            f"pull_back: x must be {str(centers.dtype)[6:]} on {centers.device}, like "
            f"the centers, got {str(x.dtype)[6:]} on {x.device}."
        )


def _slope(cotangent: Cotangent, outputs: Tensor, rows: slice) -> Tensor:
    """What a cotangent gives for some rows, if it is of their outputs' shape."""
    given = cotangent(outputs, rows)
    if not isinstance(given, Tensor) or given.shape != outputs.shape:
        raise ValueError(
            "pull_back: cotangent must be one that gives the outputs' shape, "
            f"{tuple(outputs.shape)}, got {describe(given)}."
        )
    return given


def _height(x: Tensor, m: int) -> int:
    """Rows whose slopes are stored at a time."""
    cpu = x.device.type == "cpu"
    room = (_CPU_WAITING if cpu else _DEVICE_WAITING) // (x.dtype.itemsize * max(m, 1))
    return max(min(room, tile_shape(x.device)[0]), 1)


def _values_and_slopes(
    points: Sides, columns: Columns, kernel: Radial, buffer: Tensor, slopes: Tensor
) -> Tensor:
    """Fill the slopes of some rows to all centers; their outputs."""
    coef, n = columns.coef, len(points)
    total = coef.new_zeros(n, coef.shape[1])
    for part in spans(len(coef), tile_shape(points.device)[1]):
        tile = buffer[: n * (part.stop - part.start)].view(n, -1)
        kernel.values_and_slopes_(points, columns.sides[part], tile, slopes[:, part])
        total.addmm_(tile, coef[part])
    return total


def _weighted_sum(
    slopes: Tensor, columns: Columns, direction: Tensor, buffer: Tensor
) -> Tensor:
    """``sum_j w_j (a_j . v) (x_j, 1)`` for each row; overwrites the slopes."""
    moments, coef = columns.moments, columns.coef
    total = slopes.new_zeros(len(slopes), moments.shape[1])
    for part in spans(len(coef), tile_shape(slopes.device)[1]):
        tile = buffer[: len(slopes) * (part.stop - part.start)].view(len(slopes), -1)
        torch.mm(direction, coef[part].T, out=tile).mul_(slopes[:, part])
        total.addmm_(tile, moments[part])
    return total


@torch.no_grad()
def jacobian_pull_back(
    x: Tensor,
    cotangent: Cotangent,
    *,
    outputs: Callable[[Tensor], Tensor],
    jacobian: Callable[[Tensor], Tensor],
    rows_at_once: int = 256,
) -> tuple[Tensor, Tensor]:
    """The same of anything that has outputs and Jacobians, a few rows at a time."""
    found = []
    for rows in spans(len(x), rows_at_once):
        values = outputs(x[rows])
        direction = _slope(cotangent, values, rows)
        slope = torch.einsum("nkd,nk->nd", jacobian(x[rows]), direction)
        found.append((values, slope))
    if not found:
        return outputs(x), torch.zeros_like(x)
    values, slopes = zip(*found, strict=True)
    return torch.cat(values), torch.cat(slopes)


@dataclass(frozen=True)
class Machine:
    r"""A kernel expansion in a metric: what Algorithm 1 leaves behind.

    .. math:: f(x) = b + \sum_j a_j \, \phi_M(x, x_j)

    It computes in its own dtype, whatever the dtype of its inputs: in float64 if
    float32 was not accurate enough for the fit.

    Parameters
    ----------
    centers : Tensor of shape (m, d)
        Not copied: changing them in place changes the machine.
    coef : Tensor of shape (m, k)
    metric : Tensor of shape (d, d) or (d,)
    kernel : Kernel
    intercept : Tensor of shape (k,)
    """

    centers: Tensor
    coef: Tensor
    metric: Tensor
    kernel: Kernel
    intercept: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs at every row, ``(n, k)``, in the machine's dtype."""
        require_table("Machine", "x", x, self.centers.shape[1])
        x = x.to(self.coef.dtype)
        with full_precision(x.device):
            return self.intercept + self._columns.outputs(x)

    def jacobian(self, x: Tensor) -> Tensor:
        """Jacobians at every row, ``(n, k, d)``, in closed form."""
        x = x.to(self.coef.dtype)
        with full_precision(x.device):
            return expansion_jacobian(
                x, self.centers, self.coef, self.kernel, metric=self.metric
            )

    @torch.no_grad()
    def pull_back(self, x: Tensor, cotangent: Cotangent) -> tuple[Tensor, Tensor]:
        r"""Outputs and :math:`J_x^\top v(f(x))` at every row, without Jacobians.

        Parameters
        ----------
        cotangent : callable
            From the outputs of some rows, and a slice that says which rows, to the
            gradient of a loss in these outputs.
        """
        x = x.to(self.coef.dtype)
        with full_precision(x.device):
            outputs, gradient = pull_back(
                x,
                self._columns,
                lambda found, rows: cotangent(found + self.intercept, rows),
            )
        return outputs + self.intercept, gradient

    @cached_property
    def _columns(self) -> Columns:
        return Columns.of(self.centers, self.coef, self.kernel, metric=self.metric)

    @property
    def dtype(self) -> torch.dtype:
        """The precision in which it computes."""
        return self.coef.dtype

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.coef.device

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Machine:
        """The same machine elsewhere, or in another precision."""
        moved = {
            name: getattr(self, name).to(device=device, dtype=dtype)
            for name in ("centers", "coef", "metric", "intercept")
        }
        return replace(self, **moved)
