"""The motion of centroids, against real steps of gradient descent."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, jvp
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from normalign.geometry import local_affine, power_diagram
from normalign.geometry._ntk import ntk
from normalign.theory import (
    centroid_acceleration,
    centroid_velocity,
    two_layer_centroid,
    two_layer_ntk,
    two_layer_velocity,
)

DOUBLE = torch.float64
H, D, K, N = 12, 5, 3, 8


def weights(seed, h=H, d=D, k=K, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    w1 = torch.randn(h, d, generator=generator, dtype=DOUBLE) / d**0.5
    w2 = torch.randn(k, h, generator=generator, dtype=DOUBLE) / h**0.5
    return scale * w1, scale * w2


def data(seed, n=N, d=D, k=K):
    generator = torch.Generator().manual_seed(seed + 1000)
    x = torch.randn(n, d, generator=generator, dtype=DOUBLE)
    return x, torch.randint(k, (n,), generator=generator)


def network(w1, w2):
    model = nn.Sequential(
        nn.Linear(w1.shape[1], len(w1), bias=False), nn.ReLU(),
        nn.Linear(w2.shape[1], len(w2), bias=False),
    ).double()  # fmt: skip
    with torch.no_grad():
        model[0].weight.copy_(w1)
        model[2].weight.copy_(w2)
    return model


def squared_error(logits, y):
    targets = one_hot(y, logits.shape[1]).to(logits)
    return mse_loss(logits, targets, reduction="none").sum(1)


def entropy(logits, y):
    return cross_entropy(logits, y, reduction="none")


LOSSES = {"squared error": squared_error, "cross-entropy": entropy}


def residual_of(loss, w1, w2, x, y):
    logits = ((x @ w1.T).relu() @ w2.T).requires_grad_()
    (slope,) = torch.autograd.grad(loss(logits, y).sum(), logits)
    return -slope


def stepped(loss, w1, w2, x, y, rate):
    """One full-batch step of torch's own SGD on the mean loss."""
    model = network(w1, w2)
    optimizer = torch.optim.SGD(model.parameters(), lr=abs(rate), maximize=rate < 0)
    loss(model(x), y).mean().backward()
    optimizer.step()
    return model[0].weight.detach(), model[2].weight.detach()


def inner(w1, w2, x):
    return (x * two_layer_centroid(w1, w2, x)).sum(1)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20))
def test_the_centroid_is_that_of_the_network(seed):
    w1, w2 = weights(seed)
    x, _ = data(seed)
    affine = local_affine(network(w1, w2), x)
    expected = power_diagram(affine.jacobian, affine.offset)
    torch.testing.assert_close(two_layer_centroid(w1, w2, x), expected.centroid)
    torch.testing.assert_close(inner(w1, w2, x), affine.output.sum(1))


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_the_velocity_is_that_of_a_gradient_descent_step(name, seed):
    loss, (w1, w2), (x, y) = LOSSES[name], weights(seed), data(seed)
    others, _ = data(seed + 1)
    rate = 1e-6
    ahead = stepped(loss, w1, w2, x, y, rate)
    behind = stepped(loss, w1, w2, x, y, -rate)
    found = centroid_velocity(w1, w2, others, x, residual_of(loss, w1, w2, x, y))
    # The inner product is quadratic along the step while no unit switches, so the
    # central difference is exact up to rounding, 1e-16 / 1e-6.
    expected = (inner(*ahead, others) - inner(*behind, others)) / (2 * rate)
    switched = ((others @ ahead[0].T > 0) != (others @ behind[0].T > 0)).any(1)
    torch.testing.assert_close(
        found[~switched], expected[~switched], atol=1e-8, rtol=1e-8
    )
    assert switched.double().mean() < 0.5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**20))
