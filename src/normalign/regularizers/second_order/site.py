"""Where a layer's call stands, and which gradients a backward pass wants of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normalign.regularizers.second_order.graph import is_visited

__all__ = ["Mask", "Phase", "Site", "precise", "remember", "wanted"]

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


def remember(ctx: Any, site: Site, *inputs: Tensor | None) -> None:
    """Note at a layer's forward pass what :func:`wanted` asks for later."""
    ctx.set_materialize_grads(False)
    ctx.site, ctx.given = site, [tensor is not None for tensor in inputs]


def wanted(ctx: Any) -> Mask:
    """Return which of a layer's first three gradients the present pass wants.

    ``ctx.needs_input_grad`` says which exist. A pull-back goes to the point alone, and
    the weight gradients that lie at its wayside are not for free.
    """
    edges = iter(ctx.next_functions)  # one for each tensor, none for None
    nodes = [next(edges)[0] if given else None for given in ctx.given]
    x, weight, bias = [node is not None and is_visited(node) for node in nodes]
    blocked = ctx.site.dead_end and not ctx.site.phase.pulling
    return x and not blocked, weight, bias


def precise(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Run a backward function in the precision of its tensors, not autocast's."""

    @functools.wraps(backward)
    def guarded(ctx: Any, *cotangents: Tensor | None) -> Any:
        given = next((c for c in cotangents if c is not None), None)
        if given is None:
            return (None,) * len(ctx.needs_input_grad)
        kind = given.device.type
        if not torch.is_autocast_enabled(kind):
            return backward(ctx, *cotangents)
        with torch.autocast(kind, enabled=False):
            return backward(ctx, *cotangents)

    return guarded
