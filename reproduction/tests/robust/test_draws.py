import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normalign_reproduction.robust.draws import crop_and_flip


def pictures(*front, size=(1, 7, 7), seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.rand(*front, *size, generator=source, dtype=torch.float64)


def sliced(image, padding, down, right, flip):
    """One image by padding, slicing and mirroring, in numpy."""
    _, h, w = image.shape
    border = np.pad(image.numpy(), [(0, 0), (padding, padding), (padding, padding)])
    crop = border[:, down : down + h, right : right + w]
    return crop[:, :, ::-1] if flip else crop


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    padding=st.integers(0, 5), seed=st.integers(0, 1000),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.uint8]),
)  # fmt: skip
def test_every_crop_is_a_slice_of_the_padded_image(size, padding, seed, dtype):
    source = torch.Generator().manual_seed(seed)
    images = (255 * pictures(4, size=size, seed=seed)).to(dtype)
    offsets = torch.randint(0, 2 * padding + 1, (4, 2), generator=source)
    flips = torch.rand(4, generator=source) < 0.5
    kept = images.clone()
    found = crop_and_flip(images, padding=padding, offsets=offsets, flips=flips)
    assert found.dtype == dtype
    assert torch.equal(images, kept)
    for i, image in enumerate(images):
        down, right = offsets[i].tolist()
        expected = sliced(image, padding, down, right, bool(flips[i]))
        np.testing.assert_array_equal(found[i].numpy(), expected)


def test_the_middle_crop_is_the_image_and_far_ones_are_black():
    images = pictures(2, size=(3, 6, 5))
    still = torch.zeros(2, dtype=torch.bool)
    middle = torch.full((2, 2), 4)
    assert torch.equal(crop_and_flip(images, offsets=middle, flips=still), images)
    far = crop_and_flip(images, offsets=middle + 100, flips=~still)
    assert far.count_nonzero() == 0


def test_crops_of_no_images_and_gradients_through_them():
    none = crop_and_flip(
        torch.zeros(0, 3, 4, 4), offsets=torch.zeros(0, 2, dtype=torch.int64),
        flips=torch.zeros(0, dtype=torch.bool),
    )  # fmt: skip
    assert none.shape == (0, 3, 4, 4)
    images = pictures(2, size=(1, 3, 3)).requires_grad_()
    offsets, flips = torch.tensor([[0, 1], [2, 2]]), torch.tensor([True, False])

    def cropped(x):
        return crop_and_flip(x, padding=1, offsets=offsets, flips=flips)

    assert torch.autograd.gradcheck(cropped, images)


def test_crops_that_cannot_be_meant_are_refused():
    images = pictures(2)
    offsets, flips = torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2) > 0
    with pytest.raises(TypeError, match="offsets must be a tensor of whole numbers"):
        crop_and_flip(images, offsets=offsets.float(), flips=flips)
    with pytest.raises(TypeError, match="flips must be a boolean tensor"):
        crop_and_flip(images, offsets=offsets, flips=offsets[:, 0])
    with pytest.raises(ValueError, match=r"offsets must be of shape \(2, 2\)"):
        crop_and_flip(images, offsets=offsets[:1], flips=flips)
    with pytest.raises(ValueError, match=r"flips must be of shape \(2,\)"):
        crop_and_flip(images, offsets=offsets, flips=flips[:1])
    with pytest.raises(ValueError, match="padding must be 0 or more"):
        crop_and_flip(images, padding=-1, offsets=offsets, flips=flips)
    with pytest.raises(ValueError, match="images must be of shape"):
        crop_and_flip(images[0], offsets=offsets, flips=flips)
