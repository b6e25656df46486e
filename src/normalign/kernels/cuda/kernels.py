"""Kernels for CUDA devices, compiled when they are first needed.

A library's factorisation of a diagonal block is hundreds of small launches that leave a
device idle while everything else waits; so is a solution panel by panel, or a kernel
value operation by operation. ``kernels.cu`` has one launch for each. Nothing is built
beforehand: who lacks the compiler or the driver gets ``None`` from :func:`kernels_for`
and goes the way through the library.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from functools import cache
from typing import Any

import torch
from torch import Tensor

from normalign.kernels.cuda.driver import Arguments, current_stream, machine_code

__all__ = ["HALVES", "Kernels", "kernels_for"]

# Tables of some points that give a tile its rows, and its columns.
Side = tuple[Tensor, Tensor]

TILE = 128
# Columns of a matrix cut into half precision, for each column of it.
HALVES = 5
# Bytes of shared memory that a block of threads takes.
_SHARED = {
    "factorise_block": 4 * (TILE * (TILE + 4) + TILE * 36 + 2 * 32),
    "solve_panels": 4 * 4 * 1024,
}
# Panels, their width, and outputs up to which a solution has a kernel.
_MOST_PANELS, _MOST_WIDTH, _MOST_OUTPUTS = 128, 1024, 4
_ROWS = 8  # of distances, for one block of threads
_MEMBERS = 64  # blocks of threads that do a diagonal block together, at most

_ABSENT = (OSError, RuntimeError, AttributeError)  # of a library, or of what it has


def kernels_for(tensor: Tensor) -> Kernels | None:
    """The kernels for a float32 tensor's device, if it is one that can have them."""
    if tensor.device.type != "cuda" or tensor.dtype != torch.float32:
        return None
    return _compiled(tensor.get_device())


@cache
def _compiled(index: int) -> Kernels | None:
    properties = torch.cuda.get_device_properties(index)
    room = getattr(properties, "shared_memory_per_block_optin", 0)
    old = torch.version.cuda is None or properties.major < 8
    if old or room < max(_SHARED.values()):
        return None
    try:
        with torch.cuda.device(index):
            made = Kernels(
                f"sm_{properties.major}{properties.minor}",
                properties.multi_processor_count,
                index,
            )
            return made if _tried(made, torch.device("cuda", index)) else None
    except _ABSENT:
        return None


def _tried(kernels: Kernels, device: torch.device) -> bool:
    """Whether they start, and do what they should, on a small system."""
    block = 4 * torch.eye(256, device=device)
    inverse, _, failure = kernels.factorise_and_invert_(block)
    answer = kernels.solve_([block], [inverse.T], torch.ones(256, 1, device=device))
    solved = answer is not None and not failure and bool((answer == 0.25).all())
    # two points, at 1 and at 2, whose squared distance came out as nothing
    left = torch.tensor([[-2.0, 1.0, 1.0], [-4.0, 4.0, 1.0]], device=device)
    right = torch.tensor([[1.0, 1.0, 1.0], [2.0, 1.0, 4.0]], device=device)
    one, two = (left[:1], right[:1]), (left[1:], right[1:])
    nothing, near = torch.zeros(1, 1, device=device), 0.1
    found = kernels.mend_near_(nothing.clone(), one, two, near)
    values = kernels.laplace_values_(nothing.clone(), one, two, near)
    slopes = kernels.laplace_slopes_(nothing.clone(), one, two, near)
    mended = bool((found == 1).all()) and bool((values == slopes).all())
    return solved and mended and abs(float(values) - math.exp(-1)) < 1e-6


