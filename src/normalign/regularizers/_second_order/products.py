"""Linear layers and convolutions whose pull-backs are layers of the same kind.

What torch makes of the derivative of a convolution can be differentiated, but slowly:
the weight gradient of the second derivative is a convolution with batch and channels
exchanged. The gradient in the input is itself a convolution, transposed. Written as
one, it has the derivative of a layer: two convolutions.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from normalign.regularizers._second_order.site import Site, precise, wanted

__all__ = ["Convolution", "Geometry", "Linear", "read_geometry"]


class Geometry(NamedTuple):
    """How a convolution steps, in the order in which torch takes it."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int


@functools.lru_cache(maxsize=1024)
def transpose(geometry: Geometry, sizes: torch.Size, kernel: torch.Size) -> Geometry:
    """Return the geometry of the map back to inputs of the given sizes.

    Examples
    --------
    >>> halves = Geometry((2,), (1,), (1,), False, (0,), 1)
    >>> transpose(halves, torch.Size([8]), torch.Size([3])).output_padding  # 8 to 4
    (1,)
    """
    if geometry.transposed:
        return geometry._replace(transposed=False, output_padding=(0,) * len(sizes))
    # What the stride leaves over at the end, the way back has to add.
    rows = zip(sizes, kernel, *geometry[:3], strict=True)
    left = tuple((n + 2 * p - d * (k - 1) - 1) % s for n, k, s, p, d in rows)
    return geometry._replace(transposed=True, output_padding=left)


@functools.lru_cache(maxsize=1024)
def read_geometry(
    kernel: torch.Size,
    stride: int | tuple[int, ...],
    padding: int | tuple[int, ...] | str,
    dilation: int | tuple[int, ...],
    groups: int,
    transposed: bool,
    output_padding: int | tuple[int, ...],
) -> tuple[Geometry, tuple[int, ...]] | None:
    """Return what a convolution's arguments mean: its steps, and padding apart.

    The second is what ``F.pad`` has to add first, where ``padding="same"`` is not the
    same at both ends. ``None`` stands for arguments that torch should see itself: those
    that it refuses, and ``output_padding`` beyond the stride, which is rare.
    """
    n_axes = len(kernel)
    steps, reach = _each(stride, n_axes), _each(dilation, n_axes)
    extra, apart = _each(output_padding, n_axes), ()
    if not isinstance(padding, str):
        pads = _each(padding, n_axes)
    elif padding == "same" and max(steps) == 1:
        total = [d * (k - 1) for d, k in zip(reach, kernel, strict=True)]
        pads = tuple(size // 2 for size in total)
        if any(size % 2 for size in total):  # the odd one goes to the end
            apart = tuple(side for size in total[::-1] for side in (0, size % 2))
    else:
        pads = _each(0, n_axes if padding == "valid" else 0)
    lengths = {len(steps), len(pads), len(reach), len(extra)}
    if lengths != {n_axes} or max(extra) >= min(steps):
        return None
    return Geometry(steps, pads, reach, transposed, extra, groups), apart


def _each(value: int | tuple[int, ...], n_axes: int) -> tuple[int, ...]:
    """Return a number for each axis, given one for all or one for each."""
    values = value if isinstance(value, tuple) else (value,)
    return values * n_axes if len(values) == 1 else values


class Convolution(Function):
    """A convolution, or a transposed one, over the axes after the second."""

    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        site: Site,
    ) -> Tensor:
        """Return the layer's output."""
        ctx.save_for_backward(x, weight)
        ctx.set_materialize_grads(False)
        ctx.geometry, ctx.site = geometry, site
        return torch.convolution(x, weight, bias, *geometry)

    @staticmethod
    @precise
    def backward(ctx: Any, g: Tensor) -> Any:  # pyright: ignore
        """Return the gradients that the present pass wants."""
        mask, geometry = wanted(ctx), ctx.geometry
        x, weight = ctx.saved_tensors
        if not torch.is_grad_enabled():
            found = torch.ops.aten.convolution_backward(
                g, x, weight, [g.shape[1]], *geometry, mask
            )
            return *found, None, None
        of_x = of_weight = None
        if mask[0]:
            back = transpose(geometry, x.shape[2:], weight.shape[2:])
            of_x = torch.convolution(g, weight, None, *back)
        if mask[1]:  # where the weight depends on the point
            of_weight = torch.ops.aten.convolution_backward(
                g, x, weight, None, *geometry, (False, True, False)
            )[1]
        of_bias = g.sum(dim=(0, *range(2, g.ndim))) if mask[2] else None
        return of_x, of_weight, of_bias, None, None


class Linear(Function):
    """``x W^T`` over the last axis, plus the bias if there is one.

    torch's own has all derivatives at their price. This one can leave out a gradient
    in the input.
    """

    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, site: Site
    ) -> Tensor:
        """Return the layer's output."""
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        ctx.set_materialize_grads(False)
        ctx.site = site
        return F.linear(x, weight, bias)

    @staticmethod
    @precise
    def backward(ctx: Any, g: Tensor) -> Any:  # pyright: ignore
        """Return the gradients that the present pass wants."""
        mask = wanted(ctx)
        x, weight = ctx.saved_tensors
        rows = g.reshape(-1, g.shape[-1])
        of_x = g.matmul(weight) if mask[0] else None
        of_weight = rows.t().mm(x.reshape(-1, x.shape[-1])) if mask[1] else None
        return of_x, of_weight, rows.sum(dim=0) if mask[2] else None, None
