r"""Outputs of a kernel expansion and one gradient at each row, from the same distances.

.. math:: f(x) = \sum_j a_j \, \phi_M(x, x_j), \qquad
          J_x^\top v = \sum_j w_j \, (a_j \cdot v) \, M (x_j - x) / \ell^2

What an attack asks for at every step. No Jacobian is made: a pair of points costs
:math:`4 (d + k)` operations instead of :math:`2 k d`, and one distance serves the
value and the slope. The cotangent :math:`v` is the gradient of a loss in the outputs,
known only once all of a row's outputs are; its slopes wait in a buffer until then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign.kernels._arguments import require_expansion, require_table
from normalign.kernels._expansion import (
    expansion_jacobian,
    expansion_of_sides,
    pulled_back,
)
from normalign.kernels._functions import Kernel, Radial
from normalign.kernels._sides import Sides, middle
from normalign.kernels._tiles import spans, tile_shape

__all__ = ["Columns", "Cotangent", "jacobian_pull_back", "pull_back"]

# From the outputs of some rows, (r, k), and which rows they are, to (r, k).
Cotangent = Callable[[Tensor, slice], Tensor]

# Bytes of slopes that wait.
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
        sums = _weighted(slopes, columns, direction, values)
        gradient[rows] = torch.addcmul(sums[:, :d], sums[:, d:], placed[rows], value=-1)
    return outputs, pulled_back(gradient, kernel, columns.metric)


def _require_rows(x: Tensor, columns: Columns, cotangent: Cotangent) -> None:
    callee = "pull_back"
    require_kind(
        isinstance(columns, Columns), callee, "columns", "an expansion's Columns",
        describe(columns), "Use Columns.of(centers, coef, kernel, metric=metric).",
    )  # fmt: skip
    require_kind(
        callable(cotangent), callee, "cotangent", "callable", describe(cotangent)
    )
    centers = columns.centers
    require_table(callee, "x", x, centers.shape[1])
    require(
        (x.dtype, x.device) == (centers.dtype, centers.device), callee, "x",
        f"{str(centers.dtype)[6:]} on {centers.device}, like the centers",
        f"{str(x.dtype)[6:]} on {x.device}",
    )  # fmt: skip


def _slope(cotangent: Cotangent, outputs: Tensor, rows: slice) -> Tensor:
    """What a cotangent gives for some rows, if it is of their outputs' shape."""
    given = cotangent(outputs, rows)
    fits = isinstance(given, Tensor) and given.shape == outputs.shape
    rule = f"one that gives the outputs' shape, {tuple(outputs.shape)}"
    require(fits, "pull_back", "cotangent", rule, describe(given))
    return given


def _height(x: Tensor, m: int) -> int:
    """Rows whose slopes wait at a time."""
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


def _weighted(
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
