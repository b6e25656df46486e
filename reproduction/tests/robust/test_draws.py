import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normalign_reproduction.robust import Recipe
from normalign_reproduction.robust._draws import PADDING, Draws, crop_and_flip

CPU = torch.device("cpu")


def draws(objective="dkl", seed=0):
    return Draws(Recipe(objective), seed=seed, device=CPU)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(
        st.integers(0, 4), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)
    ),
    padding=st.integers(0, 5),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.uint8]),
)
def test_a_crop_is_a_slice_of_the_padded_image(shape, padding, seed, dtype):
    source = torch.Generator().manual_seed(seed)
    images = (255 * torch.rand(shape, generator=source)).to(dtype)
    n, _, h, w = shape
    offsets = torch.randint(0, 2 * padding + 1, (n, 2), generator=source)
    flips = torch.rand(n, generator=source) < 0.5
    found = crop_and_flip(images, offsets, flips, padding=padding)
    assert (found.shape, found.dtype) == (shape, dtype)
    border = np.pad(images.numpy(), [(0, 0), (0, 0), (padding,) * 2, (padding,) * 2])
    for i, (down, right) in enumerate(offsets.tolist()):
        crop = border[i, :, down : down + h, right : right + w]
        expected = crop[:, :, ::-1] if flips[i] else crop
        np.testing.assert_array_equal(found[i].numpy(), expected)


def test_draws_depend_on_seed_and_step_alone():
    x = torch.rand(50, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    one, same, other = draws(seed=1), draws(seed=1), draws(seed=2)
    assert torch.equal(one.images(x, 7), same.images(x, 7))
    assert not torch.equal(one.images(x, 7), one.images(x, 8))
    assert not torch.equal(one.images(x, 7), other.images(x, 7))
    assert sorted(one.order(3, 50).tolist()) == list(range(50))
    assert one.order(3, 50).tolist() != one.order(4, 50).tolist()


def test_all_shifts_and_both_sides_are_equally_likely():
    x = torch.zeros(4000, 1, 20, 20)
    x[:, :, 5, 5] = 1  # a bright pixel in the first quarter, whatever the shift
    moved = draws().images(x, 0)
    rows, columns = moved.sum((1, 3)).argmax(1) - 1, moved.sum((1, 2)).argmax(1)
    flipped = columns >= 10
    columns = torch.where(flipped, 19 - columns, columns) - 1
    # 4000 draws: 444 of each of nine shifts, with a deviation of 20.
    for shifts in (rows, columns):
        assert torch.bincount(shifts).min() > 444 - 5 * 20
        assert set(shifts.tolist()) == set(range(2 * PADDING + 1))
    assert abs(int(flipped.sum()) - 2000) < 5 * 32


def test_attacks_on_the_loss_start_anywhere_in_the_ball_and_others_nearby():
    x = torch.zeros(10, 3, 8, 8)
    wide = draws("pgd").starts(x, 0, 0.5)
    assert 0.45 < float(wide.max()) <= 0.5
    assert -0.5 <= float(wide.min()) < -0.45
    # 1920 draws: the deviation is known to 2 %.
    assert float(draws().starts(x, 0, 0.5).std()) == pytest.approx(0.001, rel=0.1)
