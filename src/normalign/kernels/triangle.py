r"""One triangle of a symmetric matrix, and its Cholesky factor in place.

The lower triangle is kept as column panels: panel ``j`` holds columns
``edges[j]:edges[j + 1]`` of the rows from ``edges[j]`` on. That is half of the square
plus half a panel's width, all of it is one buffer that is reused from one
factorisation to the next, and every step of the factorisation is a product of whole
panels, so it runs at nearly the speed of matrix multiplication.

On a processor the same is done once more inside a panel with narrower strips, which
are what LAPACK factorises fast. On an accelerator the inverse of each panel's diagonal
block is kept, because there a product by an inverse is many times faster than a
triangular solve, while factorising and when the factor is used; and the next diagonal
block may be factorised beside the products of the present panel.

A small matrix may be held *whole*, as one panel of all columns. On a processor a strip
is then brought up to date by a single product with all that is to its left: fewer and
better products than between panels, for twice the memory.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normalign.kernels.blocks import Beside, factorise_and_invert_
from normalign.kernels.precision import Factor, subtract_product_

__all__ = ["Triangle", "is_small", "triangle_bytes"]

# LAPACK takes four times longer for 128 rows than for 96.
_CPU_WIDTH, _CPU_STRIP = 256, 96
_DEVICE_WIDTH, _DEVICE_STRIP = 1024, 1024
# Whether a device factorises the next diagonal block beside the products: 2 to 6 %
# sooner on an H200 from 10000 rows on, and the same below.
_DEVICE_AHEAD = True
# Rows up to which a matrix is small: 38 MB in float64 for a square and its slopes.
_CPU_SMALL, _DEVICE_SMALL = 1536, 0
# Held whole: columns of a strip, and rows up to which LAPACK alone is as fast.
_WHOLE_STRIP, _WHOLE_ATONCE = 64, 300


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
        return self._factorise_whole_() if self.whole else self._factorise_panels_()

    def _factorise_panels_(self) -> bool:
        """Right-looking: a panel's products are subtracted from all to its right."""
        for j, panel in enumerate(self.panels):
            if not self._factorise_panel_(panel):
                return False
            self._subtract_(j, Factor(panel), range(j + 1, len(self.panels)))
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

    def _factorise_whole_(self) -> bool:
        """Left-looking: every strip is brought up to date when its turn comes."""
        (square,) = self.panels
        n = len(square)
        step = n if n <= _WHOLE_ATONCE else _WHOLE_STRIP
        for left in range(0, n, step):
            right = min(left + step, n)
            strip, done = square[left:, left:right], square[left:, :left]
            if left:
                strip.addmm_(done, done[: right - left].T, alpha=-1)
            if not _factorise_strip_(strip[: right - left], strip[right - left :]):
                return False
        return True

    def _factorise_ahead_(self) -> bool:
        """Right-looking, with the next diagonal block factorised as soon as it can be.

        A device is asked for failures once, at the end: what follows one is NaN at
        worst, and a question after every panel would make it wait.
        """
        last, failures = len(self.panels) - 1, []
        for j, panel in enumerate(self.panels):
            if j == 0:
                failures += self._invert_(0)
            self._beside.join()
            width = panel.shape[1]
            _divide_(panel[width:], self._inverses[self.edges[j]])
            rows = Factor(panel)
            if j < last:
                self._subtract_(j, rows, range(j + 1, j + 2))
                with self._beside:
                    failures += self._invert_(j + 1)
                self._subtract_(j, rows, range(j + 2, last + 1))
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

    def _invert_(self, j: int) -> list[Tensor]:
        """Factorise a panel's diagonal block and keep its inverse; what went wrong."""
        panel = self.panels[j]
        block = panel[: panel.shape[1]]
        inverse, failures = factorise_and_invert_(block, self._strip)
        self._inverses[self.edges[j]] = inverse
        return failures

    def _subtract_(self, j: int, rows: Factor, targets: range) -> None:
        """Subtract the products of a panel from others."""
        for i in targets:
            below = rows[self.edges[i] - self.edges[j] :]
            target = self.panels[i]
            subtract_product_(target, below, below[: target.shape[1]])

    def half_solve_(self, b: Tensor) -> Tensor:
        """Overwrite ``b`` by ``L^{-1} b``, for the factor ``L``."""
        for place, block, below in self._blocks():
            part = b[place : place + len(block)]
            if self._keeps_inverses:
                part.copy_(self._inverses[place] @ part)
            else:
                part.copy_(torch.linalg.solve_triangular(block, part, upper=False))
            if len(below):
                b[place + len(block) :].addmm_(below, part, alpha=-1)
        return b

    def solve_(self, b: Tensor) -> Tensor:
        """Overwrite ``b`` by the solution of ``L L^T x = b``, for the factor ``L``."""
        if len(self.panels) == 1 and not self._keeps_inverses:
            factor = self.panels[0]
            half = torch.linalg.solve_triangular(factor, b, upper=False)
            return b.copy_(torch.linalg.solve_triangular(factor.T, half, upper=True))
        self.half_solve_(b)
        for place, block, below in reversed(self._blocks()):
            part = b[place : place + len(block)]
            if len(below):
                part.addmm_(below.T, b[place + len(block) :], alpha=-1)
            if self._keeps_inverses:
                part.copy_(self._inverses[place].T @ part)
            else:
                part.copy_(torch.linalg.solve_triangular(block.T, part, upper=True))
        return b

    def _blocks(self) -> list[tuple[int, Tensor, Tensor]]:
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


def _divide_(rows: Tensor, inverse: Tensor) -> None:
    """Overwrite ``rows`` by ``rows L^{-T}``, for the inverse of ``L``."""
    if len(rows):
        minus = torch.zeros_like(rows)
        rows.copy_(subtract_product_(minus, Factor(rows), Factor(inverse)).neg_())
