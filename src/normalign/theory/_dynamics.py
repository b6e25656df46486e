"""How the centroids of a two-layer ReLU network move under gradient descent.

Throughout ``f(x) = W_2 relu(W_1 x)`` without biases, trained by full-batch gradient
descent on ``(1/n) sum_i loss(f(x_i), y_i)``. For such a network the offset is zero, so
``<x, mu> = 1^T J_x x = 1^T f(x)``: the inner product with the centroid is the sum of
the outputs, and the results below are statements about that sum.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.func import jvp

from normalign._errors import require
from normalign._torch_compat import forward_mode, outside_inference_mode

__all__ = [
    "CentroidAcceleration",
    "centroid_acceleration",
    "centroid_velocity",
    "two_layer_centroid",
    "two_layer_ntk",
    "two_layer_velocity",
]


class CentroidAcceleration(NamedTuple):
    """The two parts of the second time derivative of ``<x, mu>``, each (n,)."""

    kernel: Tensor
    residual: Tensor


def two_layer_centroid(w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    r"""Centroids of a two-layer ReLU network (Lemma centroid_two_layer_network).

    .. math:: \mu_{\varphi(x)} = (W_2 Q_x W_1)^\top \mathbf 1, \qquad
        Q_x = \mathrm{diag}(\sigma'(W_1 x))

    Units at exactly zero count as inactive, as in torch.

    Parameters
    ----------
    w1 : Tensor of shape (h, d)
    w2 : Tensor of shape (k, h)
    x : Tensor of shape (n, d)

    Returns
    -------
    Tensor of shape (n, d)

    Examples
    --------
    >>> import torch
    >>> two_layer_centroid(torch.eye(2), torch.ones(3, 2), torch.tensor([[1.0, -1.0]]))
    tensor([[3., 0.]])
    """
    _check("two_layer_centroid", w1, w2, x=x)
    return (_active(w1, x) * w2.sum(0)) @ w1


def two_layer_ntk(w1: Tensor, w2: Tensor, x: Tensor, z: Tensor) -> Tensor:
    r"""The neural tangent kernel of a two-layer ReLU network, in closed form.

    .. math:: \Theta(x, z) = \sigma(W_1 x)^\top \sigma(W_1 z)\, I
        + (x^\top z)\, W_2 Q_x Q_z W_2^\top

    Each k x k block is symmetric; :func:`normalign.geometry.ntk` computes the same
    for any model. One matrix product of ``n k`` by ``h`` by ``m k``.

    Parameters
    ----------
    w1 : Tensor of shape (h, d)
    w2 : Tensor of shape (k, h)
    x : Tensor of shape (n, d)
    z : Tensor of shape (m, d)

    Returns
    -------
    Tensor of shape (n, m, k, k)

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[1.0, 2.0]])
    >>> two_layer_ntk(torch.eye(2), torch.ones(1, 2), x, x).flatten()
    tensor([15.])
    """
    _check("two_layer_ntk", w1, w2, x=x, z=z)
    left = _active(w1, x).unsqueeze(-2) * w2  # (n, k, h)
    right = _active(w1, z).unsqueeze(-2) * w2
    (n, k, h), m = left.shape, len(z)
    first = (left.reshape(n * k, h) @ right.reshape(m * k, h).T).reshape(n, k, m, k)
    kernel = first.transpose(1, 2) * (x @ z.T)[:, :, None, None]
    hidden = _hidden(w1, x) @ _hidden(w1, z).T
    kernel.diagonal(dim1=-2, dim2=-1).add_(hidden.unsqueeze(-1))
    return kernel


def two_layer_velocity(
    w1: Tensor, w2: Tensor, train_x: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Time derivatives of both layers' weights, per unit of learning rate.

    .. math:: \partial_t W_1 = \frac1n \sum_i (W_2 Q_{x_i})^\top m_{x_i} x_i^\top,
        \qquad \partial_t W_2 = \frac1n \sum_i m_{x_i} \sigma(W_1 x_i)^\top

    The negative gradients in the proof of Prop. centroid_dynamics_general.

    Parameters
    ----------
    w1 : Tensor of shape (h, d)
    w2 : Tensor of shape (k, h)
    train_x : Tensor of shape (n, d)
    residual : Tensor of shape (n, k)
        The negative gradients of each sample's loss at the outputs.

    Returns
    -------
    tuple of Tensor of shapes (h, d) and (k, h)

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> two_layer_velocity(one, one * 2, one * 3, one)
    (tensor([[6.]]), tensor([[3.]]))
    """
    _check("two_layer_velocity", w1, w2, train_x=train_x)
    rule = (len(train_x), len(w2))
    require(
        residual.shape == rule,
        "two_layer_velocity", "residual", f"of shape {rule}", residual,
        "One row of negative output gradients per training sample.",
    )  # fmt: skip
    n = len(train_x)
    back = (residual @ w2) * _active(w1, train_x)
    return back.T @ train_x / n, residual.T @ _hidden(w1, train_x) / n


