"""Minimisers over balls, by what makes a point optimal, and beside scipy's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.func import grad
from torch.nn.functional import cross_entropy

from normalign.theory import ball_minimizer

DOUBLE = torch.float64


def quadratic(seed, n, k):
    """Convex quadratics, one for each row, as a function and its minimisers."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(n, k, k, generator=generator, dtype=DOUBLE)
    shape = root @ root.mT + 0.1 * torch.eye(k, dtype=DOUBLE)
    middle = torch.randn(n, k, generator=generator, dtype=DOUBLE)

    def function(t):
        away = (t - middle).unsqueeze(-1)
        return (away.mT @ shape @ away).squeeze(-1, -2)

    return function, middle


def entropy(classes):
    return lambda t: cross_entropy(t, classes, reduction="none")


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    radii=st.lists(st.floats(1e-3, 30.0), min_size=1, max_size=4),
    k=st.integers(1, 4),
)
def test_a_minimiser_is_inside_or_its_slope_points_at_the_origin(seed, radii, k):
    radius = torch.tensor(radii, dtype=DOUBLE)
    function, middle = quadratic(seed, len(radii), k)
    found = ball_minimizer(function, radius, n_outputs=k)
    norm = found.norm(dim=-1)
    assert bool((norm <= radius * (1 + 1e-12)).all())
    slack = middle.norm(dim=-1) < radius * (1 - 1e-9)
    torch.testing.assert_close(found[slack], middle[slack], rtol=1e-6, atol=1e-8)
    tight = middle.norm(dim=-1) > radius * (1 + 1e-9)
    slope = grad(lambda t: function(t).sum())(found)
    inward = -(slope * found).sum(-1) / norm
    assert bool((inward[tight] > 0).all())
    across = slope + (inward / norm)[:, None] * found
    assert bool((across.norm(dim=-1) <= 1e-6 * slope.norm(dim=-1))[tight].all())


@pytest.mark.parametrize("radius", [0.3, 2.0, 6.0])
def test_cross_entropy_agrees_with_scipy(radius):
    classes = torch.tensor([1])
    found = ball_minimizer(entropy(classes), torch.tensor([radius]), n_outputs=4)
    other = minimize(
        lambda t: float(entropy(classes)(torch.tensor(t)[None])[0]),
        np.full(4, 1e-3),
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda t: radius**2 - t @ t},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found[0].numpy() == pytest.approx(other.x, abs=1e-4)
    # By symmetry: up for the right class, equally down for the others.
    by_hand = torch.tensor([-1.0, 3.0, -1.0, -1.0], dtype=DOUBLE)
    torch.testing.assert_close(found[0], radius * by_hand / by_hand.norm())


def test_a_ball_without_a_radius_holds_the_origin_alone():
    found = ball_minimizer(quadratic(0, 2, 3)[0], torch.tensor([0.0, 1.0]), n_outputs=3)
    assert not found[0].any()
    assert float(found[1].norm()) == pytest.approx(1.0)


def test_inference_mode_changes_nothing():
    function, _ = quadratic(1, 3, 2)
    radius = torch.tensor([0.1, 0.5, 50.0])
    expected = ball_minimizer(function, radius, n_outputs=2)
    with torch.inference_mode():
        found = ball_minimizer(function, radius.clone(), n_outputs=2)
        assert torch.equal(found, expected)
    assert bool((expected.norm(dim=-1) > 0).all())


@pytest.mark.parametrize("radius", [torch.tensor(1.0), torch.tensor([1.0, -1.0])])
def test_a_radius_is_a_vector_of_lengths(radius):
    with pytest.raises(ValueError, match=r"ball_minimizer: radius must be a vector"):
        ball_minimizer(quadratic(0, 2, 2)[0], radius, n_outputs=2)


def test_there_is_at_least_one_output():
    with pytest.raises(ValueError, match=r"ball_minimizer: n_outputs must be at least"):
        ball_minimizer(lambda t: t.sum(-1), torch.ones(1), n_outputs=0)
