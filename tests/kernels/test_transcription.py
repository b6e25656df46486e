"""The oracle itself, against autograd and by hand."""

import math

import pytest
import torch

from tests.kernels import transcription as plain


@pytest.fixture
def table():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64)
    x[7] = x[2]  # a duplicate: the kernel kinks there, too
    return x, torch.randn(12, 3, generator=generator, dtype=torch.float64)


def test_gradients_are_those_of_autograd_without_the_kinks(table):
    x, y = table
    metric, coef = plain.rfm(x, y, n_iter=1, identity_weight=0.3, exact=True)[1]
    for i in range(len(x)):
        away = (x != x[i]).any(1)

        def at(point, away=away):
            f = plain.outputs(point[None], x[away], coef[away], metric, exact=True)
            return f[0]

        expected = torch.autograd.functional.jacobian(at, x[i])
        found = plain.gradients(x, coef, metric, exact=True)[i]
        torch.testing.assert_close(found, expected)


def test_every_metric_has_trace_d_and_the_first_is_the_blend(table):
    x, y = table
    machines = plain.rfm(x, y, n_iter=3, identity_weight=0.25)
    assert [round(m.trace().item(), 9) for m, _ in machines] == [4.0] * 4
    blend = 0.75 * torch.cov(x.T) + 0.25 * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(machines[0][0], blend * (4 / blend.trace()))


def test_two_points_by_hand():
    # k = exp(-10 / 10) between them: (1 + ridge) a - e^-1 a = 1 for targets (1, -1)
    x = torch.tensor([[0.0], [10.0]], dtype=torch.float64)
    y = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    ((_, coef),) = plain.rfm(x, y, ridge=0.5, n_iter=0)
    expected = 1 / (1.5 - math.exp(-1))
    assert coef.flatten().tolist() == pytest.approx([expected, -expected], rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fast_distances_are_close_to_the_exact_ones(table, dtype):
    x = table[0].to(dtype)
    many = torch.cat([x, x + 1, x - 1])  # more than the 25 rows where cdist switches
    metric = plain.initial_metric(many, 1.0)
    fast = plain.distances(many, many, metric)
    exact = plain.distances(many, many, metric, exact=True)
    # the square root of a rounding error of |x|^2
    bound = (torch.finfo(dtype).eps * 40) ** 0.5 * 10
    torch.testing.assert_close(fast, exact, atol=bound, rtol=0)
