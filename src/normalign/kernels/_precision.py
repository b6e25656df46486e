r"""Precision: float32 products on CUDA, and how much rounding moves a solution.

Distances come out of cancellations, which the 11 bits of TF32 do not survive, so
machines compute with full float32 even where a program allows TF32. Products inside a
large factorisation can use tensor cores: each factor is split into two numbers of 11
bits, and three of the four products of parts, summed in float32, are as accurate as the
product itself. In TF32 that is about twice as fast on an H200, in half precision nearly
five times; half precision has a small range, so a bound on the entries must be known.

The outputs of a machine are sums of coefficients times numbers in ``(0, 1]``, each with
a rounding error. Where coefficients are large and cancel, the errors do not;
:func:`lost_share` estimates their size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from normalign._torch_compat import override
from normalign.kernels.cuda import HALVES, kernels_for

__all__ = [
    "LOST_SHARE",
    "Factor",
    "full_precision",
    "jitter_caution",
    "lost_share",
    "mean_squares",
    "multiply_",
    "rounding_caution",
    "subtract_own_products_",
    "subtract_product_",
]

_HALF_RANGE = 15  # half precision goes up to nearly the 16th power of two
_TF32_BITS = -(1 << 13)  # the bits that TF32 keeps: sign, exponent, ten of the fraction


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute float32 products in float32 on this device, whatever else is allowed."""
    if device.type != "cuda":
        yield
        return
    with override(cuda_matmul_precision="ieee"):
        yield


class Factor:
    """A matrix about to be multiplied, cut into parts where that is faster.

    Rows can be taken from it without cutting again.

    Parameters
    ----------
    whole : Tensor of shape (n, m)
    largest : float, optional
        A bound on the entries. With it half precision may be used.

    Attributes
    ----------
    parts : tuple of Tensor
        The matrix itself, or two TF32 numbers for each entry, or one table of all that
        half precision needs.
    scale : float
        What the matrix was multiplied by to use the range of half precision.
    """

    def __init__(self, whole: Tensor, largest: float | None = None) -> None:
        self.scale = 1.0
        kernels = kernels_for(whole) if largest is not None else None
        if kernels is not None and largest is not None and _halves_serve(whole):
            self.scale = 2.0 ** (_HALF_RANGE - math.ceil(math.log2(largest)))
            self.parts: tuple[Tensor, ...] = (kernels.halves(whole, self.scale),)
        else:
            self.parts = _parts(whole) if _has_tensor_cores(whole) else (whole,)

    def __getitem__(self, rows: slice) -> Factor:
        chosen = Factor.__new__(Factor)
        chosen.parts = tuple(part[rows] for part in self.parts)
        chosen.scale = self.scale
        return chosen


