r"""One triangle of a symmetric matrix, and its Cholesky factor in place.

The lower triangle is kept as column panels: panel ``j`` holds columns
``edges[j]:edges[j + 1]`` of the rows from ``edges[j]`` on. That is half of the square
plus half a panel's width, all of it is one buffer that is reused from one
factorisation to the next, and every step of the factorisation is a product of whole
panels, so it runs at nearly the speed of matrix multiplication.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normalign.kernels.precision import subtract_products_

__all__ = ["Triangle", "triangle_bytes"]

_CPU_WIDTH = 256
_CPU_LEAF = 128  # blocks up to this size go to LAPACK whole
_DEVICE_WIDTH = 2048
_DEVICE_SQUARE = 8192  # up to this one call on the square is fastest


def _panel_width(n: int, device: torch.device) -> int:
    if device.type == "cpu":
        return max(min(n, _CPU_WIDTH), 1)
    return max(n if n <= _DEVICE_SQUARE else _DEVICE_WIDTH, 1)


def triangle_bytes(n: int, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes that the triangle of an ``(n, n)`` matrix takes."""
    width = _panel_width(n, device)
    entries = sum((n - start) * min(width, n - start) for start in range(0, n, width))
    return entries * dtype.itemsize


class Triangle:
    """The lower triangle of a symmetric ``(n, n)`` matrix in column panels.

    Parameters
    ----------
    n : int
    dtype : torch.dtype
        float32 or float64.
    device : torch.device

    Attributes
    ----------
    edges : list of int
        Where panels begin, and ``n``.
    panels : list of Tensor
        Panel ``j`` has shape ``(n - edges[j], edges[j + 1] - edges[j])``. What stands
        above the diagonal in a panel's first rows is never read.
    """

    def __init__(self, n: int, *, dtype: torch.dtype, device: torch.device) -> None:
        width = _panel_width(n, device)
        self.edges = [*range(0, n, width), n]
        sizes = [
            (n - start, stop - start)
            for start, stop in zip(self.edges, self.edges[1:], strict=False)
        ]
        buffer = torch.empty(
            sum(math.prod(size) for size in sizes), dtype=dtype, device=device
        )
        parts = buffer.split([math.prod(size) for size in sizes])
        self.panels = [part.view(size) for part, size in zip(parts, sizes, strict=True)]

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
        """Overwrite the matrix by its Cholesky factor; False if it is not definite.

        Right-looking: factor a diagonal block, solve the rows below it, subtract
        their products from every panel to the right.
        """
        for j, panel in enumerate(self.panels):
            block, rows = panel[: panel.shape[1]], panel[panel.shape[1] :]
            if not _factorise_block_(block):
                return False
            if len(rows):
                _solve_right_(block, rows)
            starts = (edge - self.edges[j] for edge in self.edges[j + 1 : -1])
            later = zip(starts, self.panels[j + 1 :], strict=True)
            subtract_products_(panel, list(later))
        return True

    def half_solve_(self, b: Tensor) -> Tensor:
        """Overwrite ``b`` by ``L^{-1} b``, for the factor ``L``."""
        for start, panel in zip(self.edges, self.panels, strict=False):
            width = panel.shape[1]
            part = b[start : start + width]
            solved = torch.linalg.solve_triangular(panel[:width], part, upper=False)
            part.copy_(solved)
            if len(panel) > width:
                b[start + width :].addmm_(panel[width:], solved, alpha=-1)
        return b

    def solve_(self, b: Tensor) -> Tensor:
        """Overwrite ``b`` by the solution of ``L L^T x = b``, for the factor ``L``."""
        if len(self.panels) == 1:
            return b.copy_(torch.cholesky_solve(b, self.panels[0]))
        self.half_solve_(b)
        for start, panel in zip(self.edges[-2::-1], self.panels[::-1], strict=True):
            width = panel.shape[1]
            part = b[start : start + width]
            if len(panel) > width:
                part.addmm_(panel[width:].T, b[start + width :], alpha=-1)
            part.copy_(torch.linalg.solve_triangular(panel[:width].T, part, upper=True))
        return b


def _factorise_block_(block: Tensor) -> bool:
    """Cholesky in place, by halves: most of the work becomes one product."""
    size = len(block)
    if block.device.type != "cpu" or size <= _CPU_LEAF:
        factor, info = torch.linalg.cholesky_ex(block)
        block.copy_(factor)
        return not bool(info)
    half = size // 2
    corner, rows, rest = block[:half, :half], block[half:, :half], block[half:, half:]
    if not _factorise_block_(corner):
        return False
    _solve_right_(corner, rows)
    rest.addmm_(rows, rows.T, alpha=-1)
    return _factorise_block_(rest)


def _solve_right_(block: Tensor, rows: Tensor) -> None:
    """Overwrite ``rows`` by ``rows L^{-T}``, for a block that holds ``L``."""
    torch.linalg.solve_triangular(block.T, rows, upper=True, left=False, out=rows)
