"""Random numbers that depend on a seed, a purpose and an epoch, and on nothing else.

A generator with a state would tie the draws of one network to what was drawn for its
neighbours, to the device and to the moment a run was interrupted. Here every number is
a hash of where it is used: the same network draws the same numbers alone, among others,
after a resumed run and inside a captured CUDA graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["PROBES", "SHUFFLE", "normal", "permutations", "streams"]

# Purposes: two draws of one network in one epoch must not share their numbers.
SHUFFLE, PROBES = 1, 2

# The constants of the splitmix64 generator, as signed 64-bit integers.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def streams(seeds: Tensor, purpose: int, epoch: Tensor | int) -> Tensor:
    """Return one 64-bit key per seed, for one purpose in one epoch.

    Parameters
    ----------
    seeds : int64 Tensor of shape (s,)
    purpose : int
        :data:`SHUFFLE` or :data:`PROBES`.
    epoch : int, or int64 Tensor of shape ()
        A tensor lets a captured graph count its own epochs.

    Returns
    -------
    int64 Tensor of shape (s,)

    Examples
    --------
    >>> keys = streams(torch.tensor([0, 1]), SHUFFLE, 5)
    >>> bool(keys[0] == streams(torch.tensor([0]), SHUFFLE, torch.tensor(5))[0])
    True
    """
    counted = torch.as_tensor(epoch, device=seeds.device) * _STEP
    return _mixed(_mixed(_mixed(seeds + _STEP) ^ purpose) + counted)


def permutations(keys: Tensor, n: int) -> Tensor:
    """Return one permutation of ``0 ... n - 1`` per key.

    Returns
    -------
    int64 Tensor of shape (s, n)

    Examples
    --------
    >>> order = permutations(streams(torch.tensor([3]), SHUFFLE, 1), 4)
    >>> order.sort().values
    tensor([[0, 1, 2, 3]])
    """
    return _words(keys, n).argsort(dim=1)


def normal(keys: Tensor, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
    r"""Return standard normal numbers, a block of the given shape per key.

    .. math:: \sqrt{-2 \ln u_1}\,\big(\cos 2\pi u_2, \sin 2\pi u_2\big)

    (Box and Muller) from uniform numbers of 53 bits. Half and bfloat16 numbers are
    drawn in float32, which loses nothing.

    Returns
    -------
    Tensor of shape (s, *shape)

    Examples
    --------
    >>> keys = streams(torch.arange(2), PROBES, 0)
    >>> normal(keys, (500, 3), dtype=torch.float64).shape
    torch.Size([2, 500, 3])
    """
    count = math.prod(shape)
    half = (count + 1) // 2
    words = _words(keys, 2 * half)
    working = torch.float64 if dtype == torch.float64 else torch.float32
    # Into (0, 1]: the logarithm of the least one, 2^-53 (2^-24), is finite.
    bits = 53 if working == torch.float64 else 24
    uniform = (((words >> (64 - bits)) & (2**bits - 1)) + 1).to(working) * 2.0**-bits
    radius = uniform[:, :half].log().mul_(-2).sqrt_()
    angle = uniform[:, half:].mul(2 * math.pi)
    drawn = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=1)
    return drawn[:, :count].reshape(-1, *shape).to(dtype)


def _words(keys: Tensor, n: int) -> Tensor:
    """Return ``n`` hashed 64-bit words per key."""
    counter = torch.arange(1, n + 1, device=keys.device)
    return _mixed(keys[:, None] + counter * _STEP)


def _mixed(word: Tensor) -> Tensor:
    """Return the finaliser of splitmix64: every bit of a word decides every other."""
    word = (word ^ _shifted(word, 30)) * _FIRST
    word = (word ^ _shifted(word, 27)) * _SECOND
    return word ^ _shifted(word, 31)


def _shifted(word: Tensor, places: int) -> Tensor:
    """Shift to the right as unsigned; torch's shift keeps the sign."""
    return (word >> places) & (2 ** (64 - places) - 1)
