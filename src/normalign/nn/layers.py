"""What the residual networks share: convolutions, their first values, standardising."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normalign._errors import require
from normalign.nn.dense import uniform_linear_

__all__ = ["Standardise", "convolution", "initialise_"]


def convolution(
    n_in: int, n_out: int, *, kernel: int, stride: int = 1, padding: int | None = None
) -> nn.Conv2d:
    """Return a convolution without bias that keeps the size when the stride is 1."""
    zeros = kernel // 2 if padding is None else padding
    return nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=zeros, bias=False)


def initialise_(network: nn.Module, *, generator: torch.Generator | None) -> None:
    """Fill convolutions He-normal by fan out, norms with one and zero, the head."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * math.prod(module.kernel_size)
            with torch.no_grad():
                module.weight.normal_(std=(2 / fan_out) ** 0.5, generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            uniform_linear_(module, generator=generator)


class Standardise(nn.Module):
    r"""Per channel, subtract a mean and divide by a standard deviation.

    .. math:: x_c \mapsto (x_c - \text{mean}_c) / \text{std}_c

    Put before a network, it is part of the function whose geometry is measured.

    Parameters
    ----------
    mean, std : sequence of float
        One number per channel, or one for all.

    Raises
    ------
    ValueError
        If the two differ in length, are empty, or a ``std`` is not positive.

    Examples
    --------
    >>> Standardise([1.0], [2.0])(torch.full((1, 1, 1, 2), 5.0))
    tensor([[[[2., 2.]]]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        same = 0 < len(mean) == len(std)
        require(same, "Standardise", "std", f"{len(mean) or 'some'} numbers", std)
        require(min(std) > 0, "Standardise", "std", "positive", std)
        self.register_buffer("mean", torch.tensor(list(mean)).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(list(std)).reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardised pictures, (n, n_channels, h, w)."""
        return (x - self.mean) / self.std
