"""Diagonal blocks of a factorisation on an accelerator: what stands in the way.

All products of a factorisation wait for the next diagonal block, and a library's own
factorisation of a block is many small steps that leave a device idle. So a block is cut
in halves, down to a size that the library does fast, and :class:`Beside` lets it be
done while the products that do not need it run.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Beside", "factorise_and_invert_"]


def factorise_and_invert_(block: Tensor, base: int) -> tuple[Tensor, list[Tensor]]:
    r"""Overwrite a definite block by its Cholesky factor, and return the inverse of it.

    .. math:: \begin{pmatrix} L_1 & 0 \\ R & L_2 \end{pmatrix}^{-1} =
              \begin{pmatrix} L_1^{-1} & 0 \\
              -L_2^{-1} R L_1^{-1} & L_2^{-1} \end{pmatrix}

    Parameters
    ----------
    block : Tensor of shape (n, n)
        Only its lower half is read; what stands above it afterwards is arbitrary.
    base : int
        Rows that the library is trusted with.

    Returns
    -------
    inverse : Tensor of shape (n, n)
    failures : list of Tensor
        LAPACK's codes, not looked at; zero where all went well.

    Examples
    --------
    >>> block = torch.tensor([[4.0, 9.0], [2.0, 2.0]])
    >>> factorise_and_invert_(block, 1)[0]
    tensor([[ 0.5000,  0.0000],
            [-0.5000,  1.0000]])
    """
    n = len(block)
    if n <= base:
        factor, failure = torch.linalg.cholesky_ex(block)
        block.copy_(factor)
        identity = torch.eye(n, dtype=block.dtype, device=block.device)
        inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
        return inverse, [failure]
    half = base * max(n // (2 * base), 1)
    rows, rest = block[half:, :half], block[half:, half:]
    first, failures = factorise_and_invert_(block[:half, :half], base)
    rows.copy_(rows @ first.T)
    rest.addmm_(rows, rows.T, alpha=-1)
    second, more = factorise_and_invert_(rest, base)
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
        # Its kernels are small and awaited, so they go before the others'.
        cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device, priority=-1) if cuda else None
        self._context: torch.cuda.StreamContext | None = None

    def __enter__(self) -> None:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
            self._context = torch.cuda.stream(self._stream)
            self._context.__enter__()

    def __exit__(self, *failure: object) -> None:
        if self._context is not None:
            self._context.__exit__(*failure)
            self._context = None

    def join(self) -> None:
        """Let what is launched from now on wait for what was launched inside."""
        if self._stream is not None:
            current = torch.cuda.current_stream(self._stream.device)
            current.wait_stream(self._stream)
