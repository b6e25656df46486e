"""The memory budget: what one sample costs, and how the batch is cut."""

import torch
from torch import nn

from normalign._linear_map import LocalMap, bytes_per_sample, plan_chunks
from tests.cases import mlp


def test_weights_are_not_counted_as_samples():
    model, x = nn.Sequential(nn.Linear(8, 4096), nn.ReLU()), torch.randn(3, 8)
    saved, largest = bytes_per_sample(LocalMap(model), x)
    activation = 4096 * 4
    assert activation <= saved <= 4 * activation
    assert largest == activation


def test_pieces_cover_the_batch_once():
    plan = plan_chunks(
        LocalMap(mlp()),
        torch.randn(10, 10),
        chunk_size=4,
        memory_budget=None,
        n_vectors=4,
        kept_per_sample=0,
    )
    covered = [i for piece in plan.pieces(10) for i in range(10)[piece]]
    assert covered == list(range(10))


def test_a_larger_budget_takes_more_samples():
    def samples(budget):
        return plan_chunks(
            LocalMap(mlp()),
            torch.randn(10, 10),
            chunk_size="auto",
            memory_budget=budget,
            n_vectors=4,
            kept_per_sample=1000,
        ).samples

    assert samples(1) == 1
    assert 1 < samples(100_000) < samples(1_000_000)


def test_vectors_are_halved_before_the_budget_is_broken():
    plan = plan_chunks(
        LocalMap(nn.Linear(8, 1000)),
        torch.randn(10, 8),
        chunk_size="auto",
        memory_budget=100_000,
        n_vectors=64,
        kept_per_sample=0,
    )
    assert plan.samples == 1
    assert plan.vectors < 64


def test_a_given_number_of_samples_does_not_lift_the_limit_on_vectors():
    wide = nn.Sequential(nn.Linear(8, 2**20), nn.ReLU(), nn.Linear(2**20, 64))
    plan = plan_chunks(
        LocalMap(wide),
        torch.randn(10, 8),
        chunk_size=2,
        memory_budget=None,
        n_vectors=64,
        kept_per_sample=0,
    )
    assert plan.samples == 2
    # two samples of 4 MiB each, and 16 MiB to go through a CPU at once
    assert plan.vectors == 2
