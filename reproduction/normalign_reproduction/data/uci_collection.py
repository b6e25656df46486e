"""The archive of the UCI collection, opened once and kept in memory."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from normalign.data import locate, search_path
from normalign_reproduction._errors import complaint, require
from normalign_reproduction.data.sources import UCI
from normalign_reproduction.data.uci_table import (
    FOLDS,
    SPLIT,
    UCITable,
    data_files,
    description,
    parsed,
)

__all__ = ["UCICollection", "uci_archive"]

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
    def found(cls, data_dir: str | os.PathLike[str] | None = None) -> UCICollection:
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
        return cls(uci_archive("UCICollection.found", data_dir))

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
        return parsed(name, folder.contents)

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
