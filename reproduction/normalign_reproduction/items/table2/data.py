"""The tables of Tables 2 and 3, and how their rows are split."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from normalign.data import gaussian_blobs, sparse_parity
from normalign_reproduction._errors import require
from normalign_reproduction.data import UCICollection, UCITable
from normalign_reproduction.files import read_csv

__all__ = ["BUNDLED", "TABLES", "TableFacts", "inner_split", "table_named"]

_MOST_ROWS = 100_000  # as in the released experiment
_KEPT = 4  # tables, of which a batch needs one
_SHARES = {"split": 0.5, "folds": 0.25}  # held out, as in the collection


class TableFacts(NamedTuple):
    """What is known of a table before it is read."""

    name: str
    rows: int
    inputs: int
    classes: int


def _collection() -> tuple[TableFacts, ...]:
    lines = read_csv(Path(__file__).with_name("published_tables.csv"))
    found = (
        TableFacts(line["table"], *(int(line[n]) for n in TableFacts._fields[1:]))
        for line in lines
    )
    return tuple(facts for facts in found if facts.rows <= _MOST_ROWS)


# The tables of the UCI collection that the experiments use, by name.
TABLES = _collection()
# What comes with scikit-learn, and what is made on the spot.
BUNDLED = (
    TableFacts("iris", 150, 4, 3),
    TableFacts("wine", 178, 13, 3),
    TableFacts("breast-cancer", 569, 30, 2),
    TableFacts("digits-500", 500, 64, 10),
    TableFacts("blobs", 240, 8, 6),
    TableFacts("parity", 240, 12, 2),
    TableFacts("spirals", 200, 6, 2),
)


@lru_cache(maxsize=_KEPT)
def table_named(name: str, data: str) -> UCITable:
    """Return a table with its splits.

    The last tables asked for are kept, and so is the collection's archive, once for
    each process.

    Parameters
    ----------
    name : str
    data : {"uci", "bundled"}

    Raises
    ------
    FileNotFoundError
        If the collection is not here.
    """
    require(data in ("uci", "bundled"), "table_named", "data", "'uci' or 'bundled'",
            repr(data))  # fmt: skip
    if data == "uci":
        return _open_collection().table(name)
    rule = f"one of {', '.join(_MADE)}"
    require(name in _MADE, "table_named", "name", rule, repr(name))
    x, y = _MADE[name]()
    return _divide(name, x, y)


@cache
def _open_collection() -> UCICollection:
    return UCICollection.locate()


def _divide(name: str, x: Tensor, y: Tensor) -> UCITable:
    """Standardise a table and divide it as the collection divides its own.

    Over all rows, as the collection is: inputs of test rows, though no answers, have a
    part in the scale.
    """
    spread = x.std(0)
    x = (x - x.mean(0)) / torch.where(spread > 0, spread, torch.ones_like(spread))
    every = torch.arange(len(x))
    split = inner_split(y, every, seed=0, share=_SHARES["split"])
    folds = tuple(
        inner_split(y, every, seed=draw, share=_SHARES["folds"]) for draw in range(1, 5)
    )
    origin = f"{name}, bundled with scikit-learn or made on the spot"
    return UCITable(name, x, y, int(y.max()) + 1, split, folds, x[:0], y[:0], origin)


def _bundled_table(loader: str, *, rows: int | None = None) -> tuple[Tensor, Tensor]:
    from sklearn import datasets

    x, y = getattr(datasets, loader)(return_X_y=True)
    x, y = torch.from_numpy(np.asarray(x, dtype=np.float64)), torch.from_numpy(y)
    return x[:rows], y[:rows].long()


def _blobs() -> tuple[Tensor, Tensor]:
    made = gaussian_blobs(
        n_samples=300, n_inputs=8, n_classes=6, std=2.0, box=3.0, train_fraction=0.8,
        seed=0,
    )  # fmt: skip
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


_MADE: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "iris": lambda: _bundled_table("load_iris"),
    "wine": lambda: _bundled_table("load_wine"),
    "breast-cancer": lambda: _bundled_table("load_breast_cancer"),
    "digits-500": lambda: _bundled_table("load_digits", rows=500),
    "blobs": _blobs,
    "parity": _parity,
    "spirals": _spirals,
}


def inner_split(
    y: Tensor, rows: Tensor, *, seed: int, share: float = 0.25
) -> tuple[Tensor, Tensor]:
    r"""Return the rows to fit and the rows to validate on, inside a training fold.

    Of the :math:`n_j` rows of class :math:`j` about :math:`s\,n_j` validate, so that
    the classes keep their shares: the counts are rounded down or up at random, and
    their sum is :math:`s\,n` rounded down or up as well. Every class keeps a row to
    fit, so a class of one row has none to validate. Answers at other rows than those
    given are never read. At least one row validates.

    Parameters
    ----------
    y : Tensor of shape (n,)
        Classes of the whole table.
    rows : Tensor of shape (m,)
        The training fold: distinct indices into `y`, in any order.
    seed : int
        The same fold and seed give the same split.
    share : float
        Of the rows that validate, between 0 and 1.

    Returns
    -------
    fit, validation : Tensor
        Indices into `y` that divide `rows`, each ascending.

    Raises
    ------
    ValueError
        If the share is not between 0 and 1, or no class has two rows.

    Examples
    --------
    >>> y = torch.tensor([0, 0, 0, 0, 1])
    >>> fit, validation = inner_split(y, torch.arange(5), seed=0)
    >>> len(fit), y[validation].tolist()
    (4, [0])
    """
    require(0 < share < 1, "inner_split", "share", "between 0 and 1", share)
    generator = torch.Generator().manual_seed(seed)
    ascending = rows.sort().values.cpu()
    answers = y.cpu()[ascending]
    classes, counts = answers.unique(return_counts=True)
    require(
        bool((counts > 1).any()), "inner_split", "rows",
        "rows with two or more of one class", f"{len(rows)} rows of as many classes",
        "There is nothing to validate on.",
    )  # fmt: skip
    shift = torch.rand((), generator=generator, dtype=torch.float64)
    reached = (shift + share * counts.double().cumsum(0)).floor().long()
    held = reached.diff(prepend=torch.zeros(1, dtype=torch.long))
    held = torch.minimum(held, counts - 1)
    if not held.any():
        held[counts.argmax()] = 1
    validates = torch.zeros(len(ascending), dtype=torch.bool)
    for one, count in zip(classes, held, strict=True):
        of_class = (answers == one).nonzero().flatten()
        order = torch.randperm(len(of_class), generator=generator)
        validates[of_class[order[: int(count)]]] = True
    fit, validation = ascending[~validates], ascending[validates]
    return fit.to(rows.device), validation.to(rows.device)
