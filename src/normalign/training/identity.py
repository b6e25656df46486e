"""What decides a run, as hashes: a checkpoint of another run must not be resumed.

A name is not enough. Two lambdas share one, a function has the same name after its
code was edited, and networks of one class start at other weights. So values count by
their content, and what has no content that a later process could compare is refused.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normalign._errors import complaint
from normalign._torch_compat import unwrap
from normalign.training.checkpoint import CheckpointRefused, fingerprint

__all__ = [
    "digest", "identify", "identify_run", "identify_structure", "require_same_run",
]  # fmt: skip

# Their classes and functions count by name; those of others by their code, too.
_LIBRARIES = ("builtins", "normalign", "numpy", "scipy", "sklearn", "torch")
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
_REMEDY = (
    "Define it at the top level of a module, as a function or as a class whose "
    "attributes, or describe(), hold all its settings; or train without a checkpoint."
)


class _Unidentified(TypeError):
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

    Tensors and arrays count by their numbers; modules by their classes, attributes,
    hooks and numbers; functions by their names, code, defaults and the global values
    that they read; other objects by what ``describe()`` returns, if they have it, and
    by what pickle would store otherwise.

    Of a network or another object that a function reads as a global value only the
    class counts: make it an attribute of a callable object, so that its content does.

    Parameters
    ----------
    callee, argument : str
        The opening of the complaint.

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
    with _refusal(callee, argument):
        return fingerprint({"content": _content(value, ())})


@contextmanager
def _refusal(callee: str, argument: str) -> Iterator[None]:
    try:
        yield
    except _Unidentified as error:
        rule = "one that a checkpoint can identify"
        text = complaint(callee, argument, rule, str(error), _REMEDY)
        raise TypeError(text) from error


def identify_structure(callee: str, argument: str, network: nn.Module) -> str:
    """Return a hash of a network apart from its numbers; see :func:`identify`."""
    with _refusal(callee, argument):
        return fingerprint({"content": _structure(unwrap(network), ())})


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
    remedy = "Delete the file to start anew, or name another one."
    raise CheckpointRefused(complaint(callee, "checkpoint", rule, got, remedy))


def _content(value: Any, above: tuple[int, ...]) -> Any:
    """Return JSON that determines a value; ``above`` are the objects that hold it."""
    if value is None or isinstance(value, bool | str):
        return value
    if type(value) in (int, float):  # 1 and 1.0 are one setting
        whole = value == 0 or not float(value).is_integer()
        return ["number", repr(value if whole else int(value))]
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
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        parts = [_content(part, above) for part in value]
        return [type(value).__name__, *parts]
    if type(value) in (set, frozenset):
        return ["set", *sorted(fingerprint({"": _content(v, above)}) for v in value)]
    if type(value) is dict:
        return ["dict", *_items(value, above)]
    if isinstance(value, nn.Module):
        return _module(unwrap(value), above)  # a compiled one computes the same
    if isinstance(value, FunctionType):
        return _function(unwrap(value))
    if isinstance(value, type):
        return _class(value)
    if isinstance(value, ModuleType):
        return ["python module", value.__name__]
    if isinstance(value, torch.Generator):
        return ["generator", digest(value.get_state())]
    if isinstance(value, Enum | Path | torch.dtype | torch.device):
        return [type(value).__name__, str(value)]
    return _object(value, above)


def _items(value: Mapping[Any, Any], above: tuple[int, ...]) -> list[Any]:
    pairs = [[_content(k, above), _content(v, above)] for k, v in value.items()]
    return sorted(pairs, key=lambda pair: fingerprint({"": pair[0]}))


def _object(value: Any, above: tuple[int, ...]) -> Any:
    """Return what an object says of itself, or what pickle would store of it."""
    describe = getattr(value, "describe", None)
    if callable(value) and callable(describe):
        return ["object", _class(type(value)), _content(describe(), above)]
    try:
        reduced = value.__reduce_ex__(4)
    except (TypeError, AttributeError, RuntimeError) as error:
        raise _Unidentified(f"a {type(value).__name__} ({error})") from error
    if isinstance(reduced, str):  # a name, such as that of a built-in function
        return ["name", str(getattr(value, "__module__", "")), reduced]
    parts = [list(p) if isinstance(p, Iterator) else p for p in reduced]
    return ["object", *(_content(part, above) for part in parts)]


def _module(module: nn.Module, above: tuple[int, ...]) -> Any:
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
    return ["module", _structure(module, above), list(numbers.items())]


def _structure(network: nn.Module, above: tuple[int, ...]) -> Any:
    """Return what a network is, apart from the numbers of parameters and buffers."""
    own = vars(nn.Module()).keys() - {"training"}
    parts = []
    for name, module in network.named_modules(remove_duplicate=False):
        kind = parametrize.type_before_parametrizations(module)
        plain = {k: v for k, v in vars(module).items() if k not in own}
        inside = (*above, id(module))
        try:
            hooks = [
                [_content(hook, inside) for hook in getattr(module, table).values()]
                for table in _HOOKS
            ]
            parts.append([name, _class(kind), _items(plain, inside), hooks])
        except _Unidentified as error:
            where = f"{name!r}, " if name else ""
            raise _Unidentified(f"{where}a {kind.__name__} with {error}") from error
    shapes = [
        [name, str(value.dtype), list(value.shape), value.requires_grad]
        for values in (network.named_parameters, network.named_buffers)
        for name, value in values(remove_duplicate=False)
    ]
    return [parts, shapes]


def _class(kind: type) -> Any:
    """Return the name of a class, and the code of its methods if it is a user's."""
    found = []
    for base in kind.__mro__:
        if _is_library(base):
            return ["class", *found, _name(base, "class")]
        methods = [_plain_function(entry) for entry in vars(base).values()]
        code = [_code(each) for each in methods if isinstance(each, FunctionType)]
        found.append([_name(base, "class"), code])
    return ["class", *found]


