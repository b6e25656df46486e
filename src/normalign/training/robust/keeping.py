"""The time between checkpoints."""

from __future__ import annotations

__all__ = ["pause_after"]

_SHARE = 20  # writing may take one part in 20 of the time
_LONGEST = 10  # the longest pause, in units of the wanted one


def pause_after(cost: float, *, wanted: float) -> float:
    """Return the seconds to the next checkpoint after one that took ``cost`` seconds.

    The wanted pause, or up to ten times as long where writing would otherwise take more
    than a twentieth of the time.

    Examples
    --------
    >>> pause_after(0.1, wanted=15.0), pause_after(3.0, wanted=15.0)
    (15.0, 60.0)
    """
    return max(wanted, min(_SHARE * cost, _LONGEST * wanted))
