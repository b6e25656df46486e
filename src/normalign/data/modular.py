"""Modular addition: every pair of residues, a share of them to train on."""

from __future__ import annotations

import torch
from torch.nn.functional import one_hot

from normalign._errors import require
from normalign.data.dataset import Dataset

__all__ = ["modular_addition"]


def modular_addition(
    *,
    modulus: int = 61,
    train_fraction: float = 0.3,
    encoding: str = "one_hot",
    seed: int = 0,
) -> Dataset:
    r"""Return all pairs of residues with their sum, split by a seed.

    .. math:: (a, b) \mapsto (a + b) \bmod p, \quad a, b \in \{0, \dots, p - 1\}

    The defaults are those of Table 1 as released: p = 61, 30 % to train on, the two
    one-hot codes side by side (122 inputs). The paper's text gives the modulus alone.
    The transformer of the centroid-alignment figure reads tokens, and its pipeline
    takes ``modulus=113``.

    Parameters
    ----------
    modulus : int, default=61
        The paper's p; there are ``modulus ** 2`` pairs.
    train_fraction : float, default=0.3
        Share of the pairs in the training set, rounded down.
    encoding : {"one_hot", "tokens"}, default="one_hot"
        Two one-hot codes in one float32 row of length ``2 * modulus``, or the int64
        tokens ``(a, b, modulus)`` whose last stands for the equals sign.
    seed : int, default=0
        Seed of the split.

    Returns
    -------
    Dataset
        ``y`` is the sum, int64.

    Raises
    ------
    ValueError
        If the modulus is below 2, a set would be empty or the encoding is unknown.

    Examples
    --------
    >>> task = modular_addition(modulus=5, train_fraction=0.4, encoding="tokens")
    >>> len(task.x_train), torch.equal(task.y_test, task.x_test[:, :2].sum(1) % 5)
    (10, True)
    """
    callee = "modular_addition"
    require(modulus >= 2, callee, "modulus", "at least 2", modulus)
    require(
        encoding in ("one_hot", "tokens"), callee, "encoding",
        "'one_hot' or 'tokens'", repr(encoding),
    )  # fmt: skip
    n_train = int(train_fraction * modulus**2)
    require(
        0 < n_train < modulus**2, callee, "train_fraction",
        "such that neither set is empty", train_fraction,
    )  # fmt: skip
    residues = torch.arange(modulus)
    pairs = torch.cartesian_prod(residues, residues)
    generator = torch.Generator().manual_seed(seed)
    pairs = pairs[torch.randperm(len(pairs), generator=generator)]
    y = pairs.sum(1) % modulus
    if encoding == "one_hot":
        x = one_hot(pairs, modulus).flatten(1).to(torch.float32)
    else:
        x = torch.cat([pairs, torch.full((len(pairs), 1), modulus)], dim=1)
    return Dataset(
        x[:n_train], y[:n_train], x[n_train:], y[n_train:], name="modular_addition",
        origin=f"addition modulo {modulus}, {encoding}, seed {seed}",
    )  # fmt: skip
