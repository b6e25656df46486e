"""Residual networks in the form that a state dict has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normalign._errors import require
from normalign.nn.resnet import resnet18, resnet50
from normalign.nn.wide_resnet import WideResNet, wide_resnet28_2, wide_resnet28_10

__all__ = ["BUILT_IN", "network_for", "network_form"]


def network_form(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments that build a ResNet or WideResNet with these tensors.

    Names are those of this package. What the shapes do not determine, such as the
    padding, is left out; tensors of any other network give an empty form.

    Examples
    --------
    >>> from normalign.nn import WideResNet
    >>> network_form(WideResNet(16, 2, n_classes=7).state_dict())
    {'depth': 16, 'widen': 2, 'n_classes': 7, 'n_channels': 3}
    """
    head = state.get("fc.weight")
    if head is None or head.ndim != 2:
        return {}
    depths = tuple(_depth(state, stage) for stage in range(1, 5))
    wide, usual = state.get("stem.weight"), state.get("stem.0.weight")
    if wide is not None and wide.ndim == 4:
        inner = state.get("layer1.0.conv2.weight")
        return {
            "depth": 6 * depths[0] + 4,
            "widen": 0 if inner is None else inner.shape[0] // 16,
            "n_classes": head.shape[0],
            "n_channels": wide.shape[1],
        }
    if usual is not None and usual.ndim == 4:
        bottleneck = "layer1.0.conv3.weight" in state
        return {
            "block": "Bottleneck" if bottleneck else "BasicBlock",
            "depths": depths,
            "n_classes": head.shape[0],
            "width": usual.shape[0],
            "stem": "imagenet" if usual.shape[-1] == 7 else "cifar",
            "n_channels": usual.shape[1],
        }
    return {}


def _depth(state: Mapping[str, Tensor], stage: int) -> int:
    """Count the blocks of a stage by their first convolutions."""
    pattern = re.compile(rf"layer{stage}\.\d+\.conv1\.weight$")
    return sum(1 for name in state if pattern.match(name))


_RESNET = ("n_classes", "width", "stem", "n_channels")
_WIDE = ("n_classes", "n_channels", "padding")

# Name -> how it is built, and the arguments that a state dict may set.
BUILT_IN: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "resnet18": (resnet18, _RESNET),
    "resnet50": (resnet50, _RESNET),
    "wide_resnet28_2": (wide_resnet28_2, _WIDE),
    "wide_resnet28_10": (wide_resnet28_10, _WIDE),
    "WideResNet": (WideResNet, ("depth", "widen", *_WIDE)),
}


def network_for(
    name: str,
    state: Mapping[str, Tensor],
    *,
    generator: torch.Generator | None = None,
    **settings: Any,
) -> tuple[nn.Module, dict[str, Any]]:
    """Build the named network in the form that a state dict has; load nothing.

    Shapes determine the classes, the channels, the width and the stem; a
    ``"WideResNet"`` also takes its depth and widening from them. Where the state dict
    does not tell, the network has its usual form.

    Parameters
    ----------
    name : str
        One of ``"resnet18"``, ``"resnet50"``, ``"wide_resnet28_2"``,
        ``"wide_resnet28_10"`` and ``"WideResNet"``.
    state : mapping of str to Tensor
        With the names of this package.
    settings
        Further arguments, such as the ``padding`` of a ``"WideResNet"``; those that the
        network does not have are left out.

    Returns
    -------
    network : nn.Module
        With weights as drawn.
    arguments : dict
        What was read from the state dict, and the settings.

    Raises
    ------
    ValueError
        If there is no such network, or the state dict has no depth of a
        ``"WideResNet"``.

    Examples
    --------
    >>> from normalign.nn import resnet18
    >>> network_for("resnet18", resnet18(n_classes=7, width=2).state_dict())[1]
    {'n_classes': 7, 'width': 2, 'stem': 'cifar', 'n_channels': 3}
    """
    known = ", ".join(BUILT_IN)
    require(name in BUILT_IN, "network_for", "name", f"one of {known}", repr(name))
    build, settable = BUILT_IN[name]
    form = {**network_form(state), **settings}
    arguments = {key: form[key] for key in settable if key in form}
    deep = build is not WideResNet or arguments.get("widen", 0) > 0
    require(
        deep, "network_for", "state", "that of a WideResNet", f"{len(state)} tensors",
        "Build the network yourself if its blocks have other names.",
    )  # fmt: skip
    return build(**arguments, generator=generator), arguments
