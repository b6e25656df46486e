import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.training import randomness
from normalign.training.randomness import (
    BATCHES,
    PROBES,
    SHUFFLE,
    STARTS,
    normal,
    normal_pairs,
    permutations,
    streams,
    uniform,
)  # fmt: skip

SEEDS = torch.arange(6)


def by_hand(word: int) -> int:
    """The finaliser of splitmix64 on unsigned integers."""
    mask = 2**64 - 1
    word &= mask
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
    return word ^ (word >> 31)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 9), st.integers(0, 10**9))
def test_a_key_is_the_published_hash_of_seed_purpose_and_epoch(seed, purpose, epoch):
    step, mask = 0x9E3779B97F4A7C15, 2**64 - 1
    inner = by_hand(by_hand(seed + step) ^ purpose)
    expected = by_hand(inner + epoch * step)
    key = int(streams(torch.tensor([seed]), purpose, epoch)[0]) & mask
    assert key == expected


def test_draws_do_not_depend_on_the_neighbours():
    together = normal(streams(SEEDS, PROBES, 7), (3, 5), dtype=torch.float64)
    for seed in SEEDS:
        alone = normal(streams(seed[None], PROBES, 7), (3, 5), dtype=torch.float64)
        assert torch.equal(alone[0], together[seed])


def test_seeds_purposes_and_epochs_have_numbers_of_their_own():
    keys = [
        streams(SEEDS, purpose, epoch)
        for purpose in (SHUFFLE, PROBES, BATCHES, STARTS)
        for epoch in range(200)
    ]
    assert len(torch.cat(keys).unique()) == 4 * 200 * len(SEEDS)


def test_every_permutation_of_three_comes_equally_often():
    keys = streams(torch.arange(6000), SHUFFLE, 1)
    code = (permutations(keys, 3) * torch.tensor([9, 3, 1])).sum(1)
    _, counts = code.unique(return_counts=True)
    assert len(counts) == 6
    # Chi-squared with 5 degrees of freedom exceeds 25.7 with probability 1e-4.
    assert (counts - 1000).square().sum() / 1000 < 25.7


@pytest.mark.parametrize("draw", [normal, normal_pairs])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_normal_numbers_have_the_moments_of_the_normal_law(dtype, draw):
    z = draw(streams(torch.arange(4), PROBES, 3), (50_000,), dtype=dtype).double()
    count = z.numel()
    # Standard errors of the mean, the second and the fourth moment; five of them.
    assert abs(z.mean()) < 5 / math.sqrt(count)
    assert abs(z.square().mean() - 1) < 5 * math.sqrt(2 / count)
    assert abs(z.pow(4).mean() - 3) < 5 * math.sqrt(96 / count)
    assert torch.corrcoef(z).fill_diagonal_(0).abs().max() < 5 / math.sqrt(50_000)
    halves = z[:, ::2] * z[:, 1::2]
    assert abs(halves.mean()) < 5 / math.sqrt(halves.numel())


def test_pairs_of_normal_numbers_are_not_correlated():
    z = normal_pairs(streams(torch.arange(4), PROBES, 3), (50_000,), dtype=torch.double)
    first, second = z[:, :25_000], z[:, 25_000:]
    assert abs((first * second).mean()) < 5 / math.sqrt(100_000)
    # Their squares are two independent chi-squared numbers of variance 2.
    squares = (first.square() - 1) * (second.square() - 1)
    assert abs(squares.mean()) < 5 * 2 / math.sqrt(100_000)


def test_pairs_are_the_same_in_whatever_blocks_they_are_drawn(monkeypatch):
    keys = streams(SEEDS, PROBES, 2)
    whole = normal_pairs(keys, (7, 11), dtype=torch.float32)
    monkeypatch.setattr(randomness, "_BLOCK", 24)
    assert torch.equal(normal_pairs(keys, (7, 11), dtype=torch.float32), whole)
    alone = normal_pairs(keys[2:3], (7, 11), dtype=torch.float32)
    assert torch.equal(alone[0], whole[2])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_uniform_numbers_fill_the_interval_evenly(dtype):
    u = uniform(streams(torch.arange(4), BATCHES, 3), (50_000,), dtype=dtype).double()
    assert u.min() >= 0
    assert u.max() < 1
    counts = torch.histc(u, 20, 0, 1)
    expected = u.numel() / 20
    # Chi-squared with 19 degrees of freedom exceeds 50.8 with probability 1e-4.
    assert (counts - expected).square().sum() / expected < 50.8
    assert torch.corrcoef(u).fill_diagonal_(0).abs().max() < 5 / math.sqrt(50_000)


@pytest.mark.parametrize("draw", [normal, normal_pairs, uniform])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_numbers_come_in_the_dtype_asked_for(dtype, draw):
    z = draw(streams(SEEDS, PROBES, 1), (3,), dtype=dtype)
    assert z.dtype == dtype
    assert z.shape == (6, 3)
    assert z.isfinite().all()