def centroid_velocity(
    w1: Tensor, w2: Tensor, x: Tensor, train_x: Tensor, residual: Tensor
) -> Tensor:
    r"""Rate of the inner product of points with their centroids, under training.

    .. math:: \partial_t \langle x, \mu_{\varphi(x)} \rangle = \frac1n \sum_{i=1}^n
        m_{x_i}^\top \left[ W_2 Q_{x_i} Q_x W_2^\top \langle x, x_i \rangle
        + \sigma(W_1 x)^\top \sigma(W_1 x_i) \right] \mathbf 1
        = \frac1n \sum_{i=1}^n m_{x_i}^\top \Theta(x, x_i) \mathbf 1

    per unit of learning rate (Prop. centroid_dynamics_general and
    Eq. centroid_innerproduct_ntk; the scalar in the bracket stands for that multiple
    of the identity). It holds between the instants at which a unit of x switches,
    where the inner product is continuous and its rate jumps. Cross-entropy's
    residuals sum to zero, so there the second term vanishes.

    The kernel is never built: the sums over samples are the weights' own velocities,
    so the cost is a pass over the training data and one over x.

    Parameters
    ----------
    w1 : Tensor of shape (h, d)
    w2 : Tensor of shape (k, h)
    x : Tensor of shape (m, d)
        The points at which the rate is wanted; they need not be training points.
    train_x : Tensor of shape (n, d)
    residual : Tensor of shape (n, k)
        The negative gradients of each sample's loss at the outputs (the paper's m).

    Returns
    -------
    Tensor of shape (m,)

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> centroid_velocity(one, one * 2, one, one * 3, one)
    tensor([15.])
    """
    _check("centroid_velocity", w1, w2, x=x, train_x=train_x)
    velocity1, velocity2 = two_layer_velocity(w1, w2, train_x, residual)
    inner = ((_active(w1, x) * w2.sum(0)) * (x @ velocity1.T)).sum(-1)
    return inner + _hidden(w1, x) @ velocity2.sum(0)


def centroid_acceleration(
    w1: Tensor,
    w2: Tensor,
    x: Tensor,
    train_x: Tensor,
    residual: Tensor,
    *,
    residual_velocity: Tensor | None = None,
) -> CentroidAcceleration:
    r"""Second time derivative of ``<x, mu>``, split as in the proof of Theorem 3.

    .. math:: \partial_t^2 \langle x, \mu \rangle =
        \frac1n \sum_i m_{x_i}^\top\, \partial_t \Theta(x, x_i)\, \mathbf 1 +
        \frac1n \sum_i (\partial_t m_{x_i})^\top \Theta(x, x_i)\, \mathbf 1

    Theorem centroid_alignment_feature_learning: once the training data is memorised
    (the residuals no longer change, so the second part is zero), a rate that still
    changes needs a kernel that moves, which is the feature-learning regime. It is
    the first part alone, ``kernel``, that tells. The converse is not claimed, nor
    true: a moving kernel may leave this sum as it is.

    Parameters
    ----------
    w1, w2, x, train_x, residual : Tensor
        As in :func:`centroid_velocity`.
    residual_velocity : Tensor of shape (n, k), optional
        Time derivative of the residuals per unit of learning rate; zero (memorised)
        unless given.

    Returns
    -------
    CentroidAcceleration
        ``kernel`` and ``residual``, each of shape (m,), per squared unit of learning
        rate.

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> centroid_acceleration(one, one, one, one, one).kernel
    tensor([4.])
    """
    velocities = two_layer_velocity(w1, w2, train_x, residual)

    def rate(first: Tensor, second: Tensor) -> Tensor:
        return centroid_velocity(first, second, x, train_x, residual)

    with outside_inference_mode(), forward_mode():
        value, kernel = jvp(rate, (w1, w2), velocities)[:2]
    if residual_velocity is None:
        return CentroidAcceleration(kernel, value.new_zeros(value.shape))
    moved = centroid_velocity(w1, w2, x, train_x, residual_velocity)
    return CentroidAcceleration(kernel, moved)


def _active(w1: Tensor, x: Tensor) -> Tensor:
    return (x @ w1.T > 0).to(x)


def _hidden(w1: Tensor, x: Tensor) -> Tensor:
    return (x @ w1.T).relu()


def _check(who: str, w1: Tensor, w2: Tensor, **points: Tensor) -> None:
    require(w1.ndim == 2, who, "w1", "a matrix (h, d)", w1)
    require(
        w2.ndim == 2 and w2.shape[1] == len(w1),
        who, "w2", f"of shape (k, {len(w1)}) to follow w1", w2,
    )  # fmt: skip
    for name, rows in points.items():
        require(
            rows.ndim == 2 and rows.shape[1] == w1.shape[1],
            who, name, f"of shape (n, {w1.shape[1]}) to match w1", rows,
            "Flatten images first.",
        )  # fmt: skip
