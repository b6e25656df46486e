r"""The lower triangle of a symmetric matrix, and its Cholesky factor in place.

The triangle is stored as column panels: panel ``j`` holds columns
``edges[j]:edges[j + 1]`` of the rows from ``edges[j]`` on. That is half of the square
plus half a panel's width, in one buffer that later factorisations reuse. Every step of
the factorisation is a product of whole panels and runs at nearly the speed of matrix
multiplication.

On a CPU a panel is factorised in the same way by narrower strips, a size that LAPACK
factorises fast. On an accelerator the inverse of each panel's diagonal block is stored,
because a product with an inverse is many times faster there than a triangular solve,
and the next diagonal block may be factorised beside the products of the present panel:
:mod:`normalign.kernels.cuda` has kernels for blocks; without them a block is halved
down to a size that the library factorises fast.

A small matrix may be stored *whole*, as one panel of all columns. On a CPU a strip is
then updated by a single product with everything to its left: fewer and better products
than between panels, for twice the memory.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from normalign.kernels._precision import Factor, multiply_, subtract_own_products_
from normalign.kernels.cuda import kernels_for

__all__ = [
    "Beside",
    "Inverted",
    "Triangle",
    "factorise_and_invert_",
    "is_small",
    "strip_bytes",
    "triangle_bytes",
]


class Inverted(NamedTuple):
    """What is known of a diagonal block once it is factorised.

    Parameters
    ----------
    inverse : Tensor of shape (n, n)
        The inverse of the factor.
    failures : list of Tensor
        Codes, not looked at; zero where all went well.
    cut : Tensor of shape (3 n, n), optional
        The transposed inverse as sums of TF32 numbers, (high, low, high).
    """

    inverse: Tensor
    failures: list[Tensor]
    cut: Tensor | None = None


def factorise_and_invert_(block: Tensor, base: int) -> Inverted:
    r"""Overwrite a definite block by its Cholesky factor, and return the inverse of it.

    .. math:: \begin{pmatrix} L_1 & 0 \\ R & L_2 \end{pmatrix}^{-1} =
              \begin{pmatrix} L_1^{-1} & 0 \\
              -L_2^{-1} R L_1^{-1} & L_2^{-1} \end{pmatrix}

    Parameters
    ----------
    block : Tensor of shape (n, n)
        Only its lower half is read; what stands above it afterwards is arbitrary.
    base : int
        Rows that the library is trusted with, where there are no kernels.

    Returns
    -------
    Inverted

    Examples
    --------
    >>> block = torch.tensor([[4.0, 9.0], [2.0, 2.0]])
    >>> factorise_and_invert_(block, 1)[0]
    tensor([[ 0.5000,  0.0000],
            [-0.5000,  1.0000]])
    """
    kernels = kernels_for(block)
    if kernels is not None:
        inverse, cut, failure = kernels.factorise_and_invert_(block)
        return Inverted(inverse, [failure], cut)
    return Inverted(*_by_halves_(block, base))


def _by_halves_(block: Tensor, base: int) -> tuple[Tensor, list[Tensor]]:
    n = len(block)
    if n <= base:
        factor, failure = torch.linalg.cholesky_ex(block)
        block.copy_(factor)
        identity = torch.eye(n, dtype=block.dtype, device=block.device)
        inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
        return inverse, [failure]
    half = base * max(n // (2 * base), 1)
    rows, rest = block[half:, :half], block[half:, half:]
    first, failures = _by_halves_(block[:half, :half], base)
    rows.copy_(rows @ first.T)
    rest.addmm_(rows, rows.T, alpha=-1)
    second, more = _by_halves_(rest, base)
    inverse = torch.zeros_like(block)
    inverse[:half, :half], inverse[half:, half:] = first, second
    torch.mm(second, rows @ first, out=inverse[half:, :half]).neg_()
    return inverse, failures + more


class Beside:
    """A second stream of a CUDA device, for work beside the current one's.

    Used as a context, it makes its stream the current one, after waiting for all that
    was launched before; :meth:`join` makes the current stream wait for it in turn. On
    other devices there is one stream, and both do nothing. What is allocated inside may
    be read outside after ``join``, and freed at any time: nothing is launched here
    that does not wait for the readers first.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = _second_stream(device) if device.type == "cuda" else None
        self._outer: torch.cuda.Stream | None = None
        self._device = 0

    def __enter__(self) -> None:
        if self._stream is not None:
            self._device = torch.cuda.current_device()
            self._outer = torch.cuda.current_stream(self._stream.device)
            self._stream.wait_stream(self._outer)
            torch.cuda.set_stream(self._stream)

    def __exit__(self, *failure: object) -> None:
        if self._outer is not None:
            torch.cuda.set_stream(self._outer)
            torch.cuda.set_device(self._device)

    def join(self) -> None:
        """Let what is launched outside from now on wait for what was inside."""
        if self._stream is not None and self._outer is not None:
            self._outer.wait_stream(self._stream)


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all: memory and workspaces are kept by the stream that used them."""
    # Its kernels are small and awaited, so they go before the others'.
    return torch.cuda.Stream(device, priority=-1)


# LAPACK takes four times longer for 128 rows than for 96.
_CPU_WIDTH, _CPU_STRIP = 256, 96
_DEVICE_WIDTH, _DEVICE_STRIP = 1024, 1024
# Whether a device factorises the next diagonal block beside the products: 2 to 6 %
# faster on an H200 from 10000 rows on, and the same below.
_DEVICE_AHEAD = True
# Up to that range of the diagonal half precision has all entries of a factor.
_ORDINARY = 1e6
# Rows up to which a matrix is small: 38 MB in float64 for a square and its slopes.
_CPU_SMALL, _DEVICE_SMALL = 1536, 0


Part = tuple[int, Tensor, Tensor]


def _widths(device: torch.device) -> tuple[int, int]:
    """Columns of a panel, and of what is factorised at once."""
    if device.type == "cpu":
        return _CPU_WIDTH, _CPU_STRIP
    return _DEVICE_WIDTH, _DEVICE_STRIP


def triangle_bytes(n: int, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes that the triangle of an ``(n, n)`` matrix takes."""
    width, _ = _widths(device)
    entries = sum((n - start) * min(width, n - start) for start in range(0, n, width))
    return entries * dtype.itemsize


