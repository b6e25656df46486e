"""Where data files are, how they are downloaded, and what is known about them."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import time
import zlib
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NoReturn
from uuid import uuid4

from normalign._errors import complaint, installing, missing_extra, require

__all__ = [
    "CIFAR10",
    "MNIST",
    "SOURCES",
    "Collection",
    "RemoteFile",
    "Source",
    "cache_dir",
    "download",
    "fetch",
    "is_exact",
    "locate",
    "obtain",
    "refuse_missing",
    "search_path",
    "source_named",
]

_SLOWEST = 10_000  # bytes per second, on average: a slower mirror is given up
_CHUNK = 1 << 16
_PIECE = 1 << 10  # bytes between two looks at the clock: a drip must not fill one
_LARGEST = 1 << 31  # bytes taken of a file whose size was never published


def cache_dir() -> Path:
    """Return the user's cache folder: ``$NORMALIGN_CACHE`` or the platform's."""
    if given := os.environ.get("NORMALIGN_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
        return Path(local) / "normalign" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "normalign"
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normalign"
    )


def search_path(data_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Return the folders that are looked in, first to last."""
    folders = [] if data_dir is None else [Path(data_dir).expanduser()]
    if shared := os.environ.get("NORMALIGN_DATA"):
        folders.append(Path(shared).expanduser())
    return [*folders, cache_dir()]


def locate(
    source: Source, data_dir: str | os.PathLike[str] | None = None
) -> Path | None:
    """Return the first folder that holds all files of a source, or ``None``.

    Only presence is checked: a partial copy is found too, and :func:`is_exact` tells.

    Parameters
    ----------
    source : Source
        What to look for.
    data_dir : path, optional
        Looked in before ``$NORMALIGN_DATA`` and the cache.
    """
    for folder in search_path(data_dir):
        paths = [folder / file.path for file in source.files]
        if paths and all(path.is_file() for path in paths):
            return folder
    return None


def is_exact(source: Source, folder: Path) -> bool:
    """Whether a folder's copy of a source is the published one, by checksum.

    Reads every file once; a gzip file whose own checksum differs counts as exact if
    it unpacks to the published content.
    """
    return all(_file_is_exact(folder / file.path, file) for file in source.files)


def _file_is_exact(path: Path, file: RemoteFile) -> bool:
    with path.open("rb") as stream:
        if _digest(stream) == file.md5:
            return True
    if not file.content_md5:
        return False
    try:
        with gzip.open(path, "rb") as stream:
            return _digest(stream) == file.content_md5
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return False


def _digest(stream: BinaryIO | gzip.GzipFile) -> str:
    # A checksum against damage and partial copies, pinned to the published file.
    md5 = hashlib.md5(usedforsecurity=False)
    while chunk := stream.read(_CHUNK):
        md5.update(chunk)
    return md5.hexdigest()


