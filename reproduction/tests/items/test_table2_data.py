"""The rows of a training fold that choose hyperparameters."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction.items.table2.data import inner_split, table_named

labels = st.lists(st.integers(0, 4), min_size=2, max_size=60).filter(
    lambda some: len(set(some)) < len(some)
)


@given(labels, st.integers(0, 5), st.sampled_from([0.1, 0.25, 0.5, 0.9]))
def test_the_parts_divide_the_rows_and_every_class_keeps_one_to_fit(some, seed, share):
    y = torch.tensor(some)
    fit, validation = inner_split(y, torch.arange(len(y)), seed=seed, share=share)
    assert sorted([*fit.tolist(), *validation.tolist()]) == list(range(len(y)))
    assert len(validation) > 0
    assert set(y[fit].tolist()) == set(some)


@given(st.integers(0, 20), st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_classes_keep_their_shares_to_within_a_row(seed, counts):
    counts[0] += 2
    y = torch.repeat_interleave(torch.tensor(counts))
    _, validation = inner_split(y, torch.arange(len(y)), seed=seed)
    for one, count in enumerate(counts):
        held = int((y[validation] == one).sum())
        assert held <= count - 1
        # Rounded down or up, but for the row that fits and the one that validates.
        assert count / 4 - 1 <= held <= count / 4 + 1


def test_a_split_depends_on_the_rows_and_the_seed_alone():
    y = torch.arange(3).repeat(30)
    rows = torch.arange(10, 80)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first = inner_split(y, rows, seed=1)
    shuffled = rows[torch.randperm(len(rows), generator=torch.Generator())]
    torch.testing.assert_close(inner_split(y, shuffled, seed=1), first)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not torch.equal(inner_split(y, rows, seed=2)[1], first[1])


def test_classes_of_other_rows_are_not_read():
    y, rows = torch.arange(3).repeat(30), torch.arange(60)
    elsewhere = torch.cat([y[:60], torch.full((30,), 7)])
    torch.testing.assert_close(
        inner_split(elsewhere, rows, seed=0), inner_split(y, rows, seed=0)
    )


def test_impossible_splits_are_refused():
    with pytest.raises(ValueError, match="two or more of one class"):
        inner_split(torch.arange(4), torch.arange(4), seed=0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        inner_split(torch.zeros(4), torch.arange(4), seed=0, share=1.0)
    with pytest.raises(ValueError, match="data must be 'uci' or 'bundled'"):
        table_named("iris", "tabarena")
    with pytest.raises(ValueError, match="name must be one of iris"):
        table_named("seeds", "bundled")
