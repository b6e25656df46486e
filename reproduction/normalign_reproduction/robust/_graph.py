"""Functions of tensors, recorded as CUDA graphs."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class RecordedFunction:
    """A function of tensors, recorded as a CUDA graph and replayed at each call.

    Small kernels take longer to launch than to run; a graph launches all of them at
    once. The results lie in the graph's own memory, which the next call overwrites. On
    a CPU, or (with a warning) where recording fails, the function is simply called.

    Parameters
    ----------
    function : callable
        From tensors to a sequence of tensors, without waiting for the device and with
        no branches that depend on values.
    examples : sequence of Tensor
        Arguments with the shapes of all later ones.
    network : nn.Module
        Its buffers, which the function may change, are restored after recording.
    """

    def __init__(
        self,
        function: Callable[..., Sequence[Tensor]],
        examples: Sequence[Tensor],
        *,
        network: nn.Module,
    ) -> None:
        self._function, self._graph = function, None
        if not examples[0].is_cuda:
            return
        self._inputs = [example.clone() for example in examples]
        buffers = list(network.buffers())
        saved = [buffer.clone() for buffer in buffers]
        stream, side = torch.cuda.current_stream(), torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with _recording_settings():
            side.wait_stream(stream)
            with torch.cuda.stream(side):
                for _ in range(3):  # libraries choose their kernels, torch compiles
                    function(*self._inputs)
            stream.wait_stream(side)
            try:
                with torch.cuda.graph(graph):
                    self._outputs = function(*self._inputs)
                self._graph = graph
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                torch.cuda.set_stream(stream)  # a failed recording leaves its own
                warnings.warn(
                    "RobustTrainer: a step could not be recorded as a CUDA graph and "
                    "runs slower. A common cause is an output or loss of the network "
                    "that is kept with its autograd graph: detach it, or compute it in "
                    f"torch.no_grad(). torch said: {str(error).partition(chr(10))[0]}",
                    stacklevel=2,
                )
        for buffer, value in zip(buffers, saved, strict=True):
            buffer.copy_(value)

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return the function's results for tensors of the same shapes."""
        if self._graph is None:
            return self._function(*tensors)
        for place, tensor in zip(self._inputs, tensors, strict=True):
            place.copy_(tensor)
        self._graph.replay()
        return self._outputs


@contextmanager
def _recording_settings() -> Iterator[None]:
    """Let cuDNN measure its algorithms, and destroy no autograd graph."""
    collects, benchmark = gc.isenabled(), torch.backends.cudnn.benchmark
    gc.collect()  # a graph that is destroyed while recording makes it fail
    gc.disable()
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        if collects:
            gc.enable()
