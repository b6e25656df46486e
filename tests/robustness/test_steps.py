from __future__ import annotations

import math

import pytest

from normalign.robustness import cosine_steps
from normalign.robustness.steps import shares


@pytest.mark.parametrize("n_steps", [1, 2, 7, 100])
def test_cosine_steps_shrink_and_sum_to_the_whole_way(n_steps):
    steps = shares("pgd", cosine_steps(n_steps, total=3.0), n_steps)
    assert math.isclose(sum(steps), 3.0, rel_tol=1e-12)
    assert sorted(steps, reverse=True) == steps
    assert min(steps) > 0


def test_by_default_two_and_a_half_radii_are_divided_among_the_steps():
    assert shares("pgd", None, 20) == [0.125] * 20
    assert shares("pgd", None, 0) == []


def test_a_number_is_the_share_of_every_step():
    assert shares("pgd", 0.1, 3) == [0.1] * 3


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, lambda t: -1.0])
def test_steps_that_are_no_length_are_refused(bad):
    with pytest.raises(ValueError, match="step_size must be finite"):
        shares("pgd", bad, 2)


def test_kinds_are_checked():
    with pytest.raises(TypeError, match="n_steps must be an integer"):
        shares("pgd", None, 2.0)  # pyright: ignore
    with pytest.raises(TypeError, match="step_size must be None, a share"):
        shares("pgd", "long", 2)  # pyright: ignore
    with pytest.raises(ValueError, match="n_steps must be at least 1"):
        cosine_steps(0)
