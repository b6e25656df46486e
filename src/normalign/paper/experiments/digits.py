"""The digits of an experiment: MNIST where it was found, else the embedded ones."""

from __future__ import annotations

from functools import cache

from normalign._checks import require
from normalign.data import MNIST, load_mnist, locate
from normalign.data.dataset import Dataset
from normalign.data.digits import load_digits_5000

__all__ = ["SOURCES", "digits", "digits_source"]

SOURCES = ("mnist", "digits_5000")


def digits_source() -> str:
    """Return which digits there are: ``"mnist"`` where its files are found.

    They are looked for in ``$NORMALIGN_DATA`` and the cache; nothing is downloaded.
    """
    mnist, embedded = SOURCES
    return embedded if locate(MNIST) is None else mnist


@cache
def digits(
    source: str,
    *,
    n_train: int,
    n_test: int,
    subset: str = "first",
    seed: int = 0,
    normalise: bool = True,
) -> Dataset:
    """Return flattened digits; the same call gives the same tensors.

    Parameters
    ----------
    source : {"mnist", "digits_5000"}
    subset : {"first", "random", "balanced"}
        Of MNIST; the embedded digits are always split by the seed.
    seed : int
        Of a random subset.
    """
    rule = " or ".join(map(repr, SOURCES))
    require(source in SOURCES, "digits", "source", rule, repr(source))
    if source == "mnist":
        return load_mnist(
            n_train=n_train, n_test=n_test, subset=subset, seed=seed,
            normalise=normalise, flatten=True,
        )  # fmt: skip
    return load_digits_5000(
        n_train=n_train, n_test=n_test, seed=seed if subset == "random" else 0,
        normalise=normalise, flatten=True,
    )  # fmt: skip
