"""`minimal_radius`: the smallest radius at which an attack breaks a sample."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor

from normalign._errors import as_float, require, require_kind
from normalign._linear_map import ChunkSize, LocalMap
from normalign.robustness.ascent import (
    Ascent,
    check_choice,
    checked_generator,
    checked_range,
)
from normalign.robustness.balls import NORMS, Ball, Bound, distance, unit_offsets
from normalign.robustness.losses import Loss, check_loss
from normalign.robustness.routes import has_closed_form
from normalign.robustness.steps import StepSize, require_count, shares
from normalign.robustness.target import Target, preserve_state, require_model

__all__ = ["minimal_radius"]


def minimal_radius(  # noqa: PLR0913  (what an attack is made of)
    model: Any,
    x: Any,
    y: Any,
    *,
    max_radius: float,
    norm: Literal["linf", "l2"] = "linf",
    n_bisections: int = 20,
    n_steps: int = 20,
    step_size: StepSize = None,
    n_restarts: int = 1,
    generator: torch.Generator | None = None,
    loss: Loss = "margin",
    low: Bound = None,
    high: Bound = None,
    chunk_size: ChunkSize = "auto",
) -> Tensor:
    r"""Smallest radius at which projected gradient ascent breaks each sample.

    .. math:: \min \{ r : \mathrm{PGD}_r(x) \text{ is misclassified} \}
        \;\ge\; \min \{ \|z - x\| : \arg\max f(z) \ne y \}

    An upper bound on the distance to the nearest boundary, found by bisection with
    every sample at a radius of its own; points that are broken closer than the radius
    they were looked for at count by their distance. For two affine outputs it is that
    distance, which in the Euclidean norm is
    :func:`~normalign.local_robustness`, to ``max_radius / 2**n_bisections``. It is 0
    where a sample is wrong at x and infinite where ``max_radius`` does not break it.
    Runs start at x, further ones uniformly in the ball, and keep the worst point on
    their way. The cost is that of ``n_bisections + 1`` attacks at one radius.

    Parameters
    ----------
    max_radius : float
        The largest radius of interest.
    n_bisections : int, default=20
    model, x, y, norm, n_steps, step_size, n_restarts, generator, loss, low, high
        See :func:`~normalign.robustness.pgd`.
    chunk_size : int, "auto" or None
        Likewise.

    Returns
    -------
    Tensor of shape (n,)

    Raises
    ------
    ValueError, TypeError
        As :func:`~normalign.robustness.pgd`.

    Examples
    --------
    >>> sign = lambda z: torch.cat([z, -z], 1)
    >>> x, y = torch.tensor([[0.5], [2.0], [-1.0]]), torch.tensor([0, 0, 0])
    >>> minimal_radius(sign, x, y, max_radius=1.0)
    tensor([0.5000,    inf, 0.0000])
    """
    callee = "minimal_radius"
    number = isinstance(max_radius, Real | Tensor)
    require_kind(number, callee, "max_radius", "a number", repr(max_radius))
    positive = 0 < as_float(max_radius) < math.inf
    require(positive, callee, "max_radius", "positive and finite", max_radius)
    require_count(callee, "n_bisections", n_bisections, least=0)
    require_count(callee, "n_restarts", n_restarts, least=1)
    generator = checked_generator(callee, generator)
    check_choice(callee, "norm", norm, NORMS)
    check_loss(callee, loss)
    steps = shares(callee, step_size, n_steps)
    require_model(callee, model)
    # Built here, where its warnings point at the caller.
    local_map = None if has_closed_form(model) else LocalMap(model, callee=callee)
    with preserve_state():
        target = Target.of(
            callee, model, local_map, x, y, loss=loss, chunk_size=chunk_size
        )
        ball = Ball(norm, *checked_range(callee, target.x, low, high))
        ascent = Ascent(target.route, ball, steps, "best")
        starts: list[Tensor | None] = [None]
        for _ in range(n_restarts - 1):
            starts.append(unit_offsets(target.x, norm, generator))
        return _bisect(target, ascent, starts, float(max_radius), n_bisections)


def _bisect(
    target: Target,
    ascent: Ascent,
    starts: list[Tensor | None],
    max_radius: float,
    n_bisections: int,
) -> Tensor:
    n, x = len(target.x), target.x
    radius = x.new_full((n,), max_radius)
    upper = torch.where(target.clean.broken, 0.0, x.new_full((n,), torch.inf))
    lower = x.new_zeros(n)
    for _ in range(n_bisections + 1):
        open_ = torch.nonzero((upper > 0) & (lower < radius))[:, 0]
        if not len(open_):
            break
        near = _nearest_broken(target, ascent, starts, radius, open_)
        held = near.isinf()
        lower[open_] = torch.where(held, radius[open_], lower[open_])
        upper[open_] = torch.minimum(upper[open_], near)
        # What the largest radius does not break is not looked at again.
        radius = torch.where(upper.isinf(), lower, (lower + upper) / 2)
    return upper


def _nearest_broken(
    target: Target,
    ascent: Ascent,
    starts: list[Tensor | None],
    radius: Tensor,
    rows: Tensor,
) -> Tensor:
    """Distances of broken points found for some rows; infinite where none is."""
    near = radius.new_full((len(rows),), torch.inf)
    for piece in target.plan.pieces(len(rows)):
        part = rows[piece]
        x, aim = target.x[part], target.aim.rows(part.to(target.aim.y.device))
        for offsets in starts:
            start = None if offsets is None else offsets[part]
            found = ascent.run(x, aim, radius[part], start)
            length = distance(found.points, x, ascent.ball.norm)
            length = torch.minimum(length, radius[part])
            length = torch.where(found.broken, length, torch.inf)
            near[piece] = torch.minimum(near[piece], length)
    return near
