"""The data sets that live in files: names, checksums, mirrors, terms."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from normalign._errors import require

__all__ = [
    "CIFAR10",
    "MNIST",
    "SOURCES",
    "Collection",
    "RemoteFile",
    "Source",
    "source_named",
]


@dataclass(frozen=True)
class RemoteFile:
    """One file of a source.

    Parameters
    ----------
    path : str
        Place below the data folder, such as ``"mnist/train-images-idx3-ubyte.gz"``.
    size : int
        Bytes of the original file; 0 if that was never published.
    md5 : str
        Checksum of the original file; empty if it was never published.
    content_md5 : str, default=""
        For a gzip file, the checksum of what it unpacks to: the same data compressed
        anew has another `md5` but is still exact.
    """

    path: str
    size: int
    md5: str
    content_md5: str = ""

    @property
    def name(self) -> str:
        """The file name without its folder."""
        return PurePosixPath(self.path).name


@dataclass(frozen=True)
class Source:
    """A data set that lives in files.

    Parameters
    ----------
    name : str
        As on the command line.
    title : str
        One line for people.
    files : tuple of RemoteFile
        All of them are needed.
    mirrors : tuple of str
        Base URLs, tried in this order; a file's URL is the mirror plus its name.
    licence : str
        Terms of use.
    citation : str
        Whom to cite.
    page : str, default=""
        Where a person gets the files when no mirror is known to be true to them.
    """

    name: str
    title: str
    files: tuple[RemoteFile, ...]
    mirrors: tuple[str, ...]
    licence: str
    citation: str
    page: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class Collection:
    """A set of tables that another package adds to ``normalign data``.

    It is registered as an entry point of the group ``normalign.collections``.

    Parameters
    ----------
    source : Source
    find : callable
        Takes a data folder or ``None`` and returns a mapping with ``"folder"``,
        ``"exact"`` and ``"tables"``, and either ``"about"``, a few words, or
        ``"error"``.
    fetch : callable
        Takes the parsed arguments of ``normalign data fetch`` and returns the exit
        code.
    """

    source: Source
    find: Callable[[Path | None], dict[str, Any]]
    fetch: Callable[[Namespace], int]


MNIST = Source(
    name="mnist",
    title="MNIST: 70000 handwritten digits, 28 x 28, 10 classes",
    files=(
        RemoteFile(
            "mnist/train-images-idx3-ubyte.gz", 9912422,
            "f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb",
        ),
        RemoteFile(
            "mnist/train-labels-idx1-ubyte.gz", 28881,
            "d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624",
        ),
        RemoteFile(
            "mnist/t10k-images-idx3-ubyte.gz", 1648877,
            "9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea",
        ),
        RemoteFile(
            "mnist/t10k-labels-idx1-ubyte.gz", 4542,
            "ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637",
        ),
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    licence="CC BY-SA 3.0",
    citation="LeCun, Cortes, Burges: The MNIST database of handwritten digits (1998)",
)  # fmt: skip

CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10: 60000 colour photographs, 32 x 32, 10 classes",
    files=(
        RemoteFile(
            "cifar10/cifar-10-binary.tar.gz", 170052171,
            "c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    licence="no licence stated; free for research",
    citation="Krizhevsky: Learning multiple layers of features from tiny images (2009)",
)  # fmt: skip

SOURCES = {source.name: source for source in (MNIST, CIFAR10)}


def source_named(name: str) -> Source:
    """Return the source of that name.

    Raises
    ------
    ValueError
        If there is none; the message lists the names.

    Examples
    --------
    >>> source_named("mnist").files[0].name
    'train-images-idx3-ubyte.gz'
    """
    rule = f"one of {', '.join(SOURCES)}"
    require(name in SOURCES, "source_named", "name", rule, repr(name))
    return SOURCES[name]
