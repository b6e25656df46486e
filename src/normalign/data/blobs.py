"""Gaussian blobs: one round cloud per class."""

from __future__ import annotations

import torch

from normalign._errors import require
from normalign.data.dataset import Dataset

__all__ = ["gaussian_blobs"]


def gaussian_blobs(
    *,
    n_samples: int = 1000,
    n_inputs: int = 10,
    n_classes: int = 6,
    std: float = 1.0,
    box: float = 10.0,
    train_fraction: float = 0.8,
    seed: int = 0,
) -> Dataset:
    r"""Draw points around one random centre per class.

    .. math:: x \mid y \sim N(m_y, \sigma^2 I), \quad m_y \sim U[-B, B]^d

    The paper's kernel-logistic-regression figure uses 1000 samples in ten dimensions
    with six, eight or ten classes, 80 % to train on. It gives neither spread nor box;
    the defaults 1 and 10 are the customary ones. Classes are balanced up to one
    sample.

    Parameters
    ----------
    n_samples : int, default=1000
        Train and test together.
    n_inputs : int, default=10
        Dimension of a point.
    n_classes : int, default=6
        Number of blobs.
    std : float, default=1.0
        Standard deviation of every blob.
    box : float, default=10.0
        Half the side of the cube that the centres are drawn from.
    train_fraction : float, default=0.8
        Share of the samples in the training set, rounded down.
    seed : int, default=0
        Seed of centres, points and split.

    Returns
    -------
    Dataset
        ``x`` is float32, ``y`` the blob's number, int64.

    Raises
    ------
    ValueError
        If a size or spread does not fit.

    Examples
    --------
    >>> gaussian_blobs(n_samples=50, n_inputs=3, n_classes=2)
    Dataset(blobs: 40 train, 10 test, inputs (3,) float32, exact)
    """
    callee = "gaussian_blobs"
    require(n_inputs >= 1, callee, "n_inputs", "at least 1", n_inputs)
    require(n_classes >= 1, callee, "n_classes", "at least 1", n_classes)
    require(
        n_samples >= max(2, n_classes), callee, "n_samples",
        "at least 2 and one per class", n_samples,
    )  # fmt: skip
    require(std >= 0, callee, "std", "at least 0", std)
    require(box >= 0, callee, "box", "at least 0", box)
    n_train = int(train_fraction * n_samples)
    require(
        0 < n_train < n_samples, callee, "train_fraction",
        "such that neither set is empty", train_fraction,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    centres = box * (2 * torch.rand((n_classes, n_inputs), generator=generator) - 1)
    y = torch.arange(n_samples) % n_classes
    y = y[torch.randperm(n_samples, generator=generator)]
    x = centres[y] + std * torch.randn((n_samples, n_inputs), generator=generator)
    return Dataset(
        x[:n_train], y[:n_train], x[n_train:], y[n_train:], name="blobs",
        origin=f"{n_classes} Gaussian blobs in {n_inputs} dimensions, seed {seed}",
    )  # fmt: skip
