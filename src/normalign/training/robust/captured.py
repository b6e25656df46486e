"""A function of tensors as one CUDA graph, launched as a whole."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from normalign.training.replay import no_collection

__all__ = ["Captured"]

Function = Callable[..., Sequence[Tensor]]

_UNRECORDED = (
    "RobustTrainer: a step could not be recorded as a CUDA graph, and is run operation "
    "by operation, which is slower. Does something hold an output or a loss of the "
    "network, with its graph of derivatives? Detach it, or compute it in "
    "torch.no_grad()."
)


class Captured:
    """A function of tensors that is recorded once and then replayed.

    Small kernels take longer to launch than to run; a graph launches all of them at
    once. What the function returns lies in the graph's own memory, and is overwritten
    by the next call. Anywhere but on CUDA the function is called as it is; so it is on
    CUDA, with a warning, if it cannot be recorded.

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
        gc.collect()  # what is left of graphs of derivatives would forbid recording
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries choose their kernels, compilers compile
                function(*self._given)
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            with no_collection(), torch.cuda.graph(graph):
                self._returned = function(*self._given)
            self._graph = graph
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.set_stream(here)  # a recording that fails stays on its own
            first = str(error).partition("\n")[0]
            warnings.warn(f"{_UNRECORDED} torch said: {first}", stacklevel=2)
        for buffer, value in zip(buffers, saved, strict=True):
            buffer.copy_(value)

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return what the function returns for other tensors of the same shapes."""
        if self._graph is None:
            return self._function(*tensors)
        for place, tensor in zip(self._given, tensors, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._returned
