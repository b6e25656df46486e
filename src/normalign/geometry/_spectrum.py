"""The top of a Jacobian's singular spectrum, safely differentiable.

The singular value decomposition of ``torch.linalg`` differentiates every singular
vector, and so returns NaN wherever two singular values coincide, which is always the
case for a Jacobian of low rank: the very Jacobians this library is about. Only the top
triple is needed, and that is smooth as long as the first two values differ.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["TopSingular", "finite_eigh", "smaller_gram", "top_singular", "wide"]


class TopSingular(NamedTuple):
    """The leading singular triple of each Jacobian, with its squared Frobenius norm.

    Attributes
    ----------
    energy : Tensor of shape (...)
        Largest singular value, squared.
    right : Tensor of shape (..., d)
        Its right singular vector; zero for a zero Jacobian.
    total : Tensor of shape (...)
        Sum of all squared singular values, ``|J|_F^2``.
    """

    energy: Tensor
    right: Tensor
    total: Tensor


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in the precision in which squares of it are summed."""
    narrow = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.float() if narrow else tensor


def smaller_gram(jacobian: Tensor) -> Tensor:
    """Return ``J J^T`` or ``J^T J``, whichever is the smaller matrix."""
    k, d = jacobian.shape[-2:]
    return jacobian @ jacobian.mT if k <= d else jacobian.mT @ jacobian


def top_singular(jacobian: Tensor) -> TopSingular:
    r"""Leading singular value and right vector of each Jacobian.

    With :math:`G = J J^\top = U \Lambda U^\top` (or :math:`J^\top J`, if smaller), the
    right vector is :math:`\nu = J^\top u_1 / \sigma_1`. Its first derivative comes
    from perturbation theory, :math:`d\nu = (\sigma_1^2 I - J^\top J)^+ \, d(J^\top J)
    \, \nu`: the pseudo-inverse is applied through the eigenvectors already at hand
    and never divides by a vanishing singular value. Second derivatives are not those
    of the vector.
    """
    total = jacobian.square().sum((-2, -1))
    with torch.no_grad():
        values, vectors = finite_eigh(smaller_gram(jacobian))
        top = values[..., -1].clamp_min(0)
        by_rows = jacobian.shape[-2] <= jacobian.shape[-1]
        lead = vectors[..., -1]
        right = (jacobian.mT @ lead.unsqueeze(-1)).squeeze(-1) if by_rows else lead
        length = right.norm(dim=-1, keepdim=True)
        zero = (length == 0) | (top.unsqueeze(-1) == 0)
        right = torch.where(zero, 0.0, right / length.clamp_min(_tiny(length)))
    if not (torch.is_grad_enabled() and jacobian.requires_grad):
        return TopSingular(top, right, total)
    energy = (jacobian @ right.unsqueeze(-1)).square().sum((-2, -1))
    bare = jacobian.detach()
    moved = _times(jacobian.mT, _times(jacobian, right))  # (J^T J) nu
    gaps = top.unsqueeze(-1) - values[..., :-1]
    # Below rounding there is no gap, and the vector has no derivative.
    noise = torch.finfo(gaps.dtype).eps * top.unsqueeze(-1)
    gaps = torch.where(gaps > noise, gaps, torch.inf)
    others = vectors[..., :-1]
    if by_rows:
        inner = _times(others.mT, _times(bare, moved))
        shift = _times(bare.mT, _times(others, inner / gaps))
        complement = moved - right * (right * moved).sum(-1, keepdim=True)
        safe = torch.where(top > 0, top, torch.inf).unsqueeze(-1)
        change = (complement + shift) / safe
    else:
        change = _times(others, _times(others.mT, moved) / gaps)
    right = right + (change - change.detach())  # its value is rounding, its slope not
    return TopSingular(energy, right, total)


def finite_eigh(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors of symmetric matrices, NaN for those not finite."""
    bad = ~torch.isfinite(gram).flatten(-2).all(-1)
    values, vectors = torch.linalg.eigh(torch.where(bad[..., None, None], 0.0, gram))
    nan = torch.nan
    values = torch.where(bad[..., None], nan, values)
    return values, torch.where(bad[..., None, None], nan, vectors)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _tiny(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).tiny
