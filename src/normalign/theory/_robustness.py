"""The largest local robustness of an affine classifier (Theorem 2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from normalign._errors import require
from normalign.theory._optimal import AlignedMap

__all__ = [
    "boundary_perturbation",
    "distance_to_boundary",
    "most_robust_classifier",
    "offset_ratio",
    "offset_ratio_bound",
    "robustness_bound",
]


def distance_to_boundary(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    r"""Distance from a point to a hyperplane (Lemma distance_to_boundary).

    .. math:: \min\{|\epsilon|_2 : w^\top (x + \epsilon) + a = 0\}
        = \frac{|w^\top x + a|}{|w|_2}

    The lemma asks for a non-zero ``weight``. For a zero weight there is no boundary
    to reach and the distance is infinite, or zero if the bias is zero too.

    Parameters
    ----------
    weight : Tensor of shape (..., d)
    bias : Tensor of shape (...)
    x : Tensor of shape (..., d)

    Returns
    -------
    Tensor of shape (...)

    Examples
    --------
    >>> w, a = torch.tensor([3.0, 4.0]), torch.tensor(-5.0)
    >>> distance_to_boundary(w, a, torch.zeros(2))
    tensor(1.)
    """
    height = ((weight * x).sum(-1) + bias).abs()
    return torch.where(height > 0, height / weight.norm(dim=-1), height)


def boundary_perturbation(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
    r"""The shortest step onto a hyperplane (Lemma distance_to_boundary).

    .. math:: \epsilon = -\frac{w^\top x + a}{|w|_2^2}\, w

    Its length is :func:`distance_to_boundary`. Not finite for a zero ``weight``.

    Parameters
    ----------
    weight : Tensor of shape (..., d)
    bias : Tensor of shape (...)
    x : Tensor of shape (..., d)

    Returns
    -------
    Tensor of shape (..., d)

    Examples
    --------
    >>> w, a = torch.tensor([3.0, 4.0]), torch.tensor(-5.0)
    >>> boundary_perturbation(w, a, torch.zeros(2))
    tensor([0.6000, 0.8000])
    """
    height = (weight * x).sum(-1) + bias
    return -(height / weight.square().sum(-1)).unsqueeze(-1) * weight


def offset_ratio(jacobian: Tensor, offset: Tensor, y: Tensor) -> Tensor:
    r"""The smallest limit that admits each map to the class of Theorem 2.

    .. math:: \lambda(g) = \max_{c \ne y} \frac{|b_y - b_c|}{|J^{(y)} - J^{(c)}|_2}

    The paper's class :math:`\mathcal{G}_{x,\lambda}` holds the maps that classify x
    as y and have :math:`\lambda(g) \le \lambda`. Infinite where two rows agree and
    their offsets differ; a class with equal row and equal offset (a tie everywhere)
    counts zero. The map of Theorem 1 has ratio :math:`1 / |x|`, whatever the budget
    and the loss, and a map without offset has ratio 0.

    Parameters
    ----------
    jacobian : Tensor of shape (n, k, d)
    offset : Tensor of shape (n, k)
    y : Tensor of shape (n,)

    Returns
    -------
    Tensor of shape (n,)

    Examples
    --------
    >>> jacobian, offset = torch.tensor([[[4.0], [0.0]]]), torch.tensor([[3.0, 1.0]])
    >>> offset_ratio(jacobian, offset, torch.tensor([0]))
    tensor([0.5000])
    """
    rows, heights = _gaps(jacobian, offset, y)
    heights = heights.abs()
    ratios = torch.where(heights > 0, heights / rows.norm(dim=-1), heights)
    return ratios.amax(-1)


def _gaps(jacobian: Tensor, offset: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and offsets of class y minus those of every class; zero at y itself."""
    n, k, _ = jacobian.shape
    require(
        offset.shape == (n, k), "offset_ratio", "offset", f"of shape {(n, k)}", offset
    )
    require(y.shape == (n,), "offset_ratio", "y", f"of shape {(n,)}", y)
    pick = torch.arange(n, device=jacobian.device)
    return (
        jacobian[pick, y].unsqueeze(-2) - jacobian,
        offset[pick, y].unsqueeze(-1) - offset,
    )


