"""How a network does on images, as they are and attacked."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normalign._errors import require
from normalign.robustness import pgd
from normalign.training.loop import evaluation_mode
from normalign.training.robust.recipe import PRECISIONS

__all__ = ["evaluated"]


def evaluated(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    radius: float,
    n_steps: int = 20,
    n_restarts: int = 1,
    seed: int = 0,
    precision: str = "float32",
) -> dict[str, float]:
    """Return accuracy, and accuracy under a PGD attack in an L-infinity ball.

    The attack climbs the cross-entropy from uniform starts inside [0, 1], and keeps
    the best of its restarts. Robust accuracy is an upper bound: a longer attack may
    break more.

    Parameters
    ----------
    network : nn.Module
        Measured in evaluation mode; its own mode is left as it was.
    x : Tensor of shape (n, c, h, w)
    y : integer Tensor of shape (n,)
    precision : {"float32", "bf16"}
        ``"bf16"`` is faster, and a weaker attacker.

    Returns
    -------
    dict
        ``accuracy`` and ``robust_accuracy``.
    """
    known = precision in PRECISIONS
    rule = f"one of {', '.join(map(repr, PRECISIONS))}"
    require(known, "evaluated", "precision", rule, repr(precision))
    device = next((p.device for p in network.parameters()), x.device)
    x, y = x.to(device), y.to(device)
    low = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
    with evaluation_mode(network), low:
        attack = pgd(
            network, x, y, radii=[radius], n_steps=n_steps, n_restarts=n_restarts,
            keep="best", low=0.0, high=1.0,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
    return {
        "accuracy": float(attack.accuracy),
        "robust_accuracy": float(attack.robust_accuracy[0]),
    }
