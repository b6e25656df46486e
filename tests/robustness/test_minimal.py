from __future__ import annotations

import pytest
import torch
from torch import nn

from normalign.geometry import local_affine, local_robustness
from normalign.robustness import minimal_radius, pgd
from tests.robustness.test_ascent import affine, network
from tests.robustness.test_routes import machine


def test_two_affine_outputs_break_at_their_local_robustness():
    model, x, y = affine()
    affine_map = local_affine(model, x)
    robust = local_robustness(affine_map.jacobian, affine_map.offset, x, y)
    found = minimal_radius(model, x, y, max_radius=5.0, norm="l2")
    within = robust < 5
    assert within.any()
    # the last bisection's width
    torch.testing.assert_close(found[within], robust[within], rtol=0, atol=5 * 2.0**-20)
    assert found[~within].isinf().all()


def test_in_the_cube_the_distance_is_the_margin_over_the_sum_of_the_gap():
    model, x, y = affine()
    outputs = model(x)
    gap = (model.weight[0] - model.weight[1]).abs().sum()
    expected = (outputs[:, 0] - outputs[:, 1]).abs() / gap
    found = minimal_radius(model, x, y, max_radius=float(expected.max()) + 1)
    assert (found - expected).abs().max() < (float(expected.max()) + 1) * 2.0**-20


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_attack_at_that_radius_succeeds_and_well_below_it_fails(norm):
    model, x, _ = network()
    y = model(x).argmax(1)
    found = minimal_radius(model, x, y, max_radius=4.0, norm=norm)
    finite = found.isfinite()
    assert finite.any()
    settings = {"norm": norm, "loss": "margin", "start": "center", "keep": "best"}
    for i in torch.nonzero(finite)[:, 0].tolist():
        radii = [1.01 * float(found[i]), 0.9 * float(found[i])]
        attack = pgd(model, x[i : i + 1], y[i : i + 1], radii=radii, **settings)
        assert attack.broken[:, 0].tolist() == [True, False]


def test_wrong_samples_have_no_radius_and_unbroken_ones_an_infinite_one():
    def model(z):
        return torch.cat([z, -z], 1)

    x, y = torch.tensor([[-1.0], [3.0]]), torch.tensor([0, 0])
    found = minimal_radius(model, x, y, max_radius=2.0)
    assert found.tolist() == [0.0, float("inf")]


def test_a_kernel_machine_has_radii_too_and_restarts_do_not_raise_them():
    kernel_machine = machine()
    x = torch.randn(8, 4, dtype=torch.float64)
    y = kernel_machine(x).argmax(1)
    settings = {"max_radius": 3.0, "n_bisections": 8}
    once = minimal_radius(kernel_machine, x, y, **settings)
    often = minimal_radius(kernel_machine, x, y, n_restarts=3, chunk_size=3, **settings)
    assert once.isfinite().any()
    # A run from another start can only find more at the largest radius; below it the
    # bisection follows another path, and may end by the width of the last step off.
    assert (often <= once + 3.0 * 2.0**-8).double().mean() >= 0.75


def test_a_point_in_the_legal_range_is_reached():
    model = nn.Linear(1, 2).double().requires_grad_(False)
    model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    model.bias.zero_()
    x, y = torch.tensor([[0.5]]).double(), torch.tensor([0])
    assert minimal_radius(model, x, y, max_radius=2.0, low=0.1).isinf().all()
    free = minimal_radius(model, x, y, max_radius=2.0, low=-1.0)
    assert float(free) == pytest.approx(0.5, abs=2 * 2.0**-20)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf")])
def test_a_largest_radius_is_wanted(bad):
    model, x, y = affine()
    with pytest.raises(ValueError, match="max_radius must be positive and finite"):
        minimal_radius(model, x, y, max_radius=bad)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_radius": "far"}, "max_radius must be a number, got 'far'"),
        ({"n_bisections": 2.5}, "n_bisections must be an integer, got 2.5"),
        ({"n_restarts": True}, "n_restarts must be an integer, got True"),
        ({"generator": 3}, "generator must be a torch.Generator or None, got 3"),
    ],
)
def test_settings_of_another_kind_are_refused(wrong, message):
    model, x, y = affine()
    with pytest.raises(TypeError, match=message):
        minimal_radius(model, x, y, **{"max_radius": 1.0, **wrong})


def test_a_point_that_breaks_nearer_than_its_radius_counts_by_its_distance():
    def sign(z):
        return torch.cat([z, -z], 1)

    # From 0.5 one step of a quarter of the radius 4 ends at -0.5.
    found = minimal_radius(
        sign, torch.tensor([[0.5]]), torch.tensor([0]), max_radius=4.0, n_bisections=0,
        n_steps=1, step_size=0.25,
    )  # fmt: skip
    assert found.tolist() == [1.0]
