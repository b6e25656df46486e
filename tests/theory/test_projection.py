"""The projected penalty, and the probes that estimate Frobenius norms."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normalign.theory import (
    aligned_coefficients,
    factored_energy,
    orthogonal_energy,
    probed_energy,
)

DOUBLE = torch.float64


@st.composite
def maps(draw):
    k, d = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    jacobian = torch.randn(k, d, generator=generator, dtype=DOUBLE)
    return jacobian, torch.randn(d, generator=generator, dtype=DOUBLE)


def signs(d):
    """Every vector of plus and minus one: mean zero and covariance I, exactly."""
    return torch.tensor(list(itertools.product([-1.0, 1.0], repeat=d)), dtype=DOUBLE)


@settings(max_examples=50, deadline=None)
@given(maps())
def test_the_projected_energy_is_the_distance_to_the_nearest_aligned_matrix(pair):
    jacobian, x = pair
    unit = x / x.norm()
    projector = torch.eye(len(x), dtype=DOUBLE) - torch.outer(unit, unit)
    energy = orthogonal_energy(jacobian, x)
    torch.testing.assert_close(
        energy, (jacobian @ projector).square().sum(), atol=1e-12, rtol=1e-9
    )
    # Least squares over c, row by row, without the formula.
    fit = torch.linalg.lstsq(unit.unsqueeze(1), jacobian.T).solution.squeeze(0)
    best = aligned_coefficients(jacobian, x)
    torch.testing.assert_close(best, fit)
    residual = jacobian - torch.outer(best, unit)
    torch.testing.assert_close(energy, residual.square().sum())


@settings(max_examples=50, deadline=None)
@given(maps(), st.integers(0, 2**20))
def test_every_other_coefficient_is_farther(pair, seed):
    jacobian, x = pair
    unit = x / x.norm()
    generator = torch.Generator().manual_seed(seed)
    shift = torch.randn(len(jacobian), generator=generator, dtype=DOUBLE)
    other = aligned_coefficients(jacobian, x) + shift
    distance = (jacobian - torch.outer(other, unit)).square().sum()
    expected = orthogonal_energy(jacobian, x) + shift.square().sum()
    torch.testing.assert_close(distance, expected)


def test_an_aligned_jacobian_has_no_orthogonal_energy():
    c, x = torch.tensor([1.0, -2.0], dtype=DOUBLE), torch.arange(1.0, 6, dtype=DOUBLE)
    assert orthogonal_energy(torch.outer(c, x), x) < 1e-28
    torch.testing.assert_close(aligned_coefficients(torch.outer(c, x), x), c * x.norm())


@settings(max_examples=30, deadline=None)
@given(maps())
def test_the_expected_probe_is_the_frobenius_norm_on_either_side(pair):
    jacobian, _ = pair
    k, d = jacobian.shape
    norm = jacobian.square().sum()
    torch.testing.assert_close(probed_energy(jacobian, signs(d)), norm)
    torch.testing.assert_close(probed_energy(jacobian.T, signs(k)), norm)


@settings(max_examples=30, deadline=None)
@given(maps())
def test_the_expected_projected_probe_is_the_orthogonal_energy(pair):
    jacobian, x = pair
    found = probed_energy(jacobian, signs(len(x)), orthogonal_to=x)
    torch.testing.assert_close(
        found, orthogonal_energy(jacobian, x), atol=1e-12, rtol=1e-9
    )


def test_gaussian_probes_converge_to_the_expectation():
    generator = torch.Generator().manual_seed(0)
    jacobian = torch.randn(3, 10, generator=generator, dtype=DOUBLE)
    probes = torch.randn(40_000, 10, generator=generator, dtype=DOUBLE)
    truth = jacobian.square().sum()
    # Var |Jz|^2 = 2 |J^T J|_F^2; five standard errors.
    error = (2 * (jacobian.T @ jacobian).square().sum() / len(probes)).sqrt()
    assert (probed_energy(jacobian, probes) - truth).abs() < 5 * error


def bias_free_network(seed=0):
    generator = torch.Generator().manual_seed(seed)
    w1 = torch.randn(9, 5, generator=generator, dtype=DOUBLE)
    w2 = torch.randn(3, 9, generator=generator, dtype=DOUBLE)
    x = torch.randn(5, generator=generator, dtype=DOUBLE)
    jacobian = w2 @ ((w1 @ x > 0).double().unsqueeze(1) * w1)
    return (lambda z: (z @ w1.T).relu() @ w2.T), x, jacobian


def test_a_component_orthogonal_to_x_shows_only_under_perturbation():
    """Eq. orthogonal_contribution: f(x) is blind to v u^T, f(x + step) is not."""
    _, x, jacobian = bias_free_network()
    u = torch.linalg.qr(torch.stack([x, torch.ones_like(x)], dim=1))[0][:, 1]
    component = torch.outer(torch.ones(3, dtype=DOUBLE), u)
    bent = jacobian + component
    torch.testing.assert_close(bent @ x, jacobian @ x)
    step = 0.1 * u
    torch.testing.assert_close(
        bent @ (x + step) - jacobian @ (x + step), component @ step
    )
    assert orthogonal_energy(component, x).item() == pytest.approx(3.0)


def test_small_perturbations_see_the_whole_jacobian():
    """R_sigma(x) = E |f(x + e) - f(x)|^2 / sigma^2 is |J|_F^2 inside the tile of x."""
    function, x, jacobian = bias_free_network()
    sigma = 1e-6  # far below the distance of x to its tile's border
    moved = function(x + sigma * signs(5)) - function(x)
    found = moved.square().sum(1).mean() / sigma**2
    # Differences of order 1e-6 of numbers of order 1 keep about nine digits.
    torch.testing.assert_close(found, jacobian.square().sum(), rtol=1e-7, atol=0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_the_factored_energy_bounds_the_nuclear_norm(seed, k, h, d):
    generator = torch.Generator().manual_seed(seed)
    outer = torch.randn(k, h, generator=generator, dtype=DOUBLE)
    inner = torch.randn(h, d, generator=generator, dtype=DOUBLE)
    product = outer @ inner
    nuclear = torch.linalg.svdvals(product).sum()
    assert factored_energy(outer, inner) >= nuclear - 1e-12
    u, s, vh = torch.linalg.svd(product, full_matrices=False)
    balanced = u * s.sqrt(), s.sqrt().unsqueeze(1) * vh
    torch.testing.assert_close(factored_energy(*balanced), nuclear)


def test_the_batch_is_treated_sample_by_sample():
    generator = torch.Generator().manual_seed(0)
    jacobian = torch.randn(4, 2, 3, generator=generator, dtype=DOUBLE)
    x = torch.randn(4, 3, generator=generator, dtype=DOUBLE)
    single = torch.stack(
        [orthogonal_energy(j, p) for j, p in zip(jacobian, x, strict=True)]
    )
    torch.testing.assert_close(orthogonal_energy(jacobian, x), single)


def test_the_energy_is_differentiable():
    generator = torch.Generator().manual_seed(0)
    jacobian = torch.randn(2, 3, generator=generator, dtype=DOUBLE, requires_grad=True)
    x = torch.randn(3, generator=generator, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(orthogonal_energy, (jacobian, x))


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match=r"x must be of shape \(4, 3\)"):
        orthogonal_energy(torch.zeros(4, 2, 3), torch.zeros(4, 1, 3))