def obtain(
    source: Source,
    *,
    callee: str,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> Path:
    """Return the folder with a source's files, downloading what is nowhere.

    Parameters
    ----------
    source : Source
        What is wanted.
    callee : str
        Who asks: the opening of the complaint.
    data_dir : path, optional
        Looked in first, and downloaded into if given.
    download : bool, default=True
        Whether to try the network.

    Raises
    ------
    FileNotFoundError
        If the files are nowhere and cannot be fetched: says what is missing, where
        it was looked for and the command that fetches it.
    """
    folder = locate(source, data_dir)
    if folder is not None:
        return folder
    files = ", ".join(file.path for file in source.files)
    missing = callee, files, source.name, data_dir
    if not download:
        refuse_missing(*missing, "and download=False")
    try:
        return fetch(source, data_dir=data_dir)
    except ModuleNotFoundError:
        refuse_missing(
            *missing,
            f"and the download extra is not installed ({installing('download')})",
        )
    except OSError as error:  # no network, no honest mirror, no room, no right to write
        refuse_missing(*missing, "and downloading failed", error)


def refuse_missing(
    callee: str,
    holds: str,
    fetched_as: str,
    data_dir: str | os.PathLike[str] | None,
    reason: str,
    cause: BaseException | None = None,
) -> NoReturn:
    """Complain that files are nowhere: what is missing, where, and what fetches it.

    Parameters
    ----------
    holds : str
        What a folder would have to hold.
    fetched_as : str
        The words after ``normalign data fetch``.
    reason : str
        Why they were not fetched.
    """
    looked = ", ".join(str(folder) for folder in search_path(data_dir))
    detail = f" [{cause}]" if cause else ""
    text = complaint(
        callee, "data_dir", f"a folder that holds {holds}",
        f"none in {looked}, {reason}{detail}",
        f"Run `normalign data fetch {fetched_as}` where there is a network, or set "
        "NORMALIGN_DATA to a folder that has the files.",
    )  # fmt: skip
    raise FileNotFoundError(text) from cause


def fetch(
    source: Source,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    mirrors: Sequence[str] | None = None,
    attempts: int = 2,
    timeout: float = 30.0,
    progress: bool = False,
) -> Path:
    """Download a source's files and return their folder.

    Files that are there with the right checksum are left alone. All mirrors are
    tried in order, `attempts` times over; one that is silent for `timeout` seconds,
    slower than 10 kB/s on average, or sends other bytes than the published ones is
    passed over. Nothing gets its final name before size and checksum agree. Needs
    the ``download`` extra. The proxies of the environment are used.

    Parameters
    ----------
    source : Source
        What to download.
    data_dir : path, optional
        Where to; by default the user's cache.
    mirrors : sequence of str, optional
        Base URLs instead of the source's own.
    attempts : int, default=2
        Times the mirrors are gone through for a file.
    timeout : float, default=30.0
        Seconds of silence after which a mirror is given up.
    progress : bool, default=False
        Show a progress bar on stderr.

    Returns
    -------
    Path
        The folder; the files are below it at their ``path``.

    Raises
    ------
    ConnectionError
        If a file could not be had from any mirror; says what each one did.
    ModuleNotFoundError
        If the ``download`` extra is not installed.
    ValueError
        If `attempts` or `timeout` is not positive, or the source has no files with
        published checksums: the tables of TabArena are fetched one by one, the UCI
        collection by hand.
    """
    require(attempts >= 1, "fetch", "attempts", "at least 1", attempts)
    require(timeout > 0, "fetch", "timeout", "positive", timeout)
    require(
        bool(source.files) and all(file.md5 for file in source.files), "fetch",
        "source", "one of files with published checksums", source.name,
        f"See `normalign data fetch {source.name}`.",
    )  # fmt: skip
    folder = cache_dir() if data_dir is None else Path(data_dir).expanduser()
    bases = source.mirrors if mirrors is None else tuple(mirrors)
    require(len(bases) > 0, "fetch", "mirrors", "at least one URL", "none")
    for file in source.files:
        target = folder / file.path
        if target.is_file() and _file_is_exact(target, file):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        urls = [f"{base.rstrip('/')}/{file.name}" for base in bases]
        download(file, urls * attempts, target, timeout=timeout, progress=progress)
    return folder


def download(
    file: RemoteFile,
    urls: Sequence[str],
    target: Path,
    *,
    timeout: float = 30.0,
    progress: bool = False,
) -> None:
    """Download one file from the first URL that sends the published bytes.

    A size or a checksum that was never published is not asked for.

    Raises
    ------
    ConnectionError
        If no URL sent it; says what each one did.
    ModuleNotFoundError
        If the ``download`` extra is not installed.
    """
    try:
        import pooch
        import requests
    except ModuleNotFoundError as error:
        raise missing_extra("fetch", "download", error) from error
    # identity: a mirror must send the file's own bytes, not a re-encoding of them
    downloader = pooch.HTTPDownloader(
        progressbar=progress,
        chunk_size=_PIECE,
        timeout=timeout,
        headers={"Accept-Encoding": "identity"},
    )
    failures = []
    part = target.with_name(f"{target.name}.{uuid4().hex}.part")
    for url in urls:
        try:
            with part.open("wb") as stream:
                sink = _Sink(stream, file.size, timeout)
                downloader(url, sink, None)
            sink.finish(file.md5)
            os.replace(part, target)
            return
        except (requests.RequestException, ConnectionError, TimeoutError) as error:
            failures.append(f"{url}: {error}")
        finally:
            part.unlink(missing_ok=True)
    raise ConnectionError(
        complaint(
            "fetch", "mirrors",
            f"reachable and true to the published {file.name}"
            + (f" ({file.size} bytes)" if file.size else ""),
            "; ".join(dict.fromkeys(failures)),
            "Where there is no network, put a copy at "
            f"$NORMALIGN_DATA/{file.path}; `normalign data where` says where it looks.",
        )
    )  # fmt: skip


class _Sink:
    """A file of `size` bytes (0: not known), written no slower than the slowest."""

    def __init__(self, file: BinaryIO, size: int, patience: float) -> None:
        self.file, self.size, self.patience = file, size, patience
        self.written = 0
        self.started = time.monotonic()
        self.md5 = hashlib.md5(usedforsecurity=False)

    def write(self, chunk: bytes) -> int:
        self.written += len(chunk)
        if self.written > (self.size or _LARGEST):
            raise ConnectionError(
                f"sent more than the {self.size or _LARGEST} bytes of the file"
            )
        seconds = time.monotonic() - self.started
        if seconds > self.patience and self.written < _SLOWEST * seconds:
            raise TimeoutError(f"{self.written} bytes in {seconds:.0f} s is too slow")
        self.md5.update(chunk)
        return self.file.write(chunk)

    def flush(self) -> None:
        self.file.flush()

    def finish(self, md5: str) -> None:
        if self.size and self.written != self.size:
            raise ConnectionError(f"sent {self.written} of {self.size} bytes")
        if md5 and self.md5.hexdigest() != md5:
            raise ConnectionError(f"sent other bytes (md5 {self.md5.hexdigest()})")


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
