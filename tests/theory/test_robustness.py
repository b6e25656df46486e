"""Theorem 2, by search over admissible affine classifiers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normalign.geometry import local_robustness
from normalign.theory import (
    boundary_perturbation,
    distance_to_boundary,
    most_robust_classifier,
    offset_ratio,
    offset_ratio_bound,
    optimal_jacobian,
    robustness_bound,
)

DOUBLE = torch.float64


def signed_distances(jacobian, offset, x, y):
    """Heights of x over the boundary with each wrong class, as lengths; (n, k-1)."""
    pick = torch.arange(len(y))
    wrong = torch.ones(offset.shape, dtype=torch.bool)
    wrong[pick, y] = False
    rows = (jacobian[pick, y].unsqueeze(1) - jacobian)[wrong].unflatten(0, (len(y), -1))
    gaps = (offset[pick, y].unsqueeze(1) - offset)[wrong].unflatten(0, (len(y), -1))
    return ((rows * x.unsqueeze(1)).sum(-1) + gaps) / rows.norm(dim=-1)


def admissible(shape, x, y, limit, seed, bend=0.0):
    """Random affine classifiers of the paper's class, one per row.

    ``bend`` pulls the rows towards the optimum, so that the search is also close by.
    """
    n, k, d = shape
    generator = torch.Generator().manual_seed(seed)
    jacobian = torch.randn(n, k, d, generator=generator, dtype=DOUBLE)
    pick = torch.arange(n)
    jacobian[pick, y] += bend * x
    lengths = (jacobian[pick, y].unsqueeze(1) - jacobian).norm(dim=-1)
    # With b_y = 0 and b_c = s_c |J_y - J_c|, |s_c| <= limit, the ratio is met.
    share = 2 * torch.rand(n, k, generator=generator, dtype=DOUBLE) - 1
    return jacobian, -limit * share * lengths


@st.composite
def settings_of_the_theorem(draw):
    k, d = draw(st.integers(2, 5)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    x = torch.randn(3, d, generator=generator, dtype=DOUBLE)
    y = torch.randint(k, (3,), generator=generator)
    return x, y, k, draw(st.floats(0, 3))


@settings(max_examples=50, deadline=None)
@given(settings_of_the_theorem())
def test_the_bound_is_attained_by_the_most_robust_classifier(setting):
    x, y, k, limit = setting
    best = most_robust_classifier(x, y, n_classes=k, offset_ratio=limit)
    bound = robustness_bound(x, limit)
    torch.testing.assert_close(
        local_robustness(best.jacobian, best.offset, x, y), bound
    )
    ratio = offset_ratio(best.jacobian, best.offset, y)
    torch.testing.assert_close(ratio, torch.full_like(ratio, limit))
    logits = (best.jacobian @ x.unsqueeze(-1)).squeeze(-1) + best.offset
    assert torch.equal(logits.argmax(-1), y)


@settings(max_examples=25, deadline=None)
@given(settings_of_the_theorem(), st.floats(0, 30), st.integers(0, 2**20))
def test_no_random_admissible_classifier_exceeds_the_bound(setting, bend, seed):
    x, y, k, limit = setting
    n = 4000
    x, y = x[:1].expand(n, -1), y[:1].expand(n)
    jacobian, offset = admissible((n, k, x.shape[1]), x, y, limit, seed, bend)
    assert (offset_ratio(jacobian, offset, y) <= limit + 1e-9).all()
    found = local_robustness(jacobian, offset, x, y)
    # where two rows of a Jacobian nearly agree, their difference has lost digits
    assert (found <= robustness_bound(x, limit) * (1 + 1e-9)).all()


def test_local_robustness_is_the_least_height_over_the_boundaries():
    n, k, d = 500, 4, 3
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    y = torch.arange(n) % k
    jacobian, offset = admissible((n, k, d), x, y, 1.0, seed=2)
    torch.testing.assert_close(
        local_robustness(jacobian, offset, x, y),
        signed_distances(jacobian, offset, x, y).amin(-1).clamp_min(0),
    )


@pytest.mark.parametrize("limit", [0.0, 0.4, 3.0])
def test_hill_climbing_reaches_the_bound_and_stops_there(limit):
    n, k, d = 64, 3, 4
    x = torch.randn(1, d, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    x, y = x.expand(n, -1), torch.ones(n, dtype=torch.long)
    jacobian, _ = admissible((n, k, d), x, y, limit, seed=2)
    share = torch.zeros(n, k, dtype=DOUBLE, requires_grad=True)
    jacobian.requires_grad_()
    climber = torch.optim.Adam([jacobian, share], lr=0.03, maximize=True)
    bound = robustness_bound(x, limit)

    def climbed():
        lengths = (jacobian[:, 1:2] - jacobian).norm(dim=-1)
        return signed_distances(jacobian, -limit * share * lengths, x, y)

    for step in range(1500):
        if step == 1000:
            climber.param_groups[0]["lr"] = 1e-3
        climber.zero_grad()
        distances = climbed()
        assert (distances.amin(-1) <= bound + 1e-9).all()
        distances.amin(-1).sum().backward()
        climber.step()
        with torch.no_grad():
            share.clamp_(-1, 1)
    # A kink at the optimum (all boundaries equally far) limits what Adam resolves.
    assert (climbed().amin(-1) > 0.99 * bound).all()


def test_equality_needs_the_offset_in_proportion_to_the_rows():
    """The printed condition b_y - b_c = lambda holds only for rows at distance one."""
    x, y = torch.tensor([[3.0, 4.0]], dtype=DOUBLE), torch.tensor([0])
    best = most_robust_classifier(x, y, n_classes=2, offset_ratio=0.5)
    gap = best.offset[0, 0] - best.offset[0, 1]
    length = (best.jacobian[0, 0] - best.jacobian[0, 1]).norm()
    torch.testing.assert_close(gap, 0.5 * length)
    assert gap != 0.5


@settings(max_examples=50, deadline=None)
@given(
    settings_of_the_theorem(),
    st.floats(0.1, 10),
    st.sampled_from(["cross_entropy", "squared_error"]),
)
def test_the_map_of_theorem_1_attains_the_bound_of_its_own_ratio_only(
    setting, budget, loss
):
    x, y, k, limit = setting
    ours = optimal_jacobian(x, y, budget=budget, n_classes=k, loss=loss)
    norm = x.norm(dim=-1)
    ratio = offset_ratio(ours.jacobian, ours.offset, y)
    torch.testing.assert_close(ratio, 1 / norm)
    found = local_robustness(ours.jacobian, ours.offset, x, y)
    torch.testing.assert_close(found, norm + 1 / norm)
    torch.testing.assert_close(found, robustness_bound(x, 1 / norm))
    short = robustness_bound(x, limit) - found
    torch.testing.assert_close(short, limit - 1 / norm, atol=1e-9, rtol=1e-9)


def test_without_offset_alignment_alone_attains_the_bound():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, generator=generator, dtype=DOUBLE)
    y = torch.arange(6) % 3
    c = torch.randn(6, 3, generator=generator, dtype=DOUBLE)
    c[torch.arange(6), y] = c.amax(-1) + 1  # any c that leads at y
    jacobian = c.unsqueeze(-1) * x.unsqueeze(1)
    zero = torch.zeros(6, 3, dtype=DOUBLE)
    torch.testing.assert_close(
        local_robustness(jacobian, zero, x, y), robustness_bound(x)
    )


def test_an_offset_may_carry_the_decision_against_the_jacobian():
    """The proof's |alpha| is alpha: here W.x is negative and the map admissible."""
    x, y = torch.tensor([[1.0, 0.0]], dtype=DOUBLE), torch.tensor([0])
    jacobian = torch.tensor([[[-1.0, 0.0], [0.0, 0.0]]], dtype=DOUBLE)
    offset = torch.tensor([[3.0, 0.0]], dtype=DOUBLE)
    assert offset_ratio(jacobian, offset, y).item() == 3.0
    assert local_robustness(jacobian, offset, x, y).item() == 2.0
    assert robustness_bound(x, 3.0).item() == 4.0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 5))
