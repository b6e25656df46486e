r"""The average gradient outer product (AGOP), which becomes the next metric.

.. math:: M \leftarrow \frac{1}{n} \sum_{i=1}^{n} (J_{x_i})^\top J_{x_i}

is the last line of the loop of Algorithm 1. No ``(n, k, d)`` tensor is allocated. There
are two ways to compute it, and the shapes decide which one is cheaper:

- *by gradients*: the Jacobians of some rows at a time, :math:`2 n^2 k (d + 1)`
  operations;
- *by pairs*: with slopes :math:`W` and :math:`P = a a^\top`, the sum over rows and
  outputs is a weighted sum of outer products of *data*,

  .. math:: \sum_{jj'} (P \circ W^\top W)_{jj'} \, x_j x_{j'}^\top
            - \sum_{ij} (W a a^\top \circ W)_{ij} (x_i x_j^\top + x_j x_i^\top)
            + \sum_i \|(W a)_i\|^2 x_i x_i^\top

  which costs :math:`n^3` operations and an ``(n, n)`` table, however many outputs
  there are. It is the sum in the proof of Proposition 3.

The terms of the sum by pairs are as large as the *squares* of the terms of a gradient,
so it loses twice as many digits where slopes or coefficients are large and cancel. Rows
near a center are therefore computed by gradients, and so are the others if the rounding
error is not small relative to their sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from normalign._errors import describe
from normalign.kernels._expansion import (
    apply_factor,
    outputs_at_once,
    raw_gradients,
)
from normalign.kernels._functions import Kernel, Laplace, Radial, require_expansion
from normalign.kernels._sides import NEAR, Sides, middle, spans, tile_shape

__all__ = [
    "agop",
    "apply_diagonal",
    "apply_full",
    "cheaper_form",
    "sum_of_squares",
]

Form = Literal["auto", "gradients", "pairs"]

_NEAR = 10  # the threshold for near rows in a sum over pairs, in units of `NEAR`
# Largest accepted relative error of a sum over pairs: that of squared distances, see
# `sides.NEAR`.
_MOST_ERROR = {torch.float64: 1e-9, torch.float32: 1e-3}


def agop(
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Kernel,
    *,
    metric: Tensor | None = None,
    weights: Tensor | None = None,
    diagonal: bool = False,
    form: Form = "auto",
) -> Tensor:
    r"""Return the average gradient outer product of a kernel expansion.

    .. math:: \frac{1}{\sum_i \omega_i} \sum_i \omega_i (J_{x_i})^\top J_{x_i}

    A center's own kernel contributes nothing at that center or at exact duplicates of
    it. A radial kernel with a kink contributes nothing at points that differ from the
    center only by rounding, either.

    Parameters
    ----------
    x : Tensor of shape (n, d)
        The points at which gradients are taken.
    centers : Tensor of shape (m, d)
    coef : Tensor of shape (m, k)
    metric : Tensor of shape (d, d) or (d,), optional
    weights : Tensor of shape (n,), optional
        Positive weight of each row of ``x``.
    diagonal : bool, default=False
        Return only the diagonal.
    form : {"auto", "gradients", "pairs"}
        How to compute the sum; "pairs" needs a radial kernel and memory for an
        ``(n, m)`` matrix.

    Returns
    -------
    Tensor of shape (d, d), or (d,) if ``diagonal``

    Examples
    --------
    >>> from normalign.kernels import Gaussian
    >>> x, center, two = torch.ones(1, 1), torch.zeros(1, 1), 2 * torch.ones(1, 1)
    >>> agop(x, center, two, Gaussian(bandwidth=1.0))  # (2 exp(-1/2))^2
    tensor([[1.4715]])
    """
    require_expansion("agop", x, centers, coef, kernel, metric)
    if weights is not None and (
        weights.shape != (len(x),) or not bool((weights > 0).all())
    ):
        raise ValueError(
            f"agop: weights must be positive, of shape ({len(x)},), "
            f"got {describe(weights)}."
        )
    if form not in ("auto", "gradients", "pairs"):
        raise ValueError(
            f'agop: form must be "auto", "gradients" or "pairs", got {form!r}.'
        )
    shift = middle(centers)
    x, centers = x - shift, centers - shift
    sides = kernel.sides(x, metric), kernel.sides(centers, metric)
    return centred_agop(
        x, centers, coef, kernel, sides, metric=metric, weights=weights,
        diagonal=diagonal, form=form,
    )  # fmt: skip


def centred_agop(
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Kernel,
    sides: tuple[Sides, Sides],
    *,
    metric: Tensor | None,
    weights: Tensor | None,
    diagonal: bool,
    form: Form = "auto",
) -> Tensor:
    """The same for points that are already centred, with their sides."""
    if form == "auto":
        (n, d), (m, k) = x.shape, coef.shape
        form = cheaper_form((n, m, k, d), kernel, coef.dtype)
    mass = len(x) if weights is None else weights.sum()
    x, centers = (apply_full(part, kernel, metric) for part in (x, centers))
    if form == "pairs":
        if not isinstance(kernel, Radial):
            raise ValueError(
                f'agop: form must be "gradients" for this kernel, got {form!r}.'
            )
        total = _agop_by_pairs(x, centers, coef, kernel, sides, weights, metric)
    else:
        # A full metric mixes coordinates, so its diagonal needs the whole sum.
        squares_only = diagonal and (metric is None or metric.ndim == 1)
        gradients = _gradients(x, centers, coef, kernel, sides, metric)
        total = sum_of_squares(
            gradients, x.new_zeros(x.shape[1]), weights, squares_only
        )
    whole = apply_diagonal(total, kernel, metric)
    return (whole.diagonal() if diagonal and whole.ndim == 2 else whole) / mass


def cheaper_form(
    shape: tuple[int, int, int, int], kernel: Kernel, dtype: torch.dtype
) -> Form:
    """Return the form that takes fewer operations.

    It is "gradients" for a Gaussian in single precision: its large coefficients often
    cancel and leave no correct digits in a sum over pairs.

    Parameters
    ----------
    shape : tuple of int
        The numbers of rows, centers, outputs and columns.
    """
    n, m, k, d = shape
    by_gradients = 2 * n * m * k * (d + 1)
    by_pairs = n * m * m + 4 * n * m * (k + d)
    exact = isinstance(kernel, Radial) and dtype == torch.float64
    usable = exact or isinstance(kernel, Laplace)
    return "pairs" if usable and by_pairs < by_gradients else "gradients"


def apply_full(points: Tensor, kernel: Kernel, metric: Tensor | None) -> Tensor:
    """Points as gradients of a radial kernel are made of them: through a full metric.

    Sums of outer products of the result need no metric on both sides. Multiplied there,
    a metric of nearly rank one would spread the rounding error of its largest direction
    to all others, which in single precision are no larger than that error.
    """
    if metric is None or metric.ndim == 1 or not isinstance(kernel, Radial):
        return points
    return apply_factor(points, kernel, metric)


def apply_diagonal(total: Tensor, kernel: Kernel, metric: Tensor | None) -> Tensor:
    """A sum of outer products with what is left of the factor of all gradients.

    That is a diagonal metric, which scales each coordinate on its own, or no metric.
    """
    if metric is not None and metric.ndim == 2:
        # symmetric to the last bit
        return (total + total.T).mul_(0.5)
    if total.ndim == 1:
        once = apply_factor(total[None], kernel, metric)
        return apply_factor(once, kernel, metric)[0]
    half = apply_factor(total, kernel, metric)
    whole = apply_factor(half.T, kernel, metric)
    return (whole + whole.T).mul_(0.5)


def _gradients(
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Kernel,
    sides: tuple[Sides, Sides],
    metric: Tensor | None,
) -> Iterator[tuple[slice, Tensor]]:
    late = metric is not None and metric.ndim == 2 and not isinstance(kernel, Radial)
    mixed = sides[0].mixed
    mapped = mixed is not None and mixed[1].ndim == 2  # by `apply_full`
    for outputs in spans(coef.shape[1], outputs_at_once(len(centers), x.shape[1])):
        some = raw_gradients(x, centers, coef[:, outputs], kernel, sides, mapped=mapped)
        for rows, part in some:
            yield rows, apply_factor(part, kernel, metric) if late else part


def sum_of_squares(
    gradients: Iterator[tuple[slice, Tensor]],
    zero: Tensor,
    weights: Tensor | None,
    squares_only: bool,
) -> Tensor:
    """Return the sum of outer products of gradients, or only of their squares.

    ``zero`` is a zero vector with an entry for each coordinate.
    """
    d = len(zero)
    total = zero if squares_only else zero.new_zeros(d, d)
    scale = None if weights is None else weights.sqrt()
    for rows, part in gradients:
        flat = part if scale is None else part * scale[rows, None, None]
        flat = flat.reshape(-1, d)
        if squares_only:
            total += flat.square().sum(0)
        else:
            total.addmm_(flat.T, flat)
    return total


def _agop_by_pairs(
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    kernel: Radial,
    sides: tuple[Sides, Sides],
    weights: Tensor | None,
    metric: Tensor | None,
) -> Tensor:
    def by_gradients(rows: Tensor) -> Tensor:
        some = sides[0][rows], sides[1]
        gradients = _gradients(x[rows], centers, coef, kernel, some, None)
        mass = None if weights is None else weights[rows]
        return sum_of_squares(gradients, torch.zeros_like(x[0]), mass, False)

    slopes = _slope_matrix(kernel, *sides)
    near = _near_rows(slopes, kernel, sides[0].left[:, x.shape[1]])
    if not bool(near.any()):
        total = _sum_over_pairs(x, centers, coef, slopes, weights, metric)
        return by_gradients(~near) if total is None else total
    far, nearby = ~near, by_gradients(near)
    if not bool(far.any()):
        return nearby
    mass = None if weights is None else weights[far]
    total = _sum_over_pairs(x[far], centers, coef, slopes[far], mass, metric)
    return nearby + (by_gradients(far) if total is None else total)


def _near_rows(slopes: Tensor, kernel: Radial, squares: Tensor) -> Tensor:
    """Return which rows are near a center but not at it.

    ``squares`` are the squared norms of the rows.

    The slope of a radial kernel falls with the distance: a row's largest slope belongs
    to its nearest center.
    """
    limits = squares * (2 * _NEAR * NEAR[slopes.dtype])
    largest = slopes.amax(1)
    return (largest > 0) & (largest >= kernel.slope_(limits, torch.empty_like(limits)))


def _sum_over_pairs(
    x: Tensor,
    centers: Tensor,
    coef: Tensor,
    slopes: Tensor,
    weights: Tensor | None,
    metric: Tensor | None,
) -> Tensor | None:
    r"""Return the sum over pairs, or None if its rounding error may be too large.

    With :math:`H = P \circ W^\top W`, which is positive semidefinite, the Frobenius
    norm of the first sum's terms is at most :math:`t = \sum_j H_{jj} \|x_j\|^2`, that
    of the third one's is :math:`s = \sum_i \|(W a)_i\|^2 \|x_i\|^2` or less, and that
    of the second one's is at most :math:`\sqrt{s t}`. Rounding moves the result by
    about :math:`\epsilon (\sqrt{s} + \sqrt{t})^2`; measured errors were a tenth of it.
    """
    if weights is not None:
        slopes.mul_(weights.sqrt()[:, None])
    sums = slopes @ coef
    total = (x * sums.square().sum(1, keepdim=True)).T @ x
    height, _ = tile_shape(x.device)
    cross = torch.zeros_like(total)
    for rows in spans(len(x), height):
        table = (sums[rows] @ coef.T).mul_(slopes[rows])
        cross += x[rows].T @ (table @ centers)
    total -= cross + cross.T
    diagonal = [coef.new_empty(0)]
    for rows in spans(len(centers), height):
        # Only the block row up to the diagonal: the rest is its transpose.
        before, upto = slice(0, rows.start), slice(0, rows.stop)
        table = slopes[:, rows].T @ slopes[:, upto]
        table.mul_(coef[rows] @ coef[upto].T)
        diagonal.append(table[:, rows].diagonal())
        own = centers[rows].T @ (table[:, rows] @ centers[rows])
        mixed = centers[rows].T @ (table[:, before] @ centers[before])
        total += own + mixed + mixed.T
    # a diagonal metric scales the coordinates of all gradients later
    scale = torch.ones_like(x[0])
    if metric is not None and metric.ndim == 1:
        scale = metric.square()
    first = torch.cat(diagonal) @ (centers.square() @ scale)
    third = sums.square().sum(1) @ (x.square() @ scale)
    error = torch.finfo(x.dtype).eps * (first.sqrt() + third.sqrt()).square()
    enough = error <= _MOST_ERROR[x.dtype] * (total.diagonal() @ scale)
    return total if bool(enough) else None


def _slope_matrix(kernel: Radial, points: Sides, centers: Sides) -> Tensor:
    height, width = tile_shape(points.device)
    like, size = points.left, min(height, len(points)) * min(width, len(centers))
    buffer, scratch = like.new_empty(size), like.new_empty(size)
    slopes = like.new_empty(len(points), len(centers))
    for rows in spans(len(points), height):
        for columns in spans(len(centers), width):
            part, other = points[rows], centers[columns]
            shape = len(part), len(other)
            tile, spare = (
                b[: shape[0] * shape[1]].view(shape) for b in (buffer, scratch)
            )
            slopes[rows, columns] = kernel.slopes_(part, other, tile, spare)
    return slopes
