"""What decides a run, as hashes: a checkpoint of another run must not be resumed.

A name is not enough. Two lambdas share one, a function has the same name after its
code was edited, and networks of one class start at other weights. So values count by
their content, and what has no content that a later process could compare is refused.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from normalign._errors import complaint
from normalign.geometry.quirks import unwrapped
from normalign.training.checkpoint import CheckpointRefused, fingerprint

__all__ = [
    "digest", "identify", "identify_run", "identify_structure", "require_same_run",
]  # fmt: skip

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
    with _refusal(callee, argument):
        return reader.fingerprint(reader.content(value))


@contextmanager
def _refusal(callee: str, argument: str) -> Iterator[None]:
    try:
        yield
    except _UnidentifiableValue as error:
        rule = "one that a checkpoint can identify"
        text = complaint(callee, argument, rule, str(error), _REMEDY)
        raise TypeError(text) from error


def identify_structure(callee: str, argument: str, network: nn.Module) -> str:
    """Return a hash of a network without its parameters and buffers."""
    reader = _Reader()
    with _refusal(callee, argument):
        return reader.fingerprint(reader.structure(unwrapped(network)))


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
            return self._module(unwrapped(value), above)
        if isinstance(value, FunctionType | type):
            return self._named(unwrapped(value))
        if isinstance(value, MethodType):  # perhaps of a function that no class has
            parts = value.__self__, value.__func__
            return ["method", *(self.content(part, above) for part in parts)]
        if isinstance(value, ModuleType):
            return ["python module", value.__name__]
        if isinstance(value, torch.Generator):
            return ["generator", digest(value.get_state())]
        if isinstance(value, Enum):
            plain = self.content(value.value, above)
            return ["enum", self._named(type(value)), str(value.name), plain]
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
            return ["object", self._named(type(value)), described]
        try:
            reduced = value.__reduce_ex__(4)
        except (TypeError, AttributeError, RuntimeError, pickle.PickleError) as error:
            if self._strict or callable(value):
                raise _UnidentifiableValue(
                    f"a {type(value).__name__} ({error})"
                ) from error
            return ["object", self._named(type(value))]
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
                    [name, self._named(kind), self._items(plain, inside), hooks]
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

    def _named(self, value: FunctionType | type) -> list[str]:
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
        bases = [self._named(base) for base in kind.__bases__]
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
        return ["object", self._named(type(value))]


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
