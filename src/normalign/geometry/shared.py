r"""Products with the transposed Jacobians of several places, from the same passes.

A cotangent that is pulled back from the output to the input comes through every place
on its way. With :math:`f(x, e_1, e_2, \ldots)`, the network with :math:`e_i` added to
the input of place i, one backward pass at :math:`e = 0` returns :math:`J_i^\top v` for
all places at once: the places of a ResNet cost what its input costs alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from normalign.geometry.exact import summing_dtype
from normalign.geometry.linearize import REFUSED_BY_FUNC, REFUSED_BY_VMAP
from normalign.geometry.local_map import LocalMap
from normalign.geometry.quirks import (
    attention_with_derivatives,
    frozen_randomness,
    in_this_thread,
    outside_autocast,
)

__all__ = ["SharedPass", "SharedPlace", "shared_place"]


@dataclass(frozen=True)
class SharedPlace:
    """Where one of several maps begins.

    Attributes
    ----------
    local_map : LocalMap
    shape : tuple of int
        Of one sample's input.
    dtype, device
        Of that input.
    module, call, slot
        The submodule, which of its calls and which argument; no module stands for the
        network's own input, no slot for the submodule's output.
    """

    local_map: LocalMap
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    module: nn.Module | None = None
    call: int = 0
    slot: int | str | None = None

    @property
    def d(self) -> int:
        """The numbers of which the input is made."""
        return int(torch.Size(self.shape).numel())


def shared_place(local_map: LocalMap, x: Tensor) -> SharedPlace | None:
    """Return a place as shared passes see it; None where they cannot start there."""
    with torch.no_grad():
        point = local_map.on(x[:1]).point
    shape = tuple(point.shape[1:])
    at = local_map.at
    if at is None:
        return SharedPlace(local_map, shape, point.dtype, point.device)
    if not isinstance(at, str) and at.token is not None:
        return None
    module = local_map._submodule()
    call, slot = local_map._place(x, module)
    return SharedPlace(local_map, shape, point.dtype, point.device, module, call, slot)


@dataclass
class SharedPass:
    """One forward pass over a batch, and pull-backs from it to several places.

    Parameters
    ----------
    places : sequence of SharedPlace
        Of one model.
    x : Tensor of shape (n, ...)
    at_once : int
        Most cotangents that go through together.

    Attributes
    ----------
    inputs : list of Tensor of shape (n, d)
        The input of each place.
    output : Tensor of shape (n, k)
    """

    places: Sequence[SharedPlace]
    x: Tensor
    at_once: int = 1
    inputs: list[Tensor] = field(init=False)
    output: Tensor = field(init=False)
    _pullback: Callable[..., Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        n, model = len(self.x), self.places[0].local_map
        self._together = self.at_once > 1 and model.vmappable
        starts = [
            self.x
            if place.module is None
            else torch.zeros((), dtype=place.dtype, device=place.device).expand(
                n, *place.shape
            )
            for place in self.places
        ]

        def function(*shifts: Tensor) -> tuple[Tensor, list[Tensor]]:
            x = self.x
            points: dict[int, Tensor] = {}
            with contextlib.ExitStack() as hooks:
                for i, (place, shift) in enumerate(
                    zip(self.places, shifts, strict=True)
                ):
                    if place.module is None:
                        x, points[i] = shift, shift.detach()
                    else:
                        hooks.enter_context(_shifted(place, shift, points, i))
                output = model._run(x)
            return output, [points[i] for i in range(len(shifts))]

        with attention_with_derivatives(), frozen_randomness():
            self.output, self._pullback, points = vjp(function, *starts, has_aux=True)  # pyright: ignore[reportAssignmentType]
        self.inputs = [point.flatten(1) for point in points]

    def pull(self, cotangents: Tensor) -> list[Tensor]:
        """Return ``J_i^T v`` of each place i, (b, n, k) -> (b, n, d_i)."""
        cotangents = cotangents.to(self.output)
        with attention_with_derivatives(), outside_autocast(cotangents.device):
            if self._together and len(cotangents) > 1:
                try:
                    found = vmap(self._one, randomness="same")(cotangents)
                    return [part.flatten(2) for part in found]
                except RuntimeError as error:
                    if not any(words in str(error) for words in REFUSED_BY_VMAP):
                        raise
                    self._together = False
            found = [self._one(v) for v in cotangents]
        return [torch.stack(parts).flatten(2) for parts in zip(*found, strict=True)]

    def blocks(self, directions: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
        """Yield the products of output directions, (p, k), a few of them at a time."""
        n = len(self.x)
        for start in range(0, len(directions), self.at_once):
            part = slice(start, min(start + self.at_once, len(directions)))
            yield part, self.pull(directions[part].unsqueeze(1).expand(-1, n, -1))

    def squared_norms(self, directions: Tensor) -> list[Tensor]:
        """Return ``|V J_i|_F^2`` of each sample and place, keeping none of the rows."""
        sums: list[Tensor | float] = [0.0] * len(self.places)
        for _, pulled in self.blocks(directions):
            for i, rows in enumerate(pulled):
                for row in rows:  # one by one: a float64 copy of many is large
                    wide = row.to(summing_dtype(row.device))
                    sums[i] = sums[i] + wide.square().sum(1)
        return [s for s in sums if isinstance(s, Tensor)]

    def _one(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        return self._pullback(cotangent, create_graph=False)


def can_share(places: Sequence[SharedPlace], x: Tensor) -> bool:
    """Whether the model can be differentiated at several places in one pass."""
    if len(places) < 2:
        return False
    try:
        with torch.no_grad():
            shared = SharedPass(places, x[:1])
            shared.pull(torch.ones_like(shared.output).unsqueeze(0))
    except RuntimeError as error:
        if not any(words in str(error) for words in REFUSED_BY_FUNC):
            raise
        return False
    return True


@contextlib.contextmanager
def _shifted(
    place: SharedPlace, shift: Tensor, points: dict[int, Tensor], i: int
) -> Iterator[None]:
    """Add to one argument (or the output) of one call of a module, and note it."""
    module, slot = place.module, place.slot
    assert module is not None
    seen = 0

    def moved(value: Tensor) -> Tensor:
        # The sum is a tensor of its own: other uses of the value do not see the shift,
        # and layers that work in place do not reach the note.
        points[i] = value.detach().clone()
        return value + shift

    def counted() -> bool:
        nonlocal seen
        seen += 1
        return seen - 1 == place.call

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        if not counted():
            return None
        if isinstance(slot, str):
            return args, {**kwargs, slot: moved(kwargs[slot])}
        assert slot is not None
        return (*args[:slot], moved(args[slot]), *args[slot + 1 :]), kwargs

    def after(_: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        return moved(out) if counted() else None

    if slot is None:
        hook = in_this_thread(after)
        handle = module.register_forward_hook(hook, with_kwargs=True)
    else:
        hook = in_this_thread(before)
        handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    with handle:
        yield
