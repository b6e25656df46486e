"""How many directions a Jacobian varies in: two soft ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign._torch_compat import in_own_precision
from normalign.geometry._alignment import safe_ratio, unit_scale
from normalign.geometry._spectrum import top_singular, wide

__all__ = ["effective_rank", "participation_rank"]


@in_own_precision
def effective_rank(jacobian: Tensor) -> Tensor:
    r"""Effective rank of each Jacobian, its energy in units of the largest direction.

    .. math:: \mathrm{er}(J) = \frac{\sum_r \sigma_r^2}{\sigma_1^2}
              \quad \text{(Section 2.2)}

    Lies in [1, min(k, d)], ignores scale and rotation, and is 1 for a normal-aligned
    model; a zero Jacobian has rank 0. (Elsewhere this is called the stable rank.) The
    released kernel scripts print another quantity under this name:
    :func:`participation_rank`.

    Parameters
    ----------
    jacobian : Tensor of shape (..., k, d)

    Returns
    -------
    Tensor of shape (...)

    Examples
    --------
    >>> import torch
    >>> effective_rank(torch.diag(torch.tensor([2.0, 1.0])))
    tensor(1.2500)
    """
    top = top_singular(
        unit_scale(wide(_floating_matrix("effective_rank", jacobian)), 2)
    )
    return safe_ratio(top.total, top.energy).to(jacobian.dtype)


@in_own_precision
def participation_rank(jacobian: Tensor) -> Tensor:
    r"""Participation ratio of each Jacobian's singular values.

    .. math:: \frac{\left(\sum_r \sigma_r\right)^2}{\sum_r \sigma_r^2}

    Lies in [1, min(k, d)] and ignores scale and rotation; a zero Jacobian has rank 0.
    This is what the released scripts for the kernel machines call effective rank; it
    is never below the paper's :func:`effective_rank`, and equal to it only where all
    nonzero singular values coincide.

    Parameters
    ----------
    jacobian : Tensor of shape (..., k, d)

    Returns
    -------
    Tensor of shape (...)

    Examples
    --------
    >>> import torch
    >>> participation_rank(torch.diag(torch.tensor([2.0, 1.0])))
    tensor(1.8000)
    """
    scaled = unit_scale(wide(_floating_matrix("participation_rank", jacobian)), 2)
    values = torch.linalg.svdvals(scaled)
    rank = safe_ratio(values.sum(-1).square(), values.square().sum(-1))
    return rank.to(jacobian.dtype)


def _floating_matrix(callee: str, jacobian: Tensor) -> Tensor:
    require_kind(
        isinstance(jacobian, Tensor), callee, "jacobian", "a tensor", describe(jacobian)
    )
    require_kind(
        jacobian.is_floating_point(), callee, "jacobian", "floating point", jacobian
    )
    require(
        jacobian.ndim >= 2, callee, "jacobian", "at least 2-D, (..., k, d)", jacobian
    )
    return jacobian
