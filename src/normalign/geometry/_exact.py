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

A head that maps p features to k > p outputs confines every Jacobian to the p columns
of its weight, ``J = W H``. With an orthonormal basis Q of those columns, p pull-backs
give ``Q^T J`` and with it everything, exactly: for a vocabulary of 32000 on features of
width 128 that is 128 passes and not 32000 (:func:`range_basis`).

Sums run in float64, whatever the model's precision: rows that nearly cancel (the
centroids of a network trained by cross-entropy) would drown in rounding otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normalign._hooks import add_hooks, named_modules
from normalign._linear_map import LinearMap, LocalMap, rounding
from normalign._torch_compat import attention_with_derivatives, frozen_randomness
from normalign.geometry._alignment import safe_ratio
from normalign.geometry._jacobian import columns
from normalign.geometry._margin import nearest_boundary
from normalign.geometry._spectrum import finite_eigh, smaller_gram

__all__ = [
    "column_slabs",
    "exact_measures",
    "holds_range",
    "measures_of",
    "range_basis",
    "summing_dtype",
]

# Factoring a wider head than this costs more than it can save.
WIDEST = 1024

# Bytes of a float64 copy of a few columns: on a CPU it should stay in the caches.
SLAB = {"cpu": 8 * 2**20, "cuda": 2**30}


