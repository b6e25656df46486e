"""Residual networks by the names that settings have for them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from normalign.nn import BasicBlock, Bottleneck, ResNet, WideResNet
from normalign_reproduction._errors import complaint

__all__ = ["calibrated", "network_cost", "network_named"]

_Depths = tuple[int, int, int, int]
# Layers -> block, and how many of them in each stage.
_RESNETS: Mapping[int, tuple[type[BasicBlock] | type[Bottleneck], _Depths]] = {
    10: (BasicBlock, (1, 1, 1, 1)),
    14: (Bottleneck, (1, 1, 1, 1)),
    18: (BasicBlock, (2, 2, 2, 2)),
    50: (Bottleneck, (3, 4, 6, 3)),
}
_WIDE = re.compile(r"wrn(\d+)-(\d+)")
_PLAIN = re.compile(r"resnet(\d+)(?:-w(\d+))?")
_RULE = (
    "'wrn{depth}-{widen}' with a depth of 6 n + 4, or "
    f"'resnet{{{', '.join(map(str, _RESNETS))}}}' with '-w{{width}}' after it or not"
)


def network_named(
    name: str,
    *,
    n_classes: int = 10,
    n_channels: int = 3,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Return a freshly drawn network in CIFAR form.

    Parameters
    ----------
    name : str
        ``"wrn28-10"`` is a wide residual network of depth 28, ten times as wide;
        ``"resnet50"`` a ResNet-50, ``"resnet18-w4"`` a ResNet-18 whose first stage has
        4 channels in place of 64. ``"resnet10"`` and ``"resnet14"`` have one block in
        each stage, a basic one and a bottleneck.
    generator : torch.Generator, optional
        Source of the initial draws.

    Raises
    ------
    ValueError
        If no network has that name.

    Examples
    --------
    >>> network_named("resnet18-w4")(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """
    kind, layers, width = _read(name)
    if kind == "wrn":
        return WideResNet(
            layers, width, n_classes=n_classes, n_channels=n_channels,
            generator=generator,
        )  # fmt: skip
    block, depths = _RESNETS[layers]
    return ResNet(
        block, depths, n_classes=n_classes, width=width, n_channels=n_channels,
        generator=generator,
    )  # fmt: skip


def network_cost(name: str) -> float:
    """Return about how many multiplications a pixel costs, to put large ones first.

    Examples
    --------
    >>> network_cost("wrn28-10") / network_cost("wrn28-2")
    25.0
    """
    kind, layers, width = _read(name)
    if kind == "wrn":
        # Two 3x3 convolutions to a block; what a stage has fewer pixels it is wider.
        return (layers - 4) * 9.0 * (16 * width) ** 2
    block, depths = _RESNETS[layers]
    each = 18 if block is BasicBlock else 17
    return sum(depths) * each * float(width) ** 2


def calibrated(network: nn.Module, x: Tensor, *, batch_size: int = 250) -> nn.Module:
    """Return a copy in evaluation mode whose normalisation knows the images.

    The weights are the same. An untrained network has the statistics of no image, and
    evaluating it would be looking at a network without normalisation.

    Parameters
    ----------
    x : Tensor of shape (n, c, h, w)
        Each part of ``batch_size`` counts the same.
    """
    own = copy.deepcopy(network)
    for module in own.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_running_stats()
            module.momentum = None  # the mean over all that was seen
    own.train()
    with torch.no_grad():
        for part in x.split(batch_size):
            own(part)
    return own.eval()


def _read(name: str) -> tuple[str, int, int]:
    """Return the kind, the number of layers, and the factor or number of channels."""
    wide, plain = _WIDE.fullmatch(name), _PLAIN.fullmatch(name)
    if wide is not None:
        return "wrn", int(wide[1]), int(wide[2])
    if plain is not None and int(plain[1]) in _RESNETS:
        return "resnet", int(plain[1]), int(plain[2] or 64)
    raise ValueError(complaint("network_named", "name", _RULE, repr(name)))
