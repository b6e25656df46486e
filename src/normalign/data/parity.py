"""Sparse parity: the parity of a few bits among many."""

from __future__ import annotations

import torch
from torch import Tensor

from normalign._errors import require
from normalign.data.dataset import Dataset

__all__ = ["sparse_parity"]


def sparse_parity(
    *,
    n_parity: int = 3,
    n_noise: int = 40,
    n_samples: int = 2000,
    train_fraction: float = 0.5,
    seed: int = 0,
) -> Dataset:
    r"""Draw distinct bit strings labelled by the parity of their first bits.

    .. math:: y = \Bigl(\sum_{i=1}^{p} x_i\Bigr) \bmod 2, \quad x \in \{0, 1\}^{p + q}

    The defaults are the released ones: 3 parity and 40 noise bits. The paper's text
    says strings of length 40, which is ``n_noise=37``. All strings are distinct, so
    no test string was trained on.

    Parameters
    ----------
    n_parity : int, default=3
        Bits whose parity is the label; they come first.
    n_noise : int, default=40
        Bits that do not matter.
    n_samples : int, default=2000
        Distinct strings, train and test together.
    train_fraction : float, default=0.5
        Share of them in the training set.
    seed : int, default=0
        Seed of the draw.

    Returns
    -------
    Dataset
        ``x`` is float32 in {0, 1}, ``y`` int64 in {0, 1}.

    Raises
    ------
    ValueError
        If a size does not fit: there are only ``2 ** (n_parity + n_noise)`` strings.

    Examples
    --------
    >>> task = sparse_parity(n_parity=2, n_noise=1, n_samples=8)
    >>> len(torch.cat([task.x_train, task.x_test]).unique(dim=0))
    8
    """
    callee = "sparse_parity"
    n_bits = n_parity + n_noise
    require(n_parity >= 1, callee, "n_parity", "at least 1", n_parity)
    require(n_noise >= 0, callee, "n_noise", "at least 0", n_noise)
    require(
        2 <= n_samples <= 2**n_bits, callee, "n_samples",
        f"between 2 and the 2**{n_bits} strings there are", n_samples,
    )  # fmt: skip
    n_train = int(train_fraction * n_samples)
    require(
        0 < n_train < n_samples, callee, "train_fraction",
        "such that neither set is empty", train_fraction,
    )  # fmt: skip
    bits = _distinct_strings(n_samples, n_bits, torch.Generator().manual_seed(seed))
    x, y = bits.to(torch.float32), bits[:, :n_parity].sum(1) % 2
    return Dataset(
        x[:n_train], y[:n_train], x[n_train:], y[n_train:], name="sparse_parity",
        origin=f"parity of {n_parity} of {n_bits} bits, seed {seed}",
    )  # fmt: skip


def _distinct_strings(n: int, n_bits: int, generator: torch.Generator) -> Tensor:
    if n_bits <= 20:  # few enough to number them all
        numbers = torch.randperm(2**n_bits, generator=generator)[:n]
        return (numbers[:, None] >> torch.arange(n_bits)) & 1
    drawn = torch.empty((0, n_bits), dtype=torch.int64)
    # With more than 2**20 strings and any n that fits in memory, a second round is
    # rare; each round keeps the first of equal strings, in the order drawn.
    while len(drawn) < n:
        fresh = torch.randint(0, 2, (n, n_bits), generator=generator)
        drawn = torch.cat([drawn, fresh])
        _, group = torch.unique(drawn, dim=0, return_inverse=True)
        order = torch.argsort(group, stable=True)
        is_first = torch.ones(len(drawn), dtype=torch.bool)
        is_first[order[1:]] = group[order[1:]] != group[order[:-1]]
        drawn = drawn[is_first]
    return drawn[:n]
