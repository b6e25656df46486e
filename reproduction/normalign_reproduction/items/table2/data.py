"""The tables of Tables 2 and 3, and how their rows are split."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from normalign.data import gaussian_blobs, sparse_parity
from normalign_reproduction.data import UCICollection, UCITable
from normalign_reproduction.files import read_csv

__all__ = ["BUNDLED", "TABLES", "TableFacts", "inner_split", "table_named"]


class TableFacts(NamedTuple):
    """What is known of a table before it is read."""

    name: str
    rows: int
    inputs: int
    classes: int


def _collection_facts() -> tuple[TableFacts, ...]:
    """Return the tables of at most 100,000 rows, as in the released experiment."""
    lines = read_csv(Path(__file__).with_name("published_tables.csv"))
    found = (
        TableFacts(line["table"], *(int(line[n]) for n in TableFacts._fields[1:]))
        for line in lines
    )
    return tuple(facts for facts in found if facts.rows <= 100_000)


# The tables of the UCI collection that the experiments use, by name.
TABLES = _collection_facts()
# Tables of scikit-learn, and generated ones.
BUNDLED = (
    TableFacts("iris", 150, 4, 3),
    TableFacts("wine", 178, 13, 3),
    TableFacts("breast-cancer", 569, 30, 2),
    TableFacts("digits-500", 500, 64, 10),
    TableFacts("blobs", 240, 8, 6),
    TableFacts("parity", 240, 12, 2),
    TableFacts("spirals", 200, 6, 2),
)


@lru_cache(maxsize=4)
def table_named(name: str, data: str) -> UCITable:
    """Return a table with its splits; the last four are cached.

    Parameters
    ----------
    name : str
    data : {"uci", "bundled"}
    """
    if data == "uci":
        return _open_collection().table(name)
    if data != "bundled":
        raise ValueError(f"table_named: data must be 'uci' or 'bundled', got {data!r}.")
    if name not in _LOADERS:
        known = ", ".join(_LOADERS)
        raise ValueError(f"table_named: name must be one of {known}, got {name!r}.")
    return split_table(name, *_LOADERS[name]())


@cache
def _open_collection() -> UCICollection:
    return UCICollection.locate()


def split_table(name: str, x: Tensor, y: Tensor) -> UCITable:
    """Standardise and split a table like those of the collection.

    Means and deviations are over all rows, as in the collection: the inputs of test
    rows, though not their classes, enter into the scale.
    """
    spread = x.std(0)
    x = (x - x.mean(0)) / torch.where(spread > 0, spread, torch.ones_like(spread))
    rows = torch.arange(len(x))
    split = inner_split(y, rows, seed=0, share=0.5)
    folds = tuple(inner_split(y, rows, seed=seed) for seed in range(1, 5))
    origin = f"{name}, bundled with scikit-learn or made on the spot"
    return UCITable(name, x, y, int(y.max()) + 1, split, folds, x[:0], y[:0], origin)


def _load_sklearn(loader: str, rows: int | None = None) -> tuple[Tensor, Tensor]:
    from sklearn import datasets

    x, y = getattr(datasets, loader)(return_X_y=True)
    x, y = torch.from_numpy(np.asarray(x, dtype=np.float64)), torch.from_numpy(y)
    return x[:rows], y[:rows].long()


def _blobs() -> tuple[Tensor, Tensor]:
    made = gaussian_blobs(
        n_samples=300,
        n_inputs=8,
        n_classes=6,
        std=2.0,
        box=3.0,
        train_fraction=0.8,
        seed=0,
    )
    return made.x_train.double(), made.y_train


def _parity() -> tuple[Tensor, Tensor]:
    made = sparse_parity(n_parity=2, n_noise=10, n_samples=480, seed=0)
    return made.x_train.double(), made.y_train


def _spirals() -> tuple[Tensor, Tensor]:
    """Two arms in the plane of the first two columns; four columns of noise."""
    draw = np.random.default_rng(0)
    y = np.arange(200) % 2
    turn = np.sqrt(draw.uniform(0.05, 1, 200)) * 1.5 * np.pi
    arms = turn[:, None] * np.stack(
        [np.cos(turn + np.pi * y), np.sin(turn + np.pi * y)], 1
    )
    noisy = np.concatenate(
        [arms + draw.normal(0, 0.2, (200, 2)), draw.normal(0, 1, (200, 4))], 1
    )
    return torch.from_numpy(noisy), torch.from_numpy(y)


_LOADERS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "iris": partial(_load_sklearn, "load_iris"),
    "wine": partial(_load_sklearn, "load_wine"),
    "breast-cancer": partial(_load_sklearn, "load_breast_cancer"),
    "digits-500": partial(_load_sklearn, "load_digits", rows=500),
    "blobs": _blobs,
    "parity": _parity,
    "spirals": _spirals,
}


def inner_split(
    y: Tensor, rows: Tensor, *, seed: int, share: float = 0.25
) -> tuple[Tensor, Tensor]:
    r"""Return the rows to fit and the rows to validate on, inside a training fold.

    Of the :math:`n_j` rows of class :math:`j` about :math:`s\,n_j` validate: the counts
    are rounded down or up at random, and so is their sum. Every class keeps a row to
    fit, and at least one row validates. Classes of rows other than those given are
    never read.

    Parameters
    ----------
    y : Tensor of shape (n,)
        Classes of the whole table.
    rows : Tensor of shape (m,)
        The training fold: distinct indices into `y`; their order has no effect.
    seed : int
    share : float
        Of the rows that validate, between 0 and 1.

    Returns
    -------
    fit, validation : Tensor
        Ascending indices into `y`.

    Examples
    --------
    >>> y = torch.tensor([0, 0, 0, 0, 1])
    >>> fit, validation = inner_split(y, torch.arange(5), seed=0)
    >>> len(fit), y[validation].tolist()
    (4, [0])
    """
    if not 0 < share < 1:
        raise ValueError(f"inner_split: share must be between 0 and 1, got {share}.")
    generator = torch.Generator().manual_seed(seed)
    ascending = rows.sort().values.cpu()
    labels = y.cpu()[ascending]
    classes, counts = labels.unique(return_counts=True)
    if not (counts > 1).any():
        raise ValueError(
            "inner_split: rows must have two or more of one class, got "
            f"{len(rows)} rows of as many classes."
        )
    shift = torch.rand((), generator=generator, dtype=torch.float64)
    reached = (shift + share * counts.double().cumsum(0)).floor().long()
    held = reached.diff(prepend=torch.zeros(1, dtype=torch.long))
    held = torch.minimum(held, counts - 1)
    if not held.any():
        held[counts.argmax()] = 1
    validates = torch.zeros(len(ascending), dtype=torch.bool)
    for one, count in zip(classes, held, strict=True):
        places = (labels == one).nonzero().flatten()
        order = torch.randperm(len(places), generator=generator)
        validates[places[order[: int(count)]]] = True
    fit, validation = ascending[~validates], ascending[validates]
    return fit.to(rows.device), validation.to(rows.device)
