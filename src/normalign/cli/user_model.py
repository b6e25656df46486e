"""Reading what a user brings: a model in a Python file, weights, arrays."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
import traceback
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normalign._errors import complaint, describe, require, require_kind
from normalign.cli.output import note
from normalign.nn._forms import BUILT_IN, network_for
from normalign.nn._state_files import StateFile, read_state_file

__all__ = ["built_model", "load_weights", "read_arrays"]

# What running somebody's file can raise; the file is at fault, not this program.
_USER_CODE_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError,
    NameError, OSError, RuntimeError, SyntaxError, SystemExit, TypeError, ValueError,
)  # fmt: skip
_BUILT_IN = "normalign.nn:"

_State = dict[str, Tensor]


def built_model(callee: str, where: str, *, weights: Path | None = None) -> nn.Module:
    """Import ``FILE.py:function``, call the function and return its module.

    ``normalign.nn:resnet50`` and its like are networks of ours, in the form that the
    `weights` have: their classes, channels, stem, padding. The weights are not loaded.

    Raises
    ------
    ValueError
        If the file or function is missing, or running it fails.
    TypeError
        If the function returns something else than an ``nn.Module``.
    """
    if where.startswith(_BUILT_IN):
        return _network_of_ours(callee, where, weights)
    file, colon, function = where.rpartition(":")
    if not colon or function.endswith(".py"):
        file, function = where, "build"
    path = Path(file)
    require(
        path.is_file() and path.suffix == ".py", callee, "--model",
        "FILE.py:build with a Python file that exists, or "
        f"{_BUILT_IN}NAME with a network of ours", repr(where),
    )  # fmt: skip
    try:
        with _importable_folder(path.resolve().parent):
            module = _import_file(path)
            build = getattr(module, function, None)
            require(
                callable(build), callee, "--model",
                f"a file with a function {function}()", f"{path} without it",
            )  # fmt: skip
            model = build() if callable(build) else None
    except _USER_CODE_ERRORS as error:
        if isinstance(error, ValueError) and str(error).startswith(f"{callee}: "):
            raise
        raise ValueError(
            complaint(
                callee, "--model", f"a file whose {function}() runs",
                f"{type(error).__name__}: {error} ({_place(error, path)})",
            )
        ) from error  # fmt: skip
    if not isinstance(model, nn.Module):
        raise TypeError(
            complaint(
                callee, "--model",
                f"a file whose {function}() returns a torch.nn.Module",
                describe(model),
            )
        )  # fmt: skip
    return model


def _network_of_ours(callee: str, where: str, weights: Path | None) -> nn.Module:
    name = where.removeprefix(_BUILT_IN)
    known = ", ".join(_BUILT_IN + other for other in BUILT_IN)
    require(name in BUILT_IN, callee, "--model", f"one of {known}", repr(where))
    generator = torch.Generator().manual_seed(0)
    if weights is not None:
        file = read_state_file(weights, callee=callee, argument="--weights")
        landmarks = ("stem.weight", "stem.0.weight", "fc.weight")
        _, state = _without_prefix(file, landmarks)
        try:
            network, form = network_for(name, state, generator=generator)
        except ValueError as error:
            rule, got = f"weights of a {name}", f"{weights.name} ({error})"
            raise ValueError(complaint(callee, "--weights", rule, got)) from error
        read = ", ".join(f"{key}={value!r}" for key, value in form.items())
        note(f"model: {name} with {read or 'its usual form'}, as in {weights.name}")
        return network
    build, settable = BUILT_IN[name]
    require(
        "depth" not in settable, callee, "--weights",
        f"given for {where}, whose depth and width are read off them", "none",
    )  # fmt: skip
    note(f"model: {name} in its usual form, CIFAR pictures and ten classes")
    return build(generator=generator)


@contextlib.contextmanager
def _importable_folder(folder: Path) -> Iterator[None]:
    """Let the user's file import its neighbours, while it is run."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _import_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("normalign_user_model", path)
    assert spec is not None  # the suffix is .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look there
    spec.loader.exec_module(module)
    return module


