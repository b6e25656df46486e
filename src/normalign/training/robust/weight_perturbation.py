"""Adversarial weight perturbation: the worst weights nearby, for one step."""

# torch's own optimizers are built on torch._foreach_*, which have no public name.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["perturbed_weights"]


@contextmanager
def perturbed_weights(
    network: nn.Module, loss: Callable[[], Tensor], *, strength: float
) -> Iterator[None]:
    r"""Move each weight tensor uphill by a share of its own length, for a while.

    .. math:: w \leftarrow w + \text{strength}\,\lVert w \rVert
        \frac{g}{\lVert g \rVert}, \qquad g = \nabla_w \text{loss}

    (Wu et al., 2020.) Vectors, such as biases and the weights of normalisation, stay.
    Afterwards the weights are as before, bit for bit; the statistics of normalisation
    are those of what ran inside the block alone.

    Parameters
    ----------
    network : nn.Module
    loss : callable
        Runs the network and returns what is climbed, a scalar.
    strength : float
    """
    weights = [p for p in network.parameters() if p.ndim > 1 and p.requires_grad]
    buffers = list(network.buffers())
    seen = [buffer.clone() for buffer in buffers]
    slopes = torch.autograd.grad(loss(), weights)
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for buffer, value in zip(buffers, seen, strict=True):
            buffer.copy_(value)
        for weight, slope in zip(weights, slopes, strict=True):
            length = slope.norm().clamp_min(torch.finfo(slope.dtype).tiny)
            weight += strength * weight.norm() / length * slope
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(tuple(weights), before)
