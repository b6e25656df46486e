"""Standardising, alone."""

import pytest
import torch

from normalign.nn import Standardise


def test_each_channel_has_its_own_mean_and_deviation():
    x = torch.rand(2, 2, 3, 3, generator=torch.Generator())
    found = Standardise([0.5, 0.25], [2.0, 4.0])(x)
    assert torch.equal(found[:, 0], (x[:, 0] - 0.5) / 2)
    assert torch.equal(found[:, 1], (x[:, 1] - 0.25) / 4)


@pytest.mark.parametrize(
    ("mean", "std"), [([0.0], [0.0]), ([0.0], [-1.0]), ([0.0], [1.0, 1.0]), ([], [])]
)
def test_what_cannot_standardise_is_refused(mean, std):
    with pytest.raises(ValueError, match=r"^Standardise: std must be"):
        Standardise(mean, std)