class Kernels:
    """The compiled kernels of one device, as functions of tensors.

    Parameters
    ----------
    architecture : str
        What to compile for, as "sm_90". The device must be the current one.
    processors : int
        How many multiprocessors it has.
    index : int
        The device's.
    """

    def __init__(self, architecture: str, processors: int, index: int) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._processors, self._index = processors, index
        self._room = threading.local()
        self._code = machine_code(architecture)
        torch.cuda.current_stream().synchronize()  # there is a context from here on
        module = ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), self._code))
        self._functions: dict[str, ctypes.c_void_p] = {}
        for name in _LAYOUTS:
            function = self._functions[name] = ctypes.c_void_p()
            self._check(
                self._driver.cuModuleGetFunction(
                    ctypes.byref(function), module, name.encode()
                )
            )
            self._check(
                self._driver.cuFuncSetAttribute(
                    function, _MOST_SHARED, _SHARED.get(name, 0)
                )
            )
        launched = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 2]
        self._launch = self._driver.cuLaunchKernel
        self._launch.argtypes = [*launched, ctypes.c_void_p]
        self._launch_together = self._driver.cuLaunchCooperativeKernel
        self._launch_together.argtypes = launched

    def _check(self, result: int) -> None:
        if result:
            raise RuntimeError(f"a CUDA kernel could not be started: error {result}")

    def _start(self, name: str, blocks: int, *values: Any) -> None:
        """Start a kernel on the current stream; all its blocks at once if it waits."""
        if torch.cuda.current_device() != self._index:
            with torch.cuda.device(self._index):
                return self._start(name, blocks, *values)
        described = self._described()[name]
        struct.pack_into(described.layout, described.values, 0, *values)
        launched = (
            self._functions[name], blocks, 1, 1, _THREADS, 1, 1, _SHARED.get(name, 0),
            current_stream(self._index), described.pointers,
        )  # fmt: skip
        if name in _TOGETHER:
            return self._check(self._launch_together(*launched))
        return self._check(self._launch(*launched, None))

    def _described(self) -> dict[str, Arguments]:
        """Room for the arguments of every kernel, for each thread its own."""
        if not hasattr(self._room, "described"):
            self._room.described = {
                name: Arguments(layout) for name, layout in _LAYOUTS.items()
            }
        return self._room.described

    def factorise_and_invert_(
        self, block: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Overwrite a block by its Cholesky factor, and return the inverse of it.

        Parameters
        ----------
        block : Tensor of shape (n, n)
            Its rows contiguous. Only its lower half is read and written.

        Returns
        -------
        inverse : Tensor of shape (n, n)
            The transpose of a contiguous tensor.
        cut : Tensor of shape (3 n, n), or None unless ``n`` is a multiple of 4
            The transposed inverse in TF32 numbers, as (high, low, high).
        failure : Tensor of shape ()
            Zero if the block was definite.
        """
        n = len(block)
        turned = block.new_empty(n, n)
        cut = None if n % 4 else block.new_empty(3 * n, n)
        state = torch.zeros(3, dtype=torch.int32, device=block.device)
        members = 1 if n <= TILE else min(_MEMBERS, max(n // 8, 10), self._processors)
        self._start(
            "factorise_block", members, block.data_ptr(), turned.data_ptr(),
            0 if cut is None else cut.data_ptr(), state.data_ptr(), n, block.stride(0),
        )  # fmt: skip
        return turned.T, cut, state[0]

    def solve_(
        self, panels: list[Tensor], inverses: list[Tensor], b: Tensor
    ) -> Tensor | None:
        """Overwrite ``b`` by the solution of ``L L^T x = b``.

        Parameters
        ----------
        panels : list of Tensor
            Of the factor ``L``, one after the other in memory.
        inverses : list of Tensor
            Of their diagonal blocks.
        b : Tensor of shape (n, k)

        Returns
        -------
        Tensor, or None if there are more panels or outputs than this is made for.
        """
        (n, k), width, count = b.shape, panels[0].shape[1], len(panels)
        fits = k <= _MOST_OUTPUTS and count <= _MOST_PANELS and width <= _MOST_WIDTH
        even = count == 1 or width % 4 == 0
        if not (fits and even and b.is_contiguous()):
            return None
        members = self._processors
        half, parts = torch.empty_like(b), b.new_empty(members * width * k)
        counter = torch.zeros(1, dtype=torch.int32, device=b.device)
        addresses = [inverse.data_ptr() for inverse in inverses]
        self._start(
            "solve_panels", members, *addresses, *[0] * (_MOST_PANELS - count),
            panels[0].data_ptr(), b.data_ptr(), half.data_ptr(), parts.data_ptr(),
            counter.data_ptr(), n, width, k,
        )  # fmt: skip
        return b

    def halves(self, x: Tensor, scale: float) -> Tensor:
        r"""A matrix times a power of two in half precision, in five parts.

        With ``high`` the matrix rounded to half precision and ``low`` what was rounded
        off, times 2048: ``(high / 2048, high, low, high, high / 2048)``. The product of
        the first three parts of one matrix with the last three of another, turned, is
        that of both, but for a product of what was rounded off twice.

        Parameters
        ----------
        x : Tensor of shape (n, m)
            ``m`` a multiple of 8.
        scale : float
            Such that no entry times it exceeds 65504.

        Returns
        -------
        Tensor of shape (n, 5 m), float16
        """
        (n, m) = x.shape
        parts = torch.empty(n, HALVES * m, dtype=torch.float16, device=x.device)
        self._start(
            "cut_into_halves", _blocks(n * m),
            x.data_ptr(), parts.data_ptr(), n, m, x.stride(0), scale,
        )  # fmt: skip
        return parts

    def tf32(self, x: Tensor) -> Tensor:
        """A matrix as a sum of two TF32 numbers, ``(high, high, low)``.

        Its product with the cut of an inverse, which is stacked in another order, is
        that with the inverse, but for ``low @ low``.

        Parameters
        ----------
        x : Tensor of shape (n, m)
            ``m`` a multiple of 4.

        Returns
        -------
        Tensor of shape (n, 3 m)
        """
        (n, m) = x.shape
        parts = x.new_empty(n, 3 * m)
        self._start(
            "cut_into_tf32", _blocks(n * m),
            x.data_ptr(), parts.data_ptr(), n, m, x.stride(0),
        )  # fmt: skip
        return parts

    def laplace_values_(
        self, squared: Tensor, rows: Side, columns: Side, share: float
    ) -> Tensor:
        r"""Overwrite squared distances by :math:`e^{-r}`; below zero counts as zero.

        They and what belongs to them are as :meth:`mend_near_` takes them.
        """
        return self._mapped_("laplace_values", squared, rows, columns, share)

    def laplace_slopes_(
        self, squared: Tensor, rows: Side, columns: Side, share: float
    ) -> Tensor:
        r"""Overwrite them by :math:`e^{-r} / r`, zero from zero down."""
        return self._mapped_("laplace_slopes", squared, rows, columns, share)

    def mend_near_(
        self, squared: Tensor, rows: Side, columns: Side, share: float
    ) -> Tensor:
        """Compute squared distances of near points again, in place.

        Parameters
        ----------
        squared : Tensor of shape (n, m)
            Its rows contiguous.
        rows, columns : tuple of Tensor of shape (n, d + 2) and (m, d + 2)
            Both sides of the points, see :mod:`normalign.kernels._sides`.
        share : float
            Of the squares of two points, below which they are near.
        """
        return self._mapped_("mend_near", squared, rows, columns, share)

    def _mapped_(
        self, name: str, squared: Tensor, rows: Side, columns: Side, share: float
    ) -> Tensor:
        n, m = squared.shape
        self._start(
            name, max(min(n // _ROWS, 4096), 1), squared.data_ptr(),
            *(side.data_ptr() for side in (*rows, *columns)), n, m,
            rows[0].shape[1] - 2, squared.stride(0), rows[0].stride(0),
            columns[0].stride(0), share,
        )  # fmt: skip
        return squared


_THREADS = 512  # of a block, for every kernel here
_MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


# One struct, which ends where a pointer could begin.
_DISTANCES = "PPPPPiiiiiif4x"
# How each kernel's arguments lie in memory, as `struct` writes it.
_LAYOUTS = {
    "factorise_block": "PPPPii",
    "solve_panels": f"{_MOST_PANELS}PPPPPPiii",
    "cut_into_halves": "PPiiif",
    "cut_into_tf32": "PPiii",
    "laplace_values": _DISTANCES,
    "laplace_slopes": _DISTANCES,
    "mend_near": _DISTANCES,
}
# Kernels whose blocks wait for each other.
_TOGETHER = ("factorise_block", "solve_panels")


def _blocks(entries: int) -> int:
    """Blocks of threads, four entries for each, up to what fills any device."""
    return max(min(entries // (4 * _THREADS), 4096), 1)
