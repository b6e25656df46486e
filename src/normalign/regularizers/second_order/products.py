"""Linear layers and convolutions whose pull-backs are layers of the same kind.

What torch makes of the derivative of a convolution can be differentiated, but slowly:
the weight gradient of the second derivative is a convolution with batch and channels
exchanged. The gradient in the input is itself a convolution, transposed. Written as
one, it has the derivative of a layer: two convolutions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from normalign.regularizers.second_order.site import Site, precise, remember, wanted

__all__ = ["Convolution", "Geometry", "Linear"]


class Geometry(NamedTuple):
    """How a convolution steps, in the order in which torch takes it."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int

    def transpose(self, sizes: torch.Size, kernel: torch.Size) -> Geometry:
        """Return the geometry of the map back to inputs of the given sizes."""
        if self.transposed:
            return self._replace(transposed=False, output_padding=[0] * len(sizes))
        # What a stride leaves over at the end, the way back has to add.
        rows = zip(sizes, kernel, *self[:3], strict=True)
        left = [(n + 2 * p - d * (k - 1) - 1) % s for n, k, s, p, d in rows]
        return self._replace(transposed=True, output_padding=left)


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
        remember(ctx, site, x, weight, bias)
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
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
            back = geometry.transpose(x.shape[2:], weight.shape[2:])
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
        remember(ctx, site, x, weight, bias)
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
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
