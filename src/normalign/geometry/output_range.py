"""The outputs that a model can move at all: the range of its last linear layer.

A head that maps p features to k > p outputs confines every Jacobian to the p columns
of its weight, ``J = W H``. With an orthonormal basis Q of those columns, p pull-backs
give ``Q^T J`` and with it everything, exactly: for a vocabulary of 32000 on features of
width 128 that is 128 passes and not 32000.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normalign._hooks import hooked, named_modules
from normalign._linear_map import LinearMap, LocalMap, rounding
from normalign._torch_compat import attention_with_derivatives, frozen_randomness

__all__ = ["holds_range", "range_basis"]

# Factoring a wider head than this costs more than it can save.
WIDEST = 1024


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
        with hooked(heads, after=note):
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
