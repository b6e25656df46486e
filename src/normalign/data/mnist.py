"""MNIST from its four IDX files, and the reader of that format."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from normalign._errors import complaint, require
from normalign.data.dataset import Dataset, rows
from normalign.data.fetch import is_exact, obtain
from normalign.data.sources import MNIST

__all__ = ["MNIST_MEAN", "MNIST_STD", "load_mnist", "read_idx"]

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
    raw = _unpacked(Path(path))
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


def _unpacked(path: Path) -> bytes:
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
