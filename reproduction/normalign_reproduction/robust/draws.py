"""The random draws of a step: order, shifts, flips, starts, probes.

Every number is a hash of the seed and of where it is used, so that a run that was
killed goes on with the numbers that it would have drawn.
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
from normalign_reproduction._errors import require, require_kind
from normalign_reproduction.robust.recipe import Recipe

__all__ = ["Draws", "crop_and_flip"]

PADDING = 4  # pixels by which an image may be shifted
START = 0.001  # deviation of the start of an attack that climbs a divergence


class Draws:
    """The random draws of one run.

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
        return crop_and_flip(x, padding=PADDING, offsets=offsets, flips=flips)

    def starts(self, x: Tensor, step: int, radius: float) -> Tensor:
        """Return the start of the attack, minus x.

        Uniform in the ball for an attack on the loss. The gradient of a divergence is
        zero at x itself, so that attack begins nearby.
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


def crop_and_flip(
    images: Tensor, *, padding: int = 4, offsets: Tensor, flips: Tensor
) -> Tensor:
    r"""Return crops of padded images, of the images' own size, some of them mirrored.

    .. math:: g_{r,q} = f_{r + o_1 - p,\, q' + o_2 - p}, \qquad
        q' = w - 1 - q \text{ if flipped, else } q

    with zero outside of the image. Offset :math:`(p, p)` without a flip gives the image
    back; offsets from 0 to :math:`2p` are the crops of the image with a border of
    :math:`p` pixels, and whole numbers beyond are crops of a wider border. Values are
    picked, not computed, in any dtype, and nothing waits for the device.

    Parameters
    ----------
    images : Tensor of shape (n, c, h, w)
    padding : int, default=4
    offsets : integer Tensor of shape (n, 2)
        Of each crop's first row and first column in the padded image.
    flips : boolean Tensor of shape (n,)
        Which crops are mirrored, left to right.

    Returns
    -------
    Tensor of shape (n, c, h, w)

    Raises
    ------
    TypeError
        If offsets are not whole numbers or flips are not boolean.
    ValueError
        If the shapes do not fit or the padding is negative.

    Examples
    --------
    >>> image, one = torch.tensor([[[[1, 2], [3, 4]]]]), torch.tensor([True])
    >>> low = torch.tensor([[2, 1]])  # a row down, no column
    >>> crop_and_flip(image, padding=1, offsets=low, flips=one)
    tensor([[[[4, 3],
              [0, 0]]]])
    """
    callee = "crop_and_flip"
    require(images.ndim == 4, callee, "images", "of shape (n, c, h, w)", images)
    n, _, h, w = images.shape
    require(padding >= 0, callee, "padding", "0 or more", padding)
    whole = not (offsets.is_floating_point() or offsets.is_complex())
    require_kind(whole, callee, "offsets", "a tensor of whole numbers", offsets)
    require(offsets.shape == (n, 2), callee, "offsets", f"of shape {(n, 2)}", offsets)
    boolean = flips.dtype == torch.bool
    require_kind(boolean, callee, "flips", "a boolean tensor", flips)
    require(flips.shape == (n,), callee, "flips", f"of shape {(n,)}", flips)
    across = torch.arange(w, device=images.device).expand(n, w)
    across = torch.where(flips[:, None], across.flip(1), across)
    rows = torch.arange(h, device=images.device) + offsets[:, :1].long() - padding
    columns = across + offsets[:, 1:].long() - padding
    inside = _within(rows, h)[:, None, :, None] & _within(columns, w)[:, None, None, :]
    picked = images[
        torch.arange(n, device=images.device)[:, None, None, None],
        torch.arange(images.shape[1], device=images.device)[None, :, None, None],
        rows.clamp(0, h - 1)[:, None, :, None],
        columns.clamp(0, w - 1)[:, None, None, :],
    ]
    return picked.masked_fill(~inside, 0)


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)