def test_the_distance_is_that_of_the_shortest_step_onto_the_boundary(seed, d):
    generator = torch.Generator().manual_seed(seed)
    weight, x = torch.randn(2, 8, d, generator=generator, dtype=DOUBLE)
    bias = torch.randn(8, generator=generator, dtype=DOUBLE)
    step = boundary_perturbation(weight, bias, x)
    distance = distance_to_boundary(weight, bias, x)
    torch.testing.assert_close(step.norm(dim=-1), distance)
    torch.testing.assert_close(
        (weight * (x + step)).sum(-1) + bias, torch.zeros(8, dtype=DOUBLE)
    )
    # Every other step onto the boundary is the shortest one plus a step along it.
    aside = torch.randn(8, d, generator=generator, dtype=DOUBLE)
    aside -= (aside * weight).sum(-1, True) / weight.square().sum(-1, True) * weight
    assert ((step + aside).norm(dim=-1) >= distance - 1e-12).all()


def test_without_a_boundary_the_distance_is_infinite():
    zero = torch.zeros(2)
    assert distance_to_boundary(zero, torch.tensor(1.0), zero) == torch.inf
    assert distance_to_boundary(zero, torch.tensor(0.0), zero) == 0


def test_offset_ratio_of_equal_rows():
    jacobian = torch.ones(2, 2, 3)
    offset = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    ratio = offset_ratio(jacobian, offset, torch.tensor([0, 0]))
    assert ratio.tolist() == [torch.inf, 0.0]


