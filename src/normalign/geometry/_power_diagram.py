"""Centroid and radius of the tile that holds a sample (Proposition 1)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign._torch_compat import in_own_precision

__all__ = ["PowerDiagram", "power_diagram"]


class PowerDiagram(NamedTuple):
    """The descriptors of each sample's tile in the power diagram of a model.

    Attributes
    ----------
    centroid : Tensor of shape (..., d)
    radius : Tensor of shape (...)
        In the paper's sense: it enters the Laguerre distance ``|x - mu|^2 - r`` as it
        is, so it has the unit of a squared length and may be negative.
    """

    centroid: Tensor
    radius: Tensor


@in_own_precision
def power_diagram(jacobian: Tensor, offset: Tensor) -> PowerDiagram:
    r"""Centroid and radius of each sample's tile.

    .. math:: \mu_x = J_x^\top \mathbf{1}, \qquad r_x = \|\mu_x\|_2^2 + 2\, b_x^\top
              \mathbf{1} \quad \text{(Proposition 1)}

    The centroid is the sum of the Jacobian's rows and need not lie in its tile. For a
    single layer these pairs give back the partition as the tiles of smallest Laguerre
    distance (Eq. 2); for a deeper network they describe the tiles of a subdivision.

    Parameters
    ----------
    jacobian : Tensor of shape (..., k, d)
    offset : Tensor of shape (..., k)

    Returns
    -------
    PowerDiagram

    Examples
    --------
    >>> import torch
    >>> mu, radius = power_diagram(torch.eye(2), torch.tensor([1.0, 0.0]))
    >>> mu, radius
    (tensor([1., 1.]), tensor(4.))
    """
    callee = "power_diagram"
    for name, value in (("jacobian", jacobian), ("offset", offset)):
        kind = isinstance(value, Tensor)
        require_kind(kind, callee, name, "a tensor", describe(value))
    require(
        jacobian.ndim >= 2, callee, "jacobian", "at least 2-D, (..., k, d)", jacobian
    )
    require(
        offset.shape == jacobian.shape[:-1],
        callee,
        "offset",
        f"of shape {tuple(jacobian.shape[:-1])} to match the Jacobian",
        offset,
    )
    centroid = jacobian.sum(-2)
    return PowerDiagram(centroid, centroid.square().sum(-1) + 2 * offset.sum(-1))