def _has_tensor_cores(tensor: Tensor) -> bool:
    if tensor.device.type != "cuda" or tensor.dtype != torch.float32:
        return False
    return torch.cuda.get_device_capability(tensor.device) >= (8, 0)


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 tensor as a sum: what TF32 keeps of it, and the rest."""
    high = (x.contiguous().view(torch.int32) & _TF32_BITS).view(torch.float32)
    return high, x - high


def _halves_serve(x: Tensor) -> bool:
    """Whether products in half precision are summed, and may be left, in float32."""
    if x.shape[1] % 8 or x.stride() != (x.shape[1], 1):
        return False
    sums_in_half = torch.backends.cuda.matmul.allow_fp16_accumulation
    return not sums_in_half and _adds_to_float32(x.get_device())


@cache
def _adds_to_float32(index: int) -> bool:
    """Whether this torch adds a product in half precision to a float32 matrix."""
    half = torch.ones(8, 8, dtype=torch.float16, device=f"cuda:{index}")
    try:
        total = _add_product_(half.float(), half, half, alpha=2.0)
    except (RuntimeError, TypeError):
        return False
    return bool((total == 17).all())


def _add_product_(target: Tensor, left: Tensor, right: Tensor, alpha: float) -> Tensor:
    """``target += alpha left @ right``, both in half precision, the target in full."""
    return torch.addmm(
        target, left, right, out_dtype=torch.float32, alpha=alpha, out=target
    )


def subtract_product_(target: Tensor, rows: Factor, columns: Factor) -> Tensor:
    """``target -= rows @ columns^T``, in place."""
    if len(rows.parts) == 2:
        (high, low), (other_high, other_low) = rows.parts, columns.parts
        with override(cuda_matmul_precision="tf32"):
            target.addmm_(high, other_high.T, alpha=-1)
            target.addmm_(high, other_low.T, alpha=-1)
            return target.addmm_(low, other_high.T, alpha=-1)
    (left,), (right,) = rows.parts, columns.parts
    if left.dtype == target.dtype:
        return target.addmm_(left, right.T, alpha=-1)
    used = left.shape[1] // HALVES * 3
    scale = rows.scale * columns.scale
    return _add_product_(target, left[:, :used], right[:, -used:].T, -1 / scale)


def subtract_own_products_(
    targets: list[Tensor], starts: list[int], rows: Factor
) -> None:
    """The same for ``rows[start:]`` and its first rows, for every target and start.

    One view for all targets: on a device that waits for launches, views cost time.
    """
    if rows.parts[0].dtype != torch.float16:
        for target, start in zip(targets, starts, strict=True):
            below = rows[start:]
            subtract_product_(target, below, below[: target.shape[1]])
        return
    (table,) = rows.parts
    used, alpha = table.shape[1] // HALVES * 3, -1 / rows.scale**2
    left, right = table[:, :used], table[:, -used:].T
    for target, start in zip(targets, starts, strict=True):
        columns = right[:, start : start + target.shape[1]]
        _add_product_(target, left[start:], columns, alpha)


def multiply_(rows: Tensor, matrix: Tensor, cut: Tensor | None = None) -> Tensor:
    """``rows @= matrix``, in place, as accurate as float32.

    ``cut`` is the matrix as sums of TF32 numbers, (high, low, high) below each other.
    """
    kernels, width = kernels_for(rows), rows.shape[1]
    even = width % 4 == 0 and rows.is_contiguous() and _has_tensor_cores(rows)
    if kernels is not None and cut is not None and even:
        with override(cuda_matmul_precision="tf32"):
            return torch.mm(kernels.tf32(rows), cut, out=rows)
    minus = torch.zeros_like(rows)
    subtract_product_(minus, Factor(rows), Factor(matrix.T))
    return rows.copy_(minus.neg_())


LOST_SHARE = 3e-4  # of the targets; ordinary tables have a tenth of it


def mean_squares(y: Tensor, ridges: Tensor) -> Tensor:
    """Mean square of each target, rows counting as their ridges say; never zero.

    In float64, for squares of large and small targets.
    """
    share = (ridges.min() / ridges).double()
    squares = (share @ y.double().square()) / share.sum()
    return squares.clamp(min=torch.finfo(torch.float64).tiny)


def lost_share(coef: Tensor, y: Tensor, ridges: Tensor) -> float:
    r"""How much of the targets rounding can move: :math:`\epsilon \|a\| / \|y\|_{rms}`.

    Of that output of which it is most, in the precision of the targets. On tables and
    kernels tried in float32, outputs were off by about ten times this.
    """
    # one question to a device, not two
    share = (coef.double().square().sum(0) / mean_squares(y, ridges)).amax()
    return torch.finfo(y.dtype).eps * math.sqrt(share)


def rounding_caution(share: float, dtype: torch.dtype) -> str:
    """What a user should know where too many digits are lost, and nothing helps."""
    text = (
        f"coefficients are so large that rounding in {str(dtype)[6:]} moves outputs by "
        f"about {10 * share:.0e} of the targets"
    )
    if dtype != torch.float64:
        return text + ", and float64 does not fit memory_limit. Raise that, or ridge."
    return text + ". Raise ridge, or remove near-duplicate rows."


def jitter_caution(jitter: float, dtype: torch.dtype) -> str:
    """What a user should know where a matrix was not definite as it is."""
    return (
        f"K + ridge is not positive definite in {str(dtype)[6:]}; added {jitter:.1e} "
        "to its diagonal. Raise ridge, or remove near-duplicate rows."
    )
