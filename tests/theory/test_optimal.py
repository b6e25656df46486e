"""Theorem 1, by solving the constrained problem over all of (J, b)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.nn.functional import cross_entropy, one_hot, softplus

from normalign.theory import optimal_coefficients, optimal_jacobian

LOSSES = ["cross_entropy", "squared_error"]


def cross_entropies(logits, y):
    return cross_entropy(logits, y, reduction="none")


def squared_errors(logits, y):
    return (logits - one_hot(y, logits.shape[-1])).square().sum(-1)


def one_against_rest(logits, y):
    """Sum of binary logistic losses: convex, non-negative, smooth."""
    signs = 2 * one_hot(y, logits.shape[-1]) - 1
    return softplus(-signs * logits).sum(-1)


def asymmetric(logits, y):
    """Wrong classes weigh differently: outside the proof's simplifying assumption."""
    weights = torch.arange(1.0, logits.shape[-1] + 1, dtype=logits.dtype)
    signs = 2 * one_hot(y, logits.shape[-1]) - 1
    return (weights * softplus(-signs * logits)).sum(-1)


def huber(logits, y):
    return torch.nn.functional.huber_loss(
        logits, one_hot(y, logits.shape[-1]).to(logits), reduction="none", delta=0.3
    ).sum(-1)


FUNCTIONS = {
    "cross_entropy": cross_entropies,
    "squared_error": squared_errors,
    "one_against_rest": one_against_rest,
    "asymmetric": asymmetric,
    "huber": huber,
}


def solved(function, x, y, budget, k):
    """Minimise over every entry of J and b by sequential quadratic programming."""
    d = len(x)
    generator = np.random.default_rng(0)
    start = generator.normal(size=k * (d + 1))
    start *= 0.5 * np.sqrt(budget) / np.linalg.norm(start)

    def objective(flat):
        joint = torch.tensor(flat.reshape(k, d + 1), requires_grad=True)
        logits = joint[:, :d] @ x + joint[:, d]
        value = function(logits[None], y[None]).sum()
        (slope,) = torch.autograd.grad(value, joint)
        return value.item(), slope.flatten().numpy()

    ball = {
        "type": "ineq",
        "fun": lambda flat: budget - flat @ flat,
        "jac": lambda flat: -2 * flat,
    }
    result = minimize(
        objective, start, jac=True, constraints=[ball], method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-15},
    )  # fmt: skip
    joint = torch.tensor(result.x.reshape(k, d + 1))
    return joint[:, :d], joint[:, d], result.fun


def loss_at(function, aligned, x, y):
    logits = (aligned.jacobian @ x.unsqueeze(-1)).squeeze(-1) + aligned.offset
    return function(logits, y)


@st.composite
def problems(draw, max_budget=4.0):
    k, d = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**20))
    scale = draw(st.floats(0.1, 3.0))
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(1, d, generator=generator, dtype=torch.float64)
    y = torch.randint(k, (1,), generator=generator)
    return x, y, draw(st.floats(0.05, max_budget)), k


@settings(max_examples=20, deadline=None)
@given(problems())
def test_the_solver_lands_on_the_cross_entropy_map(problem):
    x, y, budget, k = problem
    ours = optimal_jacobian(x, y, budget=budget, n_classes=k)
    jacobian, offset, _ = solved(cross_entropies, x[0], y[0], budget, k)
    # SLSQP stops on a flat objective: its points are good to about the square root
    # of the rounding of the loss, and worse where the loss is flat at the solution.
    slope = loss_at(cross_entropies, ours, x, y).item()
    tolerance = 1e-6 / min(1.0, slope)
    assert (ours.jacobian[0] - jacobian).abs().max() < tolerance
    assert (ours.offset[0] - offset).abs().max() < tolerance


@settings(max_examples=20, deadline=None)
@given(problems(max_budget=0.9))
def test_the_solver_lands_on_the_squared_error_map(problem):
    x, y, fraction, k = problem
    budget = fraction / (x.square().sum().item() + 1)  # the constraint binds
    ours = optimal_jacobian(x, y, budget=budget, n_classes=k, loss="squared_error")
    jacobian, offset, _ = solved(squared_errors, x[0], y[0], budget, k)
    assert (ours.jacobian[0] - jacobian).abs().max() < 1e-5
    assert (ours.offset[0] - offset).abs().max() < 1e-5


