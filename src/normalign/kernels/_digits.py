r"""How many digits of a machine's outputs are left: the judge of every solver.

Outputs are sums of coefficients times numbers in ``(0, 1]``, each right to a rounding
error; where coefficients are large and cancel, the errors do not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = [
    "LOST_SHARE",
    "added_jitter",
    "lost_digits",
    "lost_share",
    "mean_squares",
]

LOST_SHARE = 3e-4  # of the targets; ordinary tables have a tenth of it


def mean_squares(y: Tensor, ridges: Tensor) -> Tensor:
    """Mean square of each target, rows counting as their ridges say; never zero.

    In float64, for squares of large and small targets.
    """
    share = (ridges.min() / ridges).double()
    squares = (share @ y.double().square()) / share.sum()
    return squares.clamp(min=torch.finfo(torch.float64).tiny)


def lost_share(coef: Tensor, y: Tensor, ridges: Tensor) -> float:
    r"""How much of the targets rounding can move: :math:`\epsilon \|a\| / \|y\|_{rms}`.

    Of that output of which it is most, in the precision of the targets. On tables and
    kernels tried in float32, outputs were off by about ten times this.
    """
    # one question to a device, not two
    share = (coef.double().square().sum(0) / mean_squares(y, ridges)).amax()
    return torch.finfo(y.dtype).eps * math.sqrt(share)


def lost_digits(share: float, dtype: torch.dtype) -> str:
    """What a user should know where too many digits are lost, and nothing helps."""
    told = (
        f"coefficients are so large that rounding in {str(dtype)[6:]} moves outputs by "
        f"about {10 * share:.0e} of the targets"
    )
    if dtype != torch.float64:
        return told + ", and float64 does not fit memory_limit. Raise that, or ridge."
    return told + ". Raise ridge, or remove near-duplicate rows."


def added_jitter(jitter: float, dtype: torch.dtype) -> str:
    """What a user should know where a matrix was not definite as it is."""
    return (
        f"K + ridge is not positive definite in {str(dtype)[6:]}; added {jitter:.1e} "
        "to its diagonal. Raise ridge, or remove near-duplicate rows."
    )
