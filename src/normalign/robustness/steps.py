"""How far each step of an attack goes, as a share of the radius."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import cast

from normalign._checks import require, require_kind

__all__ = ["StepSize", "cosine_steps", "shares"]

StepSize = float | Callable[[int], float] | None

# All steps together, in radii: enough to cross the ball and to turn around at its rim.
TOTAL = 2.5


def cosine_steps(n_steps: int, *, total: float = TOTAL) -> Callable[[int], float]:
    r"""Return a schedule of steps that shrink along half a cosine.

    .. math:: s_t = \frac{S}{n} \Big(1 + \cos \frac{\pi (t + 1/2)}{n}\Big),
        \qquad \sum_{t < n} s_t = S

    Long steps first, to find the way; short ones at the end, to settle. The shares sum
    to ``total`` exactly, whatever the number of steps.

    Parameters
    ----------
    n_steps : int
        As given to the attack.
    total : float
        Length of the whole way, in radii.

    Returns
    -------
    callable
        For ``step_size`` of :func:`~normalign.robustness.pgd`.

    Examples
    --------
    >>> schedule = cosine_steps(2)
    >>> round(schedule(0), 4), round(schedule(1), 4)
    (2.1339, 0.3661)
    """
    callee = "cosine_steps"
    require(n_steps > 0, callee, "n_steps", "positive", n_steps)
    require(0 < total < math.inf, callee, "total", "positive and finite", total)
    return lambda t: total / n_steps * (1 + math.cos(math.pi * (t + 0.5) / n_steps))


def shares(callee: str, step_size: StepSize, n_steps: int) -> list[float]:
    """Return the length of every step as a share of the radius."""
    whole = isinstance(n_steps, int) and not isinstance(n_steps, bool)
    require_kind(whole, callee, "n_steps", "an integer", n_steps)
    require(n_steps >= 0, callee, "n_steps", "at least 0", n_steps)
    if step_size is None:
        return [TOTAL / max(n_steps, 1)] * n_steps
    kind = isinstance(step_size, Real) or callable(step_size)
    wanted = "None, a share of the radius, or a function of the step's number"
    require_kind(kind, callee, "step_size", wanted, step_size)
    rule = cast("Callable[[int], float]", step_size)
    rule = rule if callable(step_size) else lambda t: cast(float, step_size)
    given = [float(rule(t)) for t in range(n_steps)]
    for share in given:
        require(0 <= share < math.inf, callee, "step_size", "finite, at least 0", share)
    return given
