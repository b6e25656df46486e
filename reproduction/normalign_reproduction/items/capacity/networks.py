"""Residual networks by the names that settings have for them."""

from __future__ import annotations

import copy
import re

import torch
from torch import Tensor, nn

from normalign.nn import BasicBlock, Bottleneck, ResNet, WideResNet

__all__ = ["calibrated", "network_cost", "network_named"]

# Layers -> block, and the number of blocks in each stage.
_RESNETS = {
    10: (BasicBlock, (1, 1, 1, 1)),
    14: (Bottleneck, (1, 1, 1, 1)),
    18: (BasicBlock, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


def network_named(
    name: str,
    *,
    n_classes: int = 10,
    n_channels: int = 3,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Return a network in CIFAR form, with random weights.

    Parameters
    ----------
    name : str
        ``"wrn28-10"`` is a wide residual network of depth 28, ten times as wide;
        ``"resnet50"`` a ResNet-50, ``"resnet18-w4"`` a ResNet-18 whose first stage has
        4 channels instead of 64. ``"resnet10"`` and ``"resnet14"`` have one block in
        each stage, a basic one or a bottleneck.

    Examples
    --------
    >>> network_named("resnet18-w4")(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """
    layers, channels = _parse(name)
    if name.startswith("wrn"):
        return WideResNet(
            layers,
            channels // 16,
            n_classes=n_classes,
            n_channels=n_channels,
            generator=generator,
        )
    return ResNet(
        *_RESNETS[layers],
        n_classes=n_classes,
        width=channels,
        n_channels=n_channels,
        generator=generator,
    )


def network_cost(name: str) -> int:
    """Return a number that grows like the time of a pass: layers times channels^2.

    Examples
    --------
    >>> network_cost("wrn28-10") / network_cost("wrn28-2")
    25.0
    """
    layers, channels = _parse(name)
    return layers * channels**2


def _parse(name: str) -> tuple[int, int]:
    """Return the numbers of layers, and of channels in the first stage."""
    if wide := re.fullmatch(r"wrn(\d+)-(\d+)", name):
        return int(wide[1]), 16 * int(wide[2])
    plain = re.fullmatch(r"resnet(\d+)(?:-w(\d+))?", name)
    if plain and int(plain[1]) in _RESNETS:
        return int(plain[1]), int(plain[2] or 64)
    raise ValueError(
        "network_named: name must be 'wrn{depth}-{widen}', 'resnet{layers}' or "
        f"'resnet{{layers}}-w{{width}}' with {', '.join(map(str, _RESNETS))} layers, "
        f"got {name!r}."
    )


def calibrated(network: nn.Module, x: Tensor, *, batch_size: int = 250) -> nn.Module:
    """Return a copy in evaluation mode with normalisation statistics of the images.

    An untrained network has none: its evaluation mode would not normalise at all.

    Parameters
    ----------
    x : Tensor of shape (n, c, h, w)
        The statistics are means over batches.
    """
    own = copy.deepcopy(network)
    for module in own.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_running_stats()
            module.momentum = None  # a mean over all batches
    own.train()
    with torch.no_grad():
        for part in x.split(batch_size):
            own(part)
    return own.eval()
