"""A fitted kernel machine as a module that autograd can pass through."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normalign._errors import require
from normalign.estimators.fitted import FittedMachine
from normalign.estimators.partition.tree import Tree, smoothstep
from normalign.estimators.scale.placement import DTYPES, farthest
from normalign.estimators.torch_form.modules import Scaling, dense
from normalign.kernels import metric_root

__all__ = ["Blend", "MetricExpansion", "Placing", "machine_module"]


class Placing(Scaling):
    r"""Rows in the frame of a machine, those too far to matter nearer, but not near.

    .. math:: x \mapsto \mathrm{clip}\bigl((x - m) / u\bigr)

    As far as predictions go: squares of what comes out are numbers, in the precision
    of the machine and in that of a module that was moved to a lower one.

    Parameters
    ----------
    location : Tensor of shape (d,)
    unit : float
    bandwidth : float
        Of the kernel, in the frame.
    dtype : torch.dtype
        In which the machine predicts.

    Examples
    --------
    >>> Placing(torch.ones(1), 2.0, bandwidth=1.0, dtype=torch.float32)(
    ...     torch.tensor([[5.0], [1e30]]))
    tensor([[2.0000e+00],
            [1.0000e+15]])
    """

    def __init__(
        self, location: Tensor, unit: float, *, bandwidth: float, dtype: torch.dtype
    ) -> None:
        far = farthest(dtype, bandwidth)
        units = torch.full_like(location, unit)
        super().__init__(location, units, 0 * location, low=-far, high=far)
        self.far_in_single = min(far, farthest(torch.float32, bandwidth))

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows in the frame, of shape (n, d)."""
        placed = (x - self.centre) / self.scale
        far = self.high if placed.dtype == torch.float64 else self.far_in_single
        far = min(far, torch.finfo(placed.dtype).max)
        return placed.clamp(-far, far)


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


class Blend(nn.Module):
    r"""Machines of parts as one, blended by the gates of a tree of cuts.

    .. math:: f(x) = b + \sum_\ell g_\ell(x) f_\ell(x)

    Every part is asked about every row, so that functions of :mod:`torch.func` can pass
    through: ``n * m`` numbers are held for the largest part.

    Parameters
    ----------
    parts : sequence of Module
        From left to right.
    tree : Tree
        In the space of the inputs.
    bias : Tensor of shape (k,)

    Examples
    --------
    >>> tree = Tree(torch.ones(1, 1), torch.tensor([[0.0, 2.0]]),
    ...             torch.tensor([[-1, -2]]))
    >>> Blend([nn.ReLU(), nn.Identity()], tree, torch.zeros(1))(torch.ones(1, 1))
    tensor([[1.]])
    """

    directions: Tensor
    bands: Tensor
    bias: Tensor

    def __init__(self, parts: Sequence[nn.Module], tree: Tree, bias: Tensor) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.register_buffer("directions", tree.directions)
        self.register_buffer("bands", tree.bands)
        self.register_buffer("bias", bias)
        self.children_of = tree.children.tolist()

    def forward(self, x: Tensor) -> Tensor:
        """Return the blended outputs, of shape (n, k)."""
        gates = self._gates(x)
        return self.bias + sum(
            gates[leaf][..., None] * part(x) for leaf, part in enumerate(self.parts)
        )

    def _gates(self, x: Tensor) -> dict[int, Tensor]:
        """Of every leaf, the product along its path."""
        lower, upper = self.bands.T
        right = smoothstep((x @ self.directions.T - lower) / (upper - lower))
        gates, waiting = (
            {},
            [(0 if self.children_of else -1, torch.ones_like(x[..., 0]))],
        )
        while waiting:
            node, gate = waiting.pop()
            if node < 0:
                gates[-1 - node] = gate
                continue
            left_child, right_child = self.children_of[node]
            waiting.append((left_child, gate * (1 - right[..., node])))
            waiting.append((right_child, gate * right[..., node]))
        return gates


def machine_module(callee: str, fitted: Any) -> nn.Module:
    """Return the module of a fitted kernel machine: its k outputs.

    Raises
    ------
    ValueError
        If the machine has several label columns.
    """
    require(
        not isinstance(getattr(fitted, "classes_", None), list), callee, "fitted",
        "a classifier with one label per sample",
        f"a {type(fitted).__name__} with several", "Fit one classifier per label.",
    )  # fmt: skip
    frame = Placing(
        dense(fitted.location_),
        fitted.unit_,
        bandwidth=fitted.bandwidth_ / fitted.unit_,
        dtype=DTYPES[fitted.dtype_],
    )
    leaves = getattr(fitted, "leaves_", None)
    return nn.Sequential(
        frame, _whole(fitted, frame) if leaves is None else _blend(fitted, leaves)
    )


def _whole(fitted: FittedMachine, frame: nn.Module) -> nn.Module:
    return _expansion(
        fitted,
        _root(fitted),
        frame(dense(fitted.X_fit_)),
        dense(fitted.dual_coef_),
        dense(fitted.intercept_),
    )


def _blend(fitted: FittedMachine, leaves: dict[str, np.ndarray]) -> nn.Module:
    root, centers = _root(fitted), dense(leaves["centers"])
    coef, bias = dense(fitted.dual_coef_), dense(fitted.intercept_)
    rows = torch.tensor(leaves["rows"])
    parts = [
        _expansion(fitted, root, centers[rows[start:stop]], coef[start:stop], 0 * bias)
        for start, stop in pairwise(leaves["offsets"].tolist())
    ]
    cuts = (torch.tensor(leaves[name]) for name in ("directions", "bands", "children"))
    return Blend(parts, Tree(*cuts), bias)


def _root(fitted: FittedMachine) -> Tensor:
    """The root of the metric over the bandwidth, which all parts share."""
    return metric_root(dense(fitted.metric_)) * (fitted.unit_ / fitted.bandwidth_)


def _expansion(
    fitted: FittedMachine, root: Tensor, points: Tensor, coef: Tensor, bias: Tensor
) -> MetricExpansion:
    return MetricExpansion(
        fitted.kernel_, points, coef, bias, root, exponent=fitted.exponent_
    )
