"""Reading what a user brings: a model in a Python file, weights, arrays."""

from __future__ import annotations

import contextlib
import importlib.util
import pickle
import struct
import sys
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normalign._checks import complaint, describe, require, require_kind
from normalign.cli.output import note

__all__ = ["built_model", "load_weights", "read_arrays"]

# What running somebody's file can raise; the file is at fault, not this program.
_USER_CODE_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError,
    NameError, OSError, RuntimeError, SyntaxError, SystemExit, TypeError, ValueError,
)  # fmt: skip
_PREFIXES = ("module.", "_orig_mod.")  # left by data-parallel and compiled models
_NESTS = ("state_dict", "model_state_dict", "model")


def built_model(callee: str, where: str) -> nn.Module:
    """Import ``FILE.py:function``, call the function and return its module.

    Raises
    ------
    ValueError
        If the file or function is missing, or running it fails.
    TypeError
        If the function returns something else than an ``nn.Module``.
    """
    file, colon, function = where.rpartition(":")
    if not colon or function.endswith(".py"):
        file, function = where, "build"
    path = Path(file)
    require(
        path.is_file() and path.suffix == ".py", callee, "--model",
        "FILE.py:build with a Python file that exists", repr(where),
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


def load_weights(callee: str, model: nn.Module, path: Path) -> None:
    """Load a state dict into a model: every tensor must fit, none may be left over.

    Raises
    ------
    ValueError
        If the file cannot be read safely or does not match; says which names.
    ModuleNotFoundError
        If a ``.safetensors`` file comes without the ``weights`` extra.
    """
    require(path.is_file(), callee, "--weights", "a file that exists", str(path))
    state = _without_prefix(_read_state(callee, path))
    own = model.state_dict()
    missing = [name for name in own if name not in state]
    unexpected = [name for name in state if name not in own]
    misshapen = [
        f"{name}: {tuple(state[name].shape)} in the file, "
        f"{tuple(own[name].shape)} in the model"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    found = "; ".join(
        f"{len(names)} {kind} ({', '.join(names[:4])}{', ...' * (len(names) > 4)})"
        for kind, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", misshapen),
        )
        if names
    )
    require(
        not found, callee, "--weights",
        f"a state dict with the model's {len(own)} tensors", found,
    )  # fmt: skip
    model.load_state_dict(state)


def _read_state(callee: str, path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return _read_safetensors(callee, path)
    require(
        path.suffix in (".pt", ".pth"), callee, "--weights",
        "a .safetensors, .pt or .pth file", path.name,
    )  # fmt: skip
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        RuntimeError,
        EOFError,
        struct.error,
        UnicodeDecodeError,
    ) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            complaint(
                callee, "--weights", "a torch file that holds tensors only",
                f"{path.name} ({reason})", "Save model.state_dict(), not the model.",
            )
        ) from error  # fmt: skip
    for nest in _NESTS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(nest), Mapping):
            note(f"weights: taken from {nest!r} in {path.name}")
            loaded = loaded[nest]
    tensors = isinstance(loaded, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) and not value.is_complex()
        for name, value in loaded.items()
    )
    require(
        tensors, callee, "--weights", "a state dict: names and their real tensors",
        f"a {type(loaded).__name__} in {path.name}",
    )  # fmt: skip
    return dict(loaded)


def _read_safetensors(callee: str, path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            complaint(
                callee, "--weights", "readable", f"{path.name} without safetensors",
                "pip install 'normalign[weights]'",
            )
        ) from error  # fmt: skip
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(
            complaint(
                callee,
                "--weights",
                "a whole .safetensors file",
                f"{path.name} ({error})",
            )
        ) from error


def _without_prefix(state: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in _PREFIXES:
        if state and all(name.startswith(prefix) for name in state):
            note(f"weights: the prefix {prefix!r} was taken off all names")
            state = {name.removeprefix(prefix): v for name, v in state.items()}
    return state


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
        archive = np.load(path, allow_pickle=False)
        require(
            isinstance(archive, np.lib.npyio.NpzFile), callee, "--data",
            "an .npz archive", f"{path.name}, a single array", "Use numpy.savez.",
        )  # fmt: skip
        with archive:
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
            x, y = archive[x_key], archive[labels] if labels else None
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        if str(error).startswith(f"{callee}: "):
            raise
        raise ValueError(
            complaint(
                callee, "--data", "an .npz archive of plain arrays",
                f"{path.name} ({error})",
            )
        ) from error  # fmt: skip
    return _checked_arrays(callee, x, y)


def _checked_arrays(
    callee: str, x: np.ndarray, y: np.ndarray | None
) -> tuple[Tensor, Tensor | None]:
    require_kind(x.dtype.kind in "fiub", callee, "--data", "an x of real numbers", x)
    require(
        x.ndim >= 1 and len(x) >= 1,
        callee,
        "--data",
        "an x with at least one sample",
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
