"""float32 products on CUDA: in full where it matters, on tensor cores where it pays.

A program may have allowed TF32 for its networks. Distances come out of cancellations
and cannot be had from 11 bits, so every machine computes with full float32. The
products inside a large factorisation can: each factor is cut into two TF32 numbers,
and three of the four products of parts, summed in float32, are as accurate as the
product itself and about twice as fast on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["Factor", "full_precision", "subtract_product_"]

_KEPT = -(1 << 13)  # the bits that TF32 keeps: sign, exponent, ten of the fraction


@contextmanager
def _float32_products(how: str) -> Iterator[None]:
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = how
    try:
        yield
    finally:
        setting.fp32_precision = before


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute float32 products in float32 on this device, whatever else is allowed."""
    if device.type != "cuda":
        yield
        return
    with _float32_products("ieee"):
        yield


class Factor:
    """A matrix about to be multiplied, cut into two parts where that is faster.

    Rows and columns can be taken from it without cutting again.
    """

    def __init__(self, whole: Tensor) -> None:
        self.parts: tuple[Tensor, ...] = (
            _parts(whole) if _has_tensor_cores(whole) else (whole,)
        )

    def __getitem__(self, rows: slice) -> Factor:
        chosen = Factor.__new__(Factor)
        chosen.parts = tuple(part[rows] for part in self.parts)
        return chosen


def _has_tensor_cores(tensor: Tensor) -> bool:
    if tensor.device.type != "cuda" or tensor.dtype != torch.float32:
        return False
    return torch.cuda.get_device_capability(tensor.device) >= (8, 0)


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 tensor as a sum: what TF32 keeps of it, and the rest."""
    high = (x.contiguous().view(torch.int32) & _KEPT).view(torch.float32)
    return high, x - high


def subtract_product_(target: Tensor, rows: Factor, columns: Factor) -> Tensor:
    """``target -= rows @ columns^T``, in place."""
    if len(rows.parts) == 1:
        return target.addmm_(rows.parts[0], columns.parts[0].T, alpha=-1)
    (high, low), (other_high, other_low) = rows.parts, columns.parts
    with _float32_products("tf32"):
        target.addmm_(high, other_high.T, alpha=-1)
        target.addmm_(high, other_low.T, alpha=-1)
        return target.addmm_(low, other_high.T, alpha=-1)
