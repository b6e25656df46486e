"""A fitted kernel machine as a module that autograd can pass through."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normalign._checks import require
from normalign.estimators.fitted import FittedMachine
from normalign.estimators.torch_parts import Scaling, dense
from normalign.kernels import metric_root

__all__ = ["MetricExpansion", "machine_module"]


class MetricExpansion(nn.Module):
    r"""A sum of kernels of distances in a metric.

    .. math:: f(x) = b + \sum_j a_j \, \phi\bigl(M^{1/2} (x - z_j)\bigr)

    with the kernels of :mod:`normalign.kernels`. Points nearer than rounding can tell
    are one point, whose own kernel has gradient zero, as in Algorithm 1. Radial
    kernels hold ``n * m`` numbers, the product of Laplace kernels ``n * m * d``.

    Parameters
    ----------
    kernel : {"laplace", "gaussian", "product_laplace"}
    points : Tensor of shape (m, d)
        The centers z.
    weights : Tensor of shape (m, k)
        The coefficients a.
    bias : Tensor of shape (k,)
    root : Tensor of shape (d, d) or (d,)
        The root of the metric, over the bandwidth.
    exponent : float, default=1.0
        Of the Laplace kernel.

    Examples
    --------
    >>> one = torch.ones(1, 1)
    >>> MetricExpansion("gaussian", 0 * one, one, one[0], one)(one)
    tensor([[1.6065]])
    """

    root: Tensor
    placed: Tensor
    weights: Tensor
    bias: Tensor

    def __init__(
        self,
        kernel: str,
        points: Tensor,
        weights: Tensor,
        bias: Tensor,
        root: Tensor,
        *,
        exponent: float = 1.0,
    ) -> None:
        super().__init__()
        self.kernel, self.exponent = kernel, exponent
        self.register_buffer("root", root)
        self.register_buffer("placed", self._through(points))
        self.register_buffer("weights", weights)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sums, of shape (n, k)."""
        u = self._through(x)
        gram = self._product(u) if self.kernel == "product_laplace" else self._radial(u)
        return gram @ self.weights + self.bias

    def _through(self, x: Tensor) -> Tensor:
        return x * self.root if self.root.ndim == 1 else x @ self.root

    def _radial(self, u: Tensor) -> Tensor:
        sizes = u.square().sum(-1, keepdim=True) + self.placed.square().sum(-1)
        squares = sizes - 2 * u @ self.placed.T
        noise = torch.finfo(u.dtype).eps * (8 + 2 * u.shape[-1] ** 0.5)
        same = squares <= noise * sizes
        # a stand-in keeps the root's infinite slope out of the graph
        squares = torch.where(same, 1.0, squares)
        if self.kernel == "gaussian":
            values = torch.exp(-squares / 2)
        else:
            values = torch.exp(-(squares ** (self.exponent / 2)))
        return torch.where(same, 1.0, values)

    def _product(self, u: Tensor) -> Tensor:
        gaps = u[..., None, :] - self.placed
        noise = torch.finfo(u.dtype).eps * (8 + 2 * u.shape[-1] ** 0.5)
        sizes = u.abs().amax(-1, keepdim=True) + self.placed.abs().amax(-1)
        gaps = torch.where(gaps.abs() <= noise * sizes[..., None], 0.0, gaps)
        return torch.exp(-gaps.abs().sum(-1))

    def extra_repr(self) -> str:
        """Say which kernel, around how many points."""
        return f"{self.kernel}, points={len(self.placed)}, exponent={self.exponent:g}"


def machine_module(callee: str, fitted: Any) -> nn.Module:
    """Return the module of a fitted kernel machine: its k outputs.

    Raises
    ------
    ValueError
        If the machine has parts, or several label columns.
    """
    require(
        getattr(fitted, "leaves_", None) is None, callee, "fitted",
        "a machine of one part", f"one of {_parts(fitted)}",
        "Fit with max_leaf_size=None; .jacobian works for parts, too.",
    )  # fmt: skip
    require(
        not isinstance(getattr(fitted, "classes_", None), list), callee, "fitted",
        "a classifier with one label per sample",
        f"a {type(fitted).__name__} with several", "Fit one classifier per label.",
    )  # fmt: skip
    return _module(fitted)


def _parts(fitted: Any) -> int:
    return len(getattr(fitted, "leaves_", {}).get("bandwidths", ()))


def _module(fitted: FittedMachine) -> nn.Module:
    location, unit = dense(fitted.location_), torch.tensor(fitted.unit_).double()
    frame = Scaling(location, unit.expand_as(location).clone(), 0 * location)
    bandwidth = fitted.bandwidth_ / fitted.unit_
    expansion = MetricExpansion(
        fitted.kernel_,
        frame(dense(fitted.X_fit_)),
        dense(fitted.dual_coef_),
        dense(fitted.intercept_),
        metric_root(dense(fitted.metric_)) / bandwidth,
        exponent=fitted.exponent_,
    )
    return nn.Sequential(frame, expansion)
