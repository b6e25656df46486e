r"""Products with the transposed Jacobians of several places, from the same passes.

A cotangent that is pulled back from the output to the input comes through every place
on its way. With :math:`f(x, e_1, e_2, \ldots)`, the network with :math:`e_i` added to
the input of place i, one backward pass at :math:`e = 0` returns :math:`J_i^\top v` for
all places at once: the places of a ResNet cost what its input costs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from normalign._hooks import Location
from normalign._linear_map import LinearMap, LocalMap
from normalign._torch_compat import REFUSED_BY_FUNC
from normalign.geometry._exact import summing_dtype

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
    location : Location, optional
        None stands for the network's own input.
    """

    local_map: LocalMap
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    location: Location | None = None

    @property
    def d(self) -> int:
        """The numbers of which the input is made."""
        return int(torch.Size(self.shape).numel())


def shared_place(local_map: LocalMap, x: Tensor) -> SharedPlace | None:
    """Return a place as shared passes see it; None where they cannot start there."""
    with torch.no_grad():
        point = local_map.on(x[:1]).point
    at = local_map.at
    if at is not None and not isinstance(at, str) and at.token is not None:
        return None
    location = None if at is None else local_map.location(x)
    shape = tuple(point.shape[1:])
    return SharedPlace(local_map, shape, point.dtype, point.device, location)


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

    def __init__(
        self, places: Sequence[SharedPlace], x: Tensor, at_once: int = 1
    ) -> None:
        self.places, self.x, self._at_once = places, x, at_once
        model = places[0].local_map
        starts = [
            x
            if place.location is None
            else torch.zeros((), dtype=place.dtype, device=place.device).expand(
                len(x), *place.shape
            )
            for place in places
        ]

        def function(*shifts: Tensor) -> tuple[Tensor, list[Tensor]]:
            start = x
            points: dict[int, Tensor] = {}
            with ExitStack() as hooks:
                for i, (place, shift) in enumerate(zip(places, shifts, strict=True)):
                    if place.location is None:
                        start, points[i] = shift, shift.detach()
                    else:
                        change = _shift(shift, points, i)
                        hooks.enter_context(place.location.replacing(change))
                output = model.run(start)
            return output, [points[i] for i in range(len(shifts))]

        vmappable = at_once > 1 and model.vmappable
        self._linear = LinearMap(
            function, *starts, vmappable=vmappable, at_once=at_once, has_aux=True
        )
        self.output = self._linear.output
        self.inputs = [point.flatten(1) for point in self._linear.aux]

    def pull(self, cotangents: Tensor) -> list[Tensor]:
        """Return ``J_i^T v`` of each place i, (b, n, k) -> (b, n, d_i)."""
        return self._linear.pull_all(cotangents)

    def blocks(self, directions: Tensor) -> Iterator[tuple[slice, list[Tensor]]]:
        """Yield the products of output directions, (p, k), a few of them at a time."""
        n = len(self.x)
        for start in range(0, len(directions), self._at_once):
            part = slice(start, min(start + self._at_once, len(directions)))
            yield part, self.pull(directions[part].unsqueeze(1).expand(-1, n, -1))

    def squared_norms(self, directions: Tensor) -> list[Tensor]:
        """Return ``|V J_i|_F^2`` of each sample and place, keeping none of the rows."""
        sums: list[Tensor | float] = [0.0] * len(self.inputs)
        for _, pulled in self.blocks(directions):
            for i, rows in enumerate(pulled):
                for row in rows:  # one by one: a float64 copy of many is large
                    wide = row.to(summing_dtype(row.device))
                    sums[i] = sums[i] + wide.square().sum(1)
        return [s for s in sums if isinstance(s, Tensor)]


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


def _shift(
    shift: Tensor, points: dict[int, Tensor], i: int
) -> Callable[[Tensor], Tensor]:
    def change(value: Tensor) -> Tensor:
        # The sum is a tensor of its own: other uses of the value do not see the shift,
        # and layers that work in place do not reach the note.
        points[i] = value.detach().clone()
        return value + shift

    return change
