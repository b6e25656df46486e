"""A function of tensors as one CUDA graph, launched as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["Captured"]

Function = Callable[..., Sequence[Tensor]]


class Captured:
    """A function of tensors that is recorded once and then replayed.

    Small kernels take longer to launch than to run; a graph launches all of them at
    once. What the function returns lies in the graph's own memory, and is overwritten
    by the next call. Anywhere but on CUDA the function is called as it is.

    Parameters
    ----------
    function : callable
        Of tensors, to tensors. It may not wait for the device, and must take the same
        way every time.
    examples : sequence of Tensor
        Arguments of the shapes to come.
    changes : sequence of nn.Module
        Networks whose buffers it changes: they are as before after recording.
    """

    def __init__(
        self,
        function: Function,
        examples: Sequence[Tensor],
        *,
        changes: Sequence[nn.Module] = (),
    ) -> None:
        self._function, self._graph = function, None
        if not examples[0].is_cuda:
            return
        self._given = [example.clone() for example in examples]
        buffers = [b for network in changes for b in network.buffers()]
        saved = [buffer.clone() for buffer in buffers]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries choose their kernels, compilers compile
                function(*self._given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._returned = function(*self._given)
        for buffer, value in zip(buffers, saved, strict=True):
            buffer.copy_(value)
        self._graph = graph

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return what the function returns for other tensors of the same shapes."""
        if self._graph is None:
            return self._function(*tensors)
        for place, tensor in zip(self._given, tensors, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._returned
