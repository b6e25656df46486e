"""Whether a model is a function of each sample alone, and seen by autograd: tried out.

Batches are worked through in chunks, and one sample stands for another when memory is
planned. Both are wrong for a model whose output for a sample depends on the others
(statistics over the batch) or on the sample's position (tensors with a row for each
sample that the model keeps as attributes). No inspection of modules sees either in a
closure or a functional call.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor, nn

from normalign._errors import complaint
from normalign._linear_map import TORCH_ONLY, LocalMap, bytes_per_sample, default_budget
from normalign._torch_compat import (
    NOT_TORCH,
    attention_with_derivatives,
    frozen_randomness,
    override,
)

__all__ = ["check_is_connected", "check_rows_are_independent"]

# Most samples that are run together, and most that are run in another order.
TOGETHER = 128
REORDERED = 16

# Largest part of an output that is taken for rounding.
_ROUGH = 5e-2

_ALONE = "a function of each sample alone"
_MIXING = "Call model.eval() (BatchNorm, dropout), or freeze what mixes the samples."
_POSITION = (
    "Samples are measured in chunks, so the model must not keep a tensor with "
    "a row for each sample (a mask, an index): make it a part of x, or measure one "
    "sample per call with its row set on the model. Random numbers and sums along the "
    "batch have the same effect."
)


def check_rows_are_independent(
    local_map: LocalMap, x: Tensor, memory_budget: int | None = None
) -> None:
    """Refuse a model whose output for a sample changes with its company or position.

    The first and the last sample are run alone and within the batch; some samples are
    run in another order, for the states of the first and the last may be the same.
    """
    if len(x) < 2 or local_map.random:
        return
    first, last = x[:1], x[-1:]
    if torch.equal(first, last) and x.is_floating_point():
        last = 1.5 * first + 0.5
    with torch.no_grad(), attention_with_derivatives(), frozen_randomness():
        try:
            alone = torch.cat([local_map.run(first), local_map.run(last)])
            count = min(len(x), TOGETHER, _affordable(local_map, x, memory_budget))
            batch = torch.cat([x[: count - 1], last])
            together = local_map.run(batch)
            few = torch.linspace(0, count - 1, min(count, REORDERED)).long()
            few = few.flip(0).to(x.device)
            reordered = local_map.run(batch[few])
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            local_map.run(x)  # if this fails too, it is not for the batch's size
            line = str(error).strip().partition("\n")[0]
            got = f"one that fails for other batch sizes: {line.rstrip('.')}"
            _complain(local_map, _ALONE, got, _POSITION, error)
        ends = together[[0, -1]]
        if _agree(local_map, ends, alone, together) and _agree(
            local_map, together[few], reordered, together
        ):
            return
        # TF32 and its like depend on the kernel, and this on the size of the batch.
        with override(
            cuda_matmul_precision="ieee",
            cudnn_conv_precision="ieee",
            onednn_matmul_precision="ieee",
            onednn_conv_precision="ieee",
        ):
            alone = torch.cat([local_map.run(first), local_map.run(last)])
            together = local_map.run(batch)
            turned = local_map.run(batch.roll(1, 0)).roll(-1, 0)
            amplified = _amplified_rounding(local_map, batch, together)
    if not _agree(local_map, together, turned, together, amplified):
        got = "one whose output depends on the position in the batch"
        _complain(local_map, _ALONE, got, _POSITION)
    ends = amplified[[0, -1]]
    if not _agree(local_map, together[[0, -1]], alone, together, ends):
        got = "one whose output for a sample differs when others are in the batch"
        _complain(local_map, _ALONE, got, _MIXING)


def _affordable(local_map: LocalMap, x: Tensor, memory_budget: int | None) -> int:
    """Return how many samples the memory budget allows to run together."""
    if local_map.at is None and not x.is_floating_point():
        return REORDERED  # tokens from which no map begins cannot be measured
    bytes_each, _ = bytes_per_sample(local_map, x)
    return max(2, (memory_budget or default_budget(x.device)) // bytes_each)


def check_is_connected(local_map: LocalMap, x: Tensor) -> None:
    """Refuse a model that changes with its input where autograd sees no dependence.

    Its derivative is then zero for autograd (``detach()``, ``no_grad()``, a detour
    through NumPy), which a constant function is allowed to have, and no other.
    """
    if len(x) == 0 or local_map.at is not None:
        return
    point = x[:1].detach().clone()
    remedy = "Remove no_grad() and detach() from its forward pass."
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        attention_with_derivatives(),
        frozen_randomness(),
    ):
        leaf = point.clone().requires_grad_()
        try:
            output = local_map.run(leaf)
        except RuntimeError as error:
            if NOT_TORCH not in str(error):  # a later check gives the reason
                return
            got = "one that leaves torch for NumPy"
            _complain(local_map, "differentiable in its input", got, TORCH_ONLY, error)
        if output.requires_grad:
            (gradient,) = torch.autograd.grad(output.sum(), leaf, allow_unused=True)
            if gradient is not None:
                return
        with torch.no_grad():
            moved = local_map.run(1.5 * point + 0.5)
        if not torch.equal(moved, output):
            got = "one whose outputs autograd does not connect with x"
            _complain(local_map, "differentiable in its input", got, remedy)


def _complain(
    local_map: LocalMap,
    rule: str,
    got: str,
    remedy: str,
    error: Exception | None = None,
) -> NoReturn:
    text = complaint(local_map.callee, "model", rule, got, remedy)
    raise ValueError(text) from error


def _amplified_rounding(local_map: LocalMap, batch: Tensor, together: Tensor) -> Tensor:
    """Return how far rounding of its input moves the output for each sample.

    Zero for a model whose outputs for the same batch differ: it is not rounding then.
    """
    nothing = together.new_zeros(len(together), dtype=torch.float64)
    if not batch.is_floating_point():
        return nothing
    again = local_map.run(batch)
    if not _agree(local_map, again, together, together):
        return nothing
    eps = _coarsest(local_map, together)
    signs = torch.arange(batch[0].numel(), device=batch.device).cos().sign()
    moved = local_map.run(batch * (1 + eps * signs.to(batch.dtype).view_as(batch[0])))
    return (moved.double() - together.double()).norm(dim=1)


def _agree(
    local_map: LocalMap,
    one: Tensor,
    other: Tensor,
    together: Tensor,
    amplified: Tensor | None = None,
) -> bool:
    """Whether two runs of the same samples differ by no more than rounding.

    ``amplified`` is what rounding does to each sample in a model that amplifies it
    (many recurrent steps, inputs with a large offset): ten times that is allowed, up to
    a few percent of the output.

    Rows that are not finite say nothing. An output near zero has the rounding of the
    larger terms that cancel in it, so that a row's scale is at least the mean one.
    """
    one, other = one.double(), other.double()
    sizes = torch.linalg.vector_norm(together.double(), dim=1)
    sizes = sizes[torch.isfinite(sizes)]
    typical = sizes.mean() if len(sizes) else sizes.new_zeros(())
    scale = torch.maximum(one.norm(dim=1), other.norm(dim=1)).clamp_min(typical)
    error = (one - other).norm(dim=1)
    allowed = _tolerance(local_map, together) * scale
    if amplified is not None:
        allowed = torch.maximum(allowed, (10 * amplified).minimum(_ROUGH * scale))
    wrong = error > allowed + 1e-30
    return not bool((wrong & torch.isfinite(scale)).any())


def _tolerance(local_map: LocalMap, output: Tensor) -> float:
    """Return how far runs in batches of different sizes may lie apart, relative.

    Kernels sum in another order for another batch size. In float32 networks this has
    been seen to change an output by some 1e-6; a mask of another sample changes it by
    1e-3 and more. What is float64 may have been float32 inside. Half precision has
    two to three digits.
    """
    coarsest = _coarsest(local_map, output)
    if coarsest <= torch.finfo(torch.float64).eps:
        return 1e-6
    return 1e-4 if coarsest <= torch.finfo(torch.float32).eps else _ROUGH


def _coarsest(local_map: LocalMap, output: Tensor) -> float:
    """Return the largest rounding unit of the model's numbers."""
    dtypes = [output.dtype]
    if isinstance(local_map.model, nn.Module):
        state = (*local_map.model.parameters(), *local_map.model.buffers())
        dtypes += [t.dtype for t in state if t.is_floating_point()]
    if torch.is_autocast_enabled(output.device.type):
        dtypes.append(torch.get_autocast_dtype(output.device.type))
    return max(torch.finfo(dtype).eps for dtype in dtypes)
