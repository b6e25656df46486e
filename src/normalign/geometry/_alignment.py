"""How far a Jacobian, or a centroid, points along its own input."""

from __future__ import annotations

import torch
from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign._torch_compat import in_own_precision
from normalign.geometry._spectrum import top_singular, wide

__all__ = [
    "alignment_ratio",
    "centroid_alignment",
    "matching_input",
    "normal_alignment",
    "safe_ratio",
    "unit_scale",
]


@in_own_precision
def normal_alignment(jacobian: Tensor, x: Tensor) -> Tensor:
    r"""Cosine between each Jacobian's top right singular vector and its input.

    .. math:: \mathrm{na}(f; x) = \left| \frac{\langle \nu^{(1)}_x, x \rangle}
              {\|\nu^{(1)}_x\|_2 \, \|x\|_2} \right| \quad \text{(Section 2.2)}

    Lies in [0, 1] and ignores the scale of either argument; it is 1 when the Jacobian
    has the form ``c x^T`` of a normal-aligned model (Definition 1). A zero Jacobian or
    a zero input has alignment 0. If the two largest singular values coincide the top
    vector is not unique, and one of them is taken. Differentiable once, while they
    differ. :func:`alignment_ratio` asks for rank one as well, without an SVD.

    Parameters
    ----------
    jacobian : Tensor of shape (..., k, d)
    x : Tensor of shape (..., d), or (n, ...) with d numbers for each sample

    Returns
    -------
    Tensor of shape (...)

    Examples
    --------
    >>> import torch
    >>> normal_alignment(torch.tensor([[0.0, 2.0]]), torch.tensor([3.0, 4.0]))
    tensor(0.8000)
    """
    x = matching_input("normal_alignment", jacobian, x)
    right = top_singular(unit_scale(wide(jacobian), 2)).right
    x = unit_scale(wide(x), 1)
    cosine = safe_ratio((right * x).sum(-1).abs(), x.norm(dim=-1))
    return cosine.clamp(max=1).to(jacobian.dtype)


@in_own_precision
def alignment_ratio(jacobian: Tensor, x: Tensor) -> Tensor:
    r"""Share of each Jacobian that acts along its input.

    .. math:: \frac{\|J_x x\|_2}{\|J_x\|_F \, \|x\|_2}

    Lies in [0, 1]; by Cauchy-Schwarz it is 1 exactly when ``J = c x^T``, that is when
    the model is normal-aligned at x (Definition 1): one number for alignment and rank
    together, smooth, with no decomposition. Its square is the part of the Jacobian's
    energy that survives the projector onto x: one minus it is the penalty R_perp of
    the appendix over ``|J|_F^2``. Zero for a zero Jacobian or input.

    Parameters
    ----------
    jacobian : Tensor of shape (..., k, d)
    x : Tensor of shape (..., d), or (n, ...) with d numbers for each sample

    Returns
    -------
    Tensor of shape (...)

    Examples
    --------
    >>> import torch
    >>> alignment_ratio(torch.eye(2), torch.tensor([3.0, 4.0]))
    tensor(0.7071)
    """
    x = unit_scale(wide(matching_input("alignment_ratio", jacobian, x)), 1)
    scaled = unit_scale(wide(jacobian), 2)
    along = (scaled @ x.unsqueeze(-1)).squeeze(-1).norm(dim=-1)
    ratio = safe_ratio(along, scaled.flatten(-2).norm(dim=-1) * x.norm(dim=-1))
    return ratio.clamp(max=1).to(jacobian.dtype)


@in_own_precision
def centroid_alignment(centroid: Tensor, x: Tensor) -> Tensor:
    r"""Cosine between each centroid and its input.

    .. math:: \frac{\langle \mu_x, x \rangle}{\|\mu_x\|_2 \, \|x\|_2} \in [-1, 1]

    A network is centroid-aligned (Definition 4) where this is 1 or -1. Normal
    alignment implies it (Corollary 1) unless the rows of the Jacobian sum to zero, as
    they do at the optimum of the cross-entropy (Eq. ci_ce); then, as for a zero input,
    the value is 0.

    Parameters
    ----------
    centroid : Tensor of shape (..., d)
    x : Tensor of shape (..., d), or (n, ...) with d numbers for each sample

    Returns
    -------
    Tensor of shape (...)

    Examples
    --------
    >>> import torch
    >>> centroid_alignment(torch.tensor([0.0, -2.0]), torch.tensor([3.0, 4.0]))
    tensor(-0.8000)
    """
    x = matching_input("centroid_alignment", centroid.unsqueeze(-2), x, "centroid")
    mu, x = unit_scale(wide(centroid), 1), unit_scale(wide(x), 1)
    cosine = safe_ratio((mu * x).sum(-1), mu.norm(dim=-1) * x.norm(dim=-1))
    return cosine.clamp(-1, 1).to(centroid.dtype)


def matching_input(
    callee: str, jacobian: Tensor, x: Tensor, name: str = "jacobian"
) -> Tensor:
    """Return x with shape (..., d), flattened if need be to match the Jacobians."""
    for argument, value in ((name, jacobian), ("x", x)):
        require_kind(
            isinstance(value, Tensor), callee, argument, "a tensor", describe(value)
        )
        require_kind(
            value.is_floating_point(), callee, argument, "floating point", value
        )
    require(jacobian.ndim >= 2, callee, name, "at least 2-D, (..., k, d)", jacobian)
    wanted = (*jacobian.shape[:-2], jacobian.shape[-1])
    if x.shape != wanted and jacobian.ndim == 3 and x.ndim > 2:
        x = x.flatten(1)
    require(
        x.shape == wanted,
        callee,
        "x",
        f"of shape {wanted} to match the {name}",
        x,
    )
    return x


def unit_scale(tensor: Tensor, n_dims: int) -> Tensor:
    """Divide by the largest entry of the last dimensions, so that squares are safe."""
    if tensor.numel() == 0:
        return tensor
    dims = tuple(range(-n_dims, 0))
    size = tensor.detach().abs().amax(dims, keepdim=True)
    return tensor / torch.where(size == 0, 1.0, size)


def safe_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient, and 0 (with gradient 0) where the denominator is 0."""
    zero = denominator == 0
    quotient = numerator / torch.where(zero, 1.0, denominator)
    return torch.where(zero, 0.0, quotient)
