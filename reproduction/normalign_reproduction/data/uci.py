"""The UCI collection of 121 tables, from the archive of its authors."""

from __future__ import annotations

import io
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from normalign.data import RemoteFile, Source, locate, search_path
from normalign_reproduction._errors import complaint, require

__all__ = [
    "FOLDS", "SPLIT", "UCI", "UCICollection", "UCITable", "data_files", "description",
    "load_uci", "parse_table", "read_uci", "uci_archive", "uci_names", "uci_tables",
]  # fmt: skip

SPLIT, FOLDS = "conxuntos.dat", "conxuntos_kfold.dat"

Indices = tuple[Tensor, Tensor]

# Its authors published neither size nor checksum, so that nothing can be downloaded on
# trust: a copy is put in place by hand, and every copy counts as not exact.
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


def parse_table(name: str, contents: Mapping[str, bytes]) -> UCITable:
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


_MEMBER_LIMIT = 1 << 27  # the largest table, miniboone's, has about 60 MB
_TOTAL_LIMIT = 1 << 32


@dataclass
class _Folder:
    """What an archive holds of one table: contents of some files, names of all."""

    contents: dict[str, bytes] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


class UCICollection:
    """An opened archive of the collection: one pass over it, then any table.

    The files' bytes stay in memory, about 120 MB for all of them; a table is parsed
    when it is asked for, every time anew. Nothing is written to disk, links are not
    followed, and an archive with an absolute path or a ``..`` is refused whole.

    Parameters
    ----------
    path : path
        The archive: ``NAME/NAME.txt`` describes a table, ``NAME/*_R.dat`` hold it,
        ``NAME/conxuntos.dat`` and ``NAME/conxuntos_kfold.dat`` its splits.
    only : str or iterable of str, optional
        The table or tables whose bytes are kept; by default all.

    Attributes
    ----------
    path : Path
        The archive.
    names : tuple of str
        The tables whose files are all in the archive, sorted; with `only`, too.

    Raises
    ------
    ValueError
        If the archive is damaged or unsafe.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, only: str | Iterable[str] | None = None
    ) -> None:
        self.path = Path(path)
        wanted = [only] if isinstance(only, str) else only
        self._kept = None if wanted is None else frozenset(wanted)
        self._folders = _folders(self.path, self._kept)
        self.names = tuple(
            sorted(n for n, folder in self._folders.items() if not _missing(n, folder))
        )

    @classmethod
    def locate(cls, data_dir: str | os.PathLike[str] | None = None) -> UCICollection:
        """Open ``uci/data.tar.gz`` of `data_dir`, ``$NORMALIGN_DATA`` or the cache.

        Parameters
        ----------
        data_dir : path, optional
            Looked in first.

        Raises
        ------
        FileNotFoundError
            If the archive is nowhere; says where it was looked for and is had.
        ValueError
            If it is damaged or unsafe.
        """
        return cls(uci_archive("UCICollection.locate", data_dir))

    def table(self, name: str) -> UCITable:
        """Return one table.

        Parameters
        ----------
        name : str
            One of `names`.

        Raises
        ------
        ValueError
            If there is no such table, or a file of it is missing or does not have
            what the table's description promises.
        """
        require(
            name in self._folders, "UCICollection.table", "name",
            f"one of the {len(self.names)} tables in the archive", repr(name),
            "`normalign_reproduction.data.uci_names()` lists them.",
        )  # fmt: skip
        require(
            self._kept is None or name in self._kept, "UCICollection.table", "name",
            "a table of `only`", repr(name),
        )  # fmt: skip
        folder = self._folders[name]
        lost = _missing(name, folder)
        require(
            not lost, "read_uci", "path", f"an archive with all files of {name}",
            f"one without {', '.join(lost)}",
        )  # fmt: skip
        return parse_table(name, folder.contents)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[UCITable]:
        """Go through the tables by name; with `only`, through those alone."""
        kept = self._kept
        return (self.table(n) for n in self.names if kept is None or n in kept)

    def __repr__(self) -> str:
        return f"UCICollection({self.path.name}: {len(self)} tables)"


def uci_archive(callee: str, data_dir: str | os.PathLike[str] | None) -> Path:
    """The archive's path, or the complaint that it is nowhere, in the callee's name."""
    folder = locate(UCI, data_dir)
    path = UCI.files[0].path
    if folder is not None:
        return folder / path
    looked = ", ".join(str(folder) for folder in search_path(data_dir))
    raise FileNotFoundError(
        complaint(
            callee, "data_dir", f"a folder that holds {path}", f"none in {looked}",
            f"Put the archive from {UCI.page} at $NORMALIGN_DATA/{path}.",
        )
    )  # fmt: skip


def _folders(path: Path, kept: frozenset[str] | None) -> dict[str, _Folder]:
    """Every table's folder; the data of those in `kept` (None: of all) are read."""
    folders: dict[str, _Folder] = {}
    total = 0
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                total += member.size
                place = _place(member, total)
                if place is None or not member.isfile():
                    continue
                name, file = place
                folder = folders.setdefault(name, _Folder())
                folder.names.add(file)
                if file == f"{name}.txt" or kept is None or name in kept:
                    _check_size(member)
                    stream = archive.extractfile(member)
                    folder.contents[file] = stream.read() if stream else b""
    except (tarfile.TarError, EOFError, zlib.error) as error:
        text = complaint(
            "read_uci", "path", "a whole .tar.gz archive", f"{path.name} ({error})",
            f"The file is truncated or damaged: get it again from {UCI.page}.",
        )  # fmt: skip
        raise ValueError(text) from error
    return {n: folder for n, folder in folders.items() if f"{n}.txt" in folder.names}


