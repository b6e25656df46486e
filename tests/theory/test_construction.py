"""Appendix A, and the definition of a sparse dataset."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import jacrev, vmap
from torch.nn.functional import cross_entropy, normalize

from normalign.theory import last_layer_norms, normal_aligned_network

DOUBLE = torch.float64


@st.composite
def samples(draw):
    n, d, k = draw(st.integers(1, 12)), draw(st.integers(2, 8)), draw(st.integers(1, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    x = normalize(torch.randn(n, d, generator=generator, dtype=DOUBLE))
    return x, torch.randn(n, k, generator=generator, dtype=DOUBLE)


def circle(angles):
    return torch.stack([angles.cos(), angles.sin()], dim=1)


@settings(max_examples=50, deadline=None)
@given(samples())
def test_the_network_interpolates_and_is_normal_aligned(sample):
    x, targets = sample
    model = normal_aligned_network(x, targets)
    outputs = model(x)
    torch.testing.assert_close(outputs, targets, atol=1e-12, rtol=1e-9)
    jacobian = vmap(jacrev(model))(x)
    norms = last_layer_norms(x, targets)
    c = normalize(targets) * norms.unsqueeze(-1)
    expected = c.unsqueeze(-1) * x.unsqueeze(1)
    torch.testing.assert_close(jacobian, expected, atol=1e-9, rtol=1e-9)
    # Exactly aligned: each row is a multiple of x in the same floating numbers.
    columns = model[2].weight.T
    assert torch.equal(jacobian, columns.unsqueeze(-1) * x.unsqueeze(1))


@settings(max_examples=30, deadline=None)
@given(samples())
def test_each_unit_is_active_at_its_own_sample_only(sample):
    x, targets = sample
    hidden = normal_aligned_network(x, targets)[0](x)
    assert torch.equal(hidden > 0, torch.eye(len(x), dtype=torch.bool))


@settings(max_examples=30, deadline=None)
@given(samples(), st.data())
def test_one_loss_can_be_changed_and_no_other(sample, data):
    """The definition of a sparse dataset."""
    x, targets = sample
    k = targets.shape[1]
    y = torch.arange(len(x)) % k
    moved = data.draw(st.integers(0, len(x) - 1))
    changed = targets.clone()
    changed[moved] += torch.linspace(1, 2, k, dtype=DOUBLE)

    def losses(values):
        logits = normal_aligned_network(x, values)(x)
        if k == 1:
            return logits.square().squeeze(1)
        return cross_entropy(logits, y, reduction="none")

    before, after = losses(targets), losses(changed)
    others = torch.arange(len(x)) != moved
    assert torch.equal(before[others], after[others])
    assert before[moved] != after[moved]


def test_last_layer_norms_follow_the_closed_form():
    generator = torch.Generator().manual_seed(0)
    x = normalize(torch.randn(9, 4, generator=generator, dtype=DOUBLE))
    targets = torch.randn(9, 3, generator=generator, dtype=DOUBLE)
    inner = x @ x.T
    inner.fill_diagonal_(-torch.inf)
    m = inner.amax(1)
    torch.testing.assert_close(
        last_layer_norms(x, targets), 2 / (1 - m) * targets.norm(dim=1)
    )
    model = normal_aligned_network(x, targets)
    torch.testing.assert_close(
        model[2].weight.norm(dim=0), last_layer_norms(x, targets)
    )
    torch.testing.assert_close(model[0].bias, -(1 + m) / 2)


def test_the_last_layer_grows_as_nested_samples_get_denser():
    angles = 2 * math.pi * torch.arange(64, dtype=DOUBLE) / 64
    previous = None
    for stride in (16, 8, 4, 2, 1):
        x = circle(angles[::stride])
        norms = last_layer_norms(x, torch.ones(len(x), dtype=DOUBLE))
        gap = 2 * math.pi / len(x)
        torch.testing.assert_close(
            norms, torch.full_like(norms, 2 / (1 - math.cos(gap)))
        )
        if previous is not None:
            assert (norms[::2] > previous).all()
        previous = norms


@settings(max_examples=30, deadline=None)
@given(samples())
def test_adding_a_sample_never_lowers_a_norm(sample):
    x, targets = sample
    if len(x) < 2:
        return
    fewer = last_layer_norms(x[:-1], targets[:-1])
    assert (last_layer_norms(x, targets)[:-1] >= fewer).all()


def test_close_neighbours_are_still_separated():
    angles = torch.tensor([0.0, 1e-5, 2.0], dtype=DOUBLE)
    targets = torch.tensor([1.0, -1.0, 5.0], dtype=DOUBLE)
    outputs = normal_aligned_network(circle(angles), targets)(circle(angles))
    # The heights, of 2.5e-11, are known to 1e-16: five digits, that cancel again.
    torch.testing.assert_close(outputs.flatten(), targets, atol=1e-9, rtol=1e-9)


def test_one_sample_is_enough():
    x = torch.tensor([[0.6, 0.8]], dtype=DOUBLE)
    model = normal_aligned_network(x, torch.tensor([[2.0, 3.0]], dtype=DOUBLE))
    torch.testing.assert_close(model(x), torch.tensor([[2.0, 3.0]], dtype=DOUBLE))
    assert model[0].bias.item() == 0.0


def test_the_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    normal_aligned_network(torch.eye(3), torch.ones(3))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (torch.tensor([[1.0, 0.0], [1.0, 0.0]]), r"distinct rows.*unique"),
        (torch.tensor([[2.0, 0.0], [0.0, 1.0]]), r"norm one.*normalize"),
        (torch.ones(2, 1, 1), "shape"),
        (torch.ones(0, 2), "n > 0"),
    ],
)
def test_samples_without_a_construction_are_refused(x, text):
    with pytest.raises(ValueError, match=text):
        normal_aligned_network(x, torch.ones(len(x)))
