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

__all__ = [
    "BATCHES", "PROBES", "SHUFFLE", "STARTS", "normal", "normal_pairs", "permutations",
    "streams", "uniform",
]  # fmt: skip

# Purposes: two draws of one network in one epoch must not share their numbers.
SHUFFLE, PROBES, BATCHES, STARTS = 1, 2, 3, 4

# The constants of the splitmix64 generator, as signed 64-bit integers.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64

# Words hashed at once on a CPU: what is made on the way stays in its cache.
_BLOCK = 2**15


def streams(seeds: Tensor, purpose: int, epoch: Tensor | int) -> Tensor:
    """Return one 64-bit key per seed, for one purpose in one epoch.

    Parameters
    ----------
    seeds : int64 Tensor of shape (s,)
    purpose : int
        :data:`SHUFFLE`, :data:`PROBES`, :data:`BATCHES` or :data:`STARTS`.
    epoch : int, or int64 Tensor of shape ()
        A tensor, on the device of the seeds, lets a captured graph count its own.

    Returns
    -------
    int64 Tensor of shape (s,)

    Examples
    --------
    >>> keys = streams(torch.tensor([0, 1]), SHUFFLE, 5)
    >>> bool(keys[0] == streams(torch.tensor([0]), SHUFFLE, torch.tensor(5))[0])
    True
    """
    # A number stays one: bringing it to the device would break a capture.
    counted = epoch * _STEP
    if not isinstance(counted, Tensor):
        counted = (counted + 2**63) % 2**64 - 2**63
    return _mix(_mix(_mix(seeds + _STEP) ^ purpose) + counted)


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


def normal_pairs(keys: Tensor, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
    """Return standard normal numbers as :func:`normal` does, at a fraction of its cost.

    Each hashed word gives a pair of numbers, from two uniform ones of 32 bits, so that
    none is beyond 6.7: for noise on whole batches of images. The numbers are others
    than those of :func:`normal`.

    Returns
    -------
    Tensor of shape (s, *shape)

    Examples
    --------
    >>> keys = streams(torch.arange(2), BATCHES, 0)
    >>> normal_pairs(keys, (500, 3), dtype=torch.float32).shape
    torch.Size([2, 500, 3])
    """
    count = math.prod(shape)
    half = (count + 1) // 2
    working = torch.float64 if dtype == torch.float64 else torch.float32
    drawn = torch.empty((len(keys), 2, half), dtype=working, device=keys.device)
    on_cpu = keys.device.type == "cpu"
    size = max(1, _BLOCK // len(keys)) if on_cpu else max(half, 1)
    for start in range(0, half, size):
        part = drawn[:, :, start : start + size]
        words = _words(keys, part.shape[2], first=start)
        # Into (0, 1], for the logarithm.
        chance = ((_shift_right(words, 32) + 1).to(working)).mul_(2.0**-32)
        angle = (words & (2**32 - 1)).to(working).mul_(2 * math.pi * 2.0**-32)
        radius = chance.log_().mul_(-2).sqrt_()
        torch.mul(radius, angle.cos(), out=part[:, 0])
        torch.mul(radius, angle.sin_(), out=part[:, 1])
    return drawn.flatten(1)[:, :count].reshape(-1, *shape).to(dtype)


def uniform(keys: Tensor, shape: tuple[int, ...], *, dtype: torch.dtype) -> Tensor:
    """Return uniform numbers in [0, 1), a block of the given shape per key.

    Of 53 bits in float64, else of 24; half and bfloat16 numbers are rounded to 1 at
    the upper end.

    Returns
    -------
    Tensor of shape (s, *shape)

    Examples
    --------
    >>> drawn = uniform(streams(torch.arange(2), BATCHES, 0), (3,), dtype=torch.float32)
    >>> bool(((drawn >= 0) & (drawn < 1)).all())
    True
    """
    working = torch.float64 if dtype == torch.float64 else torch.float32
    bits = 53 if working == torch.float64 else 24
    words = (_words(keys, math.prod(shape)) >> (64 - bits)) & (2**bits - 1)
    return (words.to(working) * 2.0**-bits).reshape(-1, *shape).to(dtype)


def _words(keys: Tensor, n: int, *, first: int = 0) -> Tensor:
    """Return ``n`` hashed 64-bit words per key, beginning with the given one."""
    counter = torch.arange(first + 1, first + n + 1, device=keys.device)
    return _mix(keys[:, None] + counter * _STEP)


def _mix(word: Tensor) -> Tensor:
    """Return the finaliser of splitmix64: every bit of a word decides every other."""
    word = (word ^ _shift_right(word, 30)) * _FIRST
    word = (word ^ _shift_right(word, 27)) * _SECOND
    return word ^ _shift_right(word, 31)


def _shift_right(word: Tensor, places: int) -> Tensor:
    """Shift to the right as unsigned; torch's shift keeps the sign."""
    return (word >> places) & (2 ** (64 - places) - 1)
