from __future__ import annotations

import math

import pytest
import torch

from normalign.robustness import attack_success_rate, pgd


def lead(x):
    """Class 0 where the first input is positive."""
    return torch.stack([x[:, 0], -x[:, 0]], 1)


@pytest.fixture
def attack():
    # right with margins 0.5 and 2, and wrong from the start
    x = torch.tensor([[0.5, 0.0], [2.0, 0.0], [-1.0, 0.0]])
    return pgd(lead, x, torch.tensor([0, 0, 0]), radii=[0.0, 1.0, 3.0])


def test_rates_count_samples(attack):
    assert attack.clean.tolist() == [True, True, False]
    assert attack.accuracy == pytest.approx(2 / 3)
    assert attack.robust_accuracy.tolist() == pytest.approx([2 / 3, 1 / 3, 0.0])
    assert attack.success_rate.tolist() == pytest.approx([0.0, 50.0, 100.0])
    assert len(attack) == 3


def test_the_success_rate_is_relative_to_what_was_right():
    assert attack_success_rate(0.5, 0.4) == pytest.approx(20.0)
    by_radius = attack_success_rate(0.5, torch.tensor([0.5, 0.0]))
    assert by_radius.tolist() == [0.0, 100.0]
    assert math.isnan(attack_success_rate(0.0, 0.0))
    rates = attack_success_rate(torch.tensor([0.5, 0.0]), torch.tensor([0.5, 0.0]))
    assert rates[0] == 0
    assert rates[1].isnan()


def test_a_frame_has_a_row_for_each_radius_and_sample(attack):
    pytest.importorskip("pandas")
    frame = attack.to_frame()
    assert len(frame) == 9
    counts = frame.groupby("radius")["broken"].sum()
    assert counts.tolist() == [1, 2, 3]
    assert (frame["distance"] <= frame["radius"] + 1e-6).all()


def test_the_repr_is_a_small_table(attack):
    lines = repr(attack).splitlines()
    assert lines[0] == "Attack on 3 samples (linf), accuracy 0.6667"
    assert lines[3].split() == ["1", "0.3333", "50%"]
    assert len(lines) == 5


def test_an_attack_on_nothing_has_no_rate():
    attack = pgd(lead, torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), radii=1.0)
    assert attack.points.shape == (1, 0, 2)
    assert math.isnan(attack.accuracy)
    assert attack.success_rate.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_has_a_frame(dtype):
    model, x = torch.nn.Linear(3, 2).to(dtype), torch.randn(4, 3).to(dtype)
    frame = pgd(model, x, torch.zeros(4).long(), radii=[0.5, 1.0]).to_frame()
    assert len(frame) == 8
    # A point is as far as its radius, but for the eight bits of a bfloat16.
    assert (frame["distance"] <= frame["radius"] + 2.0**-6).all()
