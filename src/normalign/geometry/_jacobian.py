"""The local affine map: Jacobian and offset of a model at each sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign._hooks import At
from normalign._linear_map import ChunkSize, LinearMap, LocalMap, plan_chunks
from normalign._torch_compat import (
    attention_with_derivatives,
    frozen_randomness,
    outside_autocast,
    outside_inference_mode,
)
from normalign.geometry._independence import (
    check_is_connected,
    check_rows_are_independent,
)

__all__ = ["LocalAffine", "columns", "local_affine", "rows"]


class LocalAffine(NamedTuple):
    """The affine map that a model is around each of its inputs, ``f(x) = J x + b``.

    Attributes
    ----------
    input : Tensor of shape (n, d)
        Where it was taken: the flattened input of the model or of its submodule.
    output : Tensor of shape (n, k)
    jacobian : Tensor of shape (n, k, d)
    offset : Tensor of shape (n, k)
    """

    input: Tensor
    output: Tensor
    jacobian: Tensor
    offset: Tensor


def local_affine(
    model: Callable[..., Any],
    x: Tensor,
    *,
    at: str | At | None = None,
    output: Callable[[Any], Tensor] | None = None,
    chunk_size: ChunkSize = "auto",
    memory_budget: int | None = None,
) -> LocalAffine:
    r"""Jacobian and offset of a model at each sample.

    .. math:: f(x) = J_x x + b_x, \qquad J_x = \partial f / \partial x \quad
              \text{(Section 2; Eq. 1 for piecewise-affine networks)}

    For a continuous piecewise-affine network this is the map on the whole tile that
    holds x; for any other model it is the first-order expansion, with the offset
    defined by the equation above. It is built from min(k, d) backward or forward
    passes, in grad mode from k backward passes, and is then differentiable in the
    model's parameters; wrap the call in ``torch.no_grad()`` when that is not wanted: it
    halves the memory. When the numbers of :func:`~normalign.local_geometry` are all you
    need, call that: it never holds the (n, k, d) Jacobian.

    Parameters
    ----------
    model : nn.Module or callable
        A function of each sample alone: in evaluation mode if it holds BatchNorm.
    x : Tensor of shape (n, ...)
    at : str or At, optional
        A submodule: the map then goes from its input to the model's output.
    output : callable, optional
        Picks the tensor from what the model returns, e.g.
        ``lambda out: out.logits[:, -1]``.
    chunk_size : int, "auto" or None
        Samples worked on at once; "auto" keeps to the memory budget, None takes all.
    memory_budget : int, optional
        Bytes of working memory that "auto" plans for, the result not counted; by
        default 1 GiB, on a GPU two fifths of what is free.

    Returns
    -------
    LocalAffine

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 1)
    >>> with torch.no_grad():
    ...     affine = local_affine(model, torch.ones(1, 2))
    >>> torch.equal(affine.jacobian[0], model.weight)
    True
    """
    local_map = LocalMap(model, at=at, output=output, callee="local_affine")
    with outside_inference_mode():
        return _affine(local_map, x, chunk_size, memory_budget)


def _affine(
    local_map: LocalMap, x: Tensor, chunk_size: ChunkSize, memory_budget: int | None
) -> LocalAffine:
    check_batch(x, local_map, memory_budget)
    k, d, element_size = shape_of(local_map, x)
    plan = plan_chunks(
        local_map,
        x,
        chunk_size=chunk_size,
        memory_budget=memory_budget,
        n_vectors=min(k, d),
        kept_per_sample=k * d * element_size,
    )
    pieces = [_affine_piece(local_map, x[s], plan.vectors) for s in plan.pieces(len(x))]
    if not pieces:
        point = local_map.on(x).point.flatten(1)
        empty = point.new_zeros(0, k)
        return LocalAffine(point, empty, point.new_zeros(0, k, d), empty)
    return LocalAffine(*(torch.cat(parts) for parts in zip(*pieces, strict=True)))


def _affine_piece(local_map: LocalMap, x: Tensor, vectors: int) -> LocalAffine:
    linear = LinearMap(*local_map.on(x), vmappable=local_map.vmappable)
    _, k, d = linear.shape
    # The derivative of a push-forward is wrong for some layers of torch (nn.LayerNorm).
    trained = torch.is_grad_enabled() and linear.output.requires_grad
    by_rows = k <= d or trained
    jacobian = rows(linear, vectors) if by_rows else columns(linear, vectors)
    output = linear.output.to(jacobian.device)
    with outside_autocast(jacobian.device):
        dtype = torch.promote_types(jacobian.dtype, linear.input.dtype)
        point, wide = linear.input.to(dtype), jacobian.to(dtype)
        offset = output - torch.einsum("nkd,nd->nk", wide, point)
    return LocalAffine(linear.input, output, jacobian, offset)


def rows(linear: LinearMap, vectors: int) -> Tensor:
    """Return the Jacobians, (n, k, d), from one pull-back for each output."""
    k = linear.shape[1]
    basis = torch.eye(k, dtype=linear.output.dtype, device=linear.output.device)
    return pulled_rows(linear, basis, vectors)


def pulled_rows(linear: LinearMap, directions: Tensor, vectors: int) -> Tensor:
    """Return the products of p output directions, (p, k), with J: (n, p, d)."""
    n = len(linear.input)
    blocks = [
        linear.pull(block.unsqueeze(1).expand(-1, n, -1))
        for block in directions.split(vectors)
    ]
    return torch.cat(blocks).transpose(0, 1)


def columns(linear: LinearMap, vectors: int) -> Tensor:
    """Return the Jacobians, (n, k, d), from one push-forward for each input."""
    n, _, d = linear.shape
    basis = torch.eye(d, dtype=linear.input.dtype, device=linear.input.device)
    blocks = [
        linear.push(block.unsqueeze(1).expand(-1, n, -1))
        for block in basis.split(vectors)
    ]
    return torch.cat(blocks).permute(1, 2, 0).to(linear.input.device)


def check_batch(
    x: Tensor, local_map: LocalMap, memory_budget: int | None = None
) -> None:
    """Check that x is a batch, and that the model treats its rows separately."""
    callee = local_map.callee
    require_kind(isinstance(x, Tensor), callee, "x", "a tensor", describe(x))
    require(
        x.ndim >= 2 or local_map.at is not None,
        callee,
        "x",
        "a batch of shape (n, ...) with at least two dimensions",
        x,
        "Add a batch dimension: x.unsqueeze(0) for one sample, x.unsqueeze(1) for "
        "samples of one number each.",
    )
    if local_map.at is None:
        local_map.require_floating(x)
    check_is_connected(local_map, x)
    check_rows_are_independent(local_map, x, memory_budget)


def shape_of(local_map: LocalMap, x: Tensor) -> tuple[int, int, int]:
    """Return the outputs k, the inputs d and the bytes of an element of the map."""
    with torch.no_grad(), attention_with_derivatives(), frozen_randomness():
        point_map = local_map.on(x[:1])
        output = point_map.function(point_map.point)
    point = point_map.point
    d = int(point[:1].numel()) if len(point) else int(point.flatten(1).shape[1])
    return output.shape[1], d, point.element_size()