@settings(max_examples=30, deadline=None)
@given(settings_of_the_theorem(), st.integers(0, 2**20))
def test_a_margin_and_a_small_offset_bound_the_ratio(setting, seed):
    x, _, k, _ = setting
    n = 1000
    generator = torch.Generator().manual_seed(seed)
    x = x[:1].expand(n, -1)
    jacobian = torch.randn(n, k, x.shape[1], generator=generator, dtype=DOUBLE)
    size = 0.3 * torch.rand(n, 1, generator=generator, dtype=DOUBLE)
    offset = size * torch.randn(n, k, generator=generator, dtype=DOUBLE)
    logits = (jacobian * x.unsqueeze(1)).sum(-1) + offset
    leaders = logits.topk(2, dim=-1)
    margin = leaders.values[:, 0] - leaders.values[:, 1]
    y = leaders.indices[:, 0]
    limit = offset_ratio_bound(x, margin, offset.norm(dim=-1))
    assert (offset_ratio(jacobian, offset, y) <= limit * (1 + 1e-12)).all()


def test_the_margin_must_exceed_what_the_offset_can_carry():
    x = torch.ones(1, 4)
    assert offset_ratio_bound(x, 1.0, 1.0).item() == torch.inf
    assert offset_ratio_bound(x, 1.0, 0.0).item() == 0.0


def test_a_zero_jacobian_has_a_margin_of_at_most_root_two_offset_norms():
    """Attained by b = (1, -1) / sqrt(2): the printed bound, B itself, is exceeded."""
    offset = torch.tensor([1.0, -1.0], dtype=DOUBLE) / 2**0.5
    margin = offset[0] - offset[1]
    torch.testing.assert_close(margin, 2**0.5 * offset.norm())
    assert margin > offset.norm()


def test_zero_samples_and_negative_limits_are_refused():
    with pytest.raises(ValueError, match="without zero rows"):
        most_robust_classifier(torch.zeros(1, 2), torch.tensor([0]), n_classes=2)
    with pytest.raises(ValueError, match="offset_ratio must be non-negative"):
        robustness_bound(torch.ones(1, 2), -0.1)
