"""When an experiment looks at its networks, and what is kept of what it saw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from normalign.training import History
from normalign_reproduction._errors import require

__all__ = ["all_rounded", "kept_history", "log_spaced", "rounded"]

# Of what is stored: more than a figure shows, less than rounding disturbs.
DIGITS = 6


def log_spaced(epochs: int, count: int) -> frozenset[int]:
    """Return about ``count`` epochs, even on a logarithmic axis, with 0 and the last.

    Where whole numbers stand further apart than the steps, every one is taken, so
    there may be fewer.

    Examples
    --------
    >>> sorted(log_spaced(8, 5))
    [0, 1, 2, 4, 8]
    """
    require(epochs >= 1, "log_spaced", "epochs", "at least 1", epochs)
    require(count >= 3, "log_spaced", "count", "at least 3", count)
    steps = range(count - 1)
    return frozenset({0, *(round(epochs ** (i / (count - 2))) for i in steps)})


def rounded(value: float) -> float:
    """Return a number with six significant digits; what is not finite as it is.

    Examples
    --------
    >>> rounded(2 / 3), rounded(float("inf"))
    (0.666667, inf)
    """
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value


def all_rounded(value: Any) -> Any:
    """Return a result whose every real number has six significant digits.

    Examples
    --------
    >>> all_rounded({"n": 3, "shares": [2 / 3, None]})
    {'n': 3, 'shares': [0.666667, None]}
    """
    if isinstance(value, dict):
        return {name: all_rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [all_rounded(part) for part in value]
    return rounded(value) if isinstance(value, float) else value


def kept_history(history: History, names: Sequence[str]) -> dict[str, Any]:
    """Return some columns of a history, and its epochs, rounded, for a result.

    Seconds are left out: they are no result, and the same run has others.
    """
    columns = {name: [rounded(v) for v in history[name]] for name in names}
    stored = History({"epoch": history["epoch"], **columns}).to_dict()
    return {"columns": stored["columns"]}
