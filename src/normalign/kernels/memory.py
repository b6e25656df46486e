"""How many bytes a fit takes, told before anything is allocated."""

from __future__ import annotations

from operator import index
from typing import Any

import torch

from normalign._checks import complaint, require, require_kind
from normalign.kernels.free_memory import free_bytes
from normalign.kernels.tiles import tile_shape
from normalign.kernels.triangle import triangle_bytes

__all__ = [
    "UNASKED",
    "available_bytes",
    "direct_bytes",
    "estimate_memory",
    "iterative_bytes",
]

UNASKED = 1 << 26  # bytes for which nobody is asked what is free
_SHARE = 0.8  # of what is free; the rest is for whoever else runs here


def available_bytes(device: torch.device) -> int:
    """Bytes that may be used now: most of what the machine or the device has free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # memory_reserved and memory_allocated flatten all statistics, each for itself;
        # there are none before anything was allocated
        told = torch.cuda.memory.memory_stats_as_nested_dict(device)
        held = {
            name: told[name]["all"]["current"]
            for name in ("reserved_bytes", "allocated_bytes")
            if name in told
        }
        cached = held.get("reserved_bytes", 0) - held.get("allocated_bytes", 0)
        return int(_SHARE * (free + cached))
    return int(_SHARE * free_bytes())


def direct_bytes(n: int, *, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes of a direct solve: the triangle, and the tiles that fill it."""
    height, width = tile_shape(device)
    tile = min(n, height) * min(n, width) * dtype.itemsize
    return triangle_bytes(n, dtype, device) + 2 * tile


def iterative_bytes(n: int, k: int, rank: int, *, dtype: torch.dtype) -> int:
    """Bytes of conjugate gradients, in float64: the preconditioner and six vectors."""
    return (n * rank + 3 * rank * rank + 7 * n * k) * 8


def estimate_memory(
    n: int,
    d: int,
    k: int,
    *,
    solver: str = "cholesky",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    rank: int = 1000,
    diagonal: bool = False,
) -> int:
    """Return the bytes that a fit will need above its data, at its peak.

    The solver's memory, copies of the data (centred, and as both sides of the kernel's
    tiles) and of the targets, metrics, and the tables with which gradients are summed.
    A fall-back to float64, taken only where float32 fails, doubles the solver's part.
    Up to 8192 rows with numba, and 1536 without, a processor keeps slopes beside kernel
    values, where the limit allows: a second triangle, of at most 0.3 GB, or squares of
    38 MB together. What is told here is the triangle, without which nothing goes.

    Parameters
    ----------
    n, d, k : int
        Rows, columns and outputs.
    solver : {"cholesky", "cg"}
    rank : int
        Points of the preconditioner of "cg".
    diagonal : bool, default=False
        Whether the metric is diagonal, which spares squares of d.

    Raises
    ------
    TypeError
        If a count is no integer, or the dtype none of torch.
    ValueError
        If a count is not positive, or the solver or the device is not known.

    Examples
    --------
    >>> round(estimate_memory(16000, 20, 2) / 1e6)  # MB: half of a square in float32
    538
    """
    require(
        solver in ("cholesky", "cg"),
        "estimate_memory",
        "solver",
        '"cholesky" or "cg"',
        repr(solver),
    )
    n, d, k, rank = _counts(n, d, k, rank)
    require(min(n, d, k) > 0, "estimate_memory", "n, d, k", "positive", (n, d, k))
    require_kind(
        isinstance(dtype, torch.dtype),
        "estimate_memory",
        "dtype",
        "a torch.dtype",
        dtype,
    )
    device = _device(device)
    # the data centred and as both sides; a metric, its update and what makes it
    data = (3 * n * (d + 2) + 5 * (d if diagonal else d * d)) * dtype.itemsize
    # targets centred, scaled, behind the matrix, solved for, and as they are kept
    data += 10 * n * k * dtype.itemsize
    products = n * k * (d + 1)
    table = (min(products, 1 << 24) + 2 * min(products, n * n // 16)) * dtype.itemsize
    if solver == "cg":
        main = iterative_bytes(n, k, min(rank, n), dtype=dtype)
    else:
        main = direct_bytes(n, dtype=dtype, device=device)
    return main + data + table


def _counts(*given: Any) -> tuple[int, ...]:
    try:
        return tuple(map(index, given))
    except TypeError as error:
        raise TypeError(
            complaint("estimate_memory", "n, d, k, rank", "integers", given)
        ) from error


def _device(name: Any) -> torch.device:
    if isinstance(name, torch.device):
        return name
    try:
        return torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            complaint("estimate_memory", "device", "a device of torch", repr(name))
        ) from error
