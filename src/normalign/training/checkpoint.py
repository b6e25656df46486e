"""Checkpoint files: tensors and a record, replaced in one step."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import torch
from torch import Tensor

from normalign._errors import (
    complaint,
    describe,
    missing_extra,
    require,
    require_kind,
)

__all__ = [
    "Checkpoint",
    "CheckpointRefused",
    "fingerprint",
    "read_checkpoint",
    "write_checkpoint",
]

Json: TypeAlias = (
    "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
)

# The one entry of the file's metadata. One, because the format does not keep the order
# of several, and the same content should give the same bytes.
ENTRY = "normalign_checkpoint"
VERSION = 1

# Bytes of a file's header, all names and the record, beyond which readers refuse it.
HEADER_LIMIT = 100_000_000

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


class CheckpointRefused(ValueError):
    """A checkpoint that cannot be resumed: damaged, or of other settings."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The content of a checkpoint file.

    Attributes
    ----------
    tensors : dict of str to Tensor
        By name, in alphabetical order; no two share memory.
    record : dict
        As it was written; tuples have become lists.
    """

    tensors: dict[str, Tensor]
    record: dict[str, Any]


def fingerprint(record: Mapping[str, Json]) -> str:
    """Return a hash of a record that does not depend on the order of its keys.

    The SHA-256 of its JSON with sorted keys, as 64 hexadecimal digits. Equal numbers
    such as 1 and 1.0 have the same hash, and so have tuples and lists.

    Parameters
    ----------
    record : mapping of str to what JSON can hold
        See :func:`write_checkpoint`.

    Raises
    ------
    TypeError, ValueError
        If JSON cannot hold it.

    Examples
    --------
    >>> settings = {"lr": 1, "seeds": (0, 1)}
    >>> fingerprint(settings) == fingerprint({"seeds": [0, 1], "lr": 1.0})
    True
    """
    plain = _plain_record("fingerprint", record)
    text = _text(_by_value(plain), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_checkpoint(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    record: Mapping[str, Json],
) -> None:
    """Write tensors and a record to a file, in one step.

    The file is in the safetensors format, which holds numbers and text and can run no
    code; the record is JSON in its metadata, and a checksum covers both. It is written
    under another name in the same folder, flushed to the disk, and then takes the
    place of the old file: at every moment the path holds the old checkpoint or the new
    one, whole. If writing fails the old file stays and nothing else is left. A process
    that is killed in the middle may leave a hidden file ``.NAME.*.tmp``, which is safe
    to remove.

    Every tensor keeps its shape and, bit for bit, its numbers. Views and transposes
    are written as the numbers they show, tensors that share memory apart, tensors of
    other devices through main memory. The same content gives the same bytes. Writing
    holds a second copy of all tensors in memory.

    Parameters
    ----------
    path : path
        Missing folders are made; if it is a link, what it points to is replaced.
    tensors : mapping of str to Tensor
        Dense, of floating, ``complex64``, integer or ``bool`` dtype.
    record : mapping of str to what JSON can hold
        ``None``, ``bool``, ``int``, finite ``float``, ``str``, lists and tuples, and
        mappings with ``str`` keys. JSON has no NaN and no infinity: spell them as
        strings, as :meth:`normalign.training.History.to_dict` does.

    Raises
    ------
    TypeError
        If a name, a tensor or a value of the record is of another kind.
    ValueError
        If a number of the record is not finite or the record is too long.
    OSError
        If the file cannot be written; the old one is then as it was.
    ModuleNotFoundError
        If safetensors is not installed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_checkpoint(f"{folder}/run", {"w": torch.arange(3)}, {"epoch": 7})
    ...     read_checkpoint(f"{folder}/run").record
    {'epoch': 7}
    """
    callee = "write_checkpoint"
    _require_safetensors(callee)
    from safetensors.torch import save

    target = _target(callee, path)
    plain = _plain_record(callee, record)
    written = _own_memory(callee, tensors)
    head = {"version": VERSION, "checksum": _checksum(written, plain), "record": plain}
    content = save(written, metadata={ENTRY: _text(head)})
    size = int.from_bytes(content[:8], "little")  # so the format begins
    rule, remedy = f"of at most {HEADER_LIMIT} bytes", "Keep tables as tensors."
    got = f"{size} with the tensors' names"
    require(size <= HEADER_LIMIT, callee, "record", rule, got, remedy)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _replacement(target) as file:
        file.write(content)


def read_checkpoint(
    path: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> Checkpoint:
    """Return the tensors and the record that :func:`write_checkpoint` wrote.

    The file is only read, whatever is in it.

    Parameters
    ----------
    device : str or torch.device, default="cpu"
        Where the tensors go.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged, is not a checkpoint, or is of a later version.
    ModuleNotFoundError
        If safetensors is not installed.

    Examples
    --------
    See :func:`write_checkpoint`.
    """
    callee = "read_checkpoint"
    _require_safetensors(callee)
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    if not path.is_file():
        rule, got = "a checkpoint file", f"{path}, which is none"
        raise FileNotFoundError(complaint(callee, "path", rule, got))
    # Read once: opened by its name a second time, it may have been replaced by then.
    content = path.read_bytes()
    try:
        found = load(content)
    except SafetensorError as error:
        raise _refusal(
            callee, path, f"not a whole safetensors file: {error}"
        ) from error
    length = int.from_bytes(content[:8], "little")
    metadata = json.loads(content[8 : 8 + length]).get("__metadata__")
    head = _head(callee, path, metadata)
    tensors = {name: found[name].clone() for name in sorted(found)}
    if _checksum(tensors, head["record"]) != head.get("checksum"):
        raise _refusal(callee, path, "damaged: its checksum does not match its content")
    return Checkpoint(
        {name: tensor.to(device) for name, tensor in tensors.items()}, head["record"]
    )


def _head(
    callee: str, path: Path, metadata: Mapping[str, str] | None
) -> Mapping[str, Any]:
    """Return version, checksum and record from the metadata, or refuse."""
    try:
        head = json.loads((metadata or {}).get(ENTRY, "null"))
    except json.JSONDecodeError as error:
        raise _refusal(callee, path, f"damaged: {error}") from error
    if not isinstance(head, dict) or not isinstance(head.get("version"), int):
        raise _refusal(callee, path, "not one that write_checkpoint made")
    if head["version"] > VERSION:
        version = head["version"]
        rule, got = f"of version {VERSION} or earlier", f"{path}, of version {version}"
        remedy = "Read it with the newer normalign that wrote it."
        raise CheckpointRefused(complaint(callee, "path", rule, got, remedy))
    if not isinstance(head.get("record"), dict):
        raise _refusal(callee, path, "damaged: its record is missing")
    return head


def _refusal(callee: str, path: Path, reason: str) -> CheckpointRefused:
    remedy = "Move it to start over, or restore a copy. It was not changed."
    got = f"{path}, which is {reason}"
    text = complaint(callee, "path", "a whole checkpoint", got, remedy)
    return CheckpointRefused(text)


def _require_safetensors(callee: str) -> None:
    try:
        import safetensors  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_extra(callee, "weights", error) from error


def _target(callee: str, path: str | os.PathLike[str]) -> Path:
    target = Path(path).resolve()
    require(not target.is_dir(), callee, "path", "a file", f"the folder {path}")
    return target


@contextmanager
def _replacement(target: Path) -> Iterator[Any]:
    """Open a file that takes the target's place once it is whole on the disk."""
    partial = target.with_name(f".{target.name}.{uuid4().hex}.tmp")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    # The new name is on the disk only when its folder is. Not every system lets a
    # folder be opened; the file itself is whole either way.
    with suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _own_memory(callee: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in main memory, contiguous, no two of them sharing any."""
    _require_mapping(callee, "tensors", tensors)
    made: dict[str, Tensor] = {}
    used: set[int] = set()
    for name in tensors:
        _check_tensor(callee, name, tensors[name])
        # A lazy conjugate or negative is a flag that the bytes do not show.
        tensor = tensors[name].detach().resolve_conj().resolve_neg().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        made[name] = tensor.clone() if memory in used else tensor
        used.add(memory)
    return dict(sorted(made.items()))


def _check_tensor(callee: str, name: Any, tensor: Any) -> None:
    require_kind(isinstance(name, str), callee, "tensors", "named by strings", name)
    rule, free = "other than the format's own '__metadata__'", name != "__metadata__"
    require(free, callee, "a tensor's name", rule, repr(name))
    argument = f"tensors[{name!r}]"
    require_kind(isinstance(tensor, Tensor), callee, argument, "a tensor", tensor)
    dense = tensor.layout == torch.strided and not tensor.is_meta
    require_kind(dense, callee, argument, "dense, with numbers in memory", tensor)
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
    known = tensor.dtype in DTYPES
    require_kind(known, callee, argument, f"of dtype {names}", tensor)


def _text(value: Any, *, sort_keys: bool = False) -> str:
    """Return JSON without spaces, in ASCII."""
    return json.dumps(value, separators=(",", ":"), sort_keys=sort_keys)


def _checksum(tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> int:
    """Return the CRC-32 of the record and of each tensor, its name, dtype and shape."""
    total = zlib.crc32(_text(record).encode())
    for name, tensor in tensors.items():
        label = f"{name}\n{tensor.dtype}{tuple(tensor.shape)}"
        total = zlib.crc32(label.encode(), total)
        content = tensor.reshape(-1).view(torch.uint8).numpy()
        # The file is little-endian; a machine that is not sums in the file's order.
        if sys.byteorder == "big":
            content = content.reshape(-1, tensor.element_size())[:, ::-1].copy()
        total = zlib.crc32(content.data, total)
    return total


def _plain_record(callee: str, record: Mapping[str, Json]) -> dict[str, Any]:
    _require_mapping(callee, "record", record)
    return _plain(callee, "record", record)


def _require_mapping(callee: str, argument: str, value: Any) -> None:
    # Described only where it is wrong: to write out a network's tensors takes longer
    # than to write the file.
    if not isinstance(value, Mapping):
        raise TypeError(complaint(callee, argument, "a mapping", describe(value)))


def _plain(callee: str, where: str, value: Any) -> Any:
    """Return a value in JSON's own types, or complain of the place that has none."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        remedy = "JSON has no such number: write str(value)."
        require(math.isfinite(value), callee, where, "finite", str(value), remedy)
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(callee, f"{where}[{i}]", part) for i, part in enumerate(value)]
    rule = "None, bool, int, float, str, list, tuple or a mapping"
    remedy = "Tensors belong among the tensors; numbers are float(value), int(value)."
    require_kind(isinstance(value, Mapping), callee, where, rule, value, remedy)
    for key in value:
        plain = isinstance(key, str)
        require_kind(plain, callee, f"a key of {where}", "a str", describe(key))
    return {k: _plain(callee, f"{where}[{k!r}]", part) for k, part in value.items()}


def _by_value(value: Any) -> Any:
    """Return a plain value with its whole floats as the integers they equal."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_by_value(part) for part in value]
    if isinstance(value, dict):
        return {key: _by_value(part) for key, part in value.items()}
    return value
