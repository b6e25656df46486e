r"""Memory: what a fit needs, estimated beforehand, and what is free.

A container, a batch system or a service manager may limit the memory of a process by a
control group. A process that exceeds the limit is killed, however much memory the
machine has free, so the limits of its groups count too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any

import torch

from normalign._errors import describe
from normalign.kernels._agop import cheaper_form
from normalign.kernels._functions import KERNELS, Kernel, ProductLaplace
from normalign.kernels._sides import tile_shape
from normalign.kernels._system import System
from normalign.kernels._triangle import strip_bytes, triangle_bytes

__all__ = [
    "FEWEST_COLUMNS",
    "LARGEST_RANK",
    "SMALL_BYTES",
    "VECTORS",
    "Needs",
    "available_bytes",
    "direct_bytes",
    "estimate_memory",
    "fits_in_double",
    "free_bytes",
    "is_small_fit",
    "iterative_bytes",
]

SMALL_BYTES = 1 << 26  # a fit that needs less does not query free memory
LARGEST_RANK = 2000  # of a preconditioner, unless another is asked for
FEWEST_COLUMNS = 16  # conjugate gradients solve for up to so many at once
VECTORS = 16  # of a column's length that they hold, and some more
_SAMPLED = 20_000  # rows beyond which gradients are taken at some
_SHARE = 0.8  # of what is free; the rest is for whoever else runs here


def available_bytes(device: torch.device) -> int:
    """Bytes that may be used now: most of what the machine or the device has free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # memory_reserved and memory_allocated flatten all statistics, each for itself;
        # there are none before anything was allocated
        stats = torch.cuda.memory.memory_stats_as_nested_dict(device)
        held = {
            name: stats[name]["all"]["current"]
            for name in ("reserved_bytes", "allocated_bytes")
            if name in stats
        }
        cached = held.get("reserved_bytes", 0) - held.get("allocated_bytes", 0)
        return int(_SHARE * (free + cached))
    return int(_SHARE * free_bytes())


def is_small_fit(n: int, d: int, k: int) -> bool:
    """Whether a fit surely needs less than `SMALL_BYTES`."""
    return 320 * (n + d + k + 20) ** 2 + 64 * n * (d + 1) * k < SMALL_BYTES