@settings(max_examples=10, deadline=None)
@given(problems(), st.sampled_from(sorted(FUNCTIONS)))
def test_no_map_inside_the_budget_has_a_smaller_loss(problem, name):
    x, y, budget, k = problem
    loss = name if name in LOSSES else FUNCTIONS[name]
    ours = optimal_jacobian(x, y, budget=budget, n_classes=k, loss=loss)
    value = loss_at(FUNCTIONS[name], ours, x, y).item()
    spent = ours.jacobian.square().sum() + ours.offset.square().sum()
    assert spent <= budget * (1 + 1e-9)
    _, _, least = solved(FUNCTIONS[name], x[0], y[0], budget, k)
    assert value <= least + 1e-8
    generator = torch.Generator().manual_seed(0)
    joint = torch.randn(2000, k, x.shape[1] + 1, generator=generator).double()
    joint *= budget**0.5 / joint.flatten(1).norm(dim=1)[:, None, None]
    logits = joint[..., :-1] @ x[0] + joint[..., -1]
    assert FUNCTIONS[name](logits, y.expand(2000)).min() >= value - 1e-12


@settings(max_examples=10, deadline=None)
@given(problems(), st.sampled_from(LOSSES))
def test_the_closed_forms_agree_with_the_general_routine(problem, name):
    x, y, budget, k = problem
    closed = optimal_jacobian(x, y, budget=budget, n_classes=k, loss=name)
    general = optimal_jacobian(x, y, budget=budget, n_classes=k, loss=FUNCTIONS[name])
    torch.testing.assert_close(general.jacobian, closed.jacobian, atol=1e-7, rtol=1e-6)


@settings(max_examples=10, deadline=None)
@given(problems(), st.sampled_from(sorted(FUNCTIONS)))
def test_the_optimal_jacobian_is_rank_one_and_aligned(problem, name):
    x, y, budget, k = problem
    loss = name if name in LOSSES else FUNCTIONS[name]
    ours = optimal_jacobian(x, y, budget=budget, n_classes=k, loss=loss)
    assert torch.linalg.matrix_rank(ours.jacobian[0]) == 1
    outer = ours.coefficients.unsqueeze(-1) * x.unsqueeze(-2)
    torch.testing.assert_close(ours.jacobian, outer)
    torch.testing.assert_close(ours.offset, ours.coefficients)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_coefficients_depend_on_x_through_its_norm_alone(name):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(
        torch.randn(6, 6, generator=generator, dtype=torch.float64)
    )[0]
    y = torch.tensor([0, 1, 2, 1, 0])
    loss = name if name in LOSSES else FUNCTIONS[name]
    options = {"budget": 0.7, "n_classes": 3, "loss": loss}
    ours = optimal_jacobian(x, y, **options).coefficients
    turned = optimal_jacobian(x @ rotation, y, **options).coefficients
    torch.testing.assert_close(turned, ours, atol=1e-10, rtol=1e-10)


def test_cross_entropy_coefficients_have_the_printed_form():
    """Eq. ci_ce, with gamma = sqrt(budget / k) / |(x, 1)|."""
    for k in (2, 3, 10):
        c = optimal_coefficients(
            torch.tensor([2.0]).double(), torch.tensor([1]), budget=5.0, n_classes=k
        )[0]
        gamma = (5.0 / k / (2.0**2 + 1)) ** 0.5
        expected = torch.full((k,), -gamma / (k - 1) ** 0.5, dtype=torch.float64)
        expected[1] = gamma * (k - 1) ** 0.5
        torch.testing.assert_close(c, expected)
        assert c.norm().item() == pytest.approx((5.0 / 5.0) ** 0.5)


@settings(max_examples=10, deadline=None)
@given(problems(), st.sampled_from(sorted(FUNCTIONS)))
def test_the_optimum_satisfies_the_stationarity_conditions(problem, name):
    """Eqs. kkt_1 to kkt_3, with the sign that the printed system leaves open."""
    x, y, budget, k = problem
    loss = name if name in LOSSES else FUNCTIONS[name]
    ours = optimal_jacobian(x, y, budget=budget, n_classes=k, loss=loss)
    joint = torch.cat([ours.jacobian[0], ours.offset.T], dim=1).requires_grad_()
    reach = torch.cat([x[0], torch.ones(1, dtype=torch.float64)])
    value = FUNCTIONS[name]((joint @ reach)[None], y).sum()
    (slope,) = torch.autograd.grad(value, joint)
    multiplier = -(slope * joint).sum() / (2 * budget)
    spent = joint.square().sum()
    assert multiplier >= -1e-12
    # Complementary slackness: a budget left over needs no multiplier.
    assert multiplier * (budget - spent) < 1e-8
    torch.testing.assert_close(
        slope, -2 * multiplier * joint.detach() * budget / spent.detach(),
        atol=1e-8, rtol=1e-6,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["cross_entropy", "one_against_rest"])
