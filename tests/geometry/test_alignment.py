"""Normal alignment, the alignment ratio and centroid alignment."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign import (
    alignment_ratio,
    centroid_alignment,
    normal_alignment,
    power_diagram,
)
from tests.strategies import jacobians_and_inputs, rotation

MEASURES = [normal_alignment, alignment_ratio]


def top_vectors_are_unique(jacobian):
    s = torch.linalg.svdvals(jacobian)
    return s.shape[-1] == 1 or bool((s[..., 1] < 0.99 * s[..., 0]).all())


@given(jacobians_and_inputs())
def test_normal_alignment_is_the_cosine_of_the_svd(pair):
    jacobian, x = pair
    if not top_vectors_are_unique(jacobian):
        return
    top = torch.linalg.svd(jacobian, full_matrices=False)[2][:, 0]
    expected = torch.nn.functional.cosine_similarity(top, x).abs()
    torch.testing.assert_close(
        normal_alignment(jacobian, x), expected, rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("measure", MEASURES)
@given(pair=jacobians_and_inputs())
def test_bounds(measure, pair):
    value = measure(*pair)
    assert bool(((value >= 0) & (value <= 1)).all())


@pytest.mark.parametrize("measure", MEASURES)
@given(pair=jacobians_and_inputs(), log_scale=st.integers(-150, 150))
def test_scale_of_either_argument_does_not_matter(measure, pair, log_scale):
    jacobian, x = pair
    if not top_vectors_are_unique(jacobian):
        return
    expected = measure(jacobian, x)
    scale = 10.0**log_scale
    torch.testing.assert_close(measure(scale * jacobian, x), expected)
    torch.testing.assert_close(measure(jacobian, -scale * x), expected)


@pytest.mark.parametrize("measure", MEASURES)
@given(pair=jacobians_and_inputs(), seed=st.integers(0, 1000))
def test_rotations_of_inputs_and_of_outputs_do_not_matter(measure, pair, seed):
    jacobian, x = pair
    if not top_vectors_are_unique(jacobian):
        return
    turn_in = rotation(jacobian.shape[2], seed)
    turn_out = rotation(jacobian.shape[1], seed + 1)
    turned = measure(turn_out @ jacobian @ turn_in, x @ turn_in)
    torch.testing.assert_close(turned, measure(jacobian, x), rtol=0, atol=1e-8)


@given(jacobians_and_inputs())
def test_order_of_the_samples_is_kept(pair):
    jacobian, x = pair
    flipped = alignment_ratio(jacobian.flip(0), x.flip(0)).flip(0)
    torch.testing.assert_close(flipped, alignment_ratio(jacobian, x))


@given(jacobians_and_inputs())
def test_a_normal_aligned_jacobian_scores_one_on_everything(pair):
    jacobian, x = pair
    c = jacobian[:, :, 0]
    aligned = c.unsqueeze(2) * x.unsqueeze(1)  # Definition 1: J = c x^T
    ones = torch.ones(len(x), dtype=x.dtype)
    torch.testing.assert_close(normal_alignment(aligned, x), ones)
    torch.testing.assert_close(alignment_ratio(aligned, x), ones)
    centroid = power_diagram(aligned, torch.zeros_like(c)).centroid
    sign = c.sum(1).sign()  # Corollary 1, with the sign of 1 . c
    torch.testing.assert_close(centroid_alignment(centroid, x), sign)


@given(jacobians_and_inputs())
def test_the_ratio_is_one_only_when_normal_aligned(pair):
    jacobian, x = pair
    unit = x / x.norm(dim=1, keepdim=True)
    along = (jacobian @ unit.unsqueeze(2)) * unit.unsqueeze(1)
    off = (jacobian - along).flatten(1).norm(dim=1)
    share = 1 - alignment_ratio(jacobian, x).square()
    expected = (off / jacobian.flatten(1).norm(dim=1)).square()
    torch.testing.assert_close(share, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("which", ["jacobian", "input", "both"])
def test_zeros_have_alignment_zero_and_finite_gradients(measure, which):
    jacobian = torch.zeros(2, 3, 4) if which != "input" else torch.ones(2, 3, 4)
    x = torch.zeros(2, 4) if which != "jacobian" else torch.ones(2, 4)
    jacobian.requires_grad_(), x.requires_grad_()
    value = measure(jacobian, x)
    assert torch.equal(value, torch.zeros(2))
    value.sum().backward()
    assert bool(jacobian.grad.isfinite().all())
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 5, 3), (2, 4, 4), (2, 1, 3)])
@pytest.mark.parametrize("measure", MEASURES)
def test_gradients(measure, shape):
    torch.manual_seed(0)
    jacobian = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    x = torch.randn(shape[0], shape[2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(measure, (jacobian, x))


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtype_of_the_caller(measure, dtype):
    torch.manual_seed(0)
    jacobian, x = torch.randn(4, 3, 5).to(dtype), torch.randn(4, 5).to(dtype)
    value = measure(jacobian, x)
    assert value.dtype == dtype
    torch.testing.assert_close(
        value.double(), measure(jacobian.double(), x.double()), rtol=0, atol=1e-2
    )


def test_images_are_flattened_to_match():
    jacobian, x = torch.randn(2, 3, 12), torch.randn(2, 3, 2, 2)
    torch.testing.assert_close(
        normal_alignment(jacobian, x), normal_alignment(jacobian, x.flatten(1))
    )


def test_vmap_gives_the_same():
    jacobian, x = torch.randn(4, 3, 5), torch.randn(4, 5)
    for measure in MEASURES:
        torch.testing.assert_close(
            torch.func.vmap(measure)(jacobian, x), measure(jacobian, x)
        )


@given(jacobians_and_inputs())
def test_centroid_alignment_is_a_signed_cosine(pair):
    jacobian, x = pair
    centroid = jacobian.sum(1)
    expected = torch.nn.functional.cosine_similarity(centroid, x, eps=0)
    torch.testing.assert_close(centroid_alignment(centroid, x), expected)


def test_centroid_alignment_of_zeros_is_zero():
    x = torch.ones(2, 4)
    assert torch.equal(centroid_alignment(torch.zeros(2, 4), x), torch.zeros(2))
    assert torch.equal(centroid_alignment(x, torch.zeros(2, 4)), torch.zeros(2))


def test_complaints():
    jacobian = torch.randn(2, 3, 4)
    with pytest.raises(
        ValueError, match=r"normal_alignment: x must be of shape \(2, 4\)"
    ):
        normal_alignment(jacobian, torch.randn(2, 5))
    with pytest.raises(ValueError, match=r"at least 2-D"):
        alignment_ratio(torch.randn(4), torch.randn(4))
    with pytest.raises(TypeError, match=r"floating point, got an int64 Tensor"):
        normal_alignment(jacobian, torch.ones(2, 4, dtype=torch.long))
    with pytest.raises(TypeError, match=r"x must be a tensor"):
        normal_alignment(jacobian, [1.0])
    with pytest.raises(
        TypeError, match=r"x must be .*, got a float64 ndarray of shape"
    ):
        normal_alignment(jacobian, np.ones((2, 4)))
    with pytest.raises(ValueError, match=r"to match the centroid"):
        centroid_alignment(torch.randn(2, 4), torch.randn(2, 5))


@pytest.mark.parametrize("shape", [(9, 5), (5, 9), (5, 5)])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_zero_jacobian_has_alignment_zero(shape, requires_grad):
    jacobian = torch.zeros(2, *shape, requires_grad=requires_grad)
    assert not normal_alignment(jacobian, torch.ones(2, shape[1])).any()
