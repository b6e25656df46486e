"""Pictures to train robustly on: nested, class-balanced subsets, and what they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from normalign.data import CIFAR10, load_cifar10, locate
from normalign_reproduction._errors import require
from normalign_reproduction.data.digits import digits

__all__ = ["Pictures", "pictures", "round_robin"]

# Training images of each class that no validation image is taken from.
FIRST = {"cifar10": 400, "digits": 200}
# Of the digits, however few of them are taken: a subset of one size is one of all.
_DIGITS = {"n_train": 4000, "n_test": 1000}
# Archives that are known and not the published one, by SHA-256.
_COPIES = {
    "5f793bfbb13825fa84e6d9e834fe76433c2d057782e7d1d8994780c71b53e9c8": (
        "a JPEG-decoded part of CIFAR-10 (12500 train and 2500 test images), not bit "
        "for bit the published ones"
    ),
}


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images in [0, 1] in three parts, each in rounds of one image of each class.

    Parameters
    ----------
    x_train, x_test, x_validation : Tensor of shape (n, c, h, w)
    y_train, y_test, y_validation : Tensor of shape (n,)
    exact : bool
        Whether they are from the published files.
    origin : str
        What they are, for a report.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    x_validation: Tensor
    y_validation: Tensor
    exact: bool
    origin: str


def round_robin(labels: Tensor, *, count: int, after: int = 0) -> Tensor:
    """Return the first rows of each class, class by class in turn.

    The first ``m`` of them are those of ``count=m``: subsets are nested, and balanced
    if ``m`` is a multiple of the number of classes.

    Parameters
    ----------
    labels : Tensor of shape (n,)
    count : int
        How many rows, a multiple of the number of classes.
    after : int
        How many rows of each class are passed over.

    Raises
    ------
    ValueError
        If it is no such multiple, or a class has too few rows.

    Examples
    --------
    >>> round_robin(torch.tensor([0, 0, 1, 0, 1]), count=4)
    tensor([0, 2, 1, 4])
    """
    callee, classes = "round_robin", labels.unique()
    per_class, rest = divmod(count, len(classes))
    rule = f"a multiple of the {len(classes)} classes"
    require(rest == 0, callee, "count", rule, count)
    found = [(labels == one).nonzero().flatten()[after:] for one in classes]
    most = min(len(rows) for rows in found)
    room = f"at most {most * len(classes)}, after {after} of each class"
    require(per_class <= most, callee, "count", room, count)
    return torch.stack([rows[:per_class] for rows in found], dim=1).flatten()


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
    """Return the images of a run; the same call gives the same tensors.

    Training images are the first of each class. Validation images are the training
    images of each class after its first 400 (of the digits, its first 200).

    Parameters
    ----------
    images : {"cifar10", "digits"}
    data : str
        Which digits: ``"mnist"`` or ``"digits_5000"``. Else ``"cifar10"``.
    n_train, n_test, n_validation : int
        Multiples of ten.
    pooled : int
        Side of the squares of pixels of which the mean is taken: 2 makes 14 x 14 of
        28 x 28.

    Raises
    ------
    ValueError
        If there are no such images, or not so many; if training and validation images
        would overlap.
    """
    callee = "pictures"
    known = " or ".join(map(repr, FIRST))
    require(images in FIRST, callee, "images", known, repr(images))
    first = FIRST[images]
    room = f"at most {10 * first} where images are left out for validation"
    require(
        n_validation == 0 or n_train <= 10 * first, callee, "n_train", room, n_train
    )
    if images == "cifar10":
        wanted = max(n_train, 10 * first + n_validation if n_validation else 0)
        whole = load_cifar10(n_train=wanted, n_test=n_test, subset="balanced")
        origin = "CIFAR-10" if whole.exact else _copy(whole.origin)
    else:
        whole = digits(data, normalise=False, **_DIGITS)
        origin = whole.origin
    shape = (3, 32, 32) if images == "cifar10" else (1, 28, 28)
    parts: list[Tensor] = []
    for x, y, count, after in (
        (whole.x_train, whole.y_train, n_train, 0),
        (whole.x_test, whole.y_test, n_test, 0),
        (whole.x_train, whole.y_train, n_validation, first),
    ):
        rows = round_robin(y, count=count, after=after)
        parts += [avg_pool2d(x[rows].view(-1, *shape), pooled)]
        parts += [y[rows]]
    return Pictures(*parts, exact=whole.exact, origin=origin)


def _copy(origin: str) -> str:
    """Return what an archive of CIFAR-10 is that is not the published one."""
    folder = locate(CIFAR10)
    if folder is None:
        return origin
    content = (folder / CIFAR10.files[0].path).read_bytes()
    return _COPIES.get(hashlib.sha256(content).hexdigest(), origin)
