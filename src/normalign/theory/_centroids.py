"""Centroids and radii of a network's power diagrams, layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normalign._errors import require, require_kind
from normalign.geometry._jacobian import local_affine
from normalign.geometry._power_diagram import PowerDiagram, power_diagram

__all__ = ["laguerre_distance", "layer_power_diagram", "network_power_diagrams"]


def laguerre_distance(x: Tensor, diagram: PowerDiagram) -> Tensor:
    r"""Laguerre distance of points to the tiles of a power diagram.

    .. math:: |x - \mu_q|_2^2 - r_q, \qquad
        \omega_q = \{x : q = \arg\min_{q'} |x - \mu_{q'}|_2^2 - r_{q'}\}
        \quad \text{(Eq. power\_diagram)}

    The tile of a point is the argmin over the last dimension. Distances may be
    negative.

    Parameters
    ----------
    x : Tensor of shape (n, d)
    diagram : PowerDiagram
        Centroids (q, d) and radii (q,).

    Returns
    -------
    Tensor of shape (n, q)

    Examples
    --------
    >>> tiles = PowerDiagram(torch.tensor([[0.0], [3.0]]), torch.tensor([0.0, 5.0]))
    >>> laguerre_distance(torch.tensor([[1.0]]), tiles)
    tensor([[ 1., -1.]])
    """
    gaps = x.unsqueeze(-2) - diagram.centroid
    return gaps.square().sum(-1) - diagram.radius


def layer_power_diagram(
    weight: Tensor, bias: Tensor | None, slopes: Tensor
) -> PowerDiagram:
    r"""Centroids and radii of regions of one layer (Theorem centroids_layer).

    .. math:: \mu = A^\top \mathbf 1 = W^\top q, \qquad
        r = |\mu|_2^2 + 2\, q^\top b

    for the layer :math:`z \mapsto \sigma(W z + b)` where it is :math:`A z + q \odot
    b` with :math:`A = \mathrm{diag}(q) W`. For a convex activation (ReLU, leaky
    ReLU, absolute value) the sum of the layer's outputs is the maximum over q of
    :math:`\mu_q^\top z + q^\top b`, which is why the tile of least
    :func:`laguerre_distance` among all slope patterns q is the one that holds z.

    Parameters
    ----------
    weight : Tensor of shape (h, d)
    bias : Tensor of shape (h,) or None
    slopes : Tensor of shape (..., h)
        The slope of each unit's activation: 0 or 1 for ReLU.

    Returns
    -------
    PowerDiagram
        ``centroid`` (..., d) and ``radius`` (...).

    Examples
    --------
    >>> w, b = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1.0, -1.0])
    >>> layer_power_diagram(w, b, torch.tensor([1.0, 1.0]))
    PowerDiagram(centroid=tensor([1., 2.]), radius=tensor(5.))
    """
    require(
        weight.ndim == 2 and slopes.shape[-1:] == weight.shape[:1],
        "layer_power_diagram", "slopes", f"of shape (..., {len(weight)})", slopes,
        "One slope per unit of the layer.",
    )  # fmt: skip
    slopes = slopes.to(weight)
    centroid = slopes @ weight
    radius = centroid.square().sum(-1)
    return PowerDiagram(
        centroid, radius if bias is None else radius + 2 * slopes @ bias
    )


def network_power_diagrams(model: nn.Sequential, x: Tensor) -> list[PowerDiagram]:
    r"""Centroids and radii of the maps to each layer (Theorem centroids_network).

    .. math:: \mu^{(1 \leftarrow l)} = (A^{(1 \leftarrow l-1)})^\top \mu^{(l)}, \quad
        r^{(1 \leftarrow l)} = |\mu^{(1 \leftarrow l)}|_2^2
        + 2\, (\mu^{(l)})^\top b^{(1 \leftarrow l-1)} + 2\, (b^{(l)})^\top \mathbf 1

    with :math:`A^{(1 \leftarrow l)} = A^{(l)} A^{(1 \leftarrow l-1)}` and
    :math:`b^{(1 \leftarrow l)} = A^{(l)} b^{(1 \leftarrow l-1)} + b^{(l)}`. By
    Proposition 1 the last pair is that of :func:`normalign.power_diagram` for the
    whole network, and each pair that of the network cut after layer l.

    A layer is a child of the model that has parameters, together with the children
    without any that follow it (activation, pooling, flattening); children before the
    first such belong to the first layer. The layers must be piecewise affine for the
    theorem to apply. Holds one Jacobian (n, width, d) at a time.

    Parameters
    ----------
    model : nn.Sequential
        In evaluation mode if it holds BatchNorm.
    x : Tensor of shape (n, ...)

    Returns
    -------
    list of PowerDiagram
        One per layer, ``centroid`` (n, d) and ``radius`` (n,).

    Raises
    ------
    TypeError
        If the model is not an ``nn.Sequential``.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> len(network_power_diagrams(model, torch.ones(4, 2)))
    2
    """
    require_kind(
        isinstance(model, nn.Sequential), "network_power_diagrams", "model",
        "an nn.Sequential", type(model).__name__,
        "For other models cut the network yourself and use normalign.power_diagram.",
    )  # fmt: skip
    diagrams: list[PowerDiagram] = []
    joint: tuple[Tensor, Tensor] | None = None  # A and b from the input so far
    point = x
    for layer in _layers(model):
        affine = local_affine(layer, point)
        own = power_diagram(affine.jacobian, affine.offset)
        if joint is None:
            joint = affine.jacobian, affine.offset
            diagrams.append(own)
        else:
            slope, offset = joint
            centroid = torch.einsum("nhd,nh->nd", slope, own.centroid)
            radius = (
                centroid.square().sum(-1)
                + 2 * (own.centroid * offset).sum(-1)
                + 2 * affine.offset.sum(-1)
            )
            diagrams.append(PowerDiagram(centroid, radius))
            pushed = torch.einsum("nkh,nh->nk", affine.jacobian, offset)
            joint = affine.jacobian @ slope, pushed + affine.offset
        point = layer(point)
    return diagrams


def _layers(model: nn.Sequential) -> list[nn.Sequential]:
    groups: list[list[nn.Module]] = []
    opened = False
    for module in model:
        parametric = any(True for _ in module.parameters())
        if not groups or (parametric and opened):
            groups.append([])
        groups[-1].append(module)
        opened = opened or parametric
    return [nn.Sequential(*group) for group in groups]
