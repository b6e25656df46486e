r"""Batch normalisation whose pull-back takes the batch's statistics for constants.

In training mode every output depends on every sample, through mean and variance, so
there is no Jacobian of one sample. The map that the batch's statistics fix,

.. math:: y = (x - \mu)\, s\, \gamma + \beta, \qquad s = (\sigma^2 + \epsilon)^{-1/2},

is affine for each sample. A pull-back goes through it with :math:`\mu, s` held; its
own derivative, and that of the task loss, do count how they depend on the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from normalign.regularizers._second_order.site import Mask, Site, precise, wanted

__all__ = ["BatchNorm", "BatchNormSettings"]

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(slots=True)
class BatchNormSettings:
    """How to normalise, and which buffers hold the running statistics."""

    running_mean: Tensor | None
    running_var: Tensor | None
    training: bool
    momentum: float
    eps: float


class BatchNorm(Function):
    r"""Batch normalisation, with what its derivatives are made of as further outputs.

    torch's own kernels do the forward pass and the first derivative. The factor
    :math:`s\gamma` that a pull-back multiplies with is an output, in the precision and
    with the axes of the input, and so are the statistics: what is made of them can
    then be differentiated, through this node.
    """

    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        settings: BatchNormSettings,
        site: Site,
    ) -> tuple[Tensor, ...]:
        """Return the normalised input, the factor and, in training, mean and s."""
        mean, var = settings.running_mean, settings.running_var
        y, *statistics, reserve, ctx.kernel = torch._batch_norm_impl_index(  # pyright: ignore
            x, weight, bias, mean, var, settings.training, settings.momentum,
            settings.eps, torch.backends.cudnn.enabled,
        )  # fmt: skip
        if not settings.training:
            statistics, reserve = [mean, (var + settings.eps).rsqrt()], var  # pyright: ignore
        inverse = statistics[1]
        if weight is None:
            factor = inverse.to(x.dtype, copy=True)
        elif x.dtype == inverse.dtype:
            factor = inverse * weight
        else:  # multiplied and rounded at once
            factor = torch.empty_like(inverse, dtype=x.dtype)
            torch.mul(inverse, weight, out=factor)
        factor = _per_channel(factor, x)
        ctx.save_for_backward(x, weight, *statistics, factor, reserve)
        ctx.set_materialize_grads(False)
        ctx.training, ctx.eps, ctx.site = settings.training, settings.eps, site
        return (y, factor, *statistics) if settings.training else (y, factor)

    @staticmethod
    @precise
    def backward(ctx: Any, g: Tensor | None, *rest: Tensor | None) -> Any:
        """Return the gradients that the present pass wants."""
        mask, pulling = wanted(ctx), ctx.site.phase.pulling
        saved = ctx.saved_tensors
        if pulling and g is not None and mask == (True, False, False):
            return g * saved[4], None, None, None, None
        of_factor, of_mean, of_inverse = (*rest, None, None)[:3]
        of_factor = None if of_factor is None else of_factor.flatten()
        x, weight, mean, inverse, *_ = saved
        if torch.is_grad_enabled() or pulling or g is None:
            mixes = ctx.training and not pulling
            gradients = _by_formula(g, saved, mask, mixes)
        elif of_mean is None and of_inverse is None and _has_sums(ctx.training, *saved):
            return *_by_sums(g, of_factor, saved, mask), None, None
        else:
            gradients = _by_torch(ctx, g, saved, mask)
        of_x, of_weight, of_bias = gradients
        if of_factor is not None:
            if mask[1]:
                through = of_factor * inverse
                of_weight = through if of_weight is None else of_weight + through
            further = of_factor if weight is None else of_factor * weight
            of_inverse = further if of_inverse is None else of_inverse + further
        if mask[0] and ctx.training:
            of_x = _through_statistics(of_x, x, mean, inverse, of_mean, of_inverse)
        return of_x, of_weight, of_bias, None, None


def _by_torch(ctx: Any, g: Tensor, saved: tuple[Any, ...], mask: Mask) -> Gradients:
    """Return the gradients by the kernel that belongs to the forward pass."""
    x, weight, mean, inverse, _, reserve = saved
    running = (None, None)
    if not ctx.training:
        running, reserve = (mean, reserve), x.new_empty(0)
    return torch.ops.aten._batch_norm_impl_index_backward(
        ctx.kernel, x, g, weight, *running, mean, inverse, ctx.training, ctx.eps,
        mask, reserve,
    )  # fmt: skip


def _has_sums(
    training: bool, x: Tensor, weight: Tensor | None, mean: Tensor, *_: Tensor
) -> bool:
    """Say whether :func:`_by_sums` has kernels for these: not for half weights."""
    same = weight is None or weight.dtype == mean.dtype
    return training and x.is_cuda and same


def _by_sums(
    g: Tensor, of_factor: Tensor | None, saved: tuple[Any, ...], mask: Mask
) -> Gradients:
    r"""Return the gradients on CUDA, and what comes by the factor at no price.

    With sums over each channel,

    .. math:: \partial x_i = s\gamma \Big( g_i - \frac1m \sum_j g_j
        - \frac{s^2 (x_i - \mu)}{m} \sum_j g_j (x_j - \mu) \Big),

    and a gradient in the factor adds itself to the last sum.
    """
    x, weight, mean, inverse, _, _ = saved
    layout = _memory_format(x)
    x, g = x.contiguous(memory_format=layout), g.contiguous(memory_format=layout)
    plain, centred, of_weight, of_bias = torch.batch_norm_backward_reduce(
        g, x, mean, inverse, weight, True, mask[1], mask[2]
    )
    if of_factor is not None:
        centred = centred + of_factor
        if mask[1]:
            of_weight = torch.addcmul(of_weight.to(inverse.dtype), of_factor, inverse)
    of_x = None
    if mask[0]:
        count = torch.full((1,), _count(x), dtype=torch.int32, device=x.device)
        of_x = torch.batch_norm_backward_elemt(
            g, x, mean, inverse, weight, plain, centred, count
        )
    return of_x, of_weight if mask[1] else None, of_bias if mask[2] else None


def _by_formula(
    g: Tensor | None, saved: tuple[Any, ...], mask: Mask, mixes: bool
) -> Gradients:
    """Return the gradients by operations that torch can differentiate.

    ``mixes`` says whether the statistics count as functions of ``x``.
    """
    if g is None:
        return None, None, None
    x, _, mean, inverse, factor, _ = saved
    of_x = of_weight = of_bias = None
    if mask[0]:
        of_x = g * factor
    if mixes or mask[1] or mask[2]:
        axes = (0, *range(2, g.ndim))
        of_bias = g.sum(dim=axes, dtype=inverse.dtype)
        standard = (x - _per_channel(mean, x)) * _per_channel(inverse, x)
        of_weight = (g * standard).sum(dim=axes)
        if mixes and of_x is not None:
            shared = _per_channel(of_bias, x) + standard * _per_channel(of_weight, x)
            shared = shared * (factor / _count(x))
            of_x = of_x - shared.to(g.dtype)
    return of_x, of_weight if mask[1] else None, of_bias if mask[2] else None


def _through_statistics(
    of_x: Tensor | None,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    of_mean: Tensor | None,
    of_inverse: Tensor | None,
) -> Tensor | None:
    r"""Add what reaches ``x`` through the outputs mean and inverse deviation.

    .. math:: \partial\mu / \partial x_i = 1/m, \qquad
        \partial s / \partial x_i = -s^3 (x_i - \mu) / m
    """
    parts = [] if of_x is None else [of_x]
    if of_inverse is not None:
        factor = of_inverse * inverse.pow(3) * (-1 / _count(x))
        if torch.is_grad_enabled():
            centred = x - _per_channel(mean, x)
            parts.append((centred * _per_channel(factor, x)).to(x.dtype))
        else:
            # Batch normalisation at a variance of one: in one pass, half precision or
            # not.
            one = torch.ones_like(factor)
            parts.append(
                torch.batch_norm(x, factor, None, mean, one, False, 0.0, 0.0, False)
            )
    if of_mean is not None:
        share = _per_channel(of_mean / _count(x), x).to(x.dtype)
        parts.append(share.expand_as(x))
    return sum(parts[1:], start=parts[0]) if parts else None


def _count(x: Tensor) -> int:
    """Return how many numbers each channel holds."""
    return x.numel() // x.shape[1]


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    """Return one number for each channel, shaped to be combined with ``like``."""
    return values.view(1, -1, *(1,) * (like.ndim - 2))


def _memory_format(x: Tensor) -> torch.memory_format:
    """Return which axis of a tensor moves fastest: the last, or that of channels."""
    channels_last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
    if channels_last is None or x.is_contiguous():
        return torch.contiguous_format
    is_last = x.is_contiguous(memory_format=channels_last)
    return channels_last if is_last else torch.contiguous_format
