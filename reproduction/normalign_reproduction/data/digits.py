"""The digits of an experiment: MNIST where it was found, else the embedded ones."""

from __future__ import annotations

import logging
from functools import cache

from normalign.data import (
    MNIST,
    Dataset,
    is_exact,
    load_digits_5000,
    load_mnist,
    locate,
)
from normalign_reproduction._errors import require

__all__ = ["SOURCES", "digits", "digits_source"]

SOURCES = ("mnist", "digits_5000")
_FETCH = "`normalign data fetch mnist`"
_log = logging.getLogger(__name__)


def digits_source() -> str:
    """Return which digits there are: ``"mnist"`` where its published files are found.

    They are looked for in ``$NORMALIGN_DATA`` and the cache; nothing is downloaded.
    Other files of the same names, such as Fashion-MNIST's, are told in a warning and
    not taken.
    """
    mnist, embedded = SOURCES
    folder = locate(MNIST)
    if folder is None:
        return embedded
    if not is_exact(MNIST, folder):
        _log.warning(
            "the files in %s are not the published MNIST: the embedded digits are "
            "taken instead. %s gets the published ones.", folder / "mnist", _FETCH,
        )  # fmt: skip
        return embedded
    return mnist


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

    Raises
    ------
    ValueError
        If the source is unknown, or the files of MNIST are not the published ones:
        results name their data, and must not be of others.
    """
    rule = " or ".join(map(repr, SOURCES))
    require(source in SOURCES, "digits", "source", rule, repr(source))
    if source == "mnist":
        data = load_mnist(
            n_train=n_train, n_test=n_test, subset=subset, seed=seed,
            normalise=normalise, flatten=True,
        )  # fmt: skip
        folder = locate(MNIST)
        got = data.origin if folder is None else f"{data.origin}, in {folder / 'mnist'}"
        remedy = f"{_FETCH} gets them; --digits digits_5000 does without."
        rule = "the published files"
        require(data.exact, "digits", "MNIST", rule, got, remedy)
        return data
    return load_digits_5000(
        n_train=n_train, n_test=n_test, seed=seed if subset == "random" else 0,
        normalise=normalise, flatten=True,
    )  # fmt: skip
