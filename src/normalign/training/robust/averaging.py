"""The average of a network's weights over the last part of training."""

# torch's own optimizers are built on torch._foreach_*, which have no public name.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

__all__ = ["AveragedWeights"]


class AveragedWeights:
    r"""A second set of weights that follows the network slowly.

    .. math:: \bar w \leftarrow \text{decay}\,\bar w + (1 - \text{decay})\,w

    Statistics of normalisation are averaged likewise; whole numbers are taken over.

    Parameters
    ----------
    network : nn.Module
    decay : float

    Examples
    --------
    >>> layer = nn.Linear(1, 1)
    >>> average = AveragedWeights(layer, decay=0.75)
    >>> _ = [nn.init.zeros_(p) for p in layer.parameters()]
    >>> average.take_over()
    >>> _ = [nn.init.constant_(p, 4.0) for p in layer.parameters()]
    >>> average.follow()
    >>> average.module.bias
    Parameter containing:
    tensor([1.])
    """

    def __init__(self, network: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self.module = copy.deepcopy(network).eval().requires_grad_(False)
        pairs = list(
            zip(
                self.module.state_dict().values(),
                network.state_dict().values(),
                strict=True,
            )
        )
        self._all = pairs
        self._real = [pair for pair in pairs if pair[0].is_floating_point()]

    @torch.no_grad()
    def take_over(self) -> None:
        """Begin anew at the weights that the network has now."""
        own, seen = _columns(self._all)
        torch._foreach_copy_(own, seen)

    @torch.no_grad()
    def follow(self) -> None:
        """Go a step towards the network's weights."""
        own, seen = _columns(self._real)
        torch._foreach_lerp_(own, seen, 1 - self.decay)
        for average, value in self._all:
            if not average.is_floating_point():
                average.copy_(value)


def _columns(pairs: list[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    return [own for own, _ in pairs], [seen for _, seen in pairs]
