import pytest
import torch
from torch.func import jacrev, vmap

from normalign.nn.kernel_logistic import GaussianKernelLogistic

DOUBLE = torch.float64


def model_and_points(seed=0):
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(7, 4, generator=generator, dtype=DOUBLE)
    model = GaussianKernelLogistic(
        4, 3, 7, gamma=0.3, centers=centers, generator=generator
    )
    return model, torch.randn(5, 4, generator=generator, dtype=DOUBLE)


def test_outputs_are_the_weighted_sum_of_kernels():
    model, x = model_and_points()
    expected = torch.zeros(5, 3, dtype=DOUBLE)
    for i, point in enumerate(x):
        for j, center in enumerate(model.centers):
            value = torch.exp(-0.3 * (point - center).square().sum())
            expected[i] += model.weight[:, j] * value
    torch.testing.assert_close(model(x), expected)


def test_the_closed_form_jacobian_is_that_of_autograd():
    model, x = model_and_points()
    torch.testing.assert_close(model.jacobian(x), vmap(jacrev(model))(x))


def test_the_jacobian_splits_into_an_aligned_part_and_the_centers():
    """Lemma gaussian_jacobian, term by term."""
    model, x = model_and_points()
    share = model.weight * model.features(x).unsqueeze(1)
    aligned = -2 * 0.3 * share.sum(-1, keepdim=True) * x.unsqueeze(1)
    centered = 2 * 0.3 * torch.einsum("nkj,jd->nkd", share, model.centers)
    torch.testing.assert_close(model.jacobian(x), aligned + centered)


def test_centers_along_the_point_make_the_model_normal_aligned_there():
    x = torch.tensor([[1.0, 2.0, 2.0]], dtype=DOUBLE)
    centers = torch.tensor([[0.5], [-1.0], [2.0]], dtype=DOUBLE) * x
    model = GaussianKernelLogistic(3, 2, 3, gamma=0.1, centers=centers)
    jacobian = model.jacobian(x)[0]
    unit = x[0] / 3
    torch.testing.assert_close(jacobian, torch.outer(jacobian @ unit, unit))
    assert torch.linalg.matrix_rank(jacobian) == 1


def test_gradients_reach_weights_and_centers():
    model, x = model_and_points()
    model(x).sum().backward()
    assert model.weight.grad.abs().sum() > 0
    assert model.centers.grad.abs().sum() > 0


def test_the_jacobian_itself_is_differentiable():
    model, x = model_and_points()
    x = x.requires_grad_()
    assert torch.autograd.gradcheck(model.jacobian, (x,))


def test_the_same_generator_gives_the_same_model():
    first = GaussianKernelLogistic(
        4, 3, 7, 0.1, generator=torch.Generator().manual_seed(5)
    )
    second = GaussianKernelLogistic(
        4, 3, 7, 0.1, generator=torch.Generator().manual_seed(5)
    )
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.centers, second.centers)


def test_given_centers_are_copied():
    centers = torch.zeros(7, 4)
    model = GaussianKernelLogistic(4, 3, 7, 0.1, centers=centers)
    with torch.no_grad():
        model.centers.add_(1)
    assert centers.abs().sum() == 0


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="gamma must be positive"):
        GaussianKernelLogistic(4, 3, 7, 0.0)
    with pytest.raises(ValueError, match=r"centers must be of shape \(7, 4\)"):
        GaussianKernelLogistic(4, 3, 7, 0.1, centers=torch.zeros(4, 7))
