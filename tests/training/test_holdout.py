import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.training.holdout import Halves, class_numbers, held_out


def source(seed=0):
    return torch.Generator().manual_seed(seed)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 100),
)
def test_every_class_gives_its_share_and_keeps_a_sample(sizes, fraction, seed):
    classes = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    classes = classes[torch.randperm(len(classes), generator=source(seed))]
    held = held_out(classes, fraction, generator=source(seed))
    counts = [int(held[classes == c].sum()) for c in range(len(sizes))]
    wanted = min(max(1, round(fraction * sum(sizes))), sum(sizes) - len(sizes))
    assert sum(counts) == wanted
    for count, size in zip(counts, sizes, strict=True):
        assert count <= size - 1
        # Rounding moves a share by less than one; more only where others are spent.
        assert count >= min(int(size * wanted / sum(sizes)), size - 1)


def test_a_draw_is_that_of_its_generator():
    classes = torch.arange(60) % 3
    first, again, other = (
        held_out(classes, 0.3, generator=source(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_classes_of_one_sample_are_left_alone():
    assert not held_out(torch.arange(5), 0.5, generator=source()).any()


def test_halves_hold_every_sample_once_with_its_target():
    x, y = torch.arange(10.0)[:, None], torch.arange(10)
    halves = Halves.of(x, y, held_out(y % 2, 0.4, generator=source()))
    assert (len(halves.x_train), len(halves.x_test)) == (6, 4)
    everything = torch.cat([halves.y_train, halves.y_test])
    assert torch.equal(everything.sort().values, y)
    assert torch.equal(halves.x_test[:, 0].long(), halves.y_test)


@pytest.mark.parametrize(
    ("target", "k", "expected"),
    [
        (torch.tensor([2, 0]), 3, [2, 0]),
        (torch.tensor([[0.0, 1.0], [1.0, 0.0]]), 2, [1, 0]),
        (torch.tensor([[-1.0], [1.0]]), 1, [0, 1]),
        (torch.tensor([-1, 1]), 1, [0, 1]),
        (torch.tensor([[0.5, 0.5], [1.0, 0.0]]), 2, None),
        (torch.tensor([[1.0, 0.0]]), 3, None),
        (torch.tensor([0.0, 1.0]), 1, [0, 1]),
        (torch.tensor([[1], [0]]), 1, [1, 0]),
        (torch.tensor([0.0, 1.0, -1.0]), 1, None),
        (torch.tensor([[0, 1], [1, 0]]), 2, [1, 0]),
        (torch.tensor([[0, 1], [1, 1]]), 2, None),
        (torch.tensor([1.5, -2.0]), 1, None),
    ],
)
def test_classes_are_what_an_accuracy_can_count(target, k, expected):
    found = class_numbers(target, k)
    assert (None if found is None else found.tolist()) == expected
