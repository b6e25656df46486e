r"""One triangle of a symmetric matrix, and its Cholesky factor in place.

The lower triangle is kept as column panels: panel ``j`` holds columns
``edges[j]:edges[j + 1]`` of the rows from ``edges[j]`` on. That is half of the square
plus half a panel's width, all of it is one buffer that is reused from one
factorisation to the next, and every step of the factorisation is a product of whole
panels, so it runs at nearly the speed of matrix multiplication.

Inside a panel the same is done once more with narrower strips. On a processor they
are what LAPACK factorises fast; on an accelerator their inverses are kept, because
there a product by an inverse is many times faster than a triangular solve, while
factorising and when the factor is used.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normalign.kernels.precision import Factor, subtract_product_

__all__ = ["Triangle", "triangle_bytes"]

_CPU_WIDTH, _CPU_STRIP = 256, 128
_DEVICE_WIDTH, _DEVICE_STRIP = 1024, 1024


def _widths(device: torch.device) -> tuple[int, int]:
    """Columns of a panel and of a strip."""
    if device.type == "cpu":
        return _CPU_WIDTH, _CPU_STRIP
    return _DEVICE_WIDTH, _DEVICE_STRIP


def triangle_bytes(n: int, dtype: torch.dtype, device: torch.device) -> int:
    """Bytes that the triangle of an ``(n, n)`` matrix takes."""
    width, _ = _widths(device)
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
        width, self._strip = _widths(device)
        self.edges = [*range(0, n, width), n]
        sizes = [(n - start, min(width, n - start)) for start in self.edges[:-1]]
        buffer = torch.empty(
            sum(math.prod(size) for size in sizes), dtype=dtype, device=device
        )
        parts = buffer.split([math.prod(size) for size in sizes])
        self.panels = [part.view(size) for part, size in zip(parts, sizes, strict=True)]
        self._inverses: dict[int, Tensor] = {}
        self._keeps_inverses = device.type != "cpu"

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

        Right-looking: factorise a panel, subtract its products from every panel to
        the right. A device is asked for failures once, at the end: what follows one
        is NaN at worst, and a question after every panel would make it wait.
        """
        failures = []
        for j, (start, panel) in enumerate(zip(self.edges, self.panels, strict=False)):
            failures += self._factorise_panel_(start, panel)
            if not self._keeps_inverses and any(failures):
                return False
            rows, later = Factor(panel), self.panels[j + 1 :]
            for edge, target in zip(self.edges[j + 1 :], later, strict=False):
                below = rows[edge - start :]
                subtract_product_(target, below, below[: target.shape[1]])
        return not bool(torch.stack(failures).any())

    def _factorise_panel_(self, start: int, panel: Tensor) -> list[Tensor]:
        """The same inside a panel, strip by strip; return what went wrong."""
        width, failures = panel.shape[1], []
        for left in range(0, width, self._strip):
            right = min(left + self._strip, width)
            block, rows = panel[left:right, left:right], panel[right:, left:right]
            factor, failure = torch.linalg.cholesky_ex(block)
            block.copy_(factor)
            failures.append(failure)
            self._divide_(start + left, factor, rows)
            if right < width:
                strip = Factor(rows)
                subtract_product_(panel[right:, right:], strip, strip[: width - right])
        return failures

    def _divide_(self, place: int, factor: Tensor, rows: Tensor) -> None:
        """Overwrite ``rows`` by ``rows L^{-T}`` for a strip's factor ``L``."""
        if self._keeps_inverses:
            identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
            inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
            self._inverses[place] = inverse
            if len(rows):
                minus = torch.zeros_like(rows)
                rows.copy_(
                    subtract_product_(minus, Factor(rows), Factor(inverse)).neg_()
                )
        elif len(rows):
            torch.linalg.solve_triangular(
                factor.T, rows, upper=True, left=False, out=rows
            )

    def half_solve_(self, b: Tensor) -> Tensor:
        """Overwrite ``b`` by ``L^{-1} b``, for the factor ``L``."""
        for place, block, below in self._strips():
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
            return b.copy_(torch.cholesky_solve(b, self.panels[0]))
        self.half_solve_(b)
        for place, block, below in reversed(self._strips()):
            part = b[place : place + len(block)]
            if len(below):
                part.addmm_(below.T, b[place + len(block) :], alpha=-1)
            if self._keeps_inverses:
                part.copy_(self._inverses[place].T @ part)
            else:
                part.copy_(torch.linalg.solve_triangular(block.T, part, upper=True))
        return b

    def _strips(self) -> list[tuple[int, Tensor, Tensor]]:
        """Where each strip begins, its diagonal block, what is below it.

        On a processor whole panels: there one triangular solve beats several.
        """
        found = []
        for start, panel in zip(self.edges, self.panels, strict=False):
            width = panel.shape[1]
            step = self._strip if self._keeps_inverses else width
            for left in range(0, width, step):
                right = min(left + step, width)
                block, below = panel[left:right, left:right], panel[right:, left:right]
                found.append((start + left, block, below))
        return found
