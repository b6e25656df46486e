"""One forward pass of a model and the products with its Jacobian at that point.

Every estimator is written once, over :class:`LocalPass`. ``eager.py`` runs a model as
it is, with plain autograd; ``functional.py`` has the same for pure functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["Cut", "LocalPass", "Pullable", "SameDraws"]


class Pullable(Protocol):
    """A map at a batch of points: its value, and products with its transpose.

    All products are per sample and differentiable in the parameters of the map.
    """

    @property
    def output(self) -> Tensor:
        """The values of the map, (n, ...)."""
        ...

    def pull(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T v``, shaped like the points, for v shaped like the output."""
        ...


class LocalPass(Pullable, Protocol):
    """A map at a batch of points, and its derivative both ways.

    Where ``push_has_graph`` is there and false, push-forwards are constants.
    """

    @property
    def point(self) -> Tensor:
        """The points, (n, ...)."""
        ...

    def push(self, tangent: Tensor) -> Tensor:
        """Return ``J u``, shaped like the output, for u shaped like the points."""
        ...

    def moved(self, step: Tensor) -> Tensor:
        """Return the values at the points plus a step."""
        ...


@runtime_checkable
class Cut(Protocol):
    """A map that is cut in two, for the nuclear split."""

    def halves(self) -> tuple[Pullable, Pullable]:
        """Return the parts before and after the cut."""
        ...


class SameDraws:
    """The random state of the first pass, given again to every later one.

    Dropout then keeps the same units in all of them. What comes after sees the state
    that the first pass left.
    """

    def __init__(self, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        # A graph that is being captured may not ask for the state; nothing that draws
        # random numbers can be in it either way.
        captured = on_cuda and torch.cuda.is_current_stream_capturing()
        self._devices = [device] if on_cuda and not captured else []
        self._states: list[Tensor] | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Run one pass inside."""
        if self._states is None:
            self._states = self._read()
            yield
            return
        now = self._read()
        self._write(self._states)
        try:
            yield
        finally:
            self._write(now)

    def _read(self) -> list[Tensor]:
        states = [torch.cuda.get_rng_state(device) for device in self._devices]
        return [torch.get_rng_state(), *states]

    def _write(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self._devices, states[1:], strict=True):
            torch.cuda.set_rng_state(state, device)
