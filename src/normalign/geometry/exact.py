"""All measures of a piece of a batch, from its Jacobians.

The Jacobians of one piece of the batch are held for as long as it takes to reduce them
to ``G = J J^T`` (or ``J^T J``, if smaller) and ``J x``; everything the paper asks for
follows from these, with ``nu_1 = J^T u_1 / s_1``:

======================  ==========================================
normal alignment        ``|u_1 . J x| / (s_1 |x|)``
effective rank          ``tr G / s_1^2``
alignment ratio         ``|J x| / (sqrt(tr G) |x|)``
centroid alignment      ``1 . J x / (|J^T 1| |x|)``
radius                  ``|J^T 1|^2 + 2 b . 1``
local robustness        ``|J_y - J_c|^2 = G_yy + G_cc - 2 G_yc``
======================  ==========================================

Sums run in float64, whatever the model's precision: rows that nearly cancel (the
centroids of a network trained by cross-entropy) would drown in rounding otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from normalign.geometry.alignment import safe_ratio
from normalign.geometry.jacobian import columns, pulled_rows, rows
from normalign.geometry.linearize import Linearization
from normalign.geometry.margin import nearest_boundary
from normalign.geometry.spectrum import finite_eigh, smaller_gram

__all__ = ["exact_measures", "summing_dtype"]


def exact_measures(
    linear: Linearization,
    y: Tensor | None,
    *,
    vectors: int,
    range_basis: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return every measure of each sample, from the Jacobian's rows or columns.

    Parameters
    ----------
    vectors : int
        Rows (or columns) computed in one pass.
    range_basis : Tensor of shape (k, p), optional
        Orthonormal columns whose span holds the range of every Jacobian. With p below
        k and d the work shrinks to ``B = Q^T J``, (p, d), and ``J = Q B``.
    """
    _, k, d = linear.shape
    if range_basis is not None:
        narrow = pulled_rows(linear, range_basis.mT, vectors)
    else:
        narrow = rows(linear, vectors) if k <= d else columns(linear, vectors)
    dtype = summing_dtype(narrow.device)
    short, x = narrow.to(dtype), linear.input.to(dtype)
    output = linear.output.to(device=narrow.device, dtype=dtype)
    del narrow
    size = short.abs().amax((1, 2))  # squares of a map of any size stay finite
    size = torch.where(size == 0, 1.0, size)
    short = short / size[:, None, None]
    by_rows = short.shape[1] <= d
    short_x = torch.einsum("npd,nd->np", short, x)
    gram = smaller_gram(short)
    values, vectors_ = finite_eigh(gram)
    values = values.clamp_min(0)
    lead, energy, total = vectors_[..., -1], values[..., -1], values.sum(-1)
    length = x.norm(dim=-1)
    along = (lead * (short_x if by_rows else x)).sum(-1).abs()
    scale = energy.sqrt() * length if by_rows else length * (energy != 0)
    spread = values.sqrt().sum(-1).square()
    if range_basis is None:
        jx, centroid = short_x, short.sum(1)
    else:
        basis = range_basis.to(short)
        jx = short_x @ basis.mT
        centroid = torch.einsum("npd,p->nd", short, basis.sum(0))
    jx, centroid = jx * size[:, None], centroid * size[:, None]
    measures = {
        "normal_alignment": safe_ratio(along, scale).clamp(max=1),
        "effective_rank": safe_ratio(total, energy),
        "participation_rank": safe_ratio(spread, total),
        "jacobian_norm": total.sqrt() * size,
        **offset_and_centroid(output, jx, centroid, x),
    }
    ratio = safe_ratio(short_x.norm(dim=-1), total.sqrt() * length)
    measures["alignment_ratio"] = ratio.clamp(max=1)
    if y is not None:
        if range_basis is None:
            own = short.take_along_dim(y[:, None, None], 1).squeeze(1)
            squares = short.square().sum(-1)
            cross = torch.einsum("nkd,nd->nk", short, own)
        else:
            seen = range_basis.to(short) @ (gram if by_rows else short @ short.mT)
            squares = (seen * range_basis.to(short)).sum(-1)
            cross = torch.einsum("nkp,np->nk", seen, range_basis.to(short)[y])
        gap = squares + squares.take_along_dim(y[:, None], 1) - 2 * cross
        distance = gap.clamp_min(0).sqrt() * size[:, None]
        measures["local_robustness"] = nearest_boundary(output, distance, y)
    return measures


def offset_and_centroid(
    output: Tensor, jx: Tensor, centroid: Tensor, x: Tensor
) -> dict[str, Tensor]:
    """Return the measures that one product with J and one with J^T give."""
    offset = output - jx
    reach = centroid.norm(dim=-1)
    cosine = safe_ratio((centroid * x).sum(-1), reach * x.norm(dim=-1))
    return {
        "offset_norm": offset.norm(dim=-1),
        "radius": reach.square() + 2 * offset.sum(-1),
        "centroid_alignment": cosine.clamp(-1, 1),
    }


def summing_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on a device that has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
