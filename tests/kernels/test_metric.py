"""Metrics: where machines start, the trace, the root."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels import initial_metric, metric_root, normalised
from normalign.kernels._metric import scaled_update
from tests.kernels.cases import DOUBLE, metric, points


@given(weight=st.floats(0, 1), seed=st.integers(0, 10**6))
def test_the_start_is_covariance_and_identity_blended_to_trace_d(weight, seed):
    x = points(12, 4, seed=seed)
    blend = (1 - weight) * torch.cov(x.T) + weight * torch.eye(4, dtype=DOUBLE)
    found = initial_metric(x, identity_weight=weight)
    assert torch.allclose(found, blend * 4 / blend.trace(), atol=1e-12)
    spread = initial_metric(x, identity_weight=weight, diagonal=True)
    assert torch.allclose(spread, found.diagonal(), atol=1e-12)


def test_weights_are_repetitions():
    x = points(5, 3)
    weights = torch.tensor([1, 3, 2, 1, 5], dtype=DOUBLE)
    repeated = x.repeat_interleave(weights.long(), dim=0)
    found = initial_metric(x, identity_weight=0.3, weights=weights)
    assert torch.allclose(found, initial_metric(repeated, identity_weight=0.3))


def test_weights_that_are_shares_still_blend_the_identity_in():
    x = points(50, 3)
    blended = initial_metric(
        x, identity_weight=0.5, weights=torch.full((50,), 1 / 50, dtype=DOUBLE)
    )
    # twice the covariance: a sum of weights of one is divided by one half
    wanted = torch.cov(x.T, correction=0) + 0.5 * torch.eye(3, dtype=DOUBLE)
    assert torch.allclose(blended, wanted * 3 / wanted.trace())


@pytest.mark.parametrize("x", [torch.ones(1, 3), torch.ones(5, 3)])
@pytest.mark.parametrize("diagonal", [False, True])
def test_without_any_variance_the_start_is_the_identity(x, diagonal):
    found = initial_metric(x, identity_weight=0.0, diagonal=diagonal)
    assert torch.equal(found, torch.ones(3) if diagonal else torch.eye(3))


@pytest.mark.parametrize("weight", [-0.1, 1.1])
def test_a_weight_outside_the_unit_interval_is_refused(weight):
    with pytest.raises(ValueError, match=r"identity_weight must be in \[0, 1\]"):
        initial_metric(torch.ones(2, 2), identity_weight=weight)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_nothing_is_learned_from_squares_that_are_no_numbers(dtype):
    for size in (0.0, torch.finfo(dtype).tiny, math.inf, math.nan):
        assert scaled_update(torch.eye(2, dtype=dtype) * size) is None
    found = scaled_update(torch.diag(torch.tensor([3.0, 1.0], dtype=dtype)))
    assert torch.equal(found, torch.diag(torch.tensor([1.5, 0.5], dtype=dtype)))


@pytest.mark.parametrize(
    ("x", "more", "error", "words"),
    [
        (
            np.ones((3, 2)),
            {},
            TypeError,
            "x must be a floating tensor, got a float64 nd",
        ),
        (
            torch.ones(3, 2).long(),
            {},
            TypeError,
            "x must be a floating tensor, got an int",
        ),
        (torch.ones(3), {}, ValueError, r"x must be of shape \(n, d\)"),
        (
            torch.ones(3, 2),
            {"identity_weight": "a"},
            TypeError,
            "must be a number, got",
        ),
        (
            torch.ones(3, 2),
            {"weights": [1, 1, 1]},
            TypeError,
            "weights must be a float",
        ),
        (
            torch.ones(3, 2),
            {"weights": torch.ones(2)},
            ValueError,
            "weights must be of",
        ),
    ],
)
def test_what_makes_no_start_is_refused_in_the_house_form(x, more, error, words):
    with pytest.raises(error, match=f"^initial_metric: .*{words}"):
        initial_metric(x, **{"identity_weight": 0.5, **more})


@pytest.mark.parametrize("asked", [metric_root, normalised])
def test_what_is_no_metric_is_refused_in_the_house_form(asked):
    form = f"^{asked.__name__}: metric must be"
    with pytest.raises(TypeError, match=f"{form} a floating tensor, got a float64 nd"):
        asked(np.eye(2))
    with pytest.raises(ValueError, match=rf"{form} of shape \(d, d\), or \(d,\)"):
        asked(torch.ones(2, 3))


def test_the_root_squared_is_the_metric():
    seen = metric("full", 5)
    root = metric_root(seen)
    assert torch.allclose(root @ root, seen, atol=1e-13)
    assert torch.allclose(root, root.T, atol=1e-13)


def test_a_metric_without_trace_stays_as_it_is():
    assert torch.equal(normalised(torch.zeros(3, 3)), torch.zeros(3, 3))
