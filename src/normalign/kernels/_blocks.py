"""Diagonal blocks of a factorisation on an accelerator: what stands in the way.

All products of a factorisation wait for the next diagonal block, and a library's own
factorisation of a block is many small steps that leave a device idle. So a block has
kernels of its own (:mod:`normalign.kernels.cuda`) or, where these cannot be
had, is cut in halves down to a size that the library does fast; and :class:`Beside`
lets it be done while the products that do not need it run.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from normalign.kernels.cuda import kernels_for

__all__ = ["Beside", "Inverted", "factorise_and_invert_"]


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