@dataclass(frozen=True)
class Needs:
    """What a fit needs above its data, in bytes, by its sizes.

    The peak of all tensors alive at one time, with the temporaries of torch and its
    libraries. Tests measure it.

    Parameters
    ----------
    n, d, k : int
        Rows, columns and outputs.
    dtype : torch.dtype
    device : torch.device
    kernel : Kernel
    diagonal : bool
        Whether the metric is.
    """

    n: int
    d: int
    k: int
    dtype: torch.dtype
    device: torch.device
    kernel: Kernel
    diagonal: bool

    @classmethod
    def of(cls, system: System, k: int, dtype: torch.dtype | None = None) -> Needs:
        """The needs of a system with ``k`` outputs, in another precision if given."""
        points, metric = system.points, system.metric
        return cls(
            points.shape[0], points.shape[1], k, dtype or points.dtype, points.device,
            system.kernel, diagonal=metric is None or metric.ndim == 1,
        )  # fmt: skip

    @cached_property
    def base(self) -> int:
        """Rows in float64 and centred, targets, metrics: what there always is."""
        size, full = self.dtype.itemsize, not self.diagonal
        held = (8 + size) * self._table
        # copies of the targets: centred, scaled, right-hand sides, solutions
        held += 10 * self.n * self.k * size
        if full or self._pairs_pay:
            held += (10 if self._pairs_pay else 6) * self.d**2 * size
        if full and isinstance(self.kernel, ProductLaplace):
            held += 3 * self.d**2 * 8  # a root, by an eigendecomposition in float64
        return held

    @cached_property
    def direct(self) -> int:
        """With a Cholesky factor, and no slopes beside it."""
        if self._pairs_pay or self.n > _SAMPLED:
            needed = self._with_factor(self._points, self._sums)
            return min(needed, self.by_pairs(self.n)) if self._pairs_pay else needed
        height, _ = tile_shape(self.device)
        sums = self._tables * (1 + 5 * min(height / self.n, 1))
        return self._with_factor(self._points, sums)

    def by_pairs(self, rows: int) -> int:
        """The same where gradients at some rows are summed by pairs."""
        height, _ = tile_shape(self.device)
        squares = (rows + 3 * min(height, rows)) * self.n
        return self._with_factor(self._points, squares)

    def iterative(self, rank: int) -> int:
        """With conjugate gradients, by a preconditioner of that rank."""
        size, rank = self.dtype.itemsize, min(rank, self.n)
        height, _ = tile_shape(self.device)
        strips = 2 + 2 * min(1, height / self.n)  # columns, and some rows, twice
        # sides in float64, and in float32 if the data are; what a product makes of them
        solving = self._table * (8 * (3 + strips) + (2 * size if size < 8 else 0))
        solving += self.base + iterative_bytes(self.n, self.k, rank)
        learning = self._table * (self._points - 1 + strips) + self._sums
        learning = self.base + size * learning
        if self._pairs_pay:
            learning = min(learning, self.by_pairs(self.n))
        return int(max(solving, learning))

    def _with_factor(self, points: int, sums: float) -> int:
        """With a factor, copies of the points, and entries of sums of gradients."""
        main = direct_bytes(self.n, dtype=self.dtype, device=self.device)
        if isinstance(self.kernel, ProductLaplace):
            main += 8 * tile_bytes(self.n, self.dtype, self.device)
        entries = points * self._table + sums
        return self.base + main + int(self.dtype.itemsize * entries)

    @property
    def _points(self) -> int:
        """Tables of sides, while they are made; of points through a full metric."""
        return 3 if self.diagonal else 6

    @property
    def _table(self) -> int:
        return self.n * (self.d + 2)

    @cached_property
    def _pairs_pay(self) -> bool:
        """Whether gradients are best summed by pairs, which takes squares of d, too."""
        shape = self.n, self.n, self.k, self.d
        fits = not self.diagonal or self.d <= self.n
        return fits and cheaper_form(shape, self.kernel, self.dtype) == "pairs"

    @property
    def _tables(self) -> int:
        """Entries of a table of gradients, of as many outputs as leave it small."""
        each = self.n * (self.d + 1)
        return min(self.k, max((1 << 24) // each, 1)) * each

    @property
    def _sums(self) -> float:
        """What is made of it by products with slopes that were not kept."""
        height, _ = tile_shape(self.device)
        return self._tables * (3 + 5 * min(height / self.n, 1))


def fits_in_double(system: System, k: int, limit: int, *, direct: bool) -> bool:
    """Whether a system could be solved in float64, too, directly or at the least."""
    needs = Needs.of(system, k, torch.float64)
    return (needs.direct if direct else needs.iterative(1)) <= limit


def direct_bytes(n: int, *, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes of a factor: the triangle, tiles that fill it, strips in LAPACK, BLAS."""
    aside = strip_bytes(n, dtype, device)
    if dtype == torch.float64:
        aside *= 5  # two panels, as measured
    tiles = 2 * tile_bytes(n, dtype, device)
    return triangle_bytes(n, dtype, device) + tiles + aside


def tile_bytes(n: int, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes of a tile of an ``(n, n)`` matrix."""
    height, width = tile_shape(device)
    return min(n, height) * min(n, width) * dtype.itemsize


def iterative_bytes(n: int, k: int, rank: int) -> int:
    """Bytes of a preconditioner, while it is made, and of the vectors; in float64."""
    columns = max(k, FEWEST_COLUMNS) + 2
    return ((n + 2 * rank + min(n, 512)) * rank + VECTORS * n * columns) * 8


def estimate_memory(
    n: int,
    d: int,
    k: int,
    *,
    solver: str = "cholesky",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    rank: int | None = None,
    diagonal: bool = False,
    kernel: str = "laplace",
) -> int:
    """Return the bytes that a fit will need above its data, at its peak.

    The solver's memory, copies of the data (in float64, centred, and as both sides of
    the kernel's tiles) and of the targets, metrics, and the tables with which gradients
    are summed. A ``memory_limit`` of that many bytes is enough, and kept.

    Without a limit more may be taken, where it is free. Up to 1536 rows a processor
    keeps slopes beside kernel values: squares of 38 MB together. A fall-back to
    float64, taken only where float32 fails, doubles everything.

    Parameters
    ----------
    n, d, k : int
        Rows, columns and outputs.
    solver : {"cholesky", "cg"}
    rank : int, optional
        Points of the preconditioner of "cg"; by default 2000. Where memory is short it
        makes do with fewer.
    diagonal : bool, default=False
        Whether the metric is diagonal, which spares squares of d.
    kernel : {"laplace", "gaussian", "product_laplace"}
        The last takes roots of full metrics, by more squares of d.

    Raises
    ------
    TypeError
        If a count is no integer, or the dtype none of torch.
    ValueError
        If a count is not positive, or the solver, the kernel or the device is not
        known.

    Examples
    --------
    >>> round(estimate_memory(16000, 20, 2) / 1e6)  # MB: half of a square in float32
    548
    """
    if solver not in ("cholesky", "cg"):
        raise ValueError(
            f'estimate_memory: solver must be "cholesky" or "cg", got {solver!r}.'
        )
    if kernel not in KERNELS:
        raise ValueError(
            "estimate_memory: kernel must be one of "
            f"{', '.join(map(repr, KERNELS))}, got {kernel!r}."
        )
    n, d, k, rank = _counts(n, d, k, LARGEST_RANK if rank is None else rank)
    if min(n, d, k, rank) <= 0:
        raise ValueError(
            f"estimate_memory: n, d, k, rank must be positive, got {(n, d, k, rank)}."
        )
    if not isinstance(dtype, torch.dtype):
        raise TypeError(
            f"estimate_memory: dtype must be a torch.dtype, got {describe(dtype)}."
        )
    needs = Needs(
        n, d, k, dtype, _device(device), KERNELS[kernel](), diagonal=bool(diagonal)
    )
    return needs.iterative(rank) if solver == "cg" else needs.direct


def _counts(*given: Any) -> tuple[int, ...]:
    try:
        return tuple(map(index, given))
    except TypeError as error:
        raise TypeError(
            f"estimate_memory: n, d, k, rank must be integers, got {describe(given)}."
        ) from error


def _device(name: Any) -> torch.device:
    if isinstance(name, torch.device):
        return name
    try:
        return torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"estimate_memory: device must be a device of torch, got {name!r}."
        ) from error


_ROOT = Path("/")
# Files with a group's limit and use, in the two versions of the kernel's interface.
_UNIFIED = ("memory.max", "memory.current")
_LEGACY = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_UNKNOWN = 8 << 30  # neither Linux nor POSIX: a modest machine stands in


def free_bytes(root: Path = _ROOT) -> int:
    """Bytes that are free now, to the machine and to all groups of this process.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.
    """
    return min([_free_in_machine(root), *_free_in_groups(root)])


def _free_in_machine(root: Path) -> int:
    table = _table(root / "proc/meminfo")
    if "MemAvailable:" in table:
        return table["MemAvailable:"] * 1024
    # not Linux: half of the memory stands in for what is free
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return _UNKNOWN


def _free_in_groups(root: Path) -> Iterator[int]:
    """What each group that the process is in, up to the outermost, has left."""
    for folder, limit_file, use_file in _groups(root):
        limit, used = _number(folder / limit_file), _number(folder / use_file)
        if limit is not None and used is not None:
            # files that were read and can be dropped count as used
            dropped = _table(folder / "memory.stat")
            spare = dropped.get("total_inactive_file", dropped.get("inactive_file", 0))
            yield max(limit - used + spare, 0)


def _groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, files = root / "sys/fs/cgroup", _UNIFIED
        elif "memory" in controllers.split(","):
            top, files = root / "sys/fs/cgroup/memory", _LEGACY
        else:
            continue
        # Inside a container the path may be the host's, which does not exist here;
        # the group is then the top folder.
        here = top / path.lstrip("/")
        for folder in (here, *here.parents):
            yield folder, files[0], files[1]
            if folder == top:
                break


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _number(path: Path) -> int | None:
    """The number in a file; None where there is none, or no limit ("max")."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    words = (line.split() for line in _lines(path))
    return {word[0]: int(word[1]) for word in words if word[1:] and word[1].isdecimal()}
