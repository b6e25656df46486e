"""Which data a checkpoint is of, and how often one is worth its time."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["digest", "pause_after"]

# Of the time of training, the part that writing checkpoints may take.
_SHARE = 20
_LONGEST = 10  # in units of the pause that was asked for
_AT_ONCE = 500  # rows


def digest(values: Tensor) -> int:
    """Return a number that tells tensors apart, their order too, on every device alike.

    Sums of real numbers depend on the order in which a device takes them, and on how
    many threads do; those of whole numbers, cut off at 64 bits, do not.

    Parameters
    ----------
    values : Tensor of shape (n, ...)
        Of float32 or int64.

    Examples
    --------
    >>> digest(torch.tensor([1, 2])), digest(torch.tensor([2, 1]))
    (13, 11)
    """
    total, first = 0, 1
    for part in values.split(_AT_ONCE):
        flat = part.contiguous().reshape(-1)
        words = flat.view(torch.int32) if flat.is_floating_point() else flat
        places = torch.arange(first, first + len(flat), device=flat.device)
        total += int((words.long() * (2 * places + 1)).sum())
        first += len(flat)
    return total


def pause_after(cost: float, *, wanted: float) -> float:
    """Return the seconds to the next checkpoint after one that took ``cost`` seconds.

    As many as are wanted; up to ten times as many where writing would else take more
    than a twentieth of the time.

    Examples
    --------
    >>> pause_after(0.1, wanted=15.0), pause_after(3.0, wanted=15.0)
    (15.0, 60.0)
    """
    return max(wanted, min(_SHARE * cost, _LONGEST * wanted))