def _place(error: BaseException, path: Path) -> str:
    """File and line of the last frame in the user's own file."""
    if isinstance(error, SyntaxError):
        return f"{path}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if Path(f.filename).name == path.name]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def load_weights(callee: str, model: nn.Module, path: Path) -> None:
    """Load a state dict into a model: every tensor must fit, none may be left over.

    Words that all names begin with, such as ``module.``, are removed where more names
    match then. What was removed and what else is in the file is noted.

    Raises
    ------
    ValueError
        If the file cannot be read safely or does not match; says which names.
    ModuleNotFoundError
        If a ``.safetensors`` file comes without the ``weights`` extra.
    """
    file = read_state_file(path, callee=callee, argument="--weights")
    own = {k: v for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    prefix, state = _without_prefix(file, own)
    state = {name: v for name, v in state.items() if name != "n_averaged"}
    if file.entry:
        note(f"weights: taken from {file.entry!r} in {path.name}")
    if prefix:
        note(f"weights: the prefix {prefix!r} was taken off the names")
    if file.others:
        note(f"weights: left in the file: {_first(file.others)}")
    misfits = _misfits(state, own)
    require(
        not misfits, callee, "--weights",
        f"a state dict with the model's {len(own)} tensors", misfits,
        "Weights with other names, or with a standardisation of inputs: build and load "
        "the model in FILE.py, with load_checkpoint of normalign_reproduction.robust.",
    )  # fmt: skip
    model.load_state_dict(state, strict=False)


def _without_prefix(file: StateFile, own: Collection[str]) -> tuple[str, _State]:
    """Remove the words that all names begin with, as long as more names match."""
    best = "", dict(file.tensors)
    prefix, state = best
    while len({name.partition(".")[0] for name in state if name != "n_averaged"}) == 1:
        word = next(name for name in state if name != "n_averaged").partition(".")[0]
        prefix += word + "."
        state = {name.removeprefix(f"{word}."): v for name, v in state.items()}
        if len(state.keys() & set(own)) > len(best[1].keys() & set(own)):
            best = prefix, state
        if not all("." in name for name in state if name != "n_averaged"):
            break
    return best


def _misfits(state: _State, own: _State) -> str:
    """Say which tensors are missing, left over, or cannot be loaded; empty if none."""
    both = state.keys() & own.keys()
    # Of tensors that share their memory, a file may hold one for all.
    filled = {own[name].data_ptr() for name in both}
    missing = [
        name
        for name, value in own.items()
        if name not in both
        and not name.endswith("num_batches_tracked")
        and value.data_ptr() not in filled
    ]
    shapes = [
        f"{name}: {tuple(state[name].shape)} in the file, {tuple(value.shape)} in the "
        "model"
        for name, value in own.items()
        if name in both and state[name].shape != value.shape
    ]
    unreal = [
        name
        for name, value in own.items()
        if name in both and state[name].shape == value.shape
        and value.is_floating_point()
        and not (
            state[name].is_floating_point()
            and bool(state[name].to(value.dtype).isfinite().all())
        )
    ]  # fmt: skip
    kinds = (
        ("missing", missing), ("unexpected", [n for n in state if n not in own]),
        ("of another shape", shapes), ("not finite or not real", unreal),
    )  # fmt: skip
    return "; ".join(f"{len(n)} {kind} ({_first(n)})" for kind, n in kinds if n)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + ", ..." * (len(names) > 4)


def read_arrays(
    callee: str, path: Path, *, x_key: str, y_key: str | None
) -> tuple[Tensor, Tensor | None]:
    """Read inputs and, if there, class indices from an ``.npz`` file.

    Raises
    ------
    ValueError
        If the file is damaged, holds pickled objects, or lacks or mismatches arrays.
    TypeError
        If an array has no numbers, or the labels are not integers.
    """
    require(path.is_file(), callee, "--data", "a file that exists", str(path))
    try:
        with path.open("rb") as file:
            single = file.read(len(np.lib.format.MAGIC_PREFIX))
        # Before numpy makes room for what the header of a single array says.
        require(
            single != np.lib.format.MAGIC_PREFIX, callee, "--data", "an .npz archive",
            f"{path.name}, a single array", "Use numpy.savez.",
        )  # fmt: skip
        with np.load(path, allow_pickle=False) as archive:
            names = archive.files
            require(
                x_key in names, callee, "--x-key",
                f"one of {', '.join(names) or 'nothing'}", repr(x_key),
            )  # fmt: skip
            require(
                y_key is None or y_key in names, callee, "--y-key",
                f"one of {', '.join(names)}", repr(y_key),
            )  # fmt: skip
            labels = y_key or ("y" if "y" in names else None)
            for name in filter(None, (x_key, labels)):
                _require_whole(archive, name)
            x, y = archive[x_key], archive[labels] if labels else None
    except MemoryError as error:
        raise ValueError(
            complaint(callee, "--data", "arrays that fit into memory", f"{error}")
        ) from error
    except (
        zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError,
        RuntimeError, ValueError,
    ) as error:  # fmt: skip
        if str(error).startswith(f"{callee}: "):
            raise
        raise ValueError(
            complaint(
                callee, "--data", "an .npz archive of plain arrays",
                f"{path.name} ({error})",
            )
        ) from error  # fmt: skip
    return _checked_arrays(callee, x, y)


def _require_whole(archive: Any, name: str) -> None:
    """Refuse a member whose header says another size than the member has.

    Before numpy makes room for that size.

    Raises
    ------
    ValueError
        If it has another size, or is no array.
    """
    files = archive.zip.NameToInfo
    info = files.get(f"{name}.npy") or files[name]
    with archive.zip.open(info) as member:
        try:
            version = np.lib.format.read_magic(member)
            read = getattr(np.lib.format, f"read_array_header_{version[0]}_0", None)
            if read is None:  # field names in UTF-8, which plain numbers do not have
                raise ValueError(f"format {version[0]} is of structured arrays")
            shape, _, dtype = read(member)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        stored = info.file_size - member.tell()
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != stored:
        raise ValueError(
            f"{name}: its header says shape {shape} of {dtype}, "
            f"{math.prod(shape) * dtype.itemsize} bytes; there are {stored}"
        )


def _checked_arrays(
    callee: str, x: np.ndarray, y: np.ndarray | None
) -> tuple[Tensor, Tensor | None]:
    require_kind(x.dtype.kind in "fiub", callee, "--data", "an x of real numbers", x)
    require(
        x.ndim >= 1 and x.size >= 1,
        callee,
        "--data",
        "an x with at least one sample, none of them empty",
        x,
    )
    inputs = torch.from_numpy(np.ascontiguousarray(x.astype(_native(x), copy=False)))
    if y is None:
        return inputs, None
    require_kind(y.dtype.kind in "iu", callee, "--data", "a y of class indices", y)
    require(
        y.shape == (len(x),), callee, "--data",
        f"a y of shape ({len(x)},), one class per sample", y,
    )  # fmt: skip
    return inputs, torch.from_numpy(y.astype(np.int64))


def _native(x: np.ndarray) -> np.dtype:
    """A dtype that torch knows: integers, such as tokens, become int64."""
    if x.dtype.kind in "iub":
        return np.dtype(np.int64)
    return np.dtype(x.dtype.type) if x.dtype.itemsize <= 8 else np.dtype(np.float64)
