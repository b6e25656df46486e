r"""Kernel matrices, median distances, and random samples of rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normalign.kernels._functions import Kernel, require_points
from normalign.kernels._sides import middle

__all__ = [
    "kernel_matrix",
    "median_distance",
    "new_generator",
    "sampled_rows",
]


def kernel_matrix(
    x: Tensor, z: Tensor, kernel: Kernel, *, metric: Tensor | None = None
) -> Tensor:
    r"""Return the kernel values of every row of one table against every row of another.

    .. math:: K_{ij} = \phi_M(x_i, z_j)

    This is the line ``K <- ...`` of Algorithm 1, whole. The machines of this folder
    never build it; they work tile by tile.

    Parameters
    ----------
    x : Tensor of shape (n, d)
    z : Tensor of shape (m, d)
    metric : Tensor of shape (d, d) or (d,), optional
        Full, or the diagonal of a diagonal one. The identity by default.

    Returns
    -------
    Tensor of shape (n, m)

    Examples
    --------
    >>> from normalign.kernels import Laplace
    >>> x = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    >>> kernel_matrix(x, x, Laplace(bandwidth=1.0), metric=torch.tensor([1.0, 0.0]))
    tensor([[1., 1.],
            [1., 1.]])
    """
    require_points("kernel_matrix", x, z, kernel, metric)
    shift = middle(z)
    rows, columns = (kernel.sides(part - shift, metric) for part in (x, z))
    return kernel.values_(rows, columns, x.new_empty(len(x), len(z)))


def median_distance(
    x: Tensor,
    kernel: Kernel,
    *,
    metric: Tensor | None = None,
    weights: Tensor | None = None,
    sample: int = 1000,
    generator: torch.Generator | None = None,
) -> float:
    """Return the median distance of two distinct points, as the kernel measures it.

    A scale for the bandwidth that follows the data. Pairs at distance zero do not
    count; weights act as repetitions. Above ``sample`` rows a random sample of that
    size is taken, the same every time unless a generator is given. If all points
    coincide the answer is 1.

    Examples
    --------
    >>> from normalign.kernels import Laplace
    >>> round(median_distance(torch.tensor([[0.0], [1.0], [4.0]]), Laplace()), 3)
    3.0
    """
    require_points("median_distance", x, x, kernel, metric)
    if len(x) > sample:
        rows = sampled_rows(len(x), sample, generator or new_generator()).to(x.device)
        x = x[rows]
        weights = None if weights is None else weights[rows]
    x = x - middle(x)
    sides = kernel.sides(x, metric)
    distances = kernel.distances_(sides, sides, x.new_empty(len(x), len(x)))
    mass = x.new_ones(len(x)) if weights is None else weights
    mass = mass.double() * 2.0 ** -math.ceil(math.log2(mass.max()))  # rounds nothing
    pairs = mass.outer(mass)
    apart = torch.triu(distances, 1) > 0
    if not bool(apart.any()):
        return 1.0
    values, order = distances[apart].sort()
    mass = pairs[apart][order].cumsum(0)
    # of two in the middle the lower one, though sums of weights are rounded
    half = torch.searchsorted(mass, mass[-1:] * (0.5 - 1e-12)).clamp(
        max=len(values) - 1
    )
    return float(values[half]) * kernel.bandwidth


def new_generator(seed: int = 0) -> torch.Generator:
    """A generator of one's own: no draw here touches the global one."""
    return torch.Generator().manual_seed(seed)


def sampled_rows(n: int, most: int, generator: torch.Generator) -> Tensor:
    """That many of n rows, without replacement, on the CPU whatever the default is."""
    return torch.randperm(n, generator=generator, device="cpu")[:most]
