"""How many samples at a time: a memory budget decides.

The bytes that one sample takes are measured, not guessed: two samples and then one
are run forward, and what autograd keeps for the backward pass is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from normalign._errors import require
from normalign.geometry.local_map import LocalMap
from normalign.geometry.quirks import attention_with_derivatives, frozen_randomness

__all__ = ["ChunkPlan", "default_budget", "plan_chunks"]

ChunkSize = int | Literal["auto"] | None

GIB = 2**30

# What a pass should at most hold of one activation, for the batch and all vectors that
# go through together. Beyond, one vector after the other is faster: a backward pass of
# a ResNet-18 over 640 rows on two cores takes twice as long per row as over 64, 16 MiB;
# ten of a ResNet-50 over 512 samples on an H200 take 0.7 s alone, 1.0 s together.
WORKING_SET = {"cpu": 16 * 2**20, "cuda": 64 * 2**20}


@dataclass(frozen=True)
class ChunkPlan:
    """The pieces in which a batch is worked through.

    Attributes
    ----------
    samples : int
        Samples in one piece.
    vectors : int
        Vectors (cotangents or tangents) that go through the model at once, per sample.
    """

    samples: int
    vectors: int

    def pieces(self, n: int) -> Iterator[slice]:
        """Yield the slices that cover ``range(n)``."""
        for start in range(0, n, self.samples):
            yield slice(start, min(start + self.samples, n))


def default_budget(device: torch.device) -> int:
    """Return the working memory: 1 GiB, or two fifths of what a GPU has free."""
    if device.type == "cuda":
        return int(0.4 * torch.cuda.mem_get_info(device)[0])
    return GIB


def plan_chunks(
    local_map: LocalMap,
    x: Tensor,
    *,
    chunk_size: ChunkSize,
    memory_budget: int | None,
    n_vectors: int,
    kept_per_sample: int,
) -> ChunkPlan:
    """Return a plan under which working memory stays within the budget.

    Parameters
    ----------
    n_vectors : int
        How many vectors are wanted for each sample.
    kept_per_sample : int
        Bytes of results held per sample while its piece is worked on.
    """
    callee = local_map.callee
    if chunk_size is None:
        return ChunkPlan(max(len(x), 1), n_vectors)
    if chunk_size != "auto":
        valid = isinstance(chunk_size, int) and not isinstance(chunk_size, bool)
        require(
            valid and chunk_size > 0,
            callee,
            "chunk_size",
            "a positive integer, 'auto' or None",
            repr(chunk_size),
        )
    if memory_budget is None:
        memory_budget = default_budget(x.device)
    require(memory_budget > 0, callee, "memory_budget", "positive", memory_budget)
    saved, largest = bytes_per_sample(local_map, x)
    # While one vector passes backward, a few tensors like the largest activation are
    # alive: gradients of a layer's output and input, of a shortcut, the reordered
    # copies of the kernels.
    per_vector = 6 * largest
    vectors = n_vectors
    while (
        vectors > 1 and saved + kept_per_sample + vectors * per_vector > memory_budget
    ):
        vectors = (vectors + 1) // 2
    per_sample = saved + kept_per_sample + vectors * per_vector
    samples = max(1, int(memory_budget // max(per_sample, 1)))
    fits = WORKING_SET.get(x.device.type, 64 * 2**20)
    if x.device.type == "cpu":  # a GPU gains from more samples, a CPU loses its caches
        samples = min(samples, max(1, fits // largest))
    if chunk_size != "auto":  # the samples are settled, what goes through is not
        samples = chunk_size
    resident = max(min(samples, len(x)) * largest, 1)
    vectors = min(vectors, max(1, fits // resident))
    return ChunkPlan(samples, vectors)


def bytes_per_sample(local_map: LocalMap, x: Tensor) -> tuple[int, int]:
    """Return the bytes that autograd keeps for one sample, in all and at the largest.

    What does not grow with the batch (weights that are kept for the backward pass)
    drops out by taking the difference of two samples and one.
    """
    if len(x) == 0:
        return 1, 1
    kind = (x.shape[1:], x.dtype, x.device)
    if kind not in local_map.sizes:
        local_map.sizes[kind] = _measured_bytes(local_map, x)
    return local_map.sizes[kind]


def _measured_bytes(local_map: LocalMap, x: Tensor) -> tuple[int, int]:
    one = _saved_bytes(local_map, x[:1])
    two = _saved_bytes(local_map, x[:1].expand(2, *x.shape[1:]).clone())
    if not one or not two:
        guess = 64 * x[:1].numel() * x.element_size()
        return guess, guess
    growth = max(sum(two) - sum(one), 1)
    if len(one) != len(two):
        return growth, growth
    return growth, max(max(b - a for a, b in zip(one, two, strict=True)), 1)


def _saved_bytes(local_map: LocalMap, x: Tensor) -> list[int]:
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        start = tensor.data_ptr()  # also that of a view of some of the entries
        sizes[start] = max(size, sizes.get(start, 0))
        # An operation that keeps its own output would keep itself, and all before it.
        return tensor.detach()

    with (
        torch.inference_mode(False),
        attention_with_derivatives(),
        frozen_randomness(),
    ):
        with torch.no_grad():
            point_map = local_map.on(x.clone())
        point = point_map.point.detach().clone().requires_grad_()
        with (
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(note, lambda t: t),
        ):
            try:
                output = point_map.function(point)
            except RuntimeError as error:
                # Weights made inside inference_mode cannot be saved for backward;
                # torch.func still differentiates through them.
                if "inference" not in str(error).lower():
                    raise
                return []
    note(output)
    note(point)
    return list(sizes.values())
