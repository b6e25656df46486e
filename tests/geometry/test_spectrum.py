"""The leading singular triple and its derivative."""

import pytest
import torch
from hypothesis import given

from normalign import normal_alignment
from normalign.geometry._spectrum import top_singular
from tests.strategies import jacobians


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_gradient_of_normal_alignment_at_a_jacobian_of_low_rank(shape):
    """Where the derivative of torch's SVD is NaN."""
    torch.manual_seed(0)
    left = torch.randn(shape[0], 2, dtype=torch.float64)
    right = torch.randn(2, shape[1], dtype=torch.float64)
    jacobian = (left @ right).requires_grad_()
    x = torch.randn(shape[1], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda j: normal_alignment(j, x), jacobian)


@given(jacobians())
def test_energy_and_total_are_those_of_the_singular_values(jacobian):
    s = torch.linalg.svdvals(jacobian).square()
    top = top_singular(jacobian)
    torch.testing.assert_close(top.energy, s[:, 0])
    torch.testing.assert_close(top.total, s.sum(1))


@given(jacobians())
def test_the_right_vector_is_a_unit_vector_that_is_stretched_most(jacobian):
    top = top_singular(jacobian)
    length = torch.ones(len(jacobian), dtype=jacobian.dtype)
    torch.testing.assert_close(top.right.norm(dim=1), length)
    stretched = (jacobian @ top.right.unsqueeze(2)).square().sum((1, 2))
    torch.testing.assert_close(stretched, top.energy)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_derivatives_of_energy_and_vector(shape):
    torch.manual_seed(0)
    jacobian = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    sign = top_singular(jacobian.detach()).right[0].sign()

    def energy_and_vector(j):
        top = top_singular(j)
        return top.energy, sign * top.right * top.right[0].sign().detach()

    assert torch.autograd.gradcheck(energy_and_vector, jacobian)


def test_a_zero_jacobian_has_a_zero_vector():
    top = top_singular(torch.zeros(2, 3, 4))
    assert torch.equal(top.right, torch.zeros(2, 4))
    assert torch.equal(top.energy, torch.zeros(2))


@pytest.mark.parametrize("gap", [0.0, 1e-7, 1e-6, 1e-3])
def test_grad_mode_does_not_change_the_vector_near_ties(gap):
    torch.manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(5, 5))[0] for _ in range(2))
    jacobian = u @ torch.diag(torch.tensor([1.0, 1 - gap, 0.3, 0.2, 0.1])) @ v.T
    tracked = top_singular(jacobian.clone().requires_grad_())
    torch.testing.assert_close(tracked.right.detach(), top_singular(jacobian).right)
    tracked.right.sum().backward()


def test_what_is_not_a_number_stays_so():
    jacobian = torch.ones(2, 3, 4)
    jacobian[0, 0, 0] = torch.nan
    value = normal_alignment(jacobian, torch.ones(2, 4))
    assert value[0].isnan()
    assert value[1] == pytest.approx(1)
