"""CUDA graphs: work whose hundred small kernels are launched as one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["Replay", "no_collection"]


class Replay:
    """A function that is captured on its second call, and replayed from then on.

    The first call runs as it stands: it makes what is made lazily (moments, averages),
    and chooses kernels. From the second on, the function reads and writes the very
    tensors that it did then, and what it returned then is what every call returns,
    overwritten in place. Without a stream the function is simply called.

    Parameters
    ----------
    function : callable without arguments
        Touches only tensors that stay where they are, and waits for nothing.
    stream : torch.cuda.Stream or None
        On which the calls are made.

    Examples
    --------
    >>> Replay(lambda: 3, None)()
    3
    """

    def __init__(
        self, function: Callable[[], Any], stream: torch.cuda.Stream | None
    ) -> None:
        self._function, self._stream = function, stream
        self.forget()

    def __call__(self) -> Any:
        """Do the work once, on the current stream."""
        if self._stream is None:
            return self._function()
        if not self._warm:
            self._warm = True
            return self._function()
        if self._graph is None:
            self._stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with no_collection(), torch.cuda.graph(self._graph, stream=self._stream):
                self._result = self._function()
        self._graph.replay()
        return self._result

    def forget(self) -> None:
        """Start again: the tensors have changed places."""
        self._warm = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Any = None


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python's cyclic garbage where it is.

    There may be a graph in it, and CUDA gives up a capture during which another graph
    is destroyed. Torch before 2.9 collected garbage at the start of each capture; later
    ones leave it to chance (pytorch#161037).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
