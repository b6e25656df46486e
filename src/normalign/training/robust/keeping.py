"""How often a checkpoint is worth its time."""

from __future__ import annotations

__all__ = ["pause_after"]

# Of the time of training, the part that writing checkpoints may take.
_SHARE = 20
_LONGEST = 10  # in units of the pause that was asked for


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
