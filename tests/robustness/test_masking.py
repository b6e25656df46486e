from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from normalign.robustness import cosine_steps, masking_report
from normalign.robustness.masking import radius_of_witnesses
from normalign.robustness.routes import Autograd
from normalign.robustness.target import LocalMap, Target
from tests.robustness.test_routes import machine

RADII = [0.1, 0.3, 1.0]


@pytest.fixture(scope="module")
def trained():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 5, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.requires_grad_(False), x, y


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_honest_network_is_not_flagged(trained, norm):
    model, x, y = trained
    report = masking_report(model, x, y, radii=RADII, norm=norm, surrogate=model)
    assert report.passed, report
    assert all(check.passed for check in report.checks)


def test_large_logits_alone_hide_nothing(trained):
    model, x, y = trained
    assert masking_report(lambda z: 1000 * model(z), x, y, radii=RADII).passed


def test_saturated_probabilities_are_flagged(trained):
    model, x, y = trained
    report = masking_report(
        lambda z: (100 * model(z)).softmax(1), x, y, radii=RADII, surrogate=model
    )
    assert {"gradients", "noise", "reach", "transfer"} <= set(report.failed)


def test_quantised_inputs_are_flagged(trained):
    model, x, y = trained
    report = masking_report(lambda z: model(torch.round(4 * z) / 4), x, y, radii=RADII)
    assert {"gradients", "noise", "reach"} <= set(report.failed)
    assert report["gradients"].worst == 1
    assert report["gradients"].numbers["zero"] == [1.0]


def test_a_loss_that_leads_astray_is_flagged(trained):
    model, x, y = trained

    def lower(outputs, y):  # climbs down
        return -nn.functional.cross_entropy(outputs, y, reduction="none")

    report = masking_report(model, x, y, radii=RADII, loss=lower)
    assert {"noise", "loss", "reach"} <= set(report.failed)
    assert "Attack with loss='margin'." in repr(report)


def test_too_few_steps_are_seen(trained):
    model, x, y = trained
    report = masking_report(
        model, x, y, radii=RADII, n_steps=1, step_size=0.2, start="center"
    )
    assert "converged" in report.failed
    success = report["converged"].numbers["success at 0.3"]
    assert success == sorted(success)


def test_steps_that_overshoot_are_seen():
    # Broken in a thin shell: the radius at which steps land in it breaks, no other.
    def shell(z):
        lead = (z.abs() - 0.5).abs() - 0.05
        return torch.cat([lead, -lead], 1)

    x, y = torch.full((8, 1), 0.01), torch.zeros(8, dtype=torch.long)
    report = masking_report(
        shell, x, y, radii=[0.5, 2.0], n_steps=1, step_size=1.0, start="center"
    )
    assert "radius" in report.failed
    assert report["radius"].numbers["success"] == [1.0, 0.0]
    assert "steps" in report.failed


def test_a_schedule_goes_the_same_way_in_more_steps(trained):
    model, x, y = trained
    report = masking_report(model, x, y, radii=[0.3], step_size=cosine_steps(20))
    assert report["steps"].passed
    assert report["converged"].passed


def test_a_kernel_machine_can_be_asked():
    x = torch.randn(30, 4, dtype=torch.float64)
    report = masking_report(machine(), x, machine()(x).argmax(1), radii=RADII)
    assert report["gradients"].passed
    assert len(report.checks) == 7


def test_what_cannot_be_asked_has_no_verdict(trained):
    model, x, _ = trained
    one = model(x).argmax(1)[:1].expand(3)
    report = masking_report(model, x[:1].expand(3, -1), one, radii=0.1)
    assert report["radius"].passed is None
    assert report["reach"].passed is None
    wrong = masking_report(model, x[:1], (one[:1] + 1) % 3, radii=0.1)
    assert wrong["noise"].passed is None
    assert "no sample is right" in wrong["noise"].finding


def test_the_radius_of_witnesses_reaches_the_nearest_other_answer():
    x, y = torch.tensor([[0.0], [1.0], [4.0]]), torch.tensor([0, 0, 1])
    local_map = LocalMap(lambda z: torch.cat([2 - z, z - 2], 1))
    target = Target.of("t", None, local_map, x, y, loss="margin", chunk_size=None)
    assert isinstance(target.route, Autograd)
    assert radius_of_witnesses(target, "linf") == 4.0


def test_a_report_is_the_same_every_time_and_spares_the_generator(trained):
    model, x, y = trained
    generator = torch.Generator().manual_seed(5)
    state = generator.get_state()
    first, second = (
        masking_report(model, x, y, radii=RADII, generator=generator) for _ in range(2)
    )
    assert repr(first) == repr(second)
    assert torch.equal(generator.get_state(), state)


def test_a_frame_has_a_row_for_each_check(trained):
    pytest.importorskip("pandas")
    model, x, y = trained
    report = masking_report(model, x[:10], y[:10], radii=[0.1, 0.2])
    assert report.to_frame()["name"].tolist() == [c.name for c in report.checks]


def test_a_tolerance_is_a_share(trained):
    model, x, y = trained
    with pytest.raises(ValueError, match=r"tolerance must be in \[0, 1\)"):
        masking_report(model, x, y, radii=0.1, tolerance=1.5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_checked_as_well(trained, dtype):
    model, x, y = trained
    half = copy.deepcopy(model).to(dtype)
    report = masking_report(half, x.to(dtype), y, radii=[0.3, 1.0])
    assert report["reach"].passed is not None


def test_the_radius_of_witnesses_is_not_too_short_far_from_the_origin():
    # A product of tables would lose the distance of 1 beside squares of 1e8.
    x = torch.tensor([[1e4, 0.0], [1e4, 1.0]])
    y = torch.tensor([0, 1])
    target = Target.of(
        "test", None, LocalMap(lambda z: torch.stack([0.5 - z[:, 1], z[:, 1] - 0.5], 1),
        callee="test"), x, y, loss="margin", chunk_size=None,
    )  # fmt: skip
    assert radius_of_witnesses(target, "l2") == 1.0


def test_a_tolerance_that_is_no_number_is_refused(trained):
    model, x, y = trained
    with pytest.raises(TypeError, match="tolerance must be a number, got 'low'"):
        masking_report(model, x, y, radii=1.0, tolerance="low")


def test_a_sample_that_breaks_at_one_smaller_radius_alone_speaks_against():
    # Wrong in a shell from 1 to 2 only; one long step from the center lands at r.
    def shell(z):
        out = (z[:, :1] - 1) * (z[:, :1] - 2)
        return torch.cat([out, -out], 1)

    report = masking_report(
        shell, torch.tensor([[0.0]]), torch.tensor([0]), radii=[0.5, 1.5, 2.5],
        start="center", n_steps=1, step_size=1.0,
    )  # fmt: skip
    assert report.attack.broken[:, 0].tolist() == [False, True, False]
    assert "radius" in report.failed
