"""A one-hidden-layer network that is normal-aligned to any sample (Appendix A)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from normalign._errors import require, require_kind

__all__ = ["last_layer_norms", "normal_aligned_network"]


def normal_aligned_network(x: Tensor, targets: Tensor) -> nn.Sequential:
    r"""A ReLU network, normal-aligned to the rows of x, with the outputs asked for.

    .. math:: f(z) = W_2\,\sigma(W_1 z + b), \quad
        W_1^{(i)} = x_i, \quad b_i = -\frac{1 + m_i}{2}, \quad
        W_2^{(\cdot i)} = \frac{2}{1 - m_i}\, v_i

    with :math:`m_i = \max_{j \ne i} \langle x_i, x_j \rangle` and targets
    :math:`v_i`. At :math:`x_j` only unit j is active, at height :math:`(1 - m_j) /
    2`, so :math:`f(x_j) = v_j` and :math:`J_{x_j} = \frac{2}{1 - m_j} v_j x_j^\top`.
    Each target has its own column of :math:`W_2`, so the loss of one sample can be
    changed and that of no other: the sample is *sparse* with respect to these
    networks, by the definition of a sparse dataset.

    A single sample has no other to stay clear of; its m is taken as -1, the least
    inner product of unit vectors, so its unit has bias 0. The hidden width is n, and
    the pairwise distances take memory of order n squared.

    Parameters
    ----------
    x : Tensor of shape (n, d)
        Distinct rows of norm one.
    targets : Tensor of shape (n, k) or (n,)
        The outputs wanted at the rows of x; a vector means one output.

    Returns
    -------
    nn.Sequential
        ``Linear(d, n)``, ``ReLU()``, ``Linear(n, k, bias=False)``, in the dtype and
        on the device of x.

    Raises
    ------
    ValueError
        If a row is not of norm one, or two rows agree to rounding.

    Examples
    --------
    >>> model = normal_aligned_network(torch.eye(3), torch.tensor([1.0, 2.0, 3.0]))
    >>> model(torch.eye(3)).flatten()
    tensor([1., 2., 3.], grad_fn=...)
    """
    columns = _columns(x, targets, "normal_aligned_network")
    gaps = _gaps(x, "normal_aligned_network")
    (n, d), k = x.shape, columns.shape[-1]
    hidden = _blank_linear(d, n, x)
    last = _blank_linear(n, k, x, bias=False)
    with torch.no_grad():
        hidden.weight.copy_(x)
        hidden.bias.copy_(gaps / 2 - 1)
        # The height as the layer computes it, so that rounding cancels in the output.
        heights = hidden(x).diagonal()
        last.weight.copy_((columns / heights.unsqueeze(-1)).T)
    return nn.Sequential(hidden, nn.ReLU(), last)


def _blank_linear(inputs: int, outputs: int, like: Tensor, bias: bool = True) -> Any:
    """A layer whose start values are not drawn, so no random state is touched."""
    place = {"dtype": like.dtype, "device": like.device}
    return skip_init(nn.Linear, inputs, outputs, bias=bias, **place)


def last_layer_norms(x: Tensor, targets: Tensor) -> Tensor:
    r"""Norms of the last layer's columns that the construction needs, per sample.

    .. math:: |W_2^{(\cdot i)}|_2 = \frac{2\,|v_i|_2}{1 - m_i}
        = \frac{4\,|v_i|_2}{\min_{j \ne i} |x_i - x_j|_2^2}

    The second form (for unit vectors :math:`1 - \langle x_i, x_j \rangle = |x_i -
    x_j|^2 / 2`) shows the price of density: halving the distance to the nearest
    neighbour makes the norm four times as large. Adding samples can only raise it.

    Parameters
    ----------
    x : Tensor of shape (n, d)
        Distinct rows of norm one.
    targets : Tensor of shape (n, k) or (n,)

    Returns
    -------
    Tensor of shape (n,)

    Examples
    --------
    >>> last_layer_norms(torch.tensor([[1.0], [-1.0]]), torch.tensor([5.0, 3.0]))
    tensor([5., 3.])
    """
    columns = _columns(x, targets, "last_layer_norms")
    return 2 * columns.norm(dim=-1) / _gaps(x, "last_layer_norms")


def _columns(x: Tensor, targets: Tensor, who: str) -> Tensor:
    require_kind(x.is_floating_point(), who, "x", "a floating tensor", x)
    require(
        x.ndim == 2 and len(x) > 0, who, "x", "of shape (n, d) with n > 0", x,
        "Flatten images first.",
    )  # fmt: skip
    require(
        targets.ndim in (1, 2) and len(targets) == len(x),
        who, "targets", f"of shape ({len(x)}, k) or ({len(x)},)", targets,
    )  # fmt: skip
    return targets.reshape(len(x), -1).to(x)


def _gaps(x: Tensor, who: str) -> Tensor:
    """``1 - m_i`` of each row, from distances: no cancellation for close rows."""
    resolution = 8 * torch.finfo(x.dtype).eps
    worst = (x.norm(dim=-1) - 1).abs().max()
    require(
        bool(worst <= resolution * x.shape[-1] ** 0.5 + resolution),
        who, "x", "of rows with norm one", f"a norm off by {float(worst):.3g}",
        "Use torch.nn.functional.normalize(x).",
    )  # fmt: skip
    if len(x) == 1:
        return x.new_full((1,), 2.0)
    # The quick matrix-product route of cdist would lose the close pairs.
    distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    distances.fill_diagonal_(torch.inf)
    gaps = distances.amin(-1).square() / 2
    closest = int(gaps.argmin())
    require(
        bool(gaps[closest] > resolution), who, "x", "of distinct rows",
        f"row {closest} twice (to rounding)",
        "Drop duplicates, e.g. with torch.unique(x, dim=0), or use float64.",
    )  # fmt: skip
    return gaps
