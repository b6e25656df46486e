"""The digits of an experiment: MNIST if it is on this machine, else embedded ones."""

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

__all__ = ["SOURCES", "digits", "digits_source"]

SOURCES = ("mnist", "digits_5000")
_log = logging.getLogger(__name__)


def digits_source() -> str:
    """Return ``"mnist"`` if its published files are there, else ``"digits_5000"``.

    They are looked for in ``$NORMALIGN_DATA`` and the cache; nothing is downloaded.
    Other files with the same names, such as Fashion-MNIST's, give a warning.
    """
    folder = locate(MNIST)
    if folder is None:
        return "digits_5000"
    if is_exact(MNIST, folder):
        return "mnist"
    _log.warning(
        "the files in %s are not the published MNIST: the embedded digits are used "
        "instead. `normalign data fetch mnist` gets the published ones.",
        folder / "mnist",
    )
    return "digits_5000"


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
    """Return flattened digits; the same call returns the same tensors.

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
        If the source is unknown, or the files of MNIST are not the published ones, as
        results name their data.
    """
    if source not in SOURCES:
        raise ValueError(f"digits: source must be one of {SOURCES}, got {source!r}.")
    if source == "digits_5000":
        return load_digits_5000(
            n_train=n_train,
            n_test=n_test,
            seed=seed if subset == "random" else 0,
            normalise=normalise,
            flatten=True,
        )
    data = load_mnist(
        n_train=n_train,
        n_test=n_test,
        subset=subset,
        seed=seed,
        normalise=normalise,
        flatten=True,
    )
    if not data.exact:
        folder = locate(MNIST)
        where = "" if folder is None else f", in {folder / 'mnist'}"
        raise ValueError(
            f"digits: MNIST must be the published files, got {data.origin}{where}. "
            "`normalign data fetch mnist` gets them; --digits digits_5000 does without."
        )
    return data
