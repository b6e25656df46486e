"""How far each step of an attack goes, as a share of the radius."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any, cast

from normalign._errors import as_float, require, require_kind

__all__ = ["StepSize", "cosine_steps", "require_count", "shares"]

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
    require_count(callee, "n_steps", n_steps, least=1)
    require_kind(isinstance(total, Real), callee, "total", "a number", repr(total))
    length = as_float(total)
    require(0 < length < math.inf, callee, "total", "positive and finite", total)
    return lambda t: length / n_steps * (1 + math.cos(math.pi * (t + 0.5) / n_steps))


def require_count(callee: str, name: str, value: Any, *, least: int) -> None:
    """Refuse what is no whole number, or too small a one."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require_kind(whole, callee, name, "an integer", repr(value))
    require(value >= least, callee, name, f"at least {least}", value)


def shares(callee: str, step_size: StepSize, n_steps: int) -> list[float]:
    """Return the length of every step as a share of the radius."""
    require_count(callee, "n_steps", n_steps, least=0)
    if step_size is None:
        return [TOTAL / max(n_steps, 1)] * n_steps
    kind = isinstance(step_size, Real) or callable(step_size)
    wanted = "None, a share of the radius, or a function of the step's number"
    require_kind(kind, callee, "step_size", wanted, repr(step_size))
    rule = cast("Callable[[int], float]", step_size)
    rule = rule if callable(step_size) else lambda t: cast(float, step_size)
    given = [as_float(rule(t)) for t in range(n_steps)]
    for share in given:
        require(0 <= share < math.inf, callee, "step_size", "finite, at least 0", share)
    return given