def exact_measures(
    linear: LinearMap,
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
        narrow = gathered_rows(linear, range_basis.mT, vectors)
    elif k <= d:
        eye = torch.eye(k, dtype=linear.output.dtype, device=linear.output.device)
        narrow = gathered_rows(linear, eye, vectors)
    else:
        narrow = columns(linear, vectors)
    return measures_of(narrow, linear.input, linear.output, y, range_basis=range_basis)


def gathered_rows(linear: LinearMap, directions: Tensor, vectors: int) -> Tensor:
    """Return ``V J`` of output directions V, (p, k), as (n, p, d), held only once."""
    n, _, d = linear.shape
    found: Tensor | None = None
    for start in range(0, len(directions), vectors):
        block = directions[start : start + vectors]
        pulled = linear.pull(block.unsqueeze(1).expand(-1, n, -1)).transpose(0, 1)
        if found is None:
            found = pulled.new_empty(n, len(directions), d)
        found[:, start : start + vectors] = pulled
    assert found is not None
    return found


def measures_of(
    narrow: Tensor,
    point: Tensor,
    output: Tensor,
    y: Tensor | None,
    *,
    range_basis: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return every measure of samples whose Jacobians are given.

    Parameters
    ----------
    narrow : Tensor of shape (n, p, d)
        The Jacobians, or with a range basis ``B = Q^T J``. In the model's precision:
        float64 copies are made of a few columns at a time.
    point : Tensor of shape (n, d)
    output : Tensor of shape (n, k)
    """
    dtype = summing_dtype(narrow.device)
    x = point.to(dtype)
    output = output.to(device=narrow.device, dtype=dtype)
    seen = _reduce(narrow, x)
    values, vectors_ = finite_eigh(seen.gram)
    values = values.clamp_min(0)
    lead, energy, total = vectors_[..., -1], values[..., -1], values.sum(-1)
    length = x.norm(dim=-1)
    along = (lead * (seen.product if seen.by_rows else x)).sum(-1).abs()
    scale = energy.sqrt() * length if seen.by_rows else length * (energy != 0)
    spread = values.sqrt().sum(-1).square()
    size = seen.size[:, None]
    if range_basis is None:
        jx, weights = seen.product, torch.ones_like(seen.product[0])
    else:
        basis = range_basis.to(seen.product)
        jx, weights = seen.product @ basis.mT, basis.sum(0)
    measures = {
        "normal_alignment": safe_ratio(along, scale).clamp(max=1),
        "effective_rank": safe_ratio(total, energy),
        "participation_rank": safe_ratio(spread, total),
        "jacobian_norm": total.sqrt() * seen.size,
        **offset_and_centroid(
            output, jx * size, _weighted_sum(narrow, weights, seen.size) * size, x
        ),
    }
    ratio = safe_ratio(seen.product.norm(dim=-1), total.sqrt() * length)
    measures["alignment_ratio"] = ratio.clamp(max=1)
    if y is not None:
        squares, cross = _row_products(narrow, seen, y, range_basis)
        gap = squares + squares.take_along_dim(y[:, None], 1) - 2 * cross
        distance = gap.clamp_min(0).sqrt() * size
        measures["local_robustness"] = nearest_boundary(output, distance, y)
    return measures


@dataclass(frozen=True)
class _Reduction:
    """What remains of the Jacobians of a piece, all of them divided by ``size``."""

    gram: Tensor
    product: Tensor  # with the point, (n, p)
    size: Tensor
    by_rows: bool


def _reduce(narrow: Tensor, x: Tensor) -> _Reduction:
    _, p, d = narrow.shape
    if narrow.numel():
        # Squares of a map of any size stay finite.
        size = torch.maximum(narrow.amax((1, 2)), -narrow.amin((1, 2))).to(x)
        size = torch.where(size == 0, 1.0, size)
    else:
        size = torch.ones_like(x[:, 0])
    if p > d:
        short = narrow.to(x) / size[:, None, None]
        product = torch.einsum("npd,nd->np", short, x)
        return _Reduction(smaller_gram(short), product, size, by_rows=False)
    gram, product = x.new_zeros(len(x), p, p), x.new_zeros(len(x), p)
    for part in column_slabs(narrow):
        short = narrow[:, :, part].to(x) / size[:, None, None]
        gram += short @ short.mT
        product += torch.einsum("npd,nd->np", short, x[:, part])
    return _Reduction(gram, product, size, by_rows=True)


def _weighted_sum(narrow: Tensor, weights: Tensor, size: Tensor) -> Tensor:
    """Return the weighted sum of each Jacobian's rows, (n, d), over its size."""
    scaled = weights / size[:, None]
    parts = [
        torch.einsum("npd,np->nd", narrow[:, :, part].to(weights), scaled)
        for part in column_slabs(narrow)
    ]
    return torch.cat(parts, 1)


def _row_products(
    narrow: Tensor, seen: _Reduction, y: Tensor, range_basis: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return ``|J_c|^2`` and ``J_c . J_y`` of all outputs c, (n, k), over the size."""
    gram = seen.gram
    if not seen.by_rows:
        short = narrow.to(gram) / seen.size[:, None, None]
        if range_basis is None:
            own = short.take_along_dim(y[:, None, None], 1).squeeze(1)
            return short.square().sum(-1), torch.einsum("nkd,nd->nk", short, own)
        gram = short @ short.mT
    if range_basis is None:
        cross = gram.take_along_dim(y[:, None, None], 2).squeeze(2)
        return gram.diagonal(dim1=1, dim2=2), cross
    basis = range_basis.to(gram)
    images = basis @ gram
    return (images * basis).sum(-1), torch.einsum("nkp,np->nk", images, basis[y])


def column_slabs(rows: Tensor) -> Iterator[slice]:
    """Yield slices of the columns of (n, p, d), small enough to be copied."""
    n, p, d = rows.shape
    limit = SLAB.get(rows.device.type, SLAB["cpu"])
    width = max(1, limit // max(1, 8 * n * p))
    for start in range(0, d, width):
        yield slice(start, min(start + width, d))


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


def range_basis(local_map: LocalMap, x: Tensor) -> Tensor | None:
    """Return orthonormal columns, (k, p), that span the range of J, or None.

    The last linear layer is the one whose result shares its memory with the model's
    output. That alone proves little (an activation may have worked in place), so a
    random tangent is pushed through the model, and must come out inside the span:
    :func:`holds_range`, here at the first sample, and by the caller at each of them.

    Returns
    -------
    Tensor of shape (k, p) or None
        None where no linear layer with fewer inputs than outputs ends the model.
    """
    with torch.no_grad(), attention_with_derivatives(), frozen_randomness():
        point_map = local_map.on(x[:1])
        results: dict[nn.Module, Tensor] = {}

        def note(module: nn.Module, args: Any, kwargs: Any, result: Tensor) -> None:
            results[module] = result

        heads = [
            module
            for _, module in named_modules(local_map.model)
            if isinstance(module, nn.Linear)
            and module.in_features < min(module.out_features, WIDEST)
        ]
        with add_hooks(heads, after=note):
            output = point_map.function(point_map.point)
        for head in heads:
            ends = head in results and _is_part_of(output, results[head])
            if ends and output.shape[1] == head.out_features:
                weight = head.weight.detach()
                dtype = torch.promote_types(weight.dtype, torch.float32)
                basis = torch.linalg.qr(weight.to(dtype))[0].to(output.device)
                linear = LinearMap(*point_map, vmappable=local_map.vmappable)
                if holds_range(linear, basis):
                    return basis
    return None


def _is_part_of(output: Tensor, result: Tensor) -> bool:
    return (
        isinstance(result, Tensor)
        and output.untyped_storage().data_ptr() == result.untyped_storage().data_ptr()
    )


def holds_range(linear: LinearMap, basis: Tensor) -> bool:
    """Whether what a random tangent does to each sample's output lies in the span."""
    tangent = torch.randn(
        1, *linear.input.shape, generator=torch.Generator().manual_seed(0)
    )
    pushed = linear.push(tangent.to(linear.input)).to(basis)[0]
    outside = (pushed - pushed @ basis @ basis.mT).norm(dim=1)
    # Anything nonlinear after the head leaves a fraction of order one.
    tolerance = rounding(linear.output.dtype) * pushed.norm(dim=1)
    return not bool((outside > tolerance).any())