def test_the_corrected_stationary_point_is_the_minimiser_and_the_printed_is_not(name):
    """Eq. non_zero_solution: the betas are the loss's gradient at the solution."""
    function, k, budget = FUNCTIONS[name], 3, 0.8
    x = torch.tensor([[1.5, -0.5]], dtype=torch.float64)
    y = torch.tensor([0])
    reach = (x.square().sum() + 1).sqrt()  # the norm of (x, 1), the proof's x
    c = optimal_jacobian(x, y, budget=budget, n_classes=k, loss=function).coefficients
    logits = (c * reach.square()).requires_grad_()
    (beta,) = torch.autograd.grad(function(logits, y).sum(), logits)
    b1, b2 = beta[0, 0], beta[0, 1]
    root = (b1**2 + (k - 1) * b2**2).sqrt()
    right = torch.stack([-b1, -b2, -b2]) * budget**0.5 / (reach * root)
    torch.testing.assert_close(c[0], right, atol=1e-8, rtol=1e-8)
    flipped = -right * reach.square()  # the sign printed for the true class
    assert function(flipped[None], y) > function(logits, y)
    printed = torch.stack([b1 / reach, -b2 / reach**2, -b2 / reach**2]) / root
    spent = (printed * reach).square().sum() * budget
    assert abs(spent - budget) > 1e-2  # Eq. ansatz_implication_3 fails


def test_a_slack_budget_gives_the_interpolating_map_of_least_norm():
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    y = torch.tensor([1])
    ours = optimal_jacobian(x, y, budget=9.0, n_classes=3, loss="squared_error")
    joint = torch.cat([ours.jacobian[0], ours.offset.T], dim=1)
    augmented = torch.cat([x, torch.ones(1, 1, dtype=torch.float64)], dim=1)
    target = one_hot(y, 3).double()
    least = (torch.linalg.pinv(augmented) @ target).T
    torch.testing.assert_close(joint, least)
    assert joint.square().sum() < 9.0


def test_under_a_slack_budget_other_minimisers_are_not_aligned():
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    y = torch.tensor([1])
    ours = optimal_jacobian(x, y, budget=9.0, n_classes=3, loss="squared_error")
    sideways = torch.tensor([[4.0, -3.0]], dtype=torch.float64) / 5
    other = ours._replace(jacobian=ours.jacobian + torch.ones(1, 3, 1) * sideways)
    spent = other.jacobian.square().sum() + other.offset.square().sum()
    assert spent < 9.0
    assert loss_at(squared_errors, other, x, y) < 1e-20
    assert torch.linalg.matrix_rank(other.jacobian[0]) == 2


@pytest.mark.parametrize("factor", [0.5, 1.0, 1 / 3])
@pytest.mark.parametrize("budget", [0.02, 5.0])
def test_the_squared_error_direction_ignores_the_normalisation(factor, budget):
    norm, y = torch.tensor([1.3]).double(), torch.tensor([2])
    ours = optimal_coefficients(
        norm, y, budget=budget, n_classes=3,
        loss=lambda t, y: factor * squared_errors(t, y),
    )  # fmt: skip
    closed = optimal_coefficients(
        norm, y, budget=budget, n_classes=3, loss="squared_error"
    )
    torch.testing.assert_close(ours, closed, atol=1e-10, rtol=1e-8)


def test_signed_targets_change_the_squared_error_direction():
    """Eq. ci_se is for one-hot targets; with targets v the direction is v."""
    targets = torch.tensor([[-1.0, 1.0, -1.0]]).double()
    ours = optimal_coefficients(
        torch.tensor([1.0]).double(), targets, budget=0.1, n_classes=3,
        loss=lambda t, v: (t - v).square().sum(-1),
    )  # fmt: skip
    torch.testing.assert_close(
        torch.nn.functional.normalize(ours), targets / 3**0.5, atol=1e-9, rtol=1e-9
    )


def test_images_are_flattened_and_dtype_is_kept():
    x = torch.randn(4, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    ours = optimal_jacobian(x, torch.tensor([0, 1, 1, 0]), budget=1.0, n_classes=2)
    assert ours.jacobian.shape == (4, 2, 9)
    assert ours.jacobian.dtype == torch.float32


def test_no_budget_means_the_zero_map():
    for loss in (*LOSSES, cross_entropies):
        ours = optimal_jacobian(
            torch.ones(2, 3), torch.tensor([0, 1]), budget=0.0, n_classes=2, loss=loss
        )
        assert ours.jacobian.abs().sum() == 0


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"budget": -1.0, "n_classes": 2}, ValueError, "budget must be non-negative"),
        ({"budget": 1.0, "n_classes": 1}, ValueError, "n_classes must be at least 2"),
        ({"budget": 1.0, "n_classes": 2, "loss": "l0"}, ValueError, "callable"),
    ],
)
def test_impossible_problems_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        optimal_jacobian(torch.ones(1, 2), torch.tensor([0]), **options)


def test_classes_must_be_integers_in_range():
    with pytest.raises(TypeError, match="integer classes"):
        optimal_jacobian(torch.ones(1, 2), torch.ones(1), budget=1.0, n_classes=2)
    with pytest.raises(ValueError, match=r"y must be in \[0, 2\)"):
        optimal_jacobian(torch.ones(1, 2), torch.tensor([2]), budget=1.0, n_classes=2)
