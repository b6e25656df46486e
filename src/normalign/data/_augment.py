"""Images turned, shifted, cropped and flipped, each by an amount of its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from normalign._errors import require, require_kind

__all__ = ["cropped_and_flipped", "moved_images"]


def cropped_and_flipped(
    images: Tensor, *, padding: int = 4, offsets: Tensor, flips: Tensor
) -> Tensor:
    r"""Return crops of padded images, of the images' own size, some of them mirrored.

    .. math:: g_{r,q} = f_{r + o_1 - p,\, q' + o_2 - p}, \qquad
        q' = w - 1 - q \text{ if flipped, else } q

    with zero outside of the image. Offset :math:`(p, p)` without a flip gives the image
    back; offsets from 0 to :math:`2p` are the crops of the image with a border of
    :math:`p` pixels, and whole numbers beyond are crops of a wider border. Values are
    picked, not computed, in any dtype, and nothing waits for the device.

    Parameters
    ----------
    images : Tensor of shape (n, c, h, w)
    padding : int, default=4
    offsets : integer Tensor of shape (n, 2)
        Of each crop's first row and first column in the padded image.
    flips : boolean Tensor of shape (n,)
        Which crops are mirrored, left to right.

    Returns
    -------
    Tensor of shape (n, c, h, w)

    Raises
    ------
    TypeError
        If offsets are not whole numbers or flips are not boolean.
    ValueError
        If the shapes do not fit or the padding is negative.

    Examples
    --------
    >>> image, one = torch.tensor([[[[1, 2], [3, 4]]]]), torch.tensor([True])
    >>> low = torch.tensor([[2, 1]])  # a row down, no column
    >>> cropped_and_flipped(image, padding=1, offsets=low, flips=one)
    tensor([[[[4, 3],
              [0, 0]]]])
    """
    callee = "cropped_and_flipped"
    require(images.ndim == 4, callee, "images", "of shape (n, c, h, w)", images)
    n, _, h, w = images.shape
    require(padding >= 0, callee, "padding", "0 or more", padding)
    whole = not (offsets.is_floating_point() or offsets.is_complex())
    require_kind(whole, callee, "offsets", "a tensor of whole numbers", offsets)
    require(offsets.shape == (n, 2), callee, "offsets", f"of shape {(n, 2)}", offsets)
    boolean = flips.dtype == torch.bool
    require_kind(boolean, callee, "flips", "a boolean tensor", flips)
    require(flips.shape == (n,), callee, "flips", f"of shape {(n,)}", flips)
    across = torch.arange(w, device=images.device).expand(n, w)
    across = torch.where(flips[:, None], across.flip(1), across)
    rows = torch.arange(h, device=images.device) + offsets[:, :1].long() - padding
    columns = across + offsets[:, 1:].long() - padding
    inside = _within(rows, h)[:, None, :, None] & _within(columns, w)[:, None, None, :]
    picked = images[
        torch.arange(n, device=images.device)[:, None, None, None],
        torch.arange(images.shape[1], device=images.device)[None, :, None, None],
        rows.clamp(0, h - 1)[:, None, :, None],
        columns.clamp(0, w - 1)[:, None, None, :],
    ]
    return picked.masked_fill(~inside, 0)


def _within(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)


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