def test_the_two_forms_of_the_velocity_agree(seed):
    """Prop. centroid_dynamics_general and Eq. centroid_innerproduct_ntk."""
    (w1, w2), (x, _), (others, _) = weights(seed), data(seed), data(seed + 1)
    generator = torch.Generator().manual_seed(seed)
    residual = torch.randn(N, K, generator=generator, dtype=DOUBLE)
    ones = torch.ones(K, dtype=DOUBLE)
    found = centroid_velocity(w1, w2, others, x, residual)
    kernel = two_layer_ntk(w1, w2, others, x)
    by_kernel = torch.einsum("na,mnab,b->m", residual, kernel, ones) / N
    torch.testing.assert_close(found, by_kernel)
    printed = torch.zeros(len(others), dtype=DOUBLE)
    for j, point in enumerate(others):
        here = torch.diag((w1 @ point > 0).double())
        for sample, m in zip(x, residual, strict=True):
            there = torch.diag((w1 @ sample > 0).double())
            first = w2 @ there @ here @ w2.T * (point @ sample)
            second = (w1 @ point).relu() @ (w1 @ sample).relu()
            bracket = first + second * torch.eye(K, dtype=DOUBLE)
            printed[j] += m @ bracket @ ones / N
    torch.testing.assert_close(found, printed)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**20))
def test_the_closed_form_kernel_is_the_empirical_one(seed):
    (w1, w2), (x, _), (z, _) = weights(seed), data(seed), data(seed + 1, n=3)
    torch.testing.assert_close(
        two_layer_ntk(w1, w2, x, z), ntk(network(w1, w2), x, z), atol=1e-10, rtol=1e-10
    )


@pytest.mark.parametrize("name", LOSSES)
def test_the_weight_velocities_are_the_negative_gradients(name):
    loss, (w1, w2), (x, y) = LOSSES[name], weights(0), data(0)
    model = network(w1, w2)
    loss(model(x), y).mean().backward()
    found = two_layer_velocity(w1, w2, x, residual_of(loss, w1, w2, x, y))
    torch.testing.assert_close(found[0], -model[0].weight.grad)
    torch.testing.assert_close(found[1], -model[2].weight.grad)


def test_under_cross_entropy_only_the_first_layer_moves_the_inner_product():
    (w1, w2), (x, y) = weights(0), data(0)
    residual = residual_of(entropy, w1, w2, x, y)
    _, velocity2 = two_layer_velocity(w1, w2, x, residual)
    torch.testing.assert_close(velocity2.sum(0), torch.zeros(H, dtype=DOUBLE))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**20))
