"""Centroids and radii from Jacobians and offsets (Proposition 1)."""

import numpy as np
import pytest
import torch
from hypothesis import given

from normalign import local_affine, power_diagram
from tests.cases import CASES
from tests.strategies import jacobians


@given(jacobians())
def test_definition(jacobian):
    offset = jacobian[:, :, 0]
    diagram = power_diagram(jacobian, offset)
    for J, b, mu, r in zip(jacobian, offset, *diagram, strict=True):
        ones = torch.ones(len(J), dtype=J.dtype)
        torch.testing.assert_close(mu, J.T @ ones)
        torch.testing.assert_close(r, mu @ mu + 2 * b @ ones)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_laguerre_distance_is_the_sum_of_the_outputs(case):
    """|x - mu|^2 - r = |x|^2 - 2 * sum f(x): what the power diagram compares."""
    model, x = case.model(), case.x()
    affine = local_affine(model, x)
    mu, r = power_diagram(affine.jacobian, affine.offset)
    flat = x.flatten(1)
    laguerre = (flat - mu).square().sum(1) - r
    expected = flat.square().sum(1) - 2 * model(x).flatten(1).sum(1)
    torch.testing.assert_close(laguerre, expected)


def test_gradients():
    jacobian = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    offset = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(power_diagram, (jacobian, offset))


def test_complaints():
    with pytest.raises(ValueError, match=r"offset must be of shape \(2, 3\)"):
        power_diagram(torch.ones(2, 3, 4), torch.ones(2, 4))
    with pytest.raises(ValueError, match="at least 2-D"):
        power_diagram(torch.ones(4), torch.ones(()))
    with pytest.raises(TypeError, match="offset must be a tensor"):
        power_diagram(torch.ones(2, 3), [1.0, 2.0])
    with pytest.raises(
        TypeError, match=r"jacobian must be .*, got a float64 ndarray of"
    ):
        power_diagram(np.ones((2, 3)), torch.ones(2))