def strip_bytes(n: int, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes of what is factorised at once, and of what is below it."""
    return n * min(_widths(device)[1], n) * dtype.itemsize


def is_small(n: int, device: torch.device) -> bool:
    """Whether a matrix is worth holding whole, if memory allows."""
    return n <= (_CPU_SMALL if device.type == "cpu" else _DEVICE_SMALL)


class Triangle:
    """The lower triangle of a symmetric ``(n, n)`` matrix in column panels.

    Parameters
    ----------
    n : int
    dtype : torch.dtype
        float32 or float64.
    device : torch.device
    whole : bool, default=False
        Hold the square as one panel.

    Attributes
    ----------
    edges : list of int
        Where panels begin, and ``n``.
    panels : list of Tensor
        Panel ``j`` has shape ``(n - edges[j], edges[j + 1] - edges[j])``. What stands
        above the diagonal in a panel's first rows is never read.
    slopes : Tensor of shape (n, n) or None
        Where whoever fills a whole matrix may put the kernel's slopes beside it.
    """

    def __init__(
        self,
        n: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        whole: bool = False,
    ) -> None:
        width, self._strip = _widths(device)
        width = max(n, 1) if whole else width
        self.whole = whole
        self.slopes: Tensor | None = None
        self.edges = [*range(0, n, width), n]
        sizes = [(n - start, min(width, n - start)) for start in self.edges[:-1]]
        buffer = torch.empty(
            sum(math.prod(size) for size in sizes), dtype=dtype, device=device
        )
        parts = buffer.split([math.prod(size) for size in sizes])
        self.panels = [part.view(size) for part, size in zip(parts, sizes, strict=True)]
        self._inverses: dict[int, Tensor] = {}
        self._keeps_inverses = device.type != "cpu"
        self._beside = Beside(device if _DEVICE_AHEAD else torch.device("cpu"))

    def __len__(self) -> int:
        return self.edges[-1]

    def release(self) -> None:
        """Free all entries."""
        self.panels, self.slopes = [], None
        self._inverses.clear()

    def diagonal(self) -> Tensor:
        """The diagonal."""
        if len(self.panels) == 1:
            return self.panels[0].diagonal()
        return torch.cat([panel.diagonal() for panel in self.panels])

    def add_diagonal_(self, values: Tensor) -> None:
        """Add a vector to the diagonal."""
        parts = values.split([panel.shape[1] for panel in self.panels])
        for panel, part in zip(self.panels, parts, strict=True):
            panel.diagonal().add_(part)

    def factorise_(self) -> bool:
        """Overwrite the matrix by its Cholesky factor; False if it is not definite."""
        if self._keeps_inverses:
            return (
                self._factorise_at_once_() if self.whole else self._factorise_ahead_()
            )
        if self.whole:  # LAPACK alone is up to 2.7 times as fast as strips
            (square,) = self.panels
            return _factorise_strip_(square, square[:0])
        return self._factorise_panels_()

    def _factorise_panels_(self) -> bool:
        """Right-looking: a panel's products are subtracted from all to its right."""
        for j, panel in enumerate(self.panels):
            if not self._factorise_panel_(panel):
                return False
            rows = Factor(panel[panel.shape[1] :])
            self._subtract_(j, rows, range(j + 1, len(self.panels)))
        return True

    def _factorise_panel_(self, panel: Tensor) -> bool:
        """The same inside a panel, strip by strip."""
        width = panel.shape[1]
        for left in range(0, width, self._strip):
            right = min(left + self._strip, width)
            block, rows = panel[left:right, left:right], panel[right:, left:right]
            if not _factorise_strip_(block, rows):
                return False
            if right < width:
                panel[right:, right:].addmm_(rows, rows[: width - right].T, alpha=-1)
        return True

    def _factorise_ahead_(self) -> bool:
        """Right-looking, with the next diagonal block factorised as soon as it can be.

        Failures are read once, at the end: after one the entries are NaN at worst, and
        reading them after every panel would make the device wait.
        """
        last = len(self.panels) - 1
        span = torch.stack(self.diagonal().aminmax())
        with self._beside:
            ready = self._invert_(0)
        failures = ready.failures
        largest = _largest(*span.tolist())
        for j in range(last):
            below = self.panels[j][self.panels[j].shape[1] :]
            self._beside.join()
            multiply_(below, ready.inverse.T, ready.cut)
            rows = Factor(below, largest)
            self._subtract_(j, rows, range(j + 1, j + 2))
            with self._beside:
                ready = self._invert_(j + 1)
            failures += ready.failures
            self._subtract_(j, rows, range(j + 2, last + 1))
        self._beside.join()
        return not bool(torch.stack(failures).any())

    def _factorise_at_once_(self) -> bool:
        """One call of the device's library, and the inverses of diagonal blocks."""
        # Upper of the transpose: the same numbers, in the order the library wants.
        factor, failure = torch.linalg.cholesky_ex(self.panels[0].T, upper=True)
        self.panels[0] = factor.T
        for place, block, _ in self._blocks():
            identity = torch.eye(len(block), dtype=block.dtype, device=block.device)
            self._inverses[place] = torch.linalg.solve_triangular(
                block, identity, upper=False
            )
        return not bool(failure)

    def _invert_(self, j: int) -> Inverted:
        """Factorise a panel's diagonal block and keep its inverse."""
        panel = self.panels[j]
        found = factorise_and_invert_(panel[: panel.shape[1]], self._strip)
        self._inverses[self.edges[j]] = found.inverse
        return found

    def _subtract_(self, j: int, rows: Factor, targets: range) -> None:
        """Subtract the products of a panel's lower rows from others."""
        starts = [self.edges[i] - self.edges[j + 1] for i in targets]
        subtract_own_products_([self.panels[i] for i in targets], starts, rows)

    def half_solve_(self, b: Tensor) -> Tensor:
        """Overwrite ``b`` by ``L^{-1} b``, for the factor ``L``."""
        if self._keeps_inverses:
            return b.copy_(self._half_solve(b, self._blocks()))
        for place, block, below in self._blocks():
            part = b[place : place + len(block)]
            part.copy_(torch.linalg.solve_triangular(block, part, upper=False))
            if len(below):
                b[place + len(block) :].addmm_(below, part, alpha=-1)
        return b

    def _half_solve(self, b: Tensor, blocks: list[Part]) -> Tensor:
        """The same by inverses, into new memory; ``b`` is used up."""
        half = torch.empty_like(b)
        sizes = [len(block) for _, block, _ in blocks]
        for (place, _, below), part, solved in zip(
            blocks, b.split(sizes), half.split(sizes), strict=True
        ):
            torch.mm(self._inverses[place], part, out=solved)
            if len(below):
                b[-len(below) :].addmm_(below, solved, alpha=-1)
        return half

    def solve_(self, b: Tensor) -> Tensor:
        """Overwrite ``b`` by the solution of ``L L^T x = b``, for the factor ``L``."""
        if self._solve_by_kernel_(b):
            return b
        blocks = self._blocks()
        if self._keeps_inverses:
            half = self._half_solve(b, blocks)
            sizes = [len(block) for _, block, _ in blocks]
            for (place, _, below), part, solved in zip(
                reversed(blocks),
                reversed(half.split(sizes)),
                reversed(b.split(sizes)),
                strict=True,
            ):
                if len(below):
                    part.addmm_(below.T, b[-len(below) :], alpha=-1)
                torch.mm(self._inverses[place].T, part, out=solved)
            return b
        if len(self.panels) == 1:
            factor = self.panels[0]
            half = torch.linalg.solve_triangular(factor, b, upper=False)
            return b.copy_(torch.linalg.solve_triangular(factor.T, half, upper=True))
        self.half_solve_(b)
        for place, block, below in reversed(blocks):
            part = b[place : place + len(block)]
            if len(below):
                part.addmm_(below.T, b[place + len(block) :], alpha=-1)
            part.copy_(torch.linalg.solve_triangular(block.T, part, upper=True))
        return b

    def _solve_by_kernel_(self, b: Tensor) -> bool:
        """The same by one launch, where there is a kernel for it."""
        kernels = None if self.whole else kernels_for(b)
        inverses = [self._inverses.get(start) for start in self.edges[:-1]]
        turned = [
            one.T for one in inverses if one is not None and one.T.is_contiguous()
        ]
        if kernels is None or len(turned) < len(self.panels):
            return False
        return kernels.solve_(self.panels, turned, b) is not None

    def _blocks(self) -> list[Part]:
        """Where each diagonal block begins, the block, what is below it.

        Those of whole panels: there one triangular solve beats several. A device that
        holds the square has no inverse of all of it, so it takes blocks of one panel's
        width.
        """
        found = []
        for start, panel in zip(self.edges, self.panels, strict=False):
            width = panel.shape[1]
            step = _DEVICE_WIDTH if self._keeps_inverses and self.whole else width
            for left in range(0, width, step):
                right = min(left + step, width)
                block, below = panel[left:right, left:right], panel[right:, left:right]
                found.append((start + left, block, below))
        return found


def _factorise_strip_(block: Tensor, rows: Tensor) -> bool:
    """Overwrite a block by its factor ``L``, the rows below it by ``rows L^{-T}``."""
    factor, failure = torch.linalg.cholesky_ex(block)
    if failure:
        return False
    block.copy_(factor)
    if len(rows):
        torch.linalg.solve_triangular(factor.T, rows, upper=True, left=False, out=rows)
    return True


def _largest(least: float, most: float) -> float | None:
    """What no entry of the factor exceeds, if the diagonal's range is an ordinary one.

    No entry of a factor exceeds the root of the diagonal's. With a range beyond any
    that sample weights make in earnest, half precision might lose the small ones.
    """
    ordinary = 0 < least <= most < min(math.inf, _ORDINARY * least)
    return math.sqrt(most) if ordinary else None
