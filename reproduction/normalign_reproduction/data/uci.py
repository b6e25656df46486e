"""The 121 classification tables of Fernández-Delgado et al., read in memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from normalign_reproduction.data.uci_collection import UCICollection, uci_archive
from normalign_reproduction.data.uci_table import UCITable

__all__ = ["load_uci", "read_uci", "uci_names", "uci_tables"]


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
