"""The two soft ranks of a Jacobian."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign import effective_rank, participation_rank
from tests.strategies import jacobians, rotation

RANKS = [effective_rank, participation_rank]


@given(jacobians())
def test_definitions(jacobian):
    s = torch.linalg.svdvals(jacobian)
    torch.testing.assert_close(
        effective_rank(jacobian), s.square().sum(-1) / s[:, 0].square()
    )
    torch.testing.assert_close(
        participation_rank(jacobian), s.sum(-1).square() / s.square().sum(-1)
    )


@pytest.mark.parametrize("rank", RANKS)
@given(jacobian=jacobians())
def test_bounds(rank, jacobian):
    value = rank(jacobian)
    assert bool((value >= 1 - 1e-12).all())
    assert bool((value <= min(jacobian.shape[1:]) + 1e-9).all())


@given(jacobians())
def test_participation_rank_is_never_below_effective_rank(jacobian):
    assert bool((participation_rank(jacobian) >= effective_rank(jacobian) - 1e-9).all())


@pytest.mark.parametrize("rank", RANKS)
@given(jacobian=jacobians(), log_scale=st.integers(-150, 150), seed=st.integers(0, 99))
def test_scale_rotation_and_transposition_do_not_matter(
    rank, jacobian, log_scale, seed
):
    expected = rank(jacobian)
    turned = rotation(jacobian.shape[1], seed) @ jacobian
    torch.testing.assert_close(rank(10.0**log_scale * turned), expected)
    torch.testing.assert_close(rank(jacobian.mT), expected)


@pytest.mark.parametrize("rank", RANKS)
def test_equal_singular_values_count_as_themselves(rank):
    torch.testing.assert_close(rank(3 * torch.eye(4)), torch.tensor(4.0))


@pytest.mark.parametrize("rank", RANKS)
def test_a_zero_jacobian_has_rank_zero_and_no_gradient(rank):
    jacobian = torch.zeros(2, 3, 4, requires_grad=True)
    value = rank(jacobian)
    assert torch.equal(value, torch.zeros(2))
    value.sum().backward()
    assert bool(jacobian.grad.isfinite().all())


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_gradients(rank, shape):
    torch.manual_seed(0)
    jacobian = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(rank, jacobian)


@pytest.mark.parametrize("rank", RANKS)
def test_half_precision_does_not_overflow(rank):
    jacobian = 1000 * torch.eye(3, dtype=torch.float16)  # its squares exceed 65504
    assert rank(jacobian) == 3
    assert rank(jacobian).dtype == torch.float16


@pytest.mark.parametrize("rank", RANKS)
def test_complaints(rank):
    with pytest.raises(ValueError, match=f"{rank.__name__}: jacobian must be at least"):
        rank(torch.ones(3))
    with pytest.raises(TypeError, match="floating point"):
        rank(torch.ones(3, 3, dtype=torch.int32))