def _plain_function(entry: Any) -> Any:
    if isinstance(entry, staticmethod | classmethod):
        entry = entry.__func__
    if isinstance(entry, property):
        entry = entry.fget
    return inspect.unwrap(entry) if isinstance(entry, FunctionType) else entry


def _function(function: FunctionType) -> Any:
    name = _name(function, "function")
    if _is_library(function):
        return ["function", name]
    plain = inspect.unwrap(function)  # a decorator has code of its own
    both = [function] if plain is function else [function, plain]
    return ["function", name, [_code(each) for each in both]]


def _is_library(value: Any) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    package = (name or "").partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names


def _name(value: Any, kind: str) -> list[str]:
    """Return where to find a function or class, if it is there under its name."""
    module, name = value.__module__, value.__qualname__
    found: Any = sys.modules.get(module)
    with suppress(AttributeError):
        found = functools.reduce(getattr, name.split("."), found)
    if found is not value and not (_is_library(value) and "<" not in name):
        if name.endswith("<lambda>"):
            raise _Unidentified("a lambda")
        if "<" in name:
            raise _Unidentified(f"the local {kind} {name}")
        raise _Unidentified(f"the {kind} {name}, which {module} lacks under that name")
    return [module, name]


def _code(function: FunctionType) -> Any:
    """Return the code of a function and of the user's functions that it may call.

    With their defaults and the plain values that they read (numbers, text, tensors), as
    globals or as attributes of global objects.
    """
    found: dict[int, Any] = {}
    waiting = [function]
    while waiting:
        one = waiting.pop()
        if id(one) in found:
            continue
        codes = _codes(one.__code__)
        read = _read_globals(one, codes)
        for name, cell in zip(
            one.__code__.co_freevars, one.__closure__ or (), strict=True
        ):
            with suppress(ValueError):  # not bound yet
                read[f"{name} around it"] = cell.cell_contents
        read["its defaults"] = [one.__defaults__, one.__kwdefaults__]
        found[id(one)] = [
            one.__qualname__,
            [_bytecode(code) for code in codes],
            [[name, _plain_value(value)] for name, value in sorted(read.items())],
        ]
        waiting += [
            value
            for value in read.values()
            if isinstance(value, FunctionType) and not _is_library(value)
        ]
    return sorted(found.values(), key=lambda entry: fingerprint({"": entry}))


def _read_globals(function: FunctionType, codes: list[CodeType]) -> dict[str, Any]:
    """Return the global values that code reads, and their attributes that it names."""
    names, attributes = set[str](), set[str]()
    for code in codes:
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.add(step.argval)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                attributes.add(step.argval)
    read = {n: v for n, v in function.__globals__.items() if n in names}
    for name, value in list(read.items()):
        named = isinstance(value, type | FunctionType | ModuleType)
        if not (named and _is_library(value)):
            own = getattr(value, "__dict__", {})
            read |= {f"{name}.{k}": own[k] for k in attributes if k in own}
    return read


def _plain_value(value: Any) -> Any:
    """Return the content of a value that a function reads, if it is a plain one."""
    kinds = bool | int | float | complex | str | bytes | Tensor | np.ndarray
    if value is None or isinstance(
        value, kinds | list | tuple | dict | set | frozenset
    ):
        with suppress(_Unidentified):
            return _content(value, ())
    return type(value).__name__


def _codes(code: CodeType) -> list[CodeType]:
    """Return the code of a function and of those defined in it."""
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
