"""Questions about tensors and their graph that decide what a layer has to do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils import checkpoint

__all__ = ["are_plain", "checkpoint_frame", "is_visited", "leads_only_to", "node_of"]


def node_of(tensor: Tensor) -> Node:
    """Return the node that a gradient of the tensor goes to."""
    return tensor.grad_fn or get_gradient_edge(tensor).node


def is_visited(node: Node) -> bool:
    """Say whether the backward pass that is running goes on to a node."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # torch does not say it of a leaf that the pass ends at
        return True


def leads_only_to(tensor: Tensor, target: Node) -> bool:
    """Say whether a gradient of the tensor has one way to go, which ends at a node.

    The walk stops at the first fork, so that deep in a network it is short.
    """
    if not tensor.requires_grad:
        return False
    node = node_of(tensor)
    while node is not target:
        only = None
        for parent, _ in node.next_functions:
            if parent is not None and parent is not only:
                if only is not None:
                    return False
                only = parent
        if only is None:
            return False
        node = only
    return True


def are_plain(*tensors: Tensor | None) -> bool:
    """Say whether an autograd function of ours may take these tensors.

    It may not take subclasses, tensors inside a transform of ``torch.func`` or of
    forward-mode differentiation, or anything while torch compiles; and there is no
    need for one where no gradient is taken.
    """
    if (
        not torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch.compiler.is_compiling()
    ):
        return False
    differentiable = False
    for tensor in tensors:
        if tensor is None:
            continue
        kind = type(tensor)
        if kind is not Tensor and kind is not nn.Parameter:
            return False
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            return False
        differentiable = differentiable or tensor.requires_grad
    return differentiable


def checkpoint_frame() -> Any:
    """Return the record of the activation checkpoint that is being filled, if any.

    ``torch.utils.checkpoint`` runs a part of the model again during the backward
    pass, when no mode is active any more. Its record holds the function that does so.
    It is found through the hook by which the checkpoint sees what layers save.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore
    if hooks is None:
        return None
    for cell in getattr(hooks[0], "__closure__", None) or ():
        if isinstance(cell.cell_contents, checkpoint._CheckpointFrame):
            return cell.cell_contents
    return None
