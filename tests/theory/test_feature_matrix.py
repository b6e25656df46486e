"""Proposition feature_matrix_linear_combination, on one exact iteration of an RFM."""

import pytest
import torch

DOUBLE = torch.float64
N, D, BANDWIDTH, RIDGE = 4, 7, 3.0, 1e-2


def iterated(x, y, metric):
    """One pass of Alg. training_kernel_methods; gradients drop their own kink."""
    gaps = x.unsqueeze(1) - x
    squares = torch.einsum("ijd,de,ije->ij", gaps, metric, gaps)
    distances = squares.clamp_min(0).sqrt()
    kernel = torch.exp(-distances / BANDWIDTH)
    dual = torch.linalg.solve(kernel + RIDGE * torch.eye(N, dtype=DOUBLE), y)
    away = torch.where(distances > 0, kernel / distances, 0.0)
    slopes = -torch.einsum("ij,ijd->id", away * dual, gaps @ metric) / BANDWIDTH
    return slopes.T @ slopes / N


@pytest.fixture
def sample():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, D, generator=generator, dtype=DOUBLE)
    y = torch.randn(N, generator=generator, dtype=DOUBLE)
    weights = torch.rand(N, generator=generator, dtype=DOUBLE)
    return x, y, (x.T * weights) @ x


def coefficients(x, metric):
    """The matrix C of M = X^T C X, unique for independent rows, and what is left."""
    inverse = torch.linalg.pinv(x)
    found = inverse.T @ metric @ inverse
    return found, (x.T @ found @ x - metric).norm() / metric.norm()


def test_the_feature_matrix_stays_in_the_span_of_the_samples(sample):
    x, y, metric = sample
    for _ in range(3):
        metric = iterated(x, y, metric)
        found, left = coefficients(x, metric)
        assert left < 1e-10
        assert torch.linalg.eigvalsh((found + found.T) / 2)[0] > -1e-12


def test_the_identity_leads_into_the_span_and_a_general_metric_does_not(sample):
    x, y, _ = sample
    _, left = coefficients(x, iterated(x, y, torch.eye(D, dtype=DOUBLE)))
    # From the identity the gradients are combinations of samples too: M v = v.
    assert left < 1e-10
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(D, D, generator=generator, dtype=DOUBLE)
    _, left = coefficients(x, iterated(x, y, root @ root.T))
    assert left > 1e-2


def test_the_combination_has_cross_terms_that_the_statement_leaves_out(sample):
    """M' = sum_ij c_ij x_i x_j^T; the printed sum of x_i x_i^T alone does not hold."""
    x, y, metric = sample
    found, _ = coefficients(x, iterated(x, y, metric))
    off = found - torch.diag(found.diagonal())
    assert off.norm() > 0.1 * found.norm()
