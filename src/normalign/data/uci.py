"""The 121 classification tables of Fernández-Delgado et al., read in memory."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NoReturn

from normalign._checks import complaint, require
from normalign.data.fetch import locate, search_path
from normalign.data.sources import UCI
from normalign.data.uci_table import (
    FOLDS,
    SPLIT,
    UCITable,
    data_files,
    description,
    parsed,
)

__all__ = ["UCITable", "load_uci", "read_uci", "uci_names", "uci_tables"]

_MEMBER_LIMIT = 1 << 27  # the largest table, miniboone's, has about 60 MB
_TOTAL_LIMIT = 1 << 32


@dataclass
class _Folder:
    """What an archive holds of one table: contents of some files, names of all."""

    contents: dict[str, bytes] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


def load_uci(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> UCITable:
    """Load one table of the 121-table collection.

    The archive ``uci/data.tar.gz`` is looked for in `data_dir`, ``$NORMALIGN_DATA``
    and the cache; it is not downloaded, since no checksum of it was ever published.
    Reading goes through the whole archive, a second or two: for many tables use
    :func:`uci_tables`.

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
    (table,) = read_uci(_archive("load_uci", data_dir), [name])
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
    return read_uci(_archive("uci_tables", data_dir), names)


def uci_names(*, data_dir: str | os.PathLike[str] | None = None) -> list[str]:
    """Return the names of the tables whose files are all in the archive, sorted.

    Raises
    ------
    FileNotFoundError
        If the archive is nowhere.
    ValueError
        If it is damaged or unsafe.
    """
    folders = _folders(_archive("uci_names", data_dir), contents="")
    return sorted(
        name for name, folder in folders.items() if not _missing(name, folder)
    )


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
    folders = _folders(Path(path), contents=wanted)
    whole = sorted(
        name for name, folder in folders.items() if not _missing(name, folder)
    )
    for name in whole if wanted is None else wanted:
        require(
            name in folders, "read_uci", "names",
            f"one of the {len(whole)} tables in the archive", repr(name),
            "`normalign.data.uci_names()` lists them.",
        )  # fmt: skip
        lost = _missing(name, folders[name])
        require(
            not lost, "read_uci", "path", f"an archive with all files of {name}",
            f"one without {', '.join(lost)}",
        )  # fmt: skip
        yield parsed(name, folders[name].contents)
        if wanted is None:  # let go of each, since all of them are large together
            del folders[name]


def _archive(callee: str, data_dir: str | os.PathLike[str] | None) -> Path:
    folder = locate(UCI, data_dir)
    if folder is None:
        _refuse_missing(callee, data_dir)
    return folder / UCI.files[0].path


def _refuse_missing(callee: str, data_dir: str | os.PathLike[str] | None) -> NoReturn:
    looked = ", ".join(str(folder) for folder in search_path(data_dir))
    path = UCI.files[0].path
    raise FileNotFoundError(
        complaint(
            callee, "data_dir", f"a folder that holds {path}", f"none in {looked}",
            f"Put the archive from {UCI.page} at $NORMALIGN_DATA/{path}.",
        )
    )  # fmt: skip


def _folders(path: Path, *, contents: Iterable[str] | None) -> dict[str, _Folder]:
    """Every table's folder; the data of those in `contents` (None: of all) are read."""
    kept = None if contents is None else set(contents)
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
