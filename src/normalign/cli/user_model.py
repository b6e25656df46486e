"""Reading what a user brings: a model in a Python file, weights, arrays."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
import traceback
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normalign._errors import complaint, describe, require, require_kind
from normalign.cli.output import note
from normalign.nn.checkpoints import (
    BUILT_IN,
    CheckpointReport,
    load_weights_of,
    network_for,
)

__all__ = ["built_model", "load_weights", "read_arrays"]

# What running somebody's file can raise; the file is at fault, not this program.
_USER_CODE_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError,
    NameError, OSError, RuntimeError, SyntaxError, SystemExit, TypeError, ValueError,
)  # fmt: skip
_BUILT_IN = "normalign.nn:"


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
            module = _imported(path)
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
        network, form = network_for(
            name, weights, callee=callee, argument="--weights", generator=generator
        )
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


def _imported(path: Path) -> Any:
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


def load_weights(callee: str, model: nn.Module, path: Path) -> CheckpointReport:
    """Load a state dict into a model: every tensor must fit, none may be left over.

    What was done to the file's names, and what of it the model does not hold, is noted.

    Raises
    ------
    ValueError
        If the file cannot be read safely or does not match; says which names.
    ModuleNotFoundError
        If a ``.safetensors`` file comes without the ``weights`` extra.
    """
    report = load_weights_of(model, path, callee=callee, argument="--weights")
    if report.entry:
        note(f"weights: taken from {report.entry!r} in {report.file}")
    if report.prefix:
        note(f"weights: the prefix {report.prefix!r} was taken off the names")
    if report.naming != "own":
        note(f"weights: {report.naming} names, read as ours")
    if report.ignored:
        note(
            f"weights: left in the file: {', '.join(report.ignored[:4])}"
            f"{', ...' * (len(report.ignored) > 4)}"
        )
    if report.normalisation is not None:
        note(
            f"weights: the file standardises its inputs, {report.normalisation}, and "
            "this model does not; give data that are, or a FILE.py that puts "
            "normalign.nn.Standardise first and loads the weights itself"
        )
    return report


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
