"""The form of a residual network, read off the shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["network_form"]


def network_form(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments that a ResNet or WideResNet with these tensors was built by.

    Names are our own. What the tensors do not tell, such as the padding, is left out;
    tensors of any other network give an empty form.

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
