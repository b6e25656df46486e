"""The UCI collection of 121 tables, from the archive of its authors."""

from __future__ import annotations

import io
import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from normalign.data import RemoteFile, Source, locate, search_path

# Its authors published neither size nor checksum, so nothing can be downloaded on
# trust: a copy is put in place by hand, and none counts as exact.
UCI = Source(
    name="uci",
    title="121 classification tables of the UCI repository, 10 to 130064 rows",
    files=(RemoteFile("uci/data.tar.gz", size=0, md5=""),),
    mirrors=(),
    licence="as each table of the UCI repository",
    citation="Fernández-Delgado, Cernadas, Barro, Amorim: Do we need hundreds of "
    "classifiers to solve real world classification problems? (JMLR 15, 2014)",
    page="http://persoal.citius.usc.es/manuel.fernandez.delgado/papers/jmlr/",
)

Indices = tuple[Tensor, Tensor]

_SPLIT, _FOLDS = "conxuntos.dat", "conxuntos_kfold.dat"
_COUNT = re.compile(r"[0-9]{1,9}")
_MEMBER_LIMIT = 1 << 27  # bytes; the largest table, miniboone, has about 60 MB
_TOTAL_LIMIT = 1 << 32


@dataclass(frozen=True, eq=False, repr=False)
class UCITable:
    """One table of the collection, with the collection's own splits.

    Inputs are standardised and category-coded by the authors of the collection. All
    indices are rows of `x` and `y`; the separate test file that some tables have takes
    no part in the splits.

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
        Training and validation rows for choosing hyperparameters, about half each.
    folds : tuple of pairs of Tensor
        Four pairs of training and test rows, about 3 to 1: separate draws whose test
        rows overlap.
    x_test, y_test : Tensor of shape (m, d) and (m,)
        The separate test file; m = 0 if there is none.
    origin : str
        One sentence for a report.
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


class UCICollection:
    """The archive of the collection, read in one pass, and the tables in it.

    The files' bytes stay in memory, about 120 MB; a table is parsed at each request.
    Nothing is written to disk, links are not followed, and an archive with an absolute
    path or a ``..`` is refused.

    Parameters
    ----------
    path : path
        The archive: ``NAME/NAME.txt`` describes a table, ``NAME/*_R.dat`` has its rows,
        ``NAME/conxuntos.dat`` and ``NAME/conxuntos_kfold.dat`` its splits.

    Attributes
    ----------
    path : Path
    names : tuple of str
        The complete tables of the archive, sorted.

    Raises
    ------
    ValueError
        If the archive is damaged or unsafe.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._files = _read_archive(self.path)
        self.names = tuple(
            sorted(
                name for name in self._files if not _missing(name, self._files[name])
            )
        )

    @classmethod
    def locate(cls, data_dir: str | os.PathLike[str] | None = None) -> UCICollection:
        """Open ``uci/data.tar.gz`` of `data_dir`, ``$NORMALIGN_DATA`` or the cache.

        Raises
        ------
        FileNotFoundError
            If none of them has it.
        """
        folder, path = locate(UCI, data_dir), UCI.files[0].path
        if folder is None:
            folders = ", ".join(str(folder) for folder in search_path(data_dir))
            raise FileNotFoundError(
                f"UCICollection.locate: data_dir must hold {path}, found none in "
                f"{folders}. Put the archive from {UCI.page} at $NORMALIGN_DATA/{path}."
            )
        return cls(folder / path)

    def table(self, name: str) -> UCITable:
        """Return one table.

        Raises
        ------
        ValueError
            If there is no such table, or its files lack what its description says.
        """
        if name not in self._files:
            raise ValueError(
                f"UCICollection.table: name must be one of the {len(self.names)} in "
                f"the archive, got {name!r}. See the attribute names."
            )
        if lost := _missing(name, self._files[name]):
            raise ValueError(
                f"UCICollection.table: the archive must have all files of {name}, got "
                f"one without {', '.join(lost)}."
            )
        return _parse_table(name, self._files[name])

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[UCITable]:
        return map(self.table, self.names)

    def __repr__(self) -> str:
        return f"UCICollection({self.path.name}: {len(self)} tables)"


def load_uci(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> UCITable:
    """Load one table of the collection.

    It reads the whole archive, a second or two: for several tables use
    :meth:`UCICollection.locate`.

    Parameters
    ----------
    name : str
        One of the ``names`` of a :class:`UCICollection`.
    data_dir : path, optional
        Looked in before ``$NORMALIGN_DATA`` and the cache.
    """
    return UCICollection.locate(data_dir).table(name)


def _read_archive(path: Path) -> dict[str, dict[str, bytes]]:
    """Return the contents of the files of each table that has a description."""
    tables: dict[str, dict[str, bytes]] = {}
    total = 0
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                place = PurePosixPath(member.name.replace("\\", "/"))
                if place.is_absolute() or ".." in place.parts or ":" in member.name:
                    raise _unsafe(path, f"paths inside it, got {member.name!r}")
                total += member.size
                if total > _TOTAL_LIMIT:
                    raise _unsafe(path, f"at most {_TOTAL_LIMIT} bytes, got more")
                if member.size > _MEMBER_LIMIT:
                    rule = f"members of at most {_MEMBER_LIMIT} bytes"
                    raise _unsafe(path, f"{rule}, got {member.size} in {member.name!r}")
                parts = place.parts[1:] if place.parts[:1] == ("data",) else place.parts
                if len(parts) != 2 or not member.isfile():
                    continue
                name, file = parts
                known = file in (f"{name}.txt", _SPLIT, _FOLDS)
                if known or file.endswith("_R.dat"):
                    stream = archive.extractfile(member)
                    assert stream is not None  # it is a file
                    tables.setdefault(name, {})[file] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{path} must be a whole .tar.gz archive, got an error ({error}). It is "
            f"truncated or damaged: get it again from {UCI.page}."
        ) from error
    return {n: files for n, files in tables.items() if f"{n}.txt" in files}


def _unsafe(path: Path, rule: str) -> ValueError:
    return ValueError(f"{path} must have {rule}. Do not use this file.")


def _missing(name: str, files: Mapping[str, bytes]) -> list[str]:
    needed = [*_data_files(_description(name, files)), _SPLIT, _FOLDS]
    return [file for file in needed if file not in files]


def _description(name: str, files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the ``key= value`` lines: n_entradas (inputs), n_clases, fich1, ..."""
    lines = files[f"{name}.txt"].decode("latin-1").splitlines()
    pairs = (line.split("=", 1) for line in lines if "=" in line)
    found = {key.strip(): value.strip() for key, value in pairs}
    for key in ("n_entradas", "n_clases", "n_patrons1"):
        if not _COUNT.fullmatch(found.get(key, "")):
            got = repr(found.get(key))
            raise ValueError(f"{name}/{name}.txt: {key} must be a count, got {got}.")
    if not found.get("fich1"):
        raise ValueError(f"{name}/{name}.txt: fich1 must be a file name, got none.")
    return found


def _data_files(described: Mapping[str, str]) -> list[str]:
    """Return the file with the table's rows, and that with its test rows if any."""
    return [described[key] for key in ("fich1", "fich2") if described.get(key)]


def _parse_table(name: str, files: Mapping[str, bytes]) -> UCITable:
    described = _description(name, files)
    d, k = int(described["n_entradas"]), int(described["n_clases"])
    parts: list[Tensor] = []
    for i, file in enumerate(_data_files(described), start=1):
        n = described.get(f"n_patrons{i}")
        parts += _parse_rows(f"{name}/{file}", files[file], n, d, k)
    x, y, *test = parts
    x_test, y_test = test or (x[:0], y[:0])
    (split,) = _parse_pairs(f"{name}/{_SPLIT}", files[_SPLIT], len(x), 1)
    folds = _parse_pairs(f"{name}/{_FOLDS}", files[_FOLDS], len(x), 4)
    origin = f"{name} of the 121 tables of Fernández-Delgado et al. (2014)"
    return UCITable(name, x, y, k, split, tuple(folds), x_test, y_test, origin)


def _parse_rows(
    file: str, raw: bytes, n: str | None, d: int, k: int
) -> tuple[Tensor, Tensor]:
    """Parse a header and rows of a number, d inputs and the class."""
    body = raw.partition(b"\n")[2]
    if not body.strip():
        raise ValueError(f"{file} must have a header and rows, got no rows.")
    try:
        table = np.loadtxt(io.BytesIO(body), ndmin=2, comments=None, encoding="latin-1")
    except ValueError as error:
        raise ValueError(f"{file} must be a table of numbers: {error}") from error
    if table.shape[1] != d + 2 or str(len(table)) != n:
        raise ValueError(
            f"{file} must have {n} rows of a number, {d} inputs and a class, got "
            f"{len(table)} rows of {table.shape[1]} numbers."
        )
    if not np.isfinite(table).all():
        raise ValueError(f"{file} must have finite numbers, got NaN or infinity.")
    y = table[:, -1]
    if not np.isin(y, np.arange(k)).all():
        raise ValueError(
            f"{file} must have classes 0 to {k - 1}, got {y.min():g} to {y.max():g}."
        )
    x = torch.from_numpy(np.ascontiguousarray(table[:, 1:-1]))
    return x, torch.from_numpy(y.astype(np.int64))


def _parse_pairs(file: str, raw: bytes, n: int, n_pairs: int) -> list[Indices]:
    """Parse pairs of lines of row numbers from 0, disjoint within a pair."""
    lines = [line.split() for line in raw.decode("latin-1").splitlines()]
    lines = [line for line in lines if line]
    if not all(_COUNT.fullmatch(word) for line in lines for word in line):
        raise ValueError(f"{file} must have row numbers, got something else.")
    if len(lines) != 2 * n_pairs:
        raise ValueError(f"{file} must have {2 * n_pairs} lines, got {len(lines)}.")
    rows = [torch.tensor([int(word) for word in line]) for line in lines]
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    for pair in pairs:
        both = torch.cat(pair)
        if int(both.max()) >= n or len(both.unique()) < len(both):
            raise ValueError(
                f"{file} must have distinct row numbers below {n} in each pair of "
                f"lines, got {len(both)} numbers, {len(both.unique())} of them "
                f"distinct, up to {int(both.max())}."
            )
    return pairs
