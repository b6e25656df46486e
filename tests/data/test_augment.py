import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from normalign.data._augment import moved_images


def pictures(*front, size=(1, 7, 7), seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.rand(*front, *size, generator=source, dtype=torch.float64)


def flat(n):
    return torch.zeros(n, dtype=torch.float64)


def resampled(image, angle, right, down):
    """One plane by scipy: rows go down, and the image is black beyond its border."""
    h, w = image.shape
    turn = np.array(
        [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    )  # of (down, right), from what is seen to where it was
    middle = np.array([(h - 1) / 2, (w - 1) / 2])
    move = np.array([h * down, w * right])
    return ndimage.affine_transform(
        image, turn, middle - turn @ (middle + move), order=1, mode="grid-constant"
    )


@settings(max_examples=40, deadline=None)
@given(
    angle=st.floats(-math.pi, math.pi), right=st.floats(-0.6, 0.6),
    down=st.floats(-0.6, 0.6),
    size=st.sampled_from([(1, 7, 7), (2, 6, 9), (1, 11, 4)]),
)  # fmt: skip
def test_every_plane_is_what_bilinear_resampling_makes_of_it(angle, right, down, size):
    images = pictures(2, size=size)
    found = moved_images(
        images,
        angles=torch.full((2,), angle, dtype=torch.float64),
        shifts=torch.tensor([[right, down]] * 2, dtype=torch.float64),
    )
    for image, mine in zip(images, found, strict=True):
        for plane, other in zip(image, mine, strict=True):
            expected = resampled(plane.numpy(), angle, right, down)
            np.testing.assert_allclose(other.numpy(), expected, rtol=0, atol=1e-10)


def test_nothing_moves_an_image_back_to_itself():
    images = pictures(3)
    still = moved_images(images, angles=flat(3), shifts=torch.zeros(3, 2).double())
    torch.testing.assert_close(still, images)


@pytest.mark.parametrize("quarters", [-1, 1, 2])
def test_a_quarter_turn_is_exact_and_counter_clockwise(quarters):
    images = pictures(2)
    angles = torch.full((2,), quarters * math.pi / 2, dtype=torch.float64)
    turned = moved_images(images, angles=angles, shifts=torch.zeros(2, 2).double())
    torch.testing.assert_close(turned, torch.rot90(images, quarters, dims=(-2, -1)))


def test_a_shift_by_whole_pixels_moves_right_and_down():
    images = pictures(1, size=(1, 5, 10))
    shifts = torch.tensor([[0.3, 0.2]], dtype=torch.float64)
    moved = moved_images(images, angles=flat(1), shifts=shifts)
    torch.testing.assert_close(moved[..., 1:, 3:], images[..., :4, :7])
    assert moved[..., 0, :].abs().max() < 1e-12
    assert moved[..., :3].abs().max() < 1e-12


def test_the_background_is_what_lies_beyond_the_border():
    blank = torch.full((1, 1, 6, 6), -0.4, dtype=torch.float64)
    options = {"angles": flat(1) + 0.7, "shifts": torch.full((1, 2), 0.3).double()}
    torch.testing.assert_close(moved_images(blank, fill=-0.4, **options), blank)
    assert moved_images(blank, **options).max() == 0


def test_each_image_of_each_network_is_moved_by_its_own_amount():
    images = pictures(2, 3)
    source = torch.Generator().manual_seed(5)
    angles, shifts = (
        torch.rand(*shape, generator=source, dtype=torch.float64)
        for shape in ((2, 3), (2, 3, 2))
    )
    together = moved_images(images, angles=angles, shifts=shifts)
    for i in range(2):
        for j in range(3):
            alone = moved_images(
                images[i, j][None], angles=angles[i, j][None], shifts=shifts[i, j][None]
            )
            torch.testing.assert_close(alone[0], together[i, j])


def test_shapes_that_do_not_fit_are_refused():
    images = pictures(3)
    with pytest.raises(ValueError, match="angles must be of shape"):
        moved_images(images, angles=flat(2), shifts=torch.zeros(3, 2).double())
    with pytest.raises(ValueError, match="shifts must be of shape"):
        moved_images(images, angles=flat(3), shifts=torch.zeros(3, 1).double())
    with pytest.raises(ValueError, match="images must be of shape"):
        moved_images(images[0], angles=flat(1), shifts=torch.zeros(1, 2).double())
