r"""What robust training minimises, and what its attacker climbs: pure functions.

With logits f(x) of the images, f(z) of what the attacker made of them, and s the
softmax:

==========  =============================================  ==========================
objective   loss                                           the attacker climbs
==========  =============================================  ==========================
``pgd``     cross-entropy of f(z)                          the same
``trades``  cross-entropy of f(x) + w KL(s(x), s(z))       the divergence
``dkl``     cross-entropy of f(x) + decoupled divergence   the divergence
``plain``   cross-entropy of f(x)                          none
==========  =============================================  ==========================
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from normalign_reproduction._errors import require
from normalign_reproduction.robust.recipe import Recipe

__all__ = [
    "attacked_loss",
    "decoupled_kl",
    "divergence",
    "soft_cross_entropy",
    "task_loss",
]


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    r"""Return :math:`-\sum_j s_j(\text{target}) \log s_j(\text{logits})`, (n,).

    The target's probabilities count as constants.
    """
    return -(target.softmax(-1).detach() * logits.log_softmax(-1)).sum(-1)


def divergence(logits: Tensor, target: Tensor) -> Tensor:
    r"""Return the divergence of the softmax of logits from that of the target, (n,).

    .. math:: \mathrm{KL}(s, q) = \sum_j s_j (\log s_j - \log q_j)

    with s of the target and q of the logits; both have their gradients.

    Examples
    --------
    >>> import torch
    >>> divergence(torch.zeros(1, 2), torch.zeros(1, 2))
    tensor([0.])
    """
    known = target.log_softmax(-1)
    return (known.exp() * (known - logits.log_softmax(-1))).sum(-1)


def decoupled_kl(
    logits: Tensor,
    target: Tensor,
    *,
    weights: Tensor | None = None,
    soft_weight: float = 1.0,
    square_weight: float = 1.0,
) -> Tensor:
    r"""Return the decoupled divergence of logits from a target, (): Cui et al. (2024).

    .. math:: \frac{\beta}{4} \sum_{ij} w_i w_j \big(\Delta_{ij} - \Delta'_{ij}\big)^2
        \;-\; \alpha \sum_j s_j \log q_j, \qquad \Delta_{ij} = a_i - a_j

    with the target's logits a and probabilities s, the others' :math:`a'` and q. With
    no weights it is their DKL: w = s, constant, :math:`\Delta'` constant, the mean over
    the samples. Its gradients in both arguments are then those of the divergence, for
    weights 1 and 1. With weights, as their improved loss has it, gradients go through
    both differences, and squares are averaged by the sum of all weights' products.

    The double sum costs no more than a single one, being
    :math:`2 (\sum w)(\sum w e^2) - 2 (\sum w e)^2` of the differences e = a - a'.

    Parameters
    ----------
    logits, target : Tensor of shape (n, k)
    weights : Tensor of shape (n, k), optional
        Such as mean probabilities of each sample's class.
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
    require(logits.shape == target.shape and logits.ndim == 2, "decoupled_kl", "logits",
            f"of the target's shape {tuple(target.shape)}, (n, k)", logits)  # fmt: skip
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
    # About the weighted mean, where nothing cancels.
    total = weights.sum(-1, keepdim=True)
    mean = (weights * gap).sum(-1, keepdim=True) / total
    return 2 * total.squeeze(-1) * (weights * (gap - mean).square()).sum(-1)


def attacked_loss(recipe: Recipe, logits: Tensor, clean: Tensor, y: Tensor) -> Tensor:
    """Return what the attacker climbs, summed over the samples."""
    if recipe.objective == "pgd":
        return F.cross_entropy(logits, y, reduction="sum")
    # But for a constant, the divergence.
    return soft_cross_entropy(logits, clean).sum()


def task_loss(
    recipe: Recipe,
    logits: Tensor,
    clean: Tensor,
    y: Tensor,
    class_weights: Tensor,
) -> Tensor:
    """Return what training minimises: the mean over a batch.

    Parameters
    ----------
    logits, clean : Tensor of shape (n, k)
        Of the attacked images and of the images.
    class_weights : Tensor of shape (k, k)
        Row c is the mean probabilities of the images of class c; for ``"dkl"``.
    """
    if recipe.objective == "pgd":
        return F.cross_entropy(logits, y)
    loss = F.cross_entropy(clean, y)
    if recipe.objective == "trades":
        return loss + recipe.trades_weight * divergence(logits, clean).mean()
    if recipe.objective == "dkl":
        return loss + decoupled_kl(
            logits, clean, weights=class_weights[y],
            soft_weight=recipe.soft_weight, square_weight=recipe.square_weight,
        )  # fmt: skip
    return loss
