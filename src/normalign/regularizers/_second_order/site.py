"""Where a layer's call stands, and which gradients a backward pass wants of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normalign.regularizers._second_order.graph import is_visited

__all__ = ["Mask", "Phase", "Site", "precise", "wanted"]

Mask = tuple[bool, bool, bool]


@dataclass(slots=True)
class Phase:
    """Which backward pass is running: shared by all layers of one forward pass."""

    pulling: bool = False  # a pull-back to the point


@dataclass(slots=True)
class Site:
    """Where one call of a layer stands in the graph.

    Parameters
    ----------
    phase : Phase
    dead_end : bool
        Whether the layer's input leads back to the point alone, and the gradient of
        the final loss in the point is not wanted.
    """

    phase: Phase
    dead_end: bool


def wanted(ctx: Any) -> Mask:
    """Return which of a layer's first three gradients the present pass wants.

    ``ctx.needs_input_grad`` says which exist. A pull-back goes to the point alone, and
    the weight gradients that lie at its wayside are not for free.
    """
    x, weight, bias = ctx.needs_input_grad[:3]
    edges = ctx.next_functions  # one for each tensor, none for None
    if ctx.site.dead_end and not ctx.site.phase.pulling:
        x = False
    return (
        x and is_visited(edges[0][0]),
        weight and is_visited(edges[1][0]),
        bias and is_visited(edges[-1][0]),
    )


def precise(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Run a backward function in the precision of its tensors, not autocast's."""

    @functools.wraps(backward)
    def guard(ctx: Any, *cotangents: Tensor | None) -> Any:
        for cotangent in cotangents:
            if cotangent is not None:
                kind = cotangent.device.type
                break
        else:
            return (None,) * len(ctx.needs_input_grad)
        if not torch.is_autocast_enabled(kind):
            return backward(ctx, *cotangents)
        with torch.autocast(kind, enabled=False):
            return backward(ctx, *cotangents)

    return guard
