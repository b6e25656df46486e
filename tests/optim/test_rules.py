"""Each filter does what was published, to the last digits, in any optimizer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from normalign.optim import Grokfast, GrokfastWindow, OrthoGrad
from tests.optim.rules import (
    FILTERS,
    OPTIMIZERS,
    RULES,
    naive_ema,
    naive_window,
    network,
    same_weights,
    train,
    train_naively,
)

# Twenty steps of float64 arithmetic in another order, on weights of size 1.
CLOSE = {"atol": 1e-12, "rtol": 1e-12}


def normal(shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def filtered(make, gradients, weights=None):
    """What a filter makes of a sequence of gradients of one weight that stays."""
    start = torch.zeros_like(gradients[0]) if weights is None else weights
    weight = nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([weight], lr=0.0)
    make(optimizer)
    results = []
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
        results.append(weight.grad.clone())
    return results


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", FILTERS)
def test_twenty_steps_follow_the_published_rule(kind, optimizer):
    ours, naive = network(), network()
    own = OPTIMIZERS[optimizer](ours.parameters())
    FILTERS[kind](own)
    train(ours, own, range(20))
    train_naively(
        naive, OPTIMIZERS[optimizer](naive.parameters()), range(20), RULES[kind]()
    )
    same_weights(ours, naive, **CLOSE)


@pytest.mark.parametrize("kind", FILTERS)
def test_a_filter_changes_the_course_of_training(kind):
    ours, plain = network(), network()
    own = OPTIMIZERS["AdamW"](ours.parameters())
    FILTERS[kind](own)
    train(ours, own, range(20))
    train(plain, OPTIMIZERS["AdamW"](plain.parameters()), range(20))
    assert float((ours[0].weight - plain[0].weight).detach().abs().max()) > 1e-4


@given(st.integers(0, 10**6), st.floats(0, 0.999), st.floats(0, 10), st.integers(1, 12))
def test_the_average_follows_its_recurrence(seed, decay, strength, steps):
    gradients = list(normal((steps, 3, 2), seed))
    rule = naive_ema(decay, strength)
    for ours, gradient in zip(
        filtered(lambda o: Grokfast(o, decay=decay, strength=strength), gradients),
        gradients,
        strict=True,
    ):
        # Strengths of up to 10 leave a dozen roundings of numbers of size 40.
        torch.testing.assert_close(ours, rule(0, None, gradient), atol=1e-12, rtol=0)


@given(st.integers(0, 10**6), st.integers(1, 7), st.booleans())
def test_the_window_is_the_mean_of_the_last_gradients(seed, window, warmup):
    gradients = list(normal((3 * window + 2, 3), seed))
    rule = naive_window(window, 3.0, warmup)
    for ours, gradient in zip(
        filtered(
            lambda o: GrokfastWindow(o, window=window, strength=3.0, warmup=warmup),
            gradients,
        ),
        gradients,
        strict=True,
    ):
        torch.testing.assert_close(ours, rule(0, None, gradient), **CLOSE)


def test_a_huge_gradient_leaves_no_rounding_behind_in_the_window():
    # A running sum that subtracts what leaves would keep 1e20 * 2^-53 for good.
    gradients = [torch.tensor([value]) for value in (1e20, 1.0, 1.0, 1.0, 1.0)]
    last = filtered(lambda o: GrokfastWindow(o, window=3, strength=1.0), gradients)
    assert [float(g) for g in last[-2:]] == [2.0, 2.0]


def test_an_infinite_gradient_leaves_the_window():
    gradients = [torch.tensor([value]) for value in (1.0, float("inf"), *[1.0] * 6)]
    last = filtered(lambda o: GrokfastWindow(o, window=3, strength=1.0), gradients)
    assert [bool(g.isfinite()) for g in last] == [True] + [False] * 3 + [True] * 4
    assert float(last[-1]) == 2.0


@given(st.integers(0, 10**6), st.floats(0, 8, width=16), st.floats(0, 0.99))
def test_a_constant_gradient_grows_by_the_strength(seed, strength, decay):
    gradient = normal((4,), seed)
    for result in filtered(
        lambda o: Grokfast(o, decay=decay, strength=strength), [gradient] * 5
    ):
        # One product and one sum.
        torch.testing.assert_close(
            result, (1 + strength) * gradient, atol=0, rtol=1e-15
        )


@given(st.integers(0, 10**6))
def test_strength_zero_is_the_identity(seed):
    gradients = list(normal((6, 4), seed))
    for make in (
        lambda o: Grokfast(o, strength=0.0),
        lambda o: GrokfastWindow(o, window=2, strength=0.0),
    ):
        for ours, gradient in zip(filtered(make, gradients), gradients, strict=True):
            assert torch.equal(ours, gradient)


@pytest.mark.parametrize("rescale", [False, True])
@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from([(2,), (3, 4), (2, 3, 2, 2)]),
    log_sizes=st.tuples(st.integers(-6, 6), st.integers(-6, 6)),
)
def test_the_projected_gradient_is_orthogonal_to_the_weights(
    rescale, seed, shape, log_sizes
):
    weight = 10.0 ** log_sizes[0] * normal(shape, seed)
    gradient = 10.0 ** log_sizes[1] * normal(shape, seed + 1)
    (result,) = filtered(lambda o: OrthoGrad(o, rescale=rescale), [gradient], weight)
    # The rounding left after projecting is relative to the gradient's own norm, and
    # rescaling enlarges it as much as the norm.
    parallel = float((weight * result).sum().abs() / (weight.norm() * gradient.norm()))
    unscaled = gradient - (weight * gradient).sum() / weight.square().sum() * weight
    grown = float(gradient.norm() / unscaled.norm()) if rescale else 1.0
    assert parallel <= 1e-14 * grown
    if rescale:
        torch.testing.assert_close(result.norm(), gradient.norm())
    else:
        assert float(result.norm()) <= float(gradient.norm()) * (1 + 1e-12)


@given(st.integers(0, 10**6))
def test_projecting_twice_is_projecting_once(seed):
    weight, gradient = normal((2, 5), seed)
    (once,) = filtered(OrthoGrad, [gradient], weight)
    (twice,) = filtered(OrthoGrad, [once], weight)
    torch.testing.assert_close(once, twice, atol=1e-14 * float(gradient.norm()), rtol=0)


def test_zero_weights_let_the_gradient_through():
    gradient = normal((3,), 0)
    for rescale in (False, True):
        (result,) = filtered(lambda o, r=rescale: OrthoGrad(o, rescale=r), [gradient])
        torch.testing.assert_close(result, gradient)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rescaling_a_parallel_gradient_gives_zero_and_not_its_rounding(dtype):
    for seed in range(20):
        weight = normal((1,), seed, dtype)
        gradient = normal((1,), seed + 100, dtype)
        (result,) = filtered(lambda o: OrthoGrad(o, rescale=True), [gradient], weight)
        assert float(result) == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_projected_in_single_and_rounded_once(dtype):
    # w.w = 1e-12 is zero in float16, and w.g / w.w = 1e6 is infinite there.
    weight = torch.tensor([1e-6, 0.0], dtype=dtype)
    gradient = torch.tensor([1.0, 2.0], dtype=dtype)
    (result,) = filtered(OrthoGrad, [gradient], weight)
    assert result.dtype == dtype
    torch.testing.assert_close(result, torch.tensor([0.0, 2.0], dtype=dtype))


def test_complex_weights_are_projected_as_pairs_of_real_numbers():
    weight = normal((3, 2), 0).contiguous()
    gradient = normal((3, 2), 1).contiguous()
    as_complex = [torch.view_as_complex(t) for t in (weight, gradient)]
    (ours,) = filtered(OrthoGrad, [as_complex[1]], as_complex[0])
    (real,) = filtered(OrthoGrad, [gradient], weight)
    torch.testing.assert_close(torch.view_as_real(ours), real)


def test_layouts_other_than_the_contiguous_give_the_same_gradients():
    shape = (2, 3, 4, 5)
    plain = [normal(shape, seed) for seed in range(6)]
    last = [g.to(memory_format=torch.channels_last) for g in plain]
    for kind, make in FILTERS.items():
        for one, other in zip(
            filtered(make, plain, plain[0] + 1),
            filtered(make, last, last[0] + 1),
            strict=True,
        ):
            # The sums inside a projection run in another order.
            torch.testing.assert_close(one, other, **CLOSE, msg=kind)
