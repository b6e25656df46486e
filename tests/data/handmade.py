"""Tiny files in the published formats, made by hand."""

import gzip
import hashlib
import io
import struct
import tarfile
from pathlib import Path

import numpy as np

from normalign.data import RemoteFile, Source

CIFAR_NAMES = [
    *(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)),
    "cifar-10-batches-bin/test_batch.bin",
]


def idx_bytes(array: np.ndarray) -> bytes:
    shape = array.shape
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + (
        array.astype(np.uint8).tobytes()
    )


def write_mnist(folder: Path, *, n_train: int, n_test: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    (folder / "mnist").mkdir(parents=True)
    arrays = {}
    for stem, n in (("train", n_train), ("t10k", n_test)):
        arrays[f"{stem}-images"] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        arrays[f"{stem}-labels"] = (np.arange(n) % 10).astype(np.uint8)
        for part, kind in (("images", "idx3"), ("labels", "idx1")):
            path = folder / f"mnist/{stem}-{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(idx_bytes(arrays[f"{stem}-{part}"])))
    return arrays


def cifar_batch(n: int, *, start: int = 0) -> bytes:
    labels = (np.arange(start, start + n) % 10).astype(np.uint8)
    # each image is flat: channel c of image i has the value i + 50 c
    planes = (np.arange(start, start + n)[:, None] + 50 * np.arange(3)).astype(np.uint8)
    pixels = np.repeat(planes, 32 * 32, axis=1)
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()


def write_tar(path: Path, members: dict[str, bytes], **special: str) -> Path:
    """Write a .tar.gz; `special` maps a member's name to its link target."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
        for name, goal in special.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, goal
            archive.addfile(info)
    return path


def cifar_members(n: int = 4) -> dict[str, bytes]:
    return {name: cifar_batch(n, start=n * i) for i, name in enumerate(CIFAR_NAMES)}


def tiny_source(*payloads: bytes, mirrors: tuple[str, ...] = ("http://x/",)) -> Source:
    files = tuple(
        RemoteFile(
            path=f"tiny/part{i}.bin",
            size=len(raw),
            md5=hashlib.md5(raw, usedforsecurity=False).hexdigest(),
        )
        for i, raw in enumerate(payloads)
    )
    return Source("tiny", "a tiny source", files, mirrors, "none", "nobody")