def _place(member: tarfile.TarInfo, total: int) -> tuple[str, str] | None:
    """Table and file of a member, or None if it is neither data nor description."""
    path = PurePosixPath(member.name.replace("\\", "/"))
    require(
        not path.is_absolute() and ".." not in path.parts and ":" not in member.name,
        "read_uci", "path", "an archive whose paths stay inside it",
        f"the member {member.name!r}", "Do not use this file.",
    )  # fmt: skip
    require(
        total <= _TOTAL_LIMIT, "read_uci", "path",
        f"an archive of at most {_TOTAL_LIMIT} bytes", "more", "Do not use this file.",
    )  # fmt: skip
    parts = path.parts[1:] if path.parts[:1] == ("data",) else path.parts
    if len(parts) != 2:
        return None
    name, file = parts
    useful = file in (f"{name}.txt", SPLIT, FOLDS) or file.endswith("_R.dat")
    return (name, file) if useful else None


def _check_size(member: tarfile.TarInfo) -> None:
    require(
        member.size <= _MEMBER_LIMIT, "read_uci", "path",
        f"an archive of members of at most {_MEMBER_LIMIT} bytes",
        f"{member.name!r} of {member.size} bytes", "Do not use this file.",
    )  # fmt: skip


def _missing(name: str, folder: _Folder) -> list[str]:
    files = data_files(description(name, folder.contents[f"{name}.txt"]))
    return [file for file in (*files, SPLIT, FOLDS) if file not in folder.names]


def load_uci(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> UCITable:
    """Load one table of the 121-table collection.

    The archive ``uci/data.tar.gz`` is looked for in `data_dir`, ``$NORMALIGN_DATA``
    and the cache; it is not downloaded, since no checksum of it was ever published.
    Reading goes through the whole archive, a second or two: for many tables use
    :func:`uci_tables` or :class:`UCICollection`.

    Parameters
    ----------
    name : str
        One of :func:`uci_names`.
    data_dir : path, optional
        Looked in first.

    Returns
    -------
    UCITable

    Raises
    ------
    FileNotFoundError
        If the archive is nowhere; says where it was looked for and where it is had.
    ValueError
        If there is no such table or a file of it is damaged.
    """
    (table,) = read_uci(uci_archive("load_uci", data_dir), [name])
    return table


def uci_tables(
    names: Iterable[str] | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
) -> Iterator[UCITable]:
    """Load many tables in one pass over the archive, parsing each when it is asked for.

    Parameters
    ----------
    names : iterable of str, optional
        Which, and in which order; by default all whole ones by name.
    data_dir : path, optional
        Looked in before ``$NORMALIGN_DATA`` and the cache.

    Yields
    ------
    UCITable

    Raises
    ------
    FileNotFoundError, ValueError
        As :func:`load_uci`.
    """
    return read_uci(uci_archive("uci_tables", data_dir), names)


def uci_names(*, data_dir: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the names of the tables whose files are all in the archive, sorted.

    Raises
    ------
    FileNotFoundError
        If the archive is nowhere.
    ValueError
        If it is damaged or unsafe.
    """
    return [*UCICollection(uci_archive("uci_names", data_dir), only=()).names]


def read_uci(
    path: str | os.PathLike[str], names: Iterable[str] | None = None
) -> Iterator[UCITable]:
    """Read tables out of an archive of the collection.

    Nothing is written to disk, links are not followed, and an archive with an
    absolute path or a ``..`` is refused whole.

    Parameters
    ----------
    path : path
        The archive: ``NAME/NAME.txt`` describes a table, ``NAME/*_R.dat`` hold it,
        ``NAME/conxuntos.dat`` and ``NAME/conxuntos_kfold.dat`` its splits.
    names : iterable of str, optional
        Which tables, in this order; by default all whole ones by name.

    Yields
    ------
    UCITable

    Raises
    ------
    ValueError
        If the archive is damaged or unsafe, a table is not in it, or a file does not
        have what the table's description promises.
    """
    wanted = None if names is None else [names] if isinstance(names, str) else [*names]
    collection = UCICollection(path, only=wanted)
    for name in collection.names if wanted is None else wanted:
        yield collection.table(name)
