"""Rows drawn at random, from generators of one's own."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["sampled_rows", "seeded"]


def seeded(seed: int = 0) -> torch.Generator:
    """A generator of one's own: no draw here touches the global one."""
    return torch.Generator().manual_seed(seed)


def sampled_rows(n: int, most: int, generator: torch.Generator) -> Tensor:
    """That many of n rows, without replacement, on the CPU whatever the default is."""
    return torch.randperm(n, generator=generator, device="cpu")[:most]
