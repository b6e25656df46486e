from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.robustness.balls import Ball, direction, distance, unit_offsets


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_starts_are_uniform_in_the_ball(norm, d):
    # A share q^d of the volume lies within q of the center; five standard errors.
    x = torch.zeros(20_000, d, dtype=torch.float64)
    length = distance(unit_offsets(x, norm, seeded()), x, norm)
    assert length.max() <= 1
    for q in (0.3, 0.6, 0.9):
        share, expected = (length <= q).double().mean(), q**d
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / 20_000)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_starts_have_no_preferred_direction(norm):
    x = torch.zeros(20_000, 2, 2, dtype=torch.float64)
    offsets = unit_offsets(x, norm, seeded())
    assert offsets.shape == x.shape
    assert offsets.mean(0).abs().max() < 5 / math.sqrt(20_000)


def test_starts_in_half_precision_are_the_rounded_ones_of_single():
    single, half = (
        unit_offsets(torch.zeros(9, 3, dtype=dtype), "l2", seeded())
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert torch.equal(single.bfloat16(), half)


def test_steps_have_length_one_whatever_the_size_of_the_gradient():
    gradient = torch.tensor([[1e-30, 0.0], [1e30, -1e30], [3.0, 4.0]])
    torch.testing.assert_close(direction(gradient, "l2").norm(dim=1), torch.ones(3))
    expected = torch.tensor([[1.0, 0.0], [1.0, -1.0], [1.0, 1.0]])
    assert torch.equal(direction(gradient, "linf"), expected)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_gradient_of_zero_or_no_number_moves_nothing(norm):
    gradient = torch.tensor([[0.0, 0.0], [math.nan, math.nan]])
    assert torch.equal(direction(gradient, norm), torch.zeros(2, 2))


def test_an_infinite_gradient_still_has_a_direction():
    gradient = torch.tensor([[math.inf, 1.0]])
    torch.testing.assert_close(direction(gradient, "l2"), torch.tensor([[1.0, 0.0]]))


@given(st.sampled_from(["linf", "l2"]), st.integers(0, 10**6), st.floats(0, 3))
def test_a_projection_is_legal_and_leaves_legal_points_alone(norm, seed, radius):
    generator = seeded(seed)
    x = torch.rand(6, 4, dtype=torch.float64, generator=generator)
    far = 5 * torch.randn(6, 4, dtype=torch.float64, generator=generator)
    ball, reach = Ball(norm, 0.0, 1.0), torch.full((6, 1), radius, dtype=x.dtype)
    points = ball.project(x + far, x, reach)
    # x + radius is rounded once: to the last place of numbers up to 4
    assert (distance(points, x, norm) <= radius + 1e-15 * 4).all()
    assert points.min() >= 0
    assert points.max() <= 1
    torch.testing.assert_close(
        ball.project(points, x, reach), points, rtol=0, atol=1e-15 * 4
    )


def test_the_projection_onto_a_euclidean_ball_is_the_nearest_point():
    x, far = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    near = Ball("l2").project(far, x, torch.ones(1, 1))
    torch.testing.assert_close(near, torch.tensor([[0.6, 0.8]]))
