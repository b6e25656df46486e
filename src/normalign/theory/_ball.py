"""Convex minimisation over a Euclidean ball, by the regularised path."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vmap

from normalign._errors import require
from normalign._torch_compat import outside_inference_mode

__all__ = ["ball_minimizer"]

_RELATIVE_FLOOR = 1e-12  # smallest multiplier tried, relative to the largest
_MAX_PATH_STEPS = 120
_MAX_NEWTON_STEPS = 60
_MAX_HALVINGS = 20


def ball_minimizer(
    function: Callable[[Tensor], Tensor], radius: Tensor, *, n_outputs: int
) -> Tensor:
    r"""Minimisers of a convex function over balls around the origin, one per row.

    .. math:: t_i = \arg\min_{|t|_2 \le \rho_i} \ell_i(t)

    The solution lies on the path :math:`t(\mu) = \arg\min \ell_i(t) + \mu |t|^2 / 2`,
    whose norm falls as the multiplier :math:`\mu \ge 0` of the constraint grows. The
    multiplier at which the norm is the radius is found by Newton's method on the
    secular equation, kept inside a bracket; each point of the path by damped Newton
    steps. If the norm stays below the radius down to a multiplier of ``1e-12`` of its
    largest possible value, the constraint is slack and the end of the path is
    returned: the minimiser of least norm. A function that is flat to rounding inside
    the ball (cross-entropy at logits beyond about 25) is treated as slack there, so
    its point is optimal in value but lies inside the ball.

    Works in float64. The cost is a few hundred evaluations of the function's Hessian,
    ``n_outputs`` backward passes each, over all rows at once.

    Parameters
    ----------
    function : callable
        Maps a float64 tensor of shape (n, k) to (n,), each row by itself; convex and
        differentiable, built of torch operations that can be differentiated twice.
    radius : Tensor of shape (n,)
    n_outputs : int
        The number k of coordinates.

    Returns
    -------
    Tensor of shape (n, k), float64

    Examples
    --------
    >>> away = lambda t: (t - torch.tensor([3.0, 4.0])).square().sum(-1)
    >>> ball_minimizer(away, torch.tensor([1.0, 9.0]), n_outputs=2)
    tensor([[0.6000, 0.8000], [3.0000, 4.0000]], dtype=torch.float64)
    """
    require(n_outputs >= 1, "ball_minimizer", "n_outputs", "at least 1", n_outputs)
    require(
        radius.ndim == 1 and bool((radius >= 0).all()),
        "ball_minimizer", "radius", "a vector of non-negative numbers", radius,
    )  # fmt: skip
    with outside_inference_mode():
        return _minimizer(function, radius.detach().double().clone(), n_outputs)


def _minimizer(
    function: Callable[[Tensor], Tensor], radius: Tensor, n_outputs: int
) -> Tensor:
    point = radius.new_zeros(len(radius), n_outputs)
    slope = grad(lambda t: function(t).sum())(point).norm(dim=-1)
    moving = (slope > 0) & (radius > 0)
    # Strong convexity gives |t(mu)| <= |grad l(0)| / mu: the largest multiplier.
    upper = torch.where(moving, slope / radius.where(moving, radius.new_ones(())), 1.0)
    floor = _RELATIVE_FLOOR * upper
    lower = torch.zeros_like(upper)
    multiplier = upper
    for _ in range(_MAX_PATH_STEPS):
        point, curvature = _regularised_minimum(function, point, multiplier)
        norm = point.norm(dim=-1)
        outside = norm > radius
        lower = torch.where(outside, multiplier, lower)
        upper = torch.where(outside, upper, multiplier)
        close = (norm - radius).abs() <= 1e-12 * radius
        slack = ~outside & (multiplier <= floor)
        narrow = upper <= lower * (1 + 1e-14)
        if bool((close | slack | narrow | ~moving).all()):
            break
        multiplier = _next_multiplier(
            point, curvature, multiplier, radius, (lower, upper, floor)
        )
    # Rounding may leave the point a little outside; the ball is a promise.
    shrink = (radius / point.norm(dim=-1).clamp_min(1e-300)).clamp_max(1)
    return point * torch.where(moving, shrink, 0.0).unsqueeze(-1)


def _next_multiplier(
    point: Tensor,
    curvature: Tensor,
    multiplier: Tensor,
    radius: Tensor,
    bracket: tuple[Tensor, Tensor, Tensor],
) -> Tensor:
    """Newton step on 1/|t(mu)| = 1/radius, or a safe point of the bracket."""
    lower, upper, floor = bracket
    norm = point.norm(dim=-1)
    answer = torch.linalg.solve(curvature, point)  # -dt/dmu = (H + mu I)^-1 t
    speed = (point * answer).sum(-1)
    newton = multiplier + norm.square() / speed * (norm - radius) / radius
    safe = torch.where(
        lower > 0, (lower * upper).sqrt(), (multiplier / 10).maximum(floor)
    )
    inside = (newton > lower.maximum(upper / 1e3)) & (newton < upper)
    return torch.where(inside, newton, safe)


def _regularised_minimum(
    function: Callable[[Tensor], Tensor], point: Tensor, multiplier: Tensor
) -> tuple[Tensor, Tensor]:
    """Argmin of ``function + multiplier |t|^2 / 2`` and the Hessian there."""
    eye = torch.eye(point.shape[-1], dtype=point.dtype, device=point.device)

    def total(t: Tensor) -> Tensor:
        return function(t) + multiplier * t.square().sum(-1) / 2

    slope_of = grad(lambda t: total(t).sum())

    def hessian_rows(t: Tensor) -> Tensor:
        row = grad(lambda t, weight: (slope_of(t) * weight).sum())
        return vmap(row, in_dims=(None, 0))(t, eye).transpose(0, 1)

    hessian = hessian_rows(point)
    for _ in range(_MAX_NEWTON_STEPS):
        slope = slope_of(point)
        step = -torch.linalg.solve(hessian, slope)
        descent = (step * slope).sum(-1)
        start = total(point)
        length = torch.ones_like(start)
        for _ in range(_MAX_HALVINGS):
            # The slack of a few ulps keeps full steps where values no longer resolve.
            allowed = start + 1e-4 * length * descent + 4e-16 * start.abs()
            failing = total(point + length[:, None] * step) > allowed
            if not bool(failing.any()):
                break
            length = torch.where(failing, length / 2, length)
        move = length[:, None] * step
        point = point + move
        hessian = hessian_rows(point)
        # Newton's method doubles its digits: after such a step there are no more.
        if bool((move.norm(dim=-1) <= 1e-9 * (1 + point.norm(dim=-1))).all()):
            break
    return point, hessian
