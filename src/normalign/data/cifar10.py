"""CIFAR-10 from the archive of its binary version, read in memory."""

from __future__ import annotations

import os
import tarfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from normalign._errors import complaint, require
from normalign.data.dataset import Dataset, rows
from normalign.data.fetch import is_exact, obtain
from normalign.data.sources import CIFAR10

__all__ = [
    "CIFAR10_CLASSES",
    "CIFAR10_MEAN",
    "CIFAR10_STD",
    "load_cifar10",
    "read_cifar10",
]

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
