from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from normalign.robustness.losses import LOSSES, aim_at


def outputs_and_labels(k: int = 4, n: int = 12):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(n, k, generator=generator, dtype=torch.float64)
    return outputs, torch.randint(max(k, 2), (n,), generator=generator)


REFERENCES = {
    "cross_entropy": lambda z, y: F.cross_entropy(z, y, reduction="none"),
    "squared_error": lambda z, y: (z - F.one_hot(y, z.shape[1])).square().sum(1),
    "margin": lambda z, y: torch.stack(
        [
            max(row[j] for j in range(len(row)) if j != c) - row[c]
            for row, c in zip(z, y.tolist(), strict=True)
        ]
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_are_those_of_a_plain_transcription(loss):
    outputs, y = outputs_and_labels()
    found = aim_at("pgd", loss, y, outputs).losses(outputs)
    torch.testing.assert_close(found, REFERENCES[loss](outputs, y))


@pytest.mark.parametrize("loss", LOSSES)
def test_slopes_point_where_autograd_does(loss):
    outputs, y = outputs_and_labels()
    slope = aim_at("pgd", loss, y, outputs).slope(outputs)
    leaf = outputs.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(REFERENCES[loss](leaf, y).sum(), leaf)
    torch.testing.assert_close(F.normalize(slope), F.normalize(wanted))


def test_the_slope_of_a_function_is_its_gradient():
    outputs, y = outputs_and_labels()
    aim = aim_at("pgd", REFERENCES["cross_entropy"], y, outputs)
    torch.testing.assert_close(
        aim.slope(outputs), outputs.softmax(1) - F.one_hot(y, 4).double()
    )


def test_cross_entropy_has_a_slope_where_the_softmax_saturates():
    outputs, y = torch.tensor([[500.0, 0.0, -1.0]]), torch.tensor([0])
    aim = aim_at("pgd", "cross_entropy", y, outputs)
    share = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(
        aim.slope(outputs), torch.tensor([[-1.0, share, 1 - share]])
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_one_output_is_the_lead_of_class_one(loss):
    z, bits = torch.tensor([[0.3], [-2.0], [4.0]]), torch.tensor([1, 1, 0])
    signs = 2 * bits - 1
    by_bits, by_signs = (aim_at("pgd", loss, y, z) for y in (bits, signs))
    assert by_bits.right(z).tolist() == [True, False, False]
    torch.testing.assert_close(by_bits.losses(z), by_signs.losses(z))
    expected = {
        "cross_entropy": torch.log1p(torch.exp(-signs * z[:, 0])),
        "squared_error": (z[:, 0] - signs).square(),
        "margin": -signs * z[:, 0],
    }[loss]
    torch.testing.assert_close(by_bits.losses(z), expected)
    leaf = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(by_bits.losses(leaf).sum(), leaf)
    assert torch.equal(by_bits.slope(z).sign(), gradient.sign())


def test_what_is_not_a_number_is_wrong():
    outputs = torch.tensor([[math.nan, 0.0], [1.0, math.nan], [1.0, 0.0]])
    aim = aim_at("pgd", "margin", torch.zeros(3, dtype=torch.long), outputs)
    assert aim.right(outputs).tolist() == [False, False, True]


def test_half_precision_is_not_squared_in_half():
    outputs = torch.full((1, 2), 3e4, dtype=torch.float16)
    aim = aim_at("pgd", "squared_error", torch.tensor([0]), outputs)
    assert torch.isfinite(aim.losses(outputs)).all()
    assert aim.slope(outputs).dtype == torch.float16


def test_labels_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="class indices from 0 to 1, got values"):
        aim_at("pgd", "margin", torch.tensor([2]), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="-1 and 1, or 0 and 1"):
        aim_at("pgd", "margin", torch.tensor([-1, 0]), torch.zeros(2, 1))
    with pytest.raises(TypeError, match="integer dtype"):
        aim_at("pgd", "margin", torch.tensor([0.0]), torch.zeros(1, 2))


def test_a_function_that_reduces_over_rows_is_refused():
    aim = aim_at("pgd", F.cross_entropy, torch.tensor([0]), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="reduction='none'"):
        aim.losses(torch.zeros(1, 2))
