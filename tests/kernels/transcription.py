"""The paper's Algorithm 1 written down plainly: the oracle of the kernel tests.

Laplace kernel, LU solve, the gradients of all outputs at all points in one (n, k, d)
tensor. Any dtype and device; in float64 with ``exact=True`` it is what the fast code
has to equal, and ``benchmarks/rfm.py`` times it as the plain peer.
"""

import torch
from torch import Tensor

EXACT = "donot_use_mm_for_euclid_dist"
FAST = "use_mm_for_euclid_dist_if_necessary"  # what torch.cdist does unasked


def trace_d(metric: Tensor) -> Tensor:
    return metric * (len(metric) / metric.trace())


def initial_metric(x: Tensor, identity_weight: float) -> Tensor:
    """(1 - a) Cov + a I with n - 1 in the covariance, then trace d; a = 1 is RFM."""
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    if identity_weight == 1:
        return identity
    covariance = torch.cov(x.T).reshape(identity.shape)
    return trace_d((1 - identity_weight) * covariance + identity_weight * identity)


def distances(x: Tensor, z: Tensor, metric: Tensor, *, exact: bool = False) -> Tensor:
    values, vectors = torch.linalg.eigh(metric)
    root = vectors * values.clamp_min(0).sqrt()
    return torch.cdist(x @ root, z @ root, compute_mode=EXACT if exact else FAST)


def outputs(
    z: Tensor, x: Tensor, coef: Tensor, metric: Tensor,
    *, bandwidth: float = 10.0, exact: bool = False,
) -> Tensor:  # fmt: skip
    """f(z) of the machine with centers x, shape (m, k)."""
    return torch.exp(-distances(z, x, metric, exact=exact) / bandwidth) @ coef


def gradients(
    x: Tensor, coef: Tensor, metric: Tensor,
    *, bandwidth: float = 10.0, exact: bool = False,
) -> Tensor:  # fmt: skip
    """G_i at every center, shape (n, k, d), without the terms where the kernel kinks.

    G_i = - sum_j coef_j (k(x_i, x_j) / (bandwidth r_ij)) (x_i - x_j)^T M.
    """
    r = distances(x, x, metric, exact=exact).fill_diagonal_(0)
    slope = torch.where(r > 1e-10, torch.exp(-r / bandwidth) / r, 0) / bandwidth
    pairs = (coef[:, :, None] * x[:, None, :]).flatten(1)  # (n, k d)
    towards = (slope @ pairs).unflatten(1, (coef.shape[1], x.shape[1]))
    return (towards - (slope @ coef)[:, :, None] * x[:, None, :]) @ metric


def rfm(
    x: Tensor, y: Tensor,
    *, ridge: float = 1e-3, n_iter: int = 5, identity_weight: float = 1.0,
    bandwidth: float = 10.0, exact: bool = False,
) -> list[tuple[Tensor, Tensor]]:  # fmt: skip
    """(metric, coef) of iterations 0, ..., n_iter; n_iter counts metric updates."""
    metric, machines = initial_metric(x, identity_weight), []
    for index in range(n_iter + 1):
        kernel = torch.exp(-distances(x, x, metric, exact=exact) / bandwidth)
        kernel.diagonal().add_(ridge)
        coef = torch.linalg.solve(kernel, y)
        machines.append((metric, coef))
        if index < n_iter:
            g = gradients(x, coef, metric, bandwidth=bandwidth, exact=exact)
            metric = trace_d(torch.einsum("nkd,nke->de", g, g))
    return machines