def test_with_constant_residuals_the_acceleration_is_that_of_the_kernel(seed):
    """Theorem centroid_alignment_feature_learning, along an exact gradient flow.

    The loss ``-m . f`` has the constant residual m: memorised for good.
    """
    (w1, w2), (x, _), (others, _) = weights(seed), data(seed), data(seed + 1)
    generator = torch.Generator().manual_seed(seed)
    residual = torch.randn(N, K, generator=generator, dtype=DOUBLE)
    v1, v2 = two_layer_velocity(w1, w2, x, residual)
    rate = 1e-6
    ends = [(w1 + s * rate * v1, w2 + s * rate * v2) for s in (1, -1)]
    change = (
        two_layer_ntk(*ends[0], others, x) - two_layer_ntk(*ends[1], others, x)
    ) / (2 * rate)
    moved = torch.einsum("na,mnab->m", residual, change) / N
    rates = [centroid_velocity(*end, others, x, residual) for end in ends]
    measured = (rates[0] - rates[1]) / (2 * rate)
    points = torch.cat([others, x])
    steady = ((points @ ends[0][0].T > 0) == (points @ ends[1][0].T > 0)).all()
    assume(steady)  # no unit switches within the step
    found = centroid_acceleration(w1, w2, others, x, residual)
    torch.testing.assert_close(found.kernel, measured, atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(found.kernel, moved, atol=1e-7, rtol=1e-7)
    assert torch.equal(found.residual, torch.zeros_like(found.residual))
    # Feature learning: the rate changes, and with it the kernel.
    assert found.kernel.abs().max() > 1e-6
    assert change.abs().max() > 1e-6


@pytest.mark.parametrize("name", LOSSES)
def test_the_acceleration_splits_into_kernel_and_residual(name):
    loss, (w1, w2), (x, y) = LOSSES[name], weights(1), data(1)
    others, _ = data(2)
    residual = residual_of(loss, w1, w2, x, y)
    v1, v2 = two_layer_velocity(w1, w2, x, residual)
    rate = 1e-6
    ends = [(w1 + s * rate * v1, w2 + s * rate * v2) for s in (1, -1)]
    residuals = [residual_of(loss, *end, x, y) for end in ends]
    rates = [
        centroid_velocity(*end, others, x, m)
        for end, m in zip(ends, residuals, strict=True)
    ]
    found = centroid_acceleration(
        w1, w2, others, x, residual,
        residual_velocity=(residuals[0] - residuals[1]) / (2 * rate),
    )  # fmt: skip
    measured = (rates[0] - rates[1]) / (2 * rate)
    torch.testing.assert_close(
        found.kernel + found.residual, measured, atol=1e-7, rtol=1e-7
    )


def linearised_inner(w1, w2, moved, x):
    """Sum of outputs of the network linearised in its weights at the start."""
    model = network(w1, w2)
    start = {"0.weight": w1, "2.weight": w2}
    change = {"0.weight": moved[0] - w1, "2.weight": moved[1] - w2}
    value, tangent = jvp(lambda p: functional_call(model, p, (x,)), (start,), (change,))
    return (value + tangent).sum(1)


def test_with_a_frozen_kernel_and_constant_residuals_the_rate_is_constant():
    """The contrapositive: the linear regime, where the network is its linearisation."""
    (w1, w2), (x, _), (others, _) = weights(3), data(3), data(4)
    residual = torch.randn(N, K, generator=torch.Generator().manual_seed(3)).double()
    v1, v2 = two_layer_velocity(w1, w2, x, residual)
    path = [
        linearised_inner(w1, w2, (w1 + t * v1, w2 + t * v2), others)
        for t in torch.linspace(0, 5, 11, dtype=DOUBLE)
    ]
    rates = torch.stack(path).diff(dim=0) / 0.5
    expected = centroid_velocity(w1, w2, others, x, residual)
    torch.testing.assert_close(rates, expected.expand_as(rates), atol=1e-9, rtol=1e-9)


def memorising_run(scale, steps, rate):
    """Train to memorisation; return the history of weights after it."""
    w1, w2 = weights(5, h=60, scale=scale)
    x, y = data(5, n=6)
    path = []
    for step in range(steps):
        logits = (x @ w1.T).relu() @ w2.T
        residual = one_hot(y, K) - logits.softmax(1)  # of cross-entropy
        v1, v2 = two_layer_velocity(w1, w2, x, residual)
        w1, w2 = w1 + rate * v1, w2 + rate * v2
        if step >= steps // 2:
            path.append((w1, w2, residual))
    return x, y, path


def test_after_memorisation_a_changing_rate_goes_with_a_moving_kernel():
    x, y, path = memorising_run(scale=1.0, steps=150, rate=0.8)
    first, last = path[0], path[-1]
    logits = (x @ first[0].T).relu() @ first[1].T
    assert torch.equal(logits.argmax(1), y)  # memorised before the window begins
    # Hold the residuals at their value: what is left is the kernel's own motion.
    held = first[2]
    before = centroid_velocity(first[0], first[1], x, x, held)
    after = centroid_velocity(last[0], last[1], x, x, held)
    kernel_change = two_layer_ntk(last[0], last[1], x, x) - two_layer_ntk(
        first[0], first[1], x, x
    )
    assert ((after - before).abs() > 1e-3 * before.abs()).any()
    torch.testing.assert_close(
        after - before, torch.einsum("na,mnab->m", held, kernel_change) / len(x)
    )


def test_shapes_that_do_not_fit_are_refused():
    (w1, w2), (x, _) = weights(0), data(0)
    with pytest.raises(ValueError, match=r"w2 must be of shape \(k, 12\)"):
        two_layer_centroid(w1, w1, x)
    with pytest.raises(ValueError, match=r"train_x must be of shape \(n, 5\)"):
        centroid_velocity(w1, w2, x, x[:, :2], x[:, :K])
    with pytest.raises(ValueError, match=r"residual must be of shape \(8, 3\)"):
        centroid_velocity(w1, w2, x, x, x)


def test_inference_mode_changes_no_derivative():
    (w1, w2), (x, _) = weights(0), data(0)
    residual = torch.randn(N, K, dtype=DOUBLE)
    expected = centroid_acceleration(w1, w2, x, x, residual).kernel
    with torch.inference_mode():
        for first in (w1, w1.clone()):
            found = centroid_acceleration(first, w2, x, x, residual).kernel
            assert torch.equal(found, expected)
    assert expected.abs().min() > 0
