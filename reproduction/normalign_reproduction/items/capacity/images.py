"""Nested, class-balanced subsets of images to train on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from normalign.data import CIFAR10, load_cifar10, locate
from normalign_reproduction.data.digits import digits

__all__ = ["Pictures", "pictures", "round_robin"]

# Per class, the first training images that no validation image is taken from.
_FIRST = {"cifar10": 400, "digits": 200}
_SHAPES = {"cifar10": (3, 32, 32), "digits": (1, 28, 28)}
# Known archives other than the published one, by SHA-256.
_COPIES = {
    "5f793bfbb13825fa84e6d9e834fe76433c2d057782e7d1d8994780c71b53e9c8": (
        "a JPEG-decoded part of CIFAR-10 (12500 train and 2500 test images), not bit "
        "for bit the published ones"
    ),
}


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images in [0, 1] in three parts, the classes in turn in each.

    Parameters
    ----------
    x_train, x_test, x_validation : Tensor of shape (n, c, h, w)
    y_train, y_test, y_validation : Tensor of shape (n,)
    exact : bool
        Whether they are from the published files.
    origin : str
        A description for a report.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    x_validation: Tensor
    y_validation: Tensor
    exact: bool
    origin: str

    def to(self, device: torch.device) -> Pictures:
        """Return the images on a device."""
        tensors = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **tensors)


def round_robin(labels: Tensor, *, count: int, after: int = 0) -> Tensor:
    """Return the first rows of each class, the classes in turn.

    The first ``m`` of them are those of ``count=m``, so subsets are nested.

    Parameters
    ----------
    labels : Tensor of shape (n,)
    count : int
        Number of rows, a multiple of the number of classes.
    after : int
        How many rows of each class are skipped.

    Examples
    --------
    >>> round_robin(torch.tensor([0, 0, 1, 0, 1]), count=4)
    tensor([0, 2, 1, 4])
    """
    classes = labels.unique()
    rows = [(labels == one).nonzero().flatten()[after:] for one in classes]
    most = min(len(part) for part in rows) * len(classes)
    if count % len(classes) or count > most:
        raise ValueError(
            f"round_robin: count must be a multiple of the {len(classes)} classes and "
            f"at most {most}, after {after} of each class, got {count}."
        )
    each = count // len(classes)
    return torch.stack([part[:each] for part in rows], dim=1).flatten()


@cache
def pictures(
    images: str,
    data: str,
    *,
    n_train: int,
    n_test: int,
    n_validation: int = 0,
    pooled: int = 1,
) -> Pictures:
    """Return the images of a run; the same call returns the same tensors.

    Training images are the first of each class. Validation images are the training
    images of each class after its first 400 (of the digits, 200).

    Parameters
    ----------
    images : {"cifar10", "digits"}
    data : str
        Which digits: ``"mnist"`` or ``"digits_5000"``.
    n_train, n_test, n_validation : int
        Multiples of ten.
    pooled : int
        Side of the squares of pixels that are averaged: 2 makes 14 x 14 of 28 x 28.
    """
    if images not in _FIRST:
        raise ValueError(
            f"pictures: images must be 'cifar10' or 'digits', got {images!r}."
        )
    first = _FIRST[images]
    if n_validation and n_train > 10 * first:
        raise ValueError(
            f"pictures: n_train must be at most {10 * first} if there are validation "
            f"images, got {n_train}."
        )
    if images == "cifar10":
        wanted = max(n_train, 10 * first + n_validation if n_validation else 0)
        whole = load_cifar10(n_train=wanted, n_test=n_test, subset="balanced")
        origin = "CIFAR-10" if whole.exact else _describe_copy(whole.origin)
    else:
        # All digits, so that a subset of one size is nested in those of others.
        whole = digits(data, n_train=4000, n_test=1000, normalise=False)
        origin = whole.origin
    parts: list[Tensor] = []
    for x, y, count, after in (
        (whole.x_train, whole.y_train, n_train, 0),
        (whole.x_test, whole.y_test, n_test, 0),
        (whole.x_train, whole.y_train, n_validation, first),
    ):
        rows = round_robin(y, count=count, after=after)
        parts += [avg_pool2d(x[rows].view(-1, *_SHAPES[images]), pooled), y[rows]]
    return Pictures(*parts, exact=whole.exact, origin=origin)


def _describe_copy(origin: str) -> str:
    """Return what an archive of CIFAR-10 is that is not the published one."""
    folder = locate(CIFAR10)
    if folder is None:
        return origin
    content = (folder / CIFAR10.files[0].path).read_bytes()
    return _COPIES.get(hashlib.sha256(content).hexdigest(), origin)
