r"""The losses of adversarial training and of its attacker.

With logits f(x) of the images, f(z) of the attacked images, and s the softmax:

==========  =============================================  ==========================
objective   loss                                           the attacker maximises
==========  =============================================  ==========================
``pgd``     cross-entropy of f(z)                          the same
``trades``  cross-entropy of f(x) + w KL(s(x), s(z))       the divergence
``dkl``     cross-entropy of f(x) + decoupled divergence   the divergence
``plain``   cross-entropy of f(x)                          nothing
==========  =============================================  ==========================
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from normalign_reproduction.robust._recipe import Recipe


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    r"""Return :math:`-\sum_j s_j(\text{target}) \log s_j(\text{logits})`, (n,).

    There is no gradient in the target.
    """
    return -(target.softmax(-1).detach() * logits.log_softmax(-1)).sum(-1)


def divergence(logits: Tensor, target: Tensor) -> Tensor:
    r"""Return the Kullback-Leibler divergence of two softmax distributions, (n,).

    .. math:: \mathrm{KL}(s, q) = \sum_j s_j (\log s_j - \log q_j)

    with s of the target and q of the logits, differentiable in both.

    Examples
    --------
    >>> import torch
    >>> divergence(torch.zeros(1, 2), torch.zeros(1, 2))
    tensor([0.])
    """
    log_target = target.log_softmax(-1)
    return (log_target.exp() * (log_target - logits.log_softmax(-1))).sum(-1)


def decoupled_kl(
    logits: Tensor,
    target: Tensor,
    *,
    weights: Tensor | None = None,
    soft_weight: float = 1.0,
    square_weight: float = 1.0,
) -> Tensor:
    r"""Return the decoupled Kullback-Leibler divergence of Cui et al. (2024), ().

    .. math:: \frac{\beta}{4} \sum_{ij} w_i w_j \big(\Delta_{ij} - \Delta'_{ij}\big)^2
        \;-\; \alpha \sum_j s_j \log q_j, \qquad \Delta_{ij} = a_i - a_j

    with a and s the target's logits and probabilities, a' and q those of ``logits``.
    Without weights w = s and :math:`\Delta'` are constants, averages are over the
    samples, and the gradients with both factors 1 are those of :func:`divergence`.
    With weights, gradients go through both differences, and squares are averaged by
    the sum of the products of the weights.

    Parameters
    ----------
    logits, target : Tensor of shape (n, k)
    weights : Tensor of shape (n, k), optional
        For example the mean probabilities of each sample's class.
    soft_weight : float
        :math:`\alpha`.
    square_weight : float
        :math:`\beta`.

    Examples
    --------
    >>> import torch
    >>> a, b = torch.tensor([[1.0, 0.0]]), torch.zeros(1, 2)
    >>> float(decoupled_kl(b, a, weights=torch.ones(1, 2), soft_weight=0.0))
    0.125
    """
    if logits.ndim != 2 or logits.shape != target.shape:
        raise ValueError(
            "decoupled_kl: logits and target must have the same shape (n, k), "
            f"got {tuple(logits.shape)} and {tuple(target.shape)}."
        )
    soft = soft_cross_entropy(logits, target).mean()
    if weights is None:
        gap, w = target - logits.detach(), target.softmax(-1).detach()
        squares = _weighted_squares(gap, w).mean()
    else:
        w = weights.detach()
        total = w.sum(-1).square().sum()
        squares = _weighted_squares(target - logits, w).sum() / total
    return square_weight * squares / 4 + soft_weight * soft


def _weighted_squares(gap: Tensor, weights: Tensor) -> Tensor:
    """Return the sum over pairs of ``w_i w_j (e_i - e_j)^2``, (n,)."""
    # Deviations from the weighted mean avoid cancellation.
    total = weights.sum(-1, keepdim=True)
    mean = (weights * gap).sum(-1, keepdim=True) / total
    return 2 * total.squeeze(-1) * (weights * (gap - mean).square()).sum(-1)


def attack_loss(recipe: Recipe, logits: Tensor, clean: Tensor, y: Tensor) -> Tensor:
    """Return what the attacker maximises, summed over the samples."""
    if recipe.objective == "pgd":
        return F.cross_entropy(logits, y, reduction="sum")
    # The divergence up to a constant.
    return soft_cross_entropy(logits, clean).sum()


def training_loss(
    recipe: Recipe, logits: Tensor, clean: Tensor, y: Tensor, class_weights: Tensor
) -> Tensor:
    """Return the training loss, a mean over the batch.

    Parameters
    ----------
    logits, clean : Tensor of shape (n, k)
        Of the attacked images and of the images.
    class_weights : Tensor of shape (k, k)
        Row c: the mean probabilities of the images of class c; for ``"dkl"``.
    """
    if recipe.objective == "pgd":
        return F.cross_entropy(logits, y)
    loss = F.cross_entropy(clean, y)
    if recipe.objective == "trades":
        return loss + recipe.trades_weight * divergence(logits, clean).mean()
    if recipe.objective == "dkl":
        return loss + decoupled_kl(
            logits,
            clean,
            weights=class_weights[y],
            soft_weight=recipe.soft_weight,
            square_weight=recipe.square_weight,
        )
    return loss
