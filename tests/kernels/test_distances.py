"""The kernel matrix' scale: the median distance."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels import Laplace, median_distance
from tests.kernels.cases import DOUBLE, KERNELS, metric, points


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_the_median_distance_is_the_median_of_all_pairs(kernel):
    x = points(9, 3)
    seen = metric("full", 3)
    gaps = (x[:, None] - x[None])[torch.triu_indices(9, 9, 1).unbind()]
    if "Product" in repr(kernel):
        spectrum, axes = torch.linalg.eigh(seen)
        gaps = gaps @ (axes * spectrum.sqrt()) @ axes.T
        lengths = gaps.abs().sum(1)
    else:
        lengths = ((gaps @ seen) * gaps).sum(1).sqrt()
    found = median_distance(x, kernel, metric=seen)
    assert found == pytest.approx(float(lengths.median()), rel=1e-12)


def test_weights_of_the_median_are_repetitions():
    x = points(8, 3)
    weights = torch.tensor([1, 2, 3, 1, 1, 4, 1, 2], dtype=DOUBLE)
    repeated = x.repeat_interleave(weights.long(), dim=0)
    found = median_distance(x, Laplace(), weights=weights)
    assert found == pytest.approx(median_distance(repeated, Laplace()), rel=1e-12)


def test_huge_weights_do_not_overflow_the_median():
    x = points(60, 3, dtype=torch.float32)
    found = median_distance(x, Laplace(), weights=torch.full((60,), 1e30))
    assert found == median_distance(x, Laplace())


def test_points_that_coincide_have_median_one():
    assert median_distance(torch.ones(4, 2), Laplace()) == 1.0


def test_the_median_of_many_rows_is_that_of_a_seeded_sample():
    x = points(300, 2)
    first, again = (
        median_distance(
            x, Laplace(), sample=50, generator=torch.Generator().manual_seed(3)
        )
        for _ in range(2)
    )
    assert first == again
    assert first == pytest.approx(median_distance(x, Laplace()), rel=0.3)


@given(
    seed=st.integers(0, 10**6),
    weights=st.lists(st.integers(1, 3), min_size=2, max_size=12),
)
def test_ties_in_the_middle_fall_alike_for_weights_and_for_repetitions(seed, weights):
    x, counts = points(len(weights), 2, seed=seed), torch.tensor(weights)
    weighted = median_distance(x, Laplace(), weights=counts.double())
    repeated = median_distance(x.repeat_interleave(counts, 0), Laplace())
    assert weighted == pytest.approx(repeated, rel=1e-9)


def test_a_default_device_has_no_part_in_a_sample():
    x = points(1200, 2)
    wanted = median_distance(x, Laplace())
    with torch.device("meta"):
        assert median_distance(x, Laplace()) == wanted
