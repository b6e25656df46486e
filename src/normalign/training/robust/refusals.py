"""What robust training refuses to begin with, and to go on with."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor, nn

from normalign._errors import complaint, require, require_kind

__all__ = ["TrainingDiverged", "check_data", "check_network", "diverged"]


class TrainingDiverged(ValueError):
    """A loss that is no longer a number: nothing can be learned from there."""


def diverged(what: str, got: str) -> NoReturn:
    """Say that something is not finite any more."""
    remedy = "Lower the learning rate or a weight of the recipe."
    text = complaint("RobustTrainer.train", what, "finite", got, remedy)
    raise TrainingDiverged(text)


def check_network(network: nn.Module) -> None:
    """Refuse a network whose numbers are not float32: both passes count on it."""
    state = [*network.named_parameters(), *network.named_buffers()]
    other = [
        f"{name} in {value.dtype}"
        for name, value in state
        if value.is_floating_point() and value.dtype != torch.float32
    ]
    remedy = "Call network.float(); a recipe's precision has the products in bfloat16."
    got = ", ".join(other[:3]) + (" and others" if len(other) > 3 else "")
    require(not other, "RobustTrainer", "network", "all in float32", got, remedy)


def check_data(x: Tensor, y: Tensor) -> None:
    """Refuse images and classes that cannot be trained on."""
    callee = "RobustTrainer"
    require_kind(x.is_floating_point(), callee, "x", "of real numbers", x)
    require(x.ndim == 4 and len(x) > 0, callee, "x", "of shape (n, c, h, w)", x)
    low, high = float(x.min()), float(x.max())
    inside = low >= 0 and high <= 1
    remedy = "Divide by 255; attacks are cut off at [0, 1], so do not standardise."
    got = f"values from {low:g} to {high:g}"
    require(inside, callee, "x", "images with values in [0, 1]", got, remedy)
    whole = not y.is_floating_point() and y.dtype != torch.bool
    require_kind(whole, callee, "y", "whole numbers", y)
    require(y.shape == (len(x),), callee, "y", f"of shape ({len(x)},)", y)
    require(int(y.min()) >= 0, callee, "y", "0 or more", int(y.min()))
