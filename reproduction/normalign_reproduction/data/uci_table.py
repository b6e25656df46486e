"""One table of the UCI collection, and the formats of the files that hold it."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normalign_reproduction._errors import complaint, require

__all__ = ["FOLDS", "SPLIT", "UCITable", "data_files", "description", "parsed"]

SPLIT, FOLDS = "conxuntos.dat", "conxuntos_kfold.dat"

Indices = tuple[Tensor, Tensor]

_COUNT = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, eq=False, repr=False)
class UCITable:
    """One table of the collection, with the collection's own splits.

    Inputs come standardised and category-coded by the authors of the collection.
    Every index points into `x` and `y`; the separate test file that some tables have
    takes no part in the splits.

    Parameters
    ----------
    name : str
        As in the collection, such as ``"hill-valley"``.
    x : Tensor of shape (n, d)
        Inputs, float64.
    y : Tensor of shape (n,)
        Classes 0, ..., n_classes - 1, int64.
    n_classes : int
        As declared; a small table may lack rows of a class.
    split : pair of Tensor
        Training and validation rows for choosing hyperparameters: about half each.
    folds : tuple of pairs of Tensor
        Four pairs of training and test rows, about 3 to 1. They are four separate
        draws and no partition: their test rows overlap.
    x_test, y_test : Tensor of shape (m, d) and (m,)
        The separate test file; m = 0 where there is none.
    origin : str
        One sentence for a report.

    Examples
    --------
    >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    >>> half = (torch.tensor([0, 1]), torch.tensor([2, 3]))
    >>> UCITable("toy", x, y, 2, half, (half,) * 4, x[:0], y[:0], "made by hand")
    UCITable(toy: 4 rows, 2 columns, 2 classes, no test file)
    """

    name: str
    x: Tensor
    y: Tensor
    n_classes: int
    split: Indices
    folds: tuple[Indices, ...]
    x_test: Tensor
    y_test: Tensor
    origin: str

    def __repr__(self) -> str:
        n, d = self.x.shape
        test = f"{len(self.x_test)} test rows" if len(self.x_test) else "no test file"
        return (
            f"UCITable({self.name}: {n} rows, {d} columns, "
            f"{self.n_classes} classes, {test})"
        )


def description(name: str, raw: bytes) -> dict[str, str]:
    """``key= value`` lines: n_entradas (inputs), n_clases, fich1, n_patrons1, ..."""
    pairs = (line.split("=", 1) for line in raw.decode("latin-1").splitlines())
    found = {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}
    for key in ("n_entradas", "n_clases", "n_patrons1"):
        require(
            bool(_COUNT.fullmatch(found.get(key, ""))), "read_uci",
            f"{key} in {name}.txt",
            "a count", repr(found.get(key, "nothing")),
        )  # fmt: skip
    require(bool(found.get("fich1")), "read_uci", f"fich1 in {name}.txt", "a file name",
            "nothing")  # fmt: skip
    return found


def data_files(described: Mapping[str, str]) -> list[str]:
    """The files with rows: the table's, then its test set's if it has one."""
    return [described[key] for key in ("fich1", "fich2") if described.get(key)]


def parsed(name: str, contents: Mapping[str, bytes]) -> UCITable:
    """The table that a folder's files describe, once all of them are there."""
    described = description(name, contents[f"{name}.txt"])
    d, k = int(described["n_entradas"]), int(described["n_clases"])
    parts: list[Tensor] = []
    for number, file in enumerate(data_files(described), start=1):
        parts += _rows(file, contents[file], described.get(f"n_patrons{number}"), d, k)
    x, y, *test = parts
    x_test, y_test = test or (x[:0], y[:0])
    split, *more = _pairs(f"{name}/{SPLIT}", contents[SPLIT], len(x), 1)
    folds = _pairs(f"{name}/{FOLDS}", contents[FOLDS], len(x), 4)
    require(not more, "read_uci", f"{name}/{SPLIT}", "one split", len(more) + 1)
    return UCITable(
        name, x, y, k, split, tuple(folds), x_test, y_test,
        f"{name} of the 121 tables of Fernández-Delgado et al. (2014)",
    )  # fmt: skip


def _rows(
    file: str, raw: bytes, n: str | None, d: int, k: int
) -> tuple[Tensor, Tensor]:
    """A header, then per row its number, d inputs and the class."""
    body = raw.partition(b"\n")[2]
    require(bool(body.strip()), "read_uci", file, "a header and rows", "no rows")
    try:
        table = np.loadtxt(io.BytesIO(body), ndmin=2, comments=None, encoding="latin-1")
    except ValueError as error:
        text = complaint("read_uci", file, "a table of numbers", str(error))
        raise ValueError(text) from error
    require(
        table.shape[1] == d + 2 and str(len(table)) == n, "read_uci", file,
        f"{n} rows of a number, {d} inputs and a class",
        f"{len(table)} rows of {table.shape[1]}",
    )  # fmt: skip
    labels = table[:, -1]
    require(
        bool(np.isfinite(table).all()), "read_uci", file, "of finite numbers",
        "NaN or infinity",
    )  # fmt: skip
    require(
        bool(((labels >= 0) & (labels < k) & (labels == labels.round())).all()),
        "read_uci", file, f"of classes 0 to {k - 1}",
        f"{labels.min():g} to {labels.max():g}",
    )  # fmt: skip
    x = torch.from_numpy(np.ascontiguousarray(table[:, 1:-1]))
    return x, torch.from_numpy(labels.astype(np.int64))


def _pairs(file: str, raw: bytes, n: int, expected: int) -> list[Indices]:
    """Pairs of lines of row numbers from 0, the two lines of a pair without overlap."""
    lines = [line.split() for line in raw.decode("latin-1").splitlines()]
    lines = [line for line in lines if line]
    numeric = all(_COUNT.fullmatch(word) for line in lines for word in line)
    require(numeric, "read_uci", file, "of row numbers", "something else")
    require(
        len(lines) == 2 * expected, "read_uci", file, f"{2 * expected} lines",
        len(lines),
    )  # fmt: skip
    rows = [torch.tensor([int(word) for word in line]) for line in lines]
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    for both in pairs:
        together = torch.cat(both)
        require(
            int(together.max()) < n and len(together.unique()) == len(together),
            "read_uci", file, f"of distinct row numbers below {n} in a pair of lines",
            f"{len(together)} with {len(together.unique())} distinct ones up to "
            f"{int(together.max())}",
        )  # fmt: skip
    return pairs
