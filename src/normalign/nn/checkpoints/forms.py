"""The network that a file is of, as the shapes and names of its tensors tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normalign._errors import require
from normalign.nn.checkpoints.files import read_state_file
from normalign.nn.checkpoints.namings import OWN, best_reading
from normalign.nn.resnet import resnet18, resnet50
from normalign.nn.wide_resnet import WideResNet, wide_resnet28_2, wide_resnet28_10

__all__ = ["BUILT_IN", "network_for", "network_form"]


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


_RESNET = ("n_classes", "width", "stem", "n_channels")
_WIDE = ("n_classes", "n_channels", "padding")

# Names that tell whether those of a file are read rightly.
_LANDMARKS = (
    "stem.weight", "stem.0.weight", "layer1.0.conv1.weight", "norm.weight", "fc.weight",
)  # fmt: skip

# Name -> how it is built, and the arguments that a file may set.
BUILT_IN: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...]]] = {
    "resnet18": (resnet18, _RESNET),
    "resnet50": (resnet50, _RESNET),
    "wide_resnet28_2": (wide_resnet28_2, _WIDE),
    "wide_resnet28_10": (wide_resnet28_10, _WIDE),
    "WideResNet": (WideResNet, ("depth", "widen", *_WIDE)),
}


def network_for(
    name: str,
    path: str | Path,
    *,
    callee: str = "network_for",
    argument: str = "path",
    generator: torch.Generator | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """Build the named network in the form that a checkpoint has; load nothing.

    The shapes tell the classes, the channels, the width and the stem, the naming the
    padding; a ``"WideResNet"`` also takes its depth and widening from there. Where the
    file does not tell, the network has its usual form.

    Returns
    -------
    network : nn.Module
        With weights as drawn.
    arguments : dict
        What was read off the file.

    Raises
    ------
    ValueError
        If there is no such network, the file cannot be read, or it tells no depth of a
        ``"WideResNet"``.
    """
    known = ", ".join(BUILT_IN)
    require(name in BUILT_IN, callee, "name", f"one of {known}", repr(name))
    build, settable = BUILT_IN[name]
    file = read_state_file(path, callee=callee, argument=argument)
    reading = best_reading(file.tensors, _LANDMARKS)
    form = network_form({n: file.tensors[o] for n, o in reading.first.items()})
    if form and reading.naming is not OWN:
        form["padding"] = reading.naming.padding
    arguments = {key: form[key] for key in settable if key in form}
    deep = build is not WideResNet or arguments.get("widen", 0) > 0
    require(
        deep, callee, argument, "the weights of a WideResNet", file.path.name,
        "Build the network yourself if its blocks are named in another way.",
    )  # fmt: skip
    return build(**arguments, generator=generator), arguments
