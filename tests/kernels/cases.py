"""Kernels, metrics and points over which the tests of this folder run."""

import torch

from normalign.kernels import (
    Gaussian,
    Laplace,
    ProductLaplace,
    System,
    kernel_matrix,
)

DOUBLE = torch.float64
KERNELS = [
    Laplace(2.0),
    Laplace(3.0, exponent=0.7),
    Laplace(2.0, exponent=1.5),
    Laplace(2.0, exponent=2.0),
    Gaussian(1.5),
    ProductLaplace(2.5),
]
METRICS = ["identity", "diagonal", "full"]


def points(n, d, seed=0, dtype=DOUBLE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=DOUBLE).to(dtype) + 2


def metric(kind, d, seed=0):
    """A metric of trace d, or None for the identity."""
    if kind == "identity":
        return None
    if kind == "diagonal":
        values = points(1, d, seed)[0].abs()
        return values * d / values.sum()
    root = points(d, d, seed) - 2
    square = root @ root.T
    return square * d / square.trace()


def naive_kernel(x, z, kernel, metric=None):
    """Every value by its definition, one pair at a time."""
    d = x.shape[1]
    full = torch.eye(d, dtype=x.dtype) if metric is None else metric
    full = torch.diag(full) if full.ndim == 1 else full
    values = torch.empty(len(x), len(z), dtype=x.dtype)
    for i in range(len(x)):
        for j in range(len(z)):
            gap = x[i] - z[j]
            if isinstance(kernel, ProductLaplace):
                spectrum, axes = torch.linalg.eigh(full)
                root = axes @ torch.diag(spectrum.clamp(min=0).sqrt()) @ axes.T
                values[i, j] = torch.exp(-(root @ gap).abs().sum() / kernel.bandwidth)
                continue
            scaled = (gap @ full @ gap).clamp(min=0) / kernel.bandwidth**2
            if isinstance(kernel, Gaussian):
                values[i, j] = torch.exp(-scaled / 2)
            else:
                values[i, j] = torch.exp(-(scaled ** (kernel.exponent / 2)))
    return values


def naive_jacobian(x, centers, coef, kernel, metric=None):
    """Central differences of the naive expansion."""
    step = 1e-6
    columns = []
    for axis in torch.eye(x.shape[1], dtype=x.dtype):
        ahead = naive_kernel(x + step * axis, centers, kernel, metric) @ coef
        behind = naive_kernel(x - step * axis, centers, kernel, metric) @ coef
        columns.append((ahead - behind) / (2 * step))
    return torch.stack(columns, -1)


def system(n=40, d=4, ridge=1e-2, dtype=DOUBLE, kernel=None, weights=None):
    x = points(n, d, dtype=dtype)
    x = x - x.mean(0)
    ridges = torch.full((n,), ridge, dtype=dtype)
    if weights is not None:
        ridges = ridges / weights
    return System(x, kernel or Laplace(3.0), metric("full", d).to(dtype), ridges)


def dense(problem):
    matrix = kernel_matrix(
        problem.points, problem.points, problem.kernel, metric=problem.metric
    )
    return matrix + torch.diag(problem.ridges)
