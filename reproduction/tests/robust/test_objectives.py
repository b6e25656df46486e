import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction.robust import Recipe, decoupled_kl, divergence
from normalign_reproduction.robust._objectives import attack_loss, training_loss


def logits_of(seed: int, n: int = 5, k: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(n, k, generator=generator, dtype=torch.float64) for _ in range(2)
    ]


def pair_sum(gap: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The double sum over pairs of classes as it is written."""
    squares = (gap[:, :, None] - gap[:, None]) ** 2
    return (weights[:, :, None] * weights[:, None] * squares).sum()


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
    squares = pair_sum(b - a, weights)
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
    with pytest.raises(ValueError, match="decoupled_kl: logits and target must have"):
        decoupled_kl(torch.zeros(2, 3), torch.zeros(2, 4))


@pytest.mark.parametrize("objective", ["trades", "dkl"])
def test_the_attacker_climbs_the_divergence_up_to_a_constant(objective):
    a, b = logits_of(5)
    a.requires_grad_()
    y = torch.zeros(5, dtype=torch.int64)
    found = torch.autograd.grad(attack_loss(Recipe(objective), a, b, y), a)
    torch.testing.assert_close(found, torch.autograd.grad(divergence(a, b).sum(), a))


def test_each_objective_is_its_formula():
    a, b = logits_of(6)
    y = torch.tensor([0, 1, 2, 3, 0])
    table = torch.full((4, 4), 0.25, dtype=torch.float64)
    clean, attacked = F.cross_entropy(b, y), F.cross_entropy(a, y)
    dkl = decoupled_kl(a, b, weights=table[y], soft_weight=4, square_weight=20)
    for objective, expected in {
        "pgd": attacked,
        "plain": clean,
        "trades": clean + 6 * divergence(a, b).mean(),
        "dkl": clean + dkl,
    }.items():
        found = training_loss(Recipe(objective), a, b, y, table)
        torch.testing.assert_close(found, expected)
    found = attack_loss(Recipe("pgd"), a, b, y)
    torch.testing.assert_close(found, 5 * attacked)
