"""The random numbers of training: order, augmentation, attack starts, probes.

Each is a hash of the seed and the step, so a resumed run draws the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normalign.training.randomness import (
    BATCHES,
    PROBES,
    SHUFFLE,
    STARTS,
    normal_pairs,
    permutations,
    streams,
    uniform,
)
from normalign_reproduction.robust._recipe import Recipe

PADDING = 4  # the largest shift of an image, in pixels
START_SCALE = 0.001  # standard deviation of the start of an attack on a divergence


class Draws:
    """The random numbers of one run."""

    def __init__(self, recipe: Recipe, *, seed: int, device: torch.device) -> None:
        self.recipe, self._seed = recipe, torch.tensor([seed], device=device)

    def order(self, epoch: int, n: int) -> Tensor:
        """Return the order of the samples in an epoch, (n,)."""
        return permutations(streams(self._seed, SHUFFLE, epoch), n)[0]

    def images(self, x: Tensor, step: int) -> Tensor:
        """Return a batch of images with random shifts and flips, if augmented."""
        if self.recipe.augment == "none":
            return x
        keys = streams(self._seed, BATCHES, step)
        chance = uniform(keys, (len(x), 3), dtype=torch.float32)[0]
        offsets = (chance[:, :2] * (2 * PADDING + 1)).long()
        return crop_and_flip(x, offsets, chance[:, 2] < 0.5, padding=PADDING)

    def starts(self, x: Tensor, step: int, radius: float) -> Tensor:
        """Return the offsets from ``x`` at which the attack starts.

        Uniform in the ball for the cross-entropy. The gradient of a divergence is zero
        at ``x``, so there the offsets are small Gaussian noise.
        """
        keys = streams(self._seed, STARTS, step)
        if self.recipe.objective == "pgd":
            return radius * (2 * uniform(keys, tuple(x.shape), dtype=x.dtype)[0] - 1)
        return START_SCALE * normal_pairs(keys, tuple(x.shape), dtype=x.dtype)[0]

    def probes(self, x: Tensor, n_classes: int, step: int) -> Tensor:
        """Return the noise of the penalty's probes, (1, n, k)."""
        keys = streams(self._seed, PROBES, step)
        return normal_pairs(keys, (1, len(x), n_classes), dtype=x.dtype)[0]


def crop_and_flip(
    images: Tensor, offsets: Tensor, flips: Tensor, *, padding: int
) -> Tensor:
    """Return crops of zero-padded images, of the original size, some of them mirrored.

    Parameters
    ----------
    images : Tensor of shape (n, c, h, w)
    offsets : int64 Tensor of shape (n, 2)
        First row and column of each crop in the padded image.
    flips : bool Tensor of shape (n,)
        Which crops are mirrored left to right.
    padding : int

    Examples
    --------
    >>> image, flip = torch.tensor([[[[1, 2], [3, 4]]]]), torch.tensor([True])
    >>> crop_and_flip(image, torch.tensor([[2, 1]]), flip, padding=1)
    tensor([[[[4, 3],
              [0, 0]]]])
    """
    n, c, h, w = images.shape
    across = torch.arange(w, device=images.device).expand(n, w)
    across = torch.where(flips[:, None], across.flip(1), across)
    rows = torch.arange(h, device=images.device) + offsets[:, :1] - padding
    columns = across + offsets[:, 1:] - padding
    inside = ((rows >= 0) & (rows < h))[:, None, :, None]
    inside = inside & ((columns >= 0) & (columns < w))[:, None, None, :]
    picked = images[
        torch.arange(n, device=images.device)[:, None, None, None],
        torch.arange(c, device=images.device)[None, :, None, None],
        rows.clamp(0, h - 1)[:, None, :, None],
        columns.clamp(0, w - 1)[:, None, None, :],
    ]
    return picked.masked_fill(~inside, 0)
