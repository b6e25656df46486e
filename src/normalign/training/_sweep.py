"""One sweep over all parameters per step, as Triton kernels, for CUDA.

:class:`normalign.training.rules.StackedRule` is the same update in plain torch, ten
kernels that each read and write the parameters of all networks; the memory traffic of
those, not arithmetic, is what a small network waits for. This module needs Triton,
which torch brings along where it has CUDA.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["BLOCK", "COLUMNS", "Sweep"]

BLOCK = 1024

# The numbers of one network in one step, in the order in which the kernel reads them.
COLUMNS = (
    "rate", "eps", "shrink", "one_minus_beta1", "one_minus_beta2", "momentum",
    "one_minus_decay", "strength",
)  # fmt: skip


@triton.jit
def _sweep_kernel(  # noqa: PLR0913  (a kernel has no objects)
    rows, gradients, average, moment, square, shares, numbers, blocks, p, parts,
    GROKFAST: tl.constexpr, ORTHOGRAD: tl.constexpr, ADAM: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Filter the gradients of one block of one network, and update it in place."""
    member = tl.program_id(1).to(tl.int64)
    first = tl.load(blocks + 3 * tl.program_id(0))
    last = tl.load(blocks + 3 * tl.program_id(0) + 1)
    place = first + tl.arange(0, BLOCK)
    inside = place < last
    here = member * p + place
    number = numbers + 8 * member
    # In float64: a second moment of 1e-40 has a root that float32 would flush to zero.
    weight = tl.load(rows + here, mask=inside, other=0.0).to(tl.float64)
    gradient = tl.load(gradients + here, mask=inside, other=0.0).to(tl.float64)
    if GROKFAST:
        slow = tl.load(average + here, mask=inside, other=0.0).to(tl.float64)
        slow += tl.load(number + 6) * (gradient - slow)
        tl.store(average + here, slow.to(average.dtype.element_ty), mask=inside)
        gradient += tl.load(number + 7) * slow
    if ORTHOGRAD:
        part = tl.load(blocks + 3 * tl.program_id(0) + 2)
        gradient -= tl.load(shares + member * parts + part) * weight
    mean = tl.load(moment + here, mask=inside, other=0.0).to(tl.float64)
    if ADAM:
        spread = tl.load(square + here, mask=inside, other=0.0).to(tl.float64)
        mean += tl.load(number + 3) * (gradient - mean)
        spread += tl.load(number + 4) * (gradient * gradient - spread)
        tl.store(square + here, spread.to(square.dtype.element_ty), mask=inside)
        step = mean / (tl.sqrt(spread) + tl.load(number + 1))
        weight = weight * tl.load(number + 2) - tl.load(number) * step
    else:
        mean = tl.load(number + 5) * mean + gradient + tl.load(number + 2) * weight
        weight -= tl.load(number) * mean
    tl.store(moment + here, mean.to(moment.dtype.element_ty), mask=inside)
    tl.store(rows + here, weight.to(rows.dtype.element_ty), mask=inside)


@triton.jit
def _products_kernel(rows, gradients, sums, blocks, p, count, BLOCK: tl.constexpr):
    """Sum <w, g> and <w, w> over one block of one network."""
    member = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0)
    place = tl.load(blocks + 3 * block) + tl.arange(0, BLOCK)
    inside = place < tl.load(blocks + 3 * block + 1)
    here = member * p + place
    weight = tl.load(rows + here, mask=inside, other=0.0).to(tl.float64)
    gradient = tl.load(gradients + here, mask=inside, other=0.0).to(tl.float64)
    tl.store(sums + 2 * member * count + block, tl.sum(weight * gradient))
    tl.store(sums + (2 * member + 1) * count + block, tl.sum(weight * weight))


def _over(kernel: Any, *grid: int) -> Any:
    """A kernel over a grid; what it takes Triton knows, and no type checker does."""
    return kernel[grid]


class Sweep:
    """The update of s networks in one or two kernels.

    Parameters
    ----------
    sizes : sequence of int
        How many numbers each parameter tensor has, in their order in a row.
    device : torch.device
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        table, start = [], 0
        for part, size in enumerate(sizes):  # a block never spans two tensors
            stop = start + size
            table += [
                (first, min(first + BLOCK, stop), part)
                for first in range(start, stop, BLOCK)
            ]
            start = stop
        self._p, self._parts = start, len(sizes)
        self._blocks = torch.tensor(table, device=device)
        belongs = self._blocks[:, 2:] == torch.arange(len(sizes), device=device)
        self._belongs = belongs.to(torch.float64)

    def table(self, columns: Mapping[str, Tensor], n_steps: int) -> Tensor:
        """Return the numbers of some steps as the kernel reads them, (n_steps, s, 8).

        Columns are float64, of shape (s, 1) or (n_steps, s, 1); what is not among them
        is not read.
        """
        any_column = columns["rate"]
        missing = torch.zeros_like(any_column)
        each = [columns.get(name, missing) for name in COLUMNS]
        return torch.cat([column.expand(n_steps, -1, 1) for column in each], dim=2)

    def update(
        self,
        rows: Tensor,
        gradients: Tensor,
        state: dict[str, Tensor],
        numbers: Tensor,
        *,
        orthograd: bool,
    ) -> None:
        """Take one step, in place in the rows and the state.

        Parameters
        ----------
        rows, gradients : contiguous Tensor of shape (s, p)
        state : dict of str to Tensor of shape (s, p)
            ``"moment"``; ``"square"`` makes it Adam, ``"average"`` Grokfast.
        numbers : float64 Tensor of shape (s, 8)
            The :data:`COLUMNS`; for SGD ``"shrink"`` is the weight decay.
        """
        shares = self._shares(rows, gradients) if orthograd else numbers
        moment = state["moment"]
        _over(_sweep_kernel, len(self._blocks), len(rows))(
            rows, gradients, state.get("average", moment), moment,
            state.get("square", moment), shares, numbers, self._blocks, self._p,
            self._parts, GROKFAST="average" in state, ORTHOGRAD=orthograd,
            ADAM="square" in state, BLOCK=BLOCK,
        )  # fmt: skip

    def _shares(self, rows: Tensor, gradients: Tensor) -> Tensor:
        """Return <w, g> / <w, w> for each tensor of each network, (s, parts)."""
        count = len(self._blocks)
        sums = torch.empty(
            (len(rows), 2, count), dtype=torch.float64, device=rows.device
        )
        _over(_products_kernel, count, len(rows))(
            rows, gradients, sums, self._blocks, self._p, count, BLOCK=BLOCK
        )
        products, squares = (sums @ self._belongs).unbind(1)
        return (products / (squares + 1e-30)).contiguous()
