"""The modules that :func:`normalign.estimators.as_torch` puts together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = [
    "Columns",
    "KernelExpansion",
    "Scaling",
    "TwoClassScores",
    "dense",
    "linear_layer",
]


def dense(values: Any) -> Tensor:
    """Copy an array, a scalar or a sparse matrix into a float64 tensor."""
    array = values.toarray() if hasattr(values, "toarray") else values
    return torch.tensor(np.asarray(array, dtype=np.float64))


def linear_layer(weight: Any, bias: Any) -> nn.Linear:
    """Return a float64 layer of a (k, d) or (d,) weight and a (k,) or scalar bias."""
    matrix = torch.atleast_2d(dense(weight))
    k, d = matrix.shape
    layer = nn.Linear(d, k, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(matrix)
        layer.bias.copy_(dense(bias).expand(k))
    return layer


class Scaling(nn.Module):
    r"""Centre, scale and shift each input, then clip if bounds are finite.

    .. math:: x \mapsto \mathrm{clip}\bigl((x - m) / s + t\bigr)

    Parameters
    ----------
    centre, scale, shift : Tensor of shape (d,)
        The vectors m, s and t.
    low, high : float, default=∓inf
        Bounds of the clipping.

    Examples
    --------
    >>> Scaling(torch.ones(2), 2 * torch.ones(2), torch.zeros(2))(torch.ones(1, 2))
    tensor([[0., 0.]])
    """

    centre: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        centre: Tensor,
        scale: Tensor,
        shift: Tensor,
        *,
        low: float = -math.inf,
        high: float = math.inf,
    ) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled inputs, of shape (n, d)."""
        scaled = (x - self.centre) / self.scale + self.shift
        if math.isinf(self.low) and math.isinf(self.high):
            return scaled
        return scaled.clamp(self.low, self.high)


class KernelExpansion(nn.Module):
    r"""A weighted sum of kernels around fixed points.

    .. math:: f(x) = W^\top K(Z, x) + b

    with :math:`K` one of ``rbf`` :math:`e^{-\gamma |x - z|_2^2}`, ``laplacian``
    :math:`e^{-\gamma |x - z|_1}`, ``poly`` :math:`(\gamma \langle x, z\rangle + c)^p`
    and ``sigmoid`` :math:`\tanh(\gamma \langle x, z\rangle + c)`. The laplacian holds
    all ``n * m * d`` differences at once; the others ``n * m`` numbers.

    Parameters
    ----------
    kernel : {"rbf", "laplacian", "poly", "sigmoid"}
        Which kernel.
    points : Tensor of shape (m, d)
        The points Z.
    weights : Tensor of shape (m, k)
        One column per output.
    bias : Tensor of shape (k,)
        Added to the sum.
    gamma, degree, coef0 : float
        Constants of the kernel, where it has them.
    """

    points: Tensor
    weights: Tensor
    bias: Tensor

    def __init__(
        self,
        kernel: str,
        points: Tensor,
        weights: Tensor,
        bias: Tensor,
        *,
        gamma: float,
        degree: float = 3.0,
        coef0: float = 0.0,
    ) -> None:
        super().__init__()
        self.kernel, self.gamma, self.degree, self.coef0 = kernel, gamma, degree, coef0
        self.register_buffer("points", points)
        self.register_buffer("weights", weights)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sums, of shape (n, k)."""
        return self._gram(x) @ self.weights + self.bias

    def _gram(self, x: Tensor) -> Tensor:
        if self.kernel == "laplacian":
            distance = (x[:, None] - self.points).abs().sum(-1)
            return torch.exp(-self.gamma * distance)
        product = x @ self.points.T
        if self.kernel == "rbf":
            squares = x.square().sum(-1, keepdim=True) + self.points.square().sum(-1)
            return torch.exp(-self.gamma * (squares - 2 * product))
        inner = self.gamma * product + self.coef0
        return inner.tanh() if self.kernel == "sigmoid" else inner**self.degree

    def extra_repr(self) -> str:
        """Say which kernel, around how many points."""
        return f"{self.kernel}, points={len(self.points)}, gamma={self.gamma:.4g}"


class TwoClassScores(nn.Module):
    """Turn one score s into the two outputs (-s/2, s/2).

    Examples
    --------
    >>> TwoClassScores()(torch.tensor([[4.0]]))
    tensor([[-2.,  2.]])
    """

    def forward(self, score: Tensor) -> Tensor:
        """Return the two outputs, of shape (n, 2)."""
        return torch.cat([-score / 2, score / 2], dim=-1)


class Columns(nn.Module):
    """Several modules with one output each, side by side.

    Parameters
    ----------
    parts : iterable of nn.Module
        Each maps (n, d) to (n, 1).

    Examples
    --------
    >>> Columns([nn.Identity(), nn.ReLU()])(torch.tensor([[-1.0]]))
    tensor([[-1.,  0.]])
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        """Return the columns, of shape (n, k)."""
        return torch.cat([part(x) for part in self.parts], dim=-1)
