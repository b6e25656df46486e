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

__all__ = ["full_precision", "has_tensor_cores", "subtract_products_"]

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


def has_tensor_cores(tensor: Tensor) -> bool:
    """Whether three TF32 products beat one in float32 for this tensor."""
    if tensor.device.type != "cuda" or tensor.dtype != torch.float32:
        return False
    return torch.cuda.get_device_capability(tensor.device) >= (8, 0)


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """A float32 tensor as a sum: what TF32 keeps of it, and the rest."""
    high = (x.view(torch.int32) & _KEPT).view(torch.float32)
    return high, x - high


def subtract_products_(panel: Tensor, targets: list[tuple[int, Tensor]]) -> None:
    """For each ``(start, target)`` subtract the panel's rows times its own first rows.

    ``target -= P[start:] @ P[start:start + width]^T``: the trailing update of a
    Cholesky factorisation, the greater part of its work.
    """
    if not has_tensor_cores(panel):
        for start, target in targets:
            rows = panel[start:]
            target.addmm_(rows, rows[: target.shape[1]].T, alpha=-1)
        return
    high, low = _parts(panel)
    with _float32_products("tf32"):
        for start, target in targets:
            chosen = slice(start, start + target.shape[1])
            for rows, columns in ((high, high), (high, low), (low, high)):
                target.addmm_(rows[start:], columns[chosen].T, alpha=-1)
