"""The losses of robust training against double loops, closed forms and each other."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction.robust.objectives import (
    attacked_loss,
    decoupled_kl,
    divergence,
    soft_cross_entropy,
    task_loss,
)
from normalign_reproduction.robust.recipe import Recipe


def logits_of(seed: int, n: int = 5, k: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(n, k, generator=generator, dtype=torch.float64) for _ in range(2)
    ]


def pair_sum(gap: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The double sum as it is written, pair by pair."""
    n, k = gap.shape
    total = gap.new_zeros(n)
    for i in range(k):
        for j in range(k):
            square = (gap[:, i] - gap[:, j]) ** 2
            total = total + weights[:, i] * weights[:, j] * square
    return total


@given(st.integers(0, 10**6))
def test_the_divergence_is_torchs_own(seed):
    a, b = logits_of(seed)
    expected = F.kl_div(
        a.log_softmax(1), b.log_softmax(1), reduction="none", log_target=True
    )
    torch.testing.assert_close(divergence(a, b), expected.sum(1))


@given(st.integers(0, 10**6))
def test_the_decoupled_loss_has_the_gradients_of_the_divergence(seed):
    a, b = (t.requires_grad_() for t in logits_of(seed))
    whole = torch.autograd.grad(divergence(a, b).mean(), (a, b))
    parts = torch.autograd.grad(decoupled_kl(a, b), (a, b))
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other)


@given(st.integers(0, 10**6))
def test_with_weights_it_is_the_double_sum_over_pairs(seed):
    a, b = logits_of(seed)
    weights = logits_of(seed + 1)[0].softmax(1)
    squares = pair_sum(b - a, weights).sum()
    products = torch.einsum("ni,nj->", weights, weights)
    soft = -(b.softmax(1) * a.log_softmax(1)).sum(1).mean()
    expected = 20 * 0.25 * squares / products + 4 * soft
    found = decoupled_kl(a, b, weights=weights, soft_weight=4.0, square_weight=20.0)
    torch.testing.assert_close(found, expected)


def test_squares_alone_go_through_both_arguments_and_soft_labels_through_one():
    a, b = (t.requires_grad_() for t in logits_of(3))
    weights = torch.ones_like(a)

    def squares(a, b):
        return decoupled_kl(a, b, weights=weights, soft_weight=0.0)

    assert torch.autograd.gradcheck(squares, (a, b))
    soft = decoupled_kl(a, b, weights=weights, square_weight=0.0)
    slopes = torch.autograd.grad(soft, (a, b))
    assert bool((slopes[1] == 0).all())
    torch.testing.assert_close(slopes[0], (a.softmax(1) - b.softmax(1)).detach() / 5)


def test_a_common_shift_of_logits_changes_nothing():
    a, b = logits_of(4)
    weights = b.softmax(1)
    moved = decoupled_kl(a + 7, b - 3, weights=weights)
    torch.testing.assert_close(moved, decoupled_kl(a, b, weights=weights))


def test_logits_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"decoupled_kl: logits must be of the target"):
        decoupled_kl(torch.zeros(2, 3), torch.zeros(2, 4))


@pytest.mark.parametrize("objective", ["trades", "dkl"])
def test_the_attacker_climbs_the_divergence_up_to_a_constant(objective):
    a, b = logits_of(5)
    y = torch.zeros(5, dtype=torch.int64)
    a.requires_grad_()
    climbed = attacked_loss(Recipe(objective), a, b, y)
    slope = torch.autograd.grad(climbed, a)[0]
    expected = torch.autograd.grad(divergence(a, b).sum(), a)[0]
    torch.testing.assert_close(slope, expected)
    torch.testing.assert_close(climbed, soft_cross_entropy(a, b).sum())


def test_each_objective_is_its_formula():
    a, b = logits_of(6)
    y = torch.tensor([0, 1, 2, 3, 0])
    table = torch.full((4, 4), 0.25, dtype=torch.float64)
    clean = F.cross_entropy(b, y)
    expected = {
        "pgd": F.cross_entropy(a, y),
        "plain": clean,
        "trades": clean + 6 * divergence(a, b).mean(),
        "dkl": clean
        + decoupled_kl(a, b, weights=table[y], soft_weight=4, square_weight=20),
    }
    for objective, value in expected.items():
        found = task_loss(Recipe(objective), a, b, y, table)
        torch.testing.assert_close(found, value)