def robustness_bound(x: Tensor, offset_ratio: Tensor | float = 0.0) -> Tensor:
    r"""The largest local robustness that an affine classifier can have (Theorem 2).

    .. math:: \rho(x) = \sup_{g \in \mathcal{G}_{x,\lambda}} \rho(x; g)
        = |x|_2 + \lambda

    over the affine maps :math:`g(z) = J z + b` that classify x as y and whose
    :func:`offset_ratio` is at most :math:`\lambda` (Prop. maximal_local_robustness);
    :math:`\rho(x; g)` is the distance from x to the nearest boundary of g. The bound
    is attained, see :func:`most_robust_classifier`, and only by maps whose rows
    satisfy, for every wrong class c,

    .. math:: J^{(y)} - J^{(c)} = a_c x,\ a_c > 0
        \quad\text{and}\quad b_y - b_c = \lambda\, |J^{(y)} - J^{(c)}|_2 .

    Where the printed proof needs care. It writes the height of x over a boundary as
    :math:`|\alpha| |x| + b_y - b_c` where :math:`\alpha |x| + b_y - b_c` is meant
    (:math:`\alpha` may be negative when the offset carries the decision; the bound
    holds by the triangle inequality all the same). Eq. local_robustness_bound leaves
    the offset out of the numerator. The condition for equality is printed as
    :math:`b_y - b_c = \lambda`, without the norm of the rows.

    What Theorem 2 says of the classifier of Theorem 1. That map has
    :math:`b = c`, so its ratio is :math:`1 / |x|` and its robustness is
    :math:`|x| + 1 / |x|`: it attains the bound for :math:`\lambda = 1 / |x|` and for
    no other limit. With a larger :math:`\lambda` it is admitted but
    :math:`\lambda - 1 / |x|` short of the bound; with a smaller one it is not
    admitted. One limit for a whole dataset therefore fits only samples of equal
    norm. A normal-aligned map without offset attains the bound for
    :math:`\lambda = 0`.

    Parameters
    ----------
    x : Tensor of shape (n, ...)
        Samples; each is flattened to d inputs.
    offset_ratio : float or Tensor of shape (n,), default=0.0
        The limit (the paper's lambda) on the ratio of offsets to rows.

    Returns
    -------
    Tensor of shape (n,)

    Examples
    --------
    >>> robustness_bound(torch.tensor([[3.0, 4.0]]), 0.5)
    tensor([5.5000])
    """
    limit = torch.as_tensor(offset_ratio, dtype=x.dtype, device=x.device)
    require(
        bool((limit >= 0).all()),
        "robustness_bound", "offset_ratio", "non-negative", offset_ratio,
    )  # fmt: skip
    return x.flatten(start_dim=1).norm(dim=-1) + limit


def most_robust_classifier(
    x: Tensor, y: Tensor, *, n_classes: int, offset_ratio: float = 0.0
) -> AlignedMap:
    r"""Affine classifiers whose local robustness is the bound (Theorem 2).

    .. math:: J = c\,x^\top, \qquad b = \lambda\,|x|\,c, \qquad
        c = e_y - \tfrac1k \mathbf 1

    Each wrong class has :math:`J^{(y)} - J^{(c)} = x` and
    :math:`b_y - b_c = \lambda |x|`, so every boundary lies at :math:`-\lambda x /
    |x|`, beyond the origin, and the distance to it is :math:`|x| + \lambda`. The
    scale of c is free. With :math:`\lambda = 1 / |x|` this is, up to scale, the
    cross-entropy map of Theorem 1.

    Parameters
    ----------
    x : Tensor of shape (n, ...)
        Samples, none of them zero; each is flattened to d inputs.
    y : Tensor of shape (n,)
        Integer classes in ``[0, n_classes)``.
    n_classes : int
        The number k of outputs, at least 2.
    offset_ratio : float, default=0.0
        The limit (the paper's lambda) on the ratio of offsets to rows.

    Returns
    -------
    AlignedMap

    Examples
    --------
    >>> x, y = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    >>> most_robust_classifier(x, y, n_classes=2, offset_ratio=1.0).offset
    tensor([[ 1., -1.]])
    """
    who = "most_robust_classifier"
    require(n_classes >= 2, who, "n_classes", "at least 2", n_classes)
    require(offset_ratio >= 0, who, "offset_ratio", "non-negative", offset_ratio)
    rows = x.flatten(start_dim=1)
    norms = rows.norm(dim=-1, keepdim=True)
    require(
        bool((norms > 0).all()), who, "x", "without zero rows", x,
        "At x = 0 no Jacobian is aligned with x; drop these samples.",
    )  # fmt: skip
    coefficients = one_hot(y.long(), n_classes).to(x) - 1 / n_classes
    return AlignedMap(
        jacobian=coefficients.unsqueeze(-1) * rows.unsqueeze(-2),
        offset=offset_ratio * norms * coefficients,
        coefficients=coefficients,
    )


def offset_ratio_bound(
    x: Tensor, margin: Tensor | float, offset_norm: Tensor | float
) -> Tensor:
    r"""The offset ratio that a margin forces (Appendix on zero Jacobians).

    .. math:: \lambda_c = \frac{\sqrt 2\, B\, |x|_2}{\gamma - \sqrt 2\, B}

    A map with :math:`|b|_2 \le B` that classifies x with margin :math:`g_y(x) -
    g_c(x) \ge \gamma` has :math:`|J^{(y)} - J^{(c)}| \ge (\gamma - \sqrt2 B) / |x|`
    and hence an :func:`offset_ratio` of at most this. The appendix does not say that
    this needs :math:`\gamma > \sqrt 2 B`; otherwise the offset alone may carry the
    margin, the Jacobian may be zero, and the bound is infinite. For the same reason
    the margin of a map with zero Jacobian is at most :math:`\sqrt2 B` (printed: B).

    Parameters
    ----------
    x : Tensor of shape (n, ...)
        Samples; each is flattened to d inputs.
    margin : float or Tensor of shape (n,)
        The paper's gamma, the smallest lead of the true class.
    offset_norm : float or Tensor of shape (n,)
        The bound B on the norm of the offset.

    Returns
    -------
    Tensor of shape (n,)

    Examples
    --------
    >>> offset_ratio_bound(torch.tensor([[3.0, 4.0]]), 3.0, 2**-0.5)
    tensor([2.5000])
    """
    norm = x.flatten(start_dim=1).norm(dim=-1)
    reach = math.sqrt(2) * torch.as_tensor(offset_norm).to(norm)
    spare = torch.as_tensor(margin).to(norm) - reach
    return torch.where(spare > 0, reach * norm / spare, norm.new_tensor(math.inf))
