"""Checkpoints: tensors and a record in one file, and the identity of a run.

A name is not enough. Two lambdas share one, a function has the same name after its
code was edited, and networks of one class start at other weights. So values count by
their content, and what has no content that a later process could compare is refused.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib
import json
import math
import os
import pickle
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normalign._errors import complaint, describe, missing_extra, require, require_kind
from normalign._torch_compat import unwrap

__all__ = [
    "Checkpoint",
    "CheckpointRefused",
    "digest",
    "fingerprint",
    "identify",
    "identify_run",
    "identify_structure",
    "read_checkpoint",
    "require_same_run",
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


# Their classes and functions count by name; those of others by their code, too.
_LIBRARIES = ("builtins", "normalign", "numpy", "scipy", "sklearn", "torch")
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
# What code may read, apart from what it calls, that counts by its content.
_PLAIN = (
    bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, Tensor,
    np.ndarray, np.generic, Enum, Path, torch.dtype, torch.device,
)  # fmt: skip
_DEPTH = 4  # of attributes of attributes
_REMEDY = (
    "Define it at the top level of a module, as a function or as a class whose "
    "attributes, or describe(), hold all its settings; or train without a checkpoint."
)


class _UnidentifiableValue(TypeError):
    """A value that another process could not recognise; says what it is."""


def digest(value: Tensor) -> str:
    """Return the SHA-256 of a tensor: its dtype, its shape and its numbers.

    Examples
    --------
    >>> digest(torch.tensor([1, 2])) == digest(torch.tensor([2, 1]))
    False
    """
    plain = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
    found = hashlib.sha256(f"{value.dtype}{tuple(value.shape)}".encode())
    found.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def identify(callee: str, argument: str, value: Any) -> str:
    """Return a hash of a value by its content: equal hashes mean the same computation.

    The hash includes the values of tensors and arrays; the classes, attributes, hooks,
    parameters and buffers of modules; the names, code, defaults and plain attributes of
    functions and classes and the global values that they read; of other objects what
    ``describe()`` returns, if they have it, and else what pickle would store.

    Of a global object that a function does not call, the class is included and the
    attributes that the function names (``args.weight``).

    Parameters
    ----------
    callee, argument : str
        The beginning of the error message.

    Raises
    ------
    TypeError
        If something in it cannot be identified: a lambda, a local function or class,
        or an object without comparable content.

    Examples
    --------
    >>> one, other = nn.HuberLoss(delta=1.0), nn.HuberLoss(delta=2.0)
    >>> identify("train", "loss", one) == identify("train", "loss", other)
    False
    >>> identify("train", "loss", lambda output, target: output.mean())
    Traceback (most recent call last):
    TypeError: train: loss must be one that a checkpoint can identify, got ...
    """
    reader = _Reader()
    with _unidentified_as_type_error(callee, argument):
        return reader.fingerprint(reader.content(value))


@contextmanager
def _unidentified_as_type_error(callee: str, argument: str) -> Iterator[None]:
    try:
        yield
    except _UnidentifiableValue as error:
        rule = "one that a checkpoint can identify"
        text = complaint(callee, argument, rule, str(error), _REMEDY)
        raise TypeError(text) from error


def identify_structure(callee: str, argument: str, network: nn.Module) -> str:
    """Return a hash of a network without its parameters and buffers."""
    reader = _Reader()
    with _unidentified_as_type_error(callee, argument):
        return reader.fingerprint(reader.structure(unwrap(network)))


def identify_run(callee: str, ingredients: Mapping[str, Any]) -> dict[str, str]:
    """Return the hash of each thing that decides a run, by its name."""
    return {name: identify(callee, name, v) for name, v in ingredients.items()}


def require_same_run(
    callee: str, path: Path, stored: Any, expected: Mapping[str, str]
) -> None:
    """Refuse a checkpoint of another run, and say in what it differs.

    Parameters
    ----------
    stored : object
        What the checkpoint has of :func:`identify_run`.

    Raises
    ------
    CheckpointRefused
        A ``ValueError``.
    """
    if stored == expected:
        return
    if not isinstance(stored, Mapping):
        got = f"{path.name} of another run, or of an earlier version"
    else:
        names = [*expected, *(name for name in stored if name not in expected)]
        other = [name for name in names if stored.get(name) != expected.get(name)]
        got = f"{path.name} of another run, which differs in: {', '.join(other)}"
    rule = "one that was written with these settings and data"
    remedy = "Delete the file to start over, or name another one."
    raise CheckpointRefused(complaint(callee, "checkpoint", rule, got, remedy))


class _Reader:
    """Makes JSON of values that determines what they compute.

    Functions and classes stand in it by name. The code of a user's is read later, once
    each, and with it the values that it reads, wherever they are. ``above`` are the
    objects that hold a value.
    """

    def __init__(self) -> None:
        # By id, and held so that no other object gets it: what is read, or waits.
        self._code: dict[int, tuple[Any, Any]] = {}
        self._waiting: list[FunctionType | type] = []
        self._strict = True

    def fingerprint(self, content: Any) -> str:
        """Return the hash of content that this reader made, and of the code in it."""
        # Code that is found by its names may have lambdas and objects that have no
        # content: what is written in a file is the same in another process.
        self._strict = False
        while self._waiting:
            one = self._waiting.pop()
            if id(one) not in self._code:
                self._code[id(one)] = one, None
                is_class = isinstance(one, type)
                body = self._members(one) if is_class else self._body(one)
                self._code[id(one)] = one, body
        code = sorted(fingerprint({"": part}) for _, part in self._code.values())
        return fingerprint({"content": content, "code": code})

    def content(self, value: Any, above: tuple[int, ...] = ()) -> Any:
        """Return JSON that determines a value."""
        if value is None or type(value) in (bool, str):
            return value
        if type(value) is int:
            return ["number", repr(value)]
        if type(value) is float:  # 1 and 1.0 are one setting
            whole = value != 0 and value.is_integer()
            return ["number", repr(int(value) if whole else value)]
        if type(value) in (complex, bytes):
            return [type(value).__name__, repr(value)]
        if id(value) in above:
            return ["above", above[::-1].index(id(value))]
        above = (*above, id(value))
        if isinstance(value, Tensor):
            return ["tensor", type(value).__name__, digest(value), value.requires_grad]
        if type(value) is np.ndarray and value.dtype != object:
            digits = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
            return ["array", value.dtype.str, list(value.shape), digits]
        if type(value) in (list, tuple):
            parts = [self.content(part, above) for part in value]
            return [type(value).__name__, *parts]
        if type(value) in (set, frozenset):
            parts = [fingerprint({"": self.content(v, above)}) for v in value]
            return ["set", *sorted(parts)]
        if type(value) is dict:
            return ["dict", *self._items(value, above)]
        if isinstance(value, nn.Module):
            # a compiled one computes the same
            return self._module(unwrap(value), above)
        if isinstance(value, FunctionType | type):
            return self._reference(unwrap(value))
        if isinstance(value, MethodType):  # perhaps of a function that no class has
            parts = value.__self__, value.__func__
            return ["method", *(self.content(part, above) for part in parts)]
        if isinstance(value, ModuleType):
            return ["python module", value.__name__]
        if isinstance(value, torch.Generator):
            return ["generator", digest(value.get_state())]
        if isinstance(value, Enum):
            plain = self.content(value.value, above)
            return ["enum", self._reference(type(value)), str(value.name), plain]
        if isinstance(value, Path | torch.dtype | torch.device):
            return [type(value).__name__, str(value)]
        return self._object(value, above)

    def _items(self, value: Mapping[Any, Any], above: tuple[int, ...]) -> list[Any]:
        pairs = [
            [self.content(part, above) for part in item] for item in list(value.items())
        ]
        return sorted(pairs, key=lambda pair: fingerprint({"": pair[0]}))

    def _object(self, value: Any, above: tuple[int, ...]) -> Any:
        """Return what an object says of itself, or what pickle would store of it."""
        describe = getattr(value, "describe", None)
        if callable(value) and callable(describe):
            described = self.content(describe(), above)
            return ["object", self._reference(type(value)), described]
        try:
            reduced = value.__reduce_ex__(4)
        except (TypeError, AttributeError, RuntimeError, pickle.PickleError) as error:
            if self._strict or callable(value):
                raise _UnidentifiableValue(
                    f"a {type(value).__name__} ({error})"
                ) from error
            return ["object", self._reference(type(value))]
        if isinstance(reduced, str):  # a name, such as that of a built-in function
            inner = self.content(getattr(value, "__wrapped__", None), above)
            return ["name", str(getattr(value, "__module__", "")), reduced, inner]
        parts = [list(p) if isinstance(p, Iterator) else p for p in reduced]
        return ["object", *(self.content(part, above) for part in parts)]

    def _module(self, module: nn.Module, above: tuple[int, ...]) -> Any:
        """Return what a module computes: classes, attributes, hooks, numbers, ties."""
        first: dict[int, str] = {}
        numbers: dict[str, Any] = {}
        for kind, values in (
            ("parameter", module.named_parameters(remove_duplicate=False)),
            ("buffer", module.named_buffers(remove_duplicate=False)),
        ):
            for name, value in values:
                tie = first.setdefault(id(value), name)
                content = [kind, digest(value), value.requires_grad]
                numbers[name] = content if tie == name else ["tied to", tie]
        return ["module", self.structure(module, above), list(numbers.items())]

    def structure(self, network: nn.Module, above: tuple[int, ...] = ()) -> Any:
        """Return what a network is, apart from its numbers."""
        own = vars(nn.Module()).keys() - {"training"}
        parts = []
        for name, module in network.named_modules(remove_duplicate=False):
            kind = parametrize.type_before_parametrizations(module)
            plain = {k: v for k, v in vars(module).items() if k not in own}
            inside = (*above, id(module))
            try:
                hooks = [
                    [
                        self.content(hook, inside)
                        for hook in getattr(module, table).values()
                    ]
                    for table in _HOOKS
                ]
                parts.append(
                    [name, self._reference(kind), self._items(plain, inside), hooks]
                )
            except _UnidentifiableValue as error:
                where = f"{name!r}, " if name else ""
                raise _UnidentifiableValue(
                    f"{where}a {kind.__name__} with {error}"
                ) from error
        shapes = [
            [
                name,
                str(value.dtype),
                list(value.shape),
                value.requires_grad,
                [self.content(hook) for hook in (value._backward_hooks or {}).values()],
            ]
            for values in (network.named_parameters, network.named_buffers)
            for name, value in values(remove_duplicate=False)
        ]
        return [parts, shapes]

    def _reference(self, value: FunctionType | type) -> list[str]:
        """Return where to find a function or class, and have a user's code read."""
        kind = "class" if isinstance(value, type) else "function"
        try:
            found = [kind, *_name(value, kind)]
        except _UnidentifiableValue:
            if self._strict:
                raise
            found = [kind, str(value.__module__), value.__qualname__]
            if isinstance(value, FunctionType):  # two lambdas have one name
                found.append(fingerprint({"": list(map(_bytecode, _codes(value)))}))
        # Of classes that others wrote and installed, those that are named are read.
        followed = self._strict or kind == "function" or not _is_installed(value)
        if followed and not _is_library(value):
            self._waiting.append(value)
        return found

    def _members(self, kind: type) -> Any:
        """Return the bases of a user's class, its methods and its plain attributes."""
        members = [
            [name, self.content(part)]
            for name, entry in list(vars(kind).items())
            for part in _functions(entry)
            if isinstance(part, FunctionType)
            or not (name.startswith("__") and name.endswith("__"))
        ]
        bases = [self._reference(base) for base in kind.__bases__]
        self._waiting += [base for base in kind.__bases__ if not _is_library(base)]
        return [kind.__qualname__, bases, sorted(members, key=lambda m: m[0])]

    def _body(self, function: FunctionType) -> Any:
        """Return the code of a function, its defaults and the values that it reads."""
        codes = _codes(function)
        read = _read_globals(function, codes)
        names = function.__code__.co_freevars
        for name, cell in zip(names, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # not bound yet
                read[f"{name} around it"] = cell.cell_contents
        read["its defaults"] = [function.__defaults__, function.__kwdefaults__]
        return [
            function.__qualname__,
            [_bytecode(code) for code in codes],
            [[name, self._read(value)] for name, value in sorted(read.items())],
        ]

    def _read(self, value: Any) -> Any:
        """Return the content of a value that code reads.

        Of an object that cannot be called only its class: the attributes that code
        reads of it are values of their own, see :func:`_read_globals`.
        """
        if value is None or isinstance(value, _PLAIN):
            return self.content(value)
        if isinstance(value, type | FunctionType | MethodType):
            return self.content(value)
        others = _is_installed(type(value)) and not _is_library(type(value))
        if isinstance(value, nn.Module) or (callable(value) and not others):
            return self.content(value)
        if isinstance(value, ModuleType):
            return ["python module", value.__name__]
        return ["object", self._reference(type(value))]


def _functions(entry: Any) -> list[Any]:
    """Return what an entry of a class was made of."""
    if isinstance(entry, staticmethod | classmethod):
        return [entry.__func__]
    if isinstance(entry, property):
        return [entry.fget, entry.fset]
    if isinstance(entry, functools.cached_property):
        return [entry.func]
    return [entry]


def _is_library(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    package = (name or "").partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names


def _is_installed(value: Any) -> bool:
    file = getattr(sys.modules.get(value.__module__), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _name(value: Any, kind: str) -> list[str]:
    """Return where to find a function or class, if it is there under its name."""
    module, name = value.__module__, value.__qualname__
    found: Any = sys.modules.get(module)
    with suppress(AttributeError):
        found = functools.reduce(getattr, name.split("."), found)
    found = getattr(found, "__func__", found)  # of a class method
    if found is not value and not (_is_library(value) and "<" not in name):
        if name.endswith("<lambda>"):
            raise _UnidentifiableValue("a lambda")
        if "<" in name:
            raise _UnidentifiableValue(f"the local {kind} {name}")
        raise _UnidentifiableValue(
            f"the {kind} {name}, which {module} lacks under that name"
        )
    return [module, name]


def _read_globals(function: FunctionType, codes: list[CodeType]) -> dict[str, Any]:
    """Return the global values that code reads, and their attributes that it names."""
    names, attributes, imports = set[str](), set[str](), list[str]()
    for code in codes:
        steps = list(dis.get_instructions(code))
        for i, step in enumerate(steps):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.add(step.argval)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
                attributes.add(step.argval)
            elif step.opname == "IMPORT_NAME":
                imports.append("." * steps[i - 2].argval + step.argval)
    read = dict[str, Any]()
    waiting = [(n, v) for n, v in function.__globals__.items() if n in names]
    for name in imports:
        with suppress(ImportError):
            package = function.__globals__.get("__package__")
            waiting.append((f"import {name}", importlib.import_module(name, package)))
    while waiting:
        name, value = waiting.pop()
        read[name] = value
        named = isinstance(value, type | FunctionType | ModuleType)
        if name.count(".") >= _DEPTH or (callable(value) and not named):
            continue  # of what is called all counts
        own = getattr(value, "__dict__", {})
        # of a library that is not replaced only the name counts
        replaced = named and _is_library(value)
        waiting += [
            (f"{name}.{k}", own[k])
            for k in attributes
            if k in own
            and not (
                replaced
                and (not isinstance(own[k], FunctionType) or _is_library(own[k]))
            )
        ]
    return read


def _codes(function: FunctionType | CodeType) -> list[CodeType]:
    """Return the code of a function and of those defined in it."""
    code = function if isinstance(function, CodeType) else function.__code__
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return [code, *(each for part in inner for each in _codes(part))]


def _bytecode(code: CodeType) -> list[Any]:
    constants = [
        sorted(map(repr, part)) if isinstance(part, frozenset) else repr(part)
        for part in code.co_consts
        if not isinstance(part, CodeType)
    ]
    names = [*code.co_names, *code.co_varnames, *code.co_freevars]
    return [hashlib.sha256(code.co_code).hexdigest(), constants, names]
