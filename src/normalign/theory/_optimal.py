"""The Jacobian that minimises the loss under a norm budget (Theorem 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from normalign._errors import require, require_kind
from normalign.theory._ball import ball_minimizer

__all__ = ["AlignedMap", "optimal_coefficients", "optimal_jacobian"]

Loss = Callable[[Tensor, Tensor], Tensor]


class AlignedMap(NamedTuple):
    """A normal-aligned affine map ``z -> J z + b`` per sample, with ``J = c x^T``.

    Attributes
    ----------
    jacobian : Tensor of shape (n, k, d)
    offset : Tensor of shape (n, k)
    coefficients : Tensor of shape (n, k)
        The vectors c of the definition of normal alignment.
    """

    jacobian: Tensor
    offset: Tensor
    coefficients: Tensor


def optimal_jacobian(
    x: Tensor,
    y: Tensor,
    *,
    budget: float,
    n_classes: int,
    loss: str | Loss = "cross_entropy",
) -> AlignedMap:
    r"""The local affine maps that minimise the loss under a norm budget (Theorem 1).

    .. math:: \min_{J, b}\ \ell(J x + b, y)
        \quad\text{subject to}\quad |J|_F^2 + |b|_2^2 \le B

    With :math:`\tilde x = (x, 1)` and :math:`\tilde J = (J, b)` the logits are
    :math:`t = \tilde J \tilde x`, and the cheapest :math:`\tilde J` with given logits
    is :math:`t \tilde x^\top / |\tilde x|^2`, of squared norm :math:`|t|^2 /
    |\tilde x|^2`. So :math:`t` minimises the loss over the ball of radius
    :math:`\sqrt{B}\,|\tilde x|`, and

    .. math:: J = c\,x^\top, \qquad b = c, \qquad c = t / |\tilde x|^2 :

    rank one, aligned with x, and c depends on x through its norm alone. See
    :func:`optimal_coefficients` for c in closed form.

    Theorem 1 is stated for convex, non-negative, differentiable losses on a sparse
    dataset (so that each sample may be treated by itself). Its proof takes the
    constraint as an equality. Where the budget is more than an interpolating map
    needs (squared error with :math:`B\,|\tilde x|^2 > 1`) the constraint is slack and
    there are other minimisers, not aligned: add to J any :math:`v u^\top` with u
    orthogonal to x. The map returned is then the minimiser of least norm.

    Parameters
    ----------
    x : Tensor of shape (n, ...)
        Samples; each is flattened to d inputs.
    y : Tensor of shape (n,)
        Integer classes in ``[0, n_classes)``.
    budget : float
        The bound B (the paper's alpha) on the squared norm.
    n_classes : int
        The number k of outputs, at least 2.
    loss : "cross_entropy", "squared_error" or callable, default="cross_entropy"
        See :func:`optimal_coefficients`.

    Returns
    -------
    AlignedMap
        ``jacobian`` (n, k, d), ``offset`` (n, k), ``coefficients`` (n, k).

    Examples
    --------
    >>> x, y = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([1])
    >>> optimal_jacobian(x, y, budget=4.0, n_classes=2).coefficients.round()
    tensor([[-1.,  1.]])
    """
    require_kind(x.is_floating_point(), "optimal_jacobian", "x", "a floating tensor", x)
    require(x.ndim >= 2, "optimal_jacobian", "x", "a batch, at least 2-D", x)
    rows = x.flatten(start_dim=1)
    coefficients = optimal_coefficients(
        rows.norm(dim=-1), y, budget=budget, n_classes=n_classes, loss=loss
    )
    return AlignedMap(
        jacobian=coefficients.unsqueeze(-1) * rows.unsqueeze(-2),
        offset=coefficients,
        coefficients=coefficients,
    )


def optimal_coefficients(
    norm: Tensor,
    y: Tensor,
    *,
    budget: float,
    n_classes: int,
    loss: str | Loss = "cross_entropy",
) -> Tensor:
    r"""The vectors c of the optimal maps ``J = c x^T``, ``b = c`` (Theorem 1).

    Write :math:`s = \sqrt{B} / |\tilde x|` with :math:`|\tilde x|^2 = |x|^2 + 1`, and
    k for the number of classes. Where the constraint binds, :math:`|c| = s` and c
    points against the gradient g of the loss at the logits,

    .. math:: c = -s\, g / |g|, \qquad\text{so}\qquad
        a_1 = \frac{-\beta_1 s}{\sqrt{\beta_1^2 + (k-1) \beta_2^2}}, \quad
        a_2 = \frac{-\beta_2 s}{\sqrt{\beta_1^2 + (k-1) \beta_2^2}}

    for the true and the wrong classes. The printed solution (Eq. non_zero_solution)
    has :math:`+\beta_1`, which is the maximiser's sign (the stationarity equations
    are even in c; the multiplier must be non-negative), and :math:`|x|^2` for
    :math:`|x|` in :math:`a_2`. The betas are taken at the solution itself, which by
    symmetry gives closed forms:

    ``"cross_entropy"`` (Eq. ci_ce): with :math:`\gamma = s / \sqrt{k}`,

    .. math:: a_1 = \gamma \sqrt{k-1}, \qquad a_2 = -\gamma / \sqrt{k-1}.

    The budget is always used up, and the coefficients sum to zero.

    ``"squared_error"`` against one-hot targets (Eq. ci_se):

    .. math:: a_1 = \beta = \min(s,\ 1 / |\tilde x|^2), \qquad a_2 = 0.

    This holds for any positive factor before :math:`|t - e_y|^2` (a half, a mean over
    classes), since every such factor keeps the classes' weights equal. It does not
    hold for other targets: for targets v the direction is v, which for labels of
    plus and minus one, or for centred one-hot targets, is not a multiple of
    :math:`e_y`. The second value in the minimum is the slack case: the interpolating
    map of least norm.

    A callable is minimised numerically, see :func:`normalign.theory.ball_minimizer`.

    Parameters
    ----------
    norm : Tensor of shape (n,)
        The norms of the samples: all that c may know of x.
    y : Tensor of shape (n,)
        Integer classes; a callable loss may take targets of any kind.
    budget : float
        The bound B (the paper's alpha) on ``|J|_F^2 + |b|^2``.
    n_classes : int
        The number k of outputs, at least 2.
    loss : "cross_entropy", "squared_error" or callable, default="cross_entropy"
        A callable maps logits (n, k) and ``y`` to losses (n,), convex and
        differentiable in each row, such as ``cross_entropy(..., reduction="none")``.

    Returns
    -------
    Tensor of shape (n, k)

    Examples
    --------
    >>> norm, y = torch.tensor([0.0, 1.0]), torch.tensor([0, 2])
    >>> optimal_coefficients(norm, y, budget=9, n_classes=3, loss="squared_error")
    tensor([[1.0000, 0.0000, 0.0000], [0.0000, 0.0000, 0.5000]])
    """
    _check(norm, y, budget, n_classes, loss)
    reach = norm.square() + 1  # |(x, 1)|^2
    if callable(loss):
        radius = budget**0.5 * reach.sqrt()
        logits = ball_minimizer(lambda t: loss(t, y), radius, n_outputs=n_classes)
        return logits.to(norm) / reach.unsqueeze(-1)
    size = budget**0.5 / reach.sqrt()
    truth = one_hot(y.long(), n_classes).to(norm)
    if loss == "cross_entropy":
        direction = (truth - 1 / n_classes) * (n_classes / (n_classes - 1)) ** 0.5
        return size.unsqueeze(-1) * direction
    return torch.minimum(size, 1 / reach).unsqueeze(-1) * truth


def _check(
    norm: Tensor, y: Tensor, budget: float, n_classes: int, loss: str | Loss
) -> None:
    who = "optimal_coefficients"
    require(n_classes >= 2, who, "n_classes", "at least 2", n_classes)
    require(budget >= 0, who, "budget", "non-negative", budget)
    if callable(loss):
        return
    names = ("cross_entropy", "squared_error")
    require(
        loss in names, who, "loss", f"one of {names} or a callable", loss,
        "A callable takes logits (n, k) and y and returns losses (n,).",
    )  # fmt: skip
    require_kind(
        not (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool),
        who, "y", "a tensor of integer classes", y,
    )  # fmt: skip
    require(
        y.shape == norm.shape, who, "y", f"of shape {tuple(norm.shape)}", y,
        "One class per sample.",
    )  # fmt: skip
    inside = y.numel() == 0 or bool(((y >= 0) & (y < n_classes)).all())
    require(inside, who, "y", f"in [0, {n_classes})", y)
