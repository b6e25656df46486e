"""Images turned and shifted, each by an amount of its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from normalign._errors import require

__all__ = ["moved_images"]


def moved_images(
    images: Tensor, *, angles: Tensor, shifts: Tensor, fill: float = 0.0
) -> Tensor:
    r"""Return images that were turned about their centre and then shifted.

    .. math:: g(q) = f\big(R_{-\theta}(q - t)\big)

    with bilinear interpolation between pixel centres, and ``fill`` outside of the
    image. Angle 0 and shift 0 give the image back up to rounding. Nothing waits for the
    device.

    Parameters
    ----------
    images : Tensor of shape (..., c, h, w)
    angles : Tensor of shape (...)
        In radians, counter-clockwise as one sees the image, its first row on top.
    shifts : Tensor of shape (..., 2)
        To the right as a share of the width, and down as a share of the height.
    fill : float, default=0

    Returns
    -------
    Tensor of shape (..., c, h, w)

    Raises
    ------
    ValueError
        If the shapes do not fit.

    Examples
    --------
    >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> right = torch.tensor([[0.5, 0.0]])
    >>> moved_images(image, angles=torch.zeros(1), shifts=right)
    tensor([[[[0., 1.],
              [0., 3.]]]])
    """
    callee = "moved_images"
    require(images.ndim >= 4, callee, "images", "of shape (..., c, h, w)", images)
    front, (c, h, w) = images.shape[:-3], images.shape[-3:]
    fits = angles.shape == front
    require(fits, callee, "angles", f"of shape {tuple(front)}", angles)
    fits = shifts.shape == (*front, 2)
    require(fits, callee, "shifts", f"of shape {(*front, 2)}", shifts)
    # Where each pixel comes from, in units of half a width and half a height.
    cos, sin = angles.flatten().cos(), angles.flatten().sin()
    linear = torch.stack([cos, -sin * (h / w), sin * (w / h), cos], dim=1).view(
        -1, 2, 2
    )
    back = linear @ (-2 * shifts.reshape(-1, 2, 1))
    grid = functional.affine_grid(
        torch.cat([linear, back], dim=2), [len(linear), c, h, w], align_corners=False
    )
    flat = images.reshape(-1, c, h, w)
    moved = functional.grid_sample(
        flat if fill == 0 else flat - fill, grid, align_corners=False
    )
    return (moved if fill == 0 else moved + fill).reshape(images.shape)
