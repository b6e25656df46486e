"""What chance decides in a step: order, shifts, flips, starts, probes.

Every number is a hash of the seed and of where it is used, so that a run that was
killed goes on with the numbers that it would have drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normalign.data._augment import cropped_and_flipped
from normalign.training.randomness import (
    BATCHES,
    PROBES,
    SHUFFLE,
    STARTS,
    normal_pairs,
    permutations,
    streams,
    uniform,
)  # fmt: skip
from normalign.training.robust.recipe import Recipe

__all__ = ["Draws"]

PADDING = 4  # pixels by which an image may be shifted
START = 0.001  # deviation of the start of an attack that climbs a divergence


class Draws:
    """The random choices of one run.

    Parameters
    ----------
    recipe : Recipe
    seed : int
    device : torch.device
    """

    def __init__(self, recipe: Recipe, *, seed: int, device: torch.device) -> None:
        self.recipe, self._seed = recipe, torch.tensor([seed], device=device)

    def order(self, epoch: int, n: int) -> Tensor:
        """Return the order in which the samples come in an epoch."""
        return permutations(streams(self._seed, SHUFFLE, epoch), n)[0]

    def images(self, x: Tensor, step: int) -> Tensor:
        """Return a batch of images shifted and flipped, if the recipe says so."""
        if self.recipe.augment == "none":
            return x
        keys = streams(self._seed, BATCHES, step)
        chance = uniform(keys, (len(x), 3), dtype=torch.float32)[0]
        offsets = (chance[:, :2] * (2 * PADDING + 1)).long()
        flips = chance[:, 2] < 0.5
        return cropped_and_flipped(x, padding=PADDING, offsets=offsets, flips=flips)

    def starts(self, x: Tensor, step: int, radius: float) -> Tensor:
        """Return where the attacker begins, less x.

        In the whole ball where it climbs a loss. The slope of a divergence is zero at
        x itself: there it begins nearby.
        """
        keys = streams(self._seed, STARTS, step)
        if self.recipe.objective == "pgd":
            drawn = uniform(keys, tuple(x.shape), dtype=x.dtype)[0]
            return radius * (2 * drawn - 1)
        return START * normal_pairs(keys, tuple(x.shape), dtype=x.dtype)[0]

    def probes(self, x: Tensor, n_classes: int, step: int) -> Tensor:
        """Return the noise of a penalty's probes, (1, n, k)."""
        keys = streams(self._seed, PROBES, step)
        return normal_pairs(keys, (1, len(x), n_classes), dtype=x.dtype)[0]
