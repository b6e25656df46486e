"""The places of a network worth measuring: where its stages begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normalign._hooks import add_hooks
from normalign._linear_map import LocalMap
from normalign._torch_compat import attention_with_derivatives, frozen_randomness

__all__ = ["MOST_PLACES", "stages"]

MOST_PLACES = 12

# Fewer parts than this are not yet the stages of a network.
FEWEST_STAGES = 3

_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def stages(local_map: LocalMap, x: Tensor, *, most: int = MOST_PLACES) -> list[str]:
    """Return the submodules at which the stages of a network begin, in order.

    The children of the network that are made of several layers, if there are three or
    more: ``layer1`` to ``layer4``. If there are fewer, what they are made of:
    ``blocks.0``, ``blocks.1``; in a plain chain of layers, those that have weights.
    Only parts that run once in a forward pass, from one floating tensor, count, and
    none that begins at the network's own input. Of more than ``most`` some are left
    out, evenly, the last never.

    For whole numbers (tokens) the embedding comes first.
    """
    model = local_map.model
    if not isinstance(model, nn.Module) or not len(x):
        return []
    modules = dict(model.named_modules())
    tokens = not x.is_floating_point()
    embeddings = [n for n, m in modules.items() if tokens and _is_embedding(m)][:1]
    parts = [name for name in _parts(model) if name not in embeddings]
    visits = _visits(local_map, x, {n: modules[n] for n in (*embeddings, *parts)})
    found = [
        name
        for name in sorted(visits, key=lambda name: visits[name].order)
        if name in embeddings or visits[name].is_inside
    ]
    if len(found) <= most:
        return found
    steps = [round(i * (len(found) - 1) / (most - 1)) for i in range(most)]
    return [found[i] for i in steps]


def _is_embedding(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding)


def _parts(model: nn.Module) -> list[str]:
    """Return the names of the parts that hold weights, opened as far as needed."""
    parts = {name: child for name, child in model.named_children() if _weighs(child)}
    blocks: set[str] = set()  # what came out of a list, such as blocks.0
    while True:
        made_up = [name for name, part in parts.items() if _inner(part)]
        if not made_up:
            return list(parts)
        if len(made_up) >= FEWEST_STAGES or blocks.issuperset(made_up):
            return made_up
        opened = [name for name in made_up if isinstance(parts[name], _LISTS)]
        if not opened and len(made_up) > 1:
            return made_up
        for name in opened or made_up:
            inner = {f"{name}.{n}": child for n, child in _inner(parts[name]).items()}
            if opened:
                blocks |= {n for n, c in inner.items() if not isinstance(c, _LISTS)}
            at = list(parts).index(name)
            items = list(parts.items())
            parts = dict([*items[:at], *inner.items(), *items[at + 1 :]])


def _weighs(module: nn.Module) -> bool:
    return any(p.ndim > 1 for p in module.parameters())


def _inner(module: nn.Module) -> dict[str, nn.Module]:
    return {name: child for name, child in module.named_children() if _weighs(child)}


@dataclass
class _Visit:
    """One part in one forward pass: when it ran, how often, and on what."""

    order: int
    calls: int = 0
    is_inside: bool = False


def _visits(
    local_map: LocalMap, x: Tensor, modules: dict[str, nn.Module]
) -> dict[str, _Visit]:
    """Run two samples and return the parts that ran once, from one floating tensor."""
    two = x[:1].expand(2, *x.shape[1:]).clone()
    seen: dict[str, _Visit] = {}

    names = {module: name for name, module in modules.items()}

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        visit = seen.setdefault(names[module], _Visit(len(seen)))
        visit.calls += 1
        given = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
        real = [v for v in given if v.is_floating_point()]
        batched = len(real) == 1 and real[0].ndim > 1 and len(real[0]) == 2
        own = batched and _same(real[0], two)
        visit.is_inside = batched and not own

    with (
        add_hooks(modules.values(), before=note),
        torch.no_grad(),
        attention_with_derivatives(),
        frozen_randomness(),
    ):
        local_map.model(two.clone())
    return {name: visit for name, visit in seen.items() if visit.calls == 1}


def _same(tensor: Tensor, x: Tensor) -> bool:
    """Whether a tensor is the network's input, perhaps flattened."""
    return tensor.numel() == x.numel() and torch.equal(
        tensor.flatten(1), x.to(tensor).flatten(1)
    )
