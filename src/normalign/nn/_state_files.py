"""Reading a state dict from a file, without ever running what is in it."""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normalign._errors import complaint, installing, require

__all__ = ["StateFile", "read_state_dict", "read_state_file"]

_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar")

# Where training scripts keep the weights, plain ones before averages of them.
_PLAIN = ("state_dict", "model_state_dict", "model", "net")
_AVERAGED = (
    "state_dict_ema", "model_ema", "ema_state_dict", "model_state_dict_ema",
    "ema_model", "ema", "module", "shadow",
)  # fmt: skip

_DEEPEST = 8  # levels; a file may hold a mapping that holds itself

# What torch raises for files that are damaged or hold more than tensors.
_UNREADABLE = (
    pickle.UnpicklingError, zipfile.BadZipFile, struct.error, RuntimeError, EOFError,
    OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError,
    AssertionError,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class StateFile:
    """The tensors of a file, by the names that they have there.

    Attributes
    ----------
    path : Path
    entry : str
        Where in the file they were, such as ``"state_dict"``; empty at the top.
    tensors : dict of str to Tensor
        On the CPU.
    others : tuple of str
        Other state dicts that were there, and entries that are no tensors.
    """

    path: Path
    entry: str
    tensors: dict[str, Tensor]
    others: tuple[str, ...]


def read_state_dict(path: str | Path, *, entry: str | None = None) -> StateFile:
    """Read the tensors of a ``.safetensors`` file or of a torch file, by name.

    Nothing in the file is run: torch files are read with ``weights_only=True``. The
    state dict may lie under ``state_dict``, ``model_state_dict``, ``model``, ``net`` or
    the usual names of averaged weights.

    Parameters
    ----------
    entry : str, optional
        Which state dict to take of a torch file with several; by default the plain
        weights go before averages of them.

    Raises
    ------
    ValueError
        If the file is missing, damaged, holds more than tensors and plain values, or
        no state dict.
    ModuleNotFoundError
        If a ``.safetensors`` file comes without the ``weights`` extra.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp(), "w.pt")
    >>> torch.save({"epoch": 3, "state_dict": {"bias": torch.ones(2)}}, file)
    >>> found = read_state_dict(file)
    >>> found.entry, found.tensors
    ('state_dict', {'bias': tensor([1., 1.])})
    """
    return read_state_file(path, entry=entry, callee="read_state_dict", argument="path")


def read_state_file(
    path: str | Path, *, entry: str | None = None, callee: str, argument: str
) -> StateFile:
    """Do what :func:`read_state_dict` does; errors name the callee and its argument."""
    path = Path(path)
    require(path.is_file(), callee, argument, "a file that exists", str(path))
    if path.suffix == ".safetensors":
        require(
            entry is None, callee, "entry", "None for a .safetensors file", repr(entry)
        )
        tensors = _read_safetensors(path, callee, argument)
        return _check_state(path, "", tensors, [], callee, argument)
    require(
        path.suffix in _TORCH_SUFFIXES, callee, argument,
        "a .safetensors, .pt or .pth file (.bin, .ckpt and .tar are read as .pth)",
        path.name,
    )  # fmt: skip
    content = _read_torch(path, callee, argument)
    where, state, others = _unwrap(content, entry, callee)
    return _check_state(path, where, state, others, callee, argument)


def _read_torch(path: Path, callee: str, argument: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise ValueError(
            complaint(
                callee, argument, "a torch file that holds tensors only",
                f"{path.name} ({_reason(error)})",
                "Save the state dict alone: torch.save(model.state_dict(), FILE).",
            )
        ) from error  # fmt: skip


def _reason(error: Exception) -> str:
    """Say why torch refused, without its advice to load the file unsafely."""
    text = str(error).strip()
    if stranger := re.search(r"GLOBAL (\S+)", text):
        return f"it holds a pickled {stranger[1]}"
    if detail := re.search(r"WeightsUnpickler error: *(.*)", text):
        return f"no state dict: {detail[1]}" if detail[1] else "no state dict"
    if isinstance(error, RuntimeError) and text:
        return text.split("\n")[0].partition(". ")[0]
    return "damaged, or no torch file"


def _read_safetensors(path: Path, callee: str, argument: str) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            complaint(
                callee, argument, "readable", f"{path.name} without safetensors",
                installing("weights"),
            )
        ) from error  # fmt: skip
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise ValueError(
            complaint(
                callee, argument, "a whole .safetensors file",
                f"{path.name} ({error})",
            )
        ) from error  # fmt: skip


def _unwrap(content: Any, entry: str | None, callee: str) -> tuple[str, Any, list[str]]:
    """Go down to the state dict; name the way and the state dicts passed by."""
    way: list[str] = []
    others: list[str] = []
    if entry is not None:
        held = ", ".join(map(repr, _mappings(content)))
        require(
            entry in _mappings(content), callee, "entry",
            f"one of {held}" if held else "None for a file with one state dict",
            repr(entry),
        )  # fmt: skip
        others += [name for name in _nests(content) if name != entry]
        content = content[entry]
        way.append(entry)
    while len(way) < _DEEPEST and (nests := _nests(content)):
        others += [".".join([*way, name]) for name in nests[1:]]
        content = content[nests[0]]
        way.append(nests[0])
    return ".".join(way), content, others


def _mappings(content: Any) -> list[str]:
    if not isinstance(content, Mapping):
        return []
    return [
        name
        for name, value in content.items()
        if isinstance(name, str) and isinstance(value, Mapping)
    ]


def _nests(content: Any, deepest: int = _DEEPEST) -> list[str]:
    """Return the entries that lead to tensors by names we know, or the only other."""
    held = [n for n in _mappings(content) if _leads_to_tensors(content[n], deepest)]
    known = [name for name in (*_PLAIN, *_AVERAGED) if name in held]
    alone = len(held) == 1 and not _has_tensors(content)
    return known or (held if alone else [])


def _leads_to_tensors(content: Any, deepest: int) -> bool:
    return _has_tensors(content) or bool(deepest and _nests(content, deepest - 1))


def _has_tensors(content: Any) -> bool:
    return isinstance(content, Mapping) and any(
        isinstance(name, str) and isinstance(value, Tensor)
        for name, value in content.items()
    )


def _check_state(
    path: Path, entry: str, state: Any, others: list[str], callee: str, argument: str
) -> StateFile:
    """Keep the tensors, set plain values aside, refuse the rest."""
    named = isinstance(state, Mapping) and all(isinstance(name, str) for name in state)
    tensors = {n: v for n, v in state.items() if isinstance(v, Tensor)} if named else {}
    usable = all(
        value.layout == torch.strided
        and not value.is_complex()
        and not value.is_quantized
        and not value.is_meta
        and not value.is_nested
        for value in tensors.values()
    )
    held = ", ".join(map(str, list(state)[:4])) if isinstance(state, Mapping) else ""
    require(
        bool(tensors) and usable, callee, argument,
        "a state dict: names and their real tensors",
        f"a {type(state).__name__} in {path.name}" + (f" with {held}" * bool(held)),
    )  # fmt: skip
    rest = [name for name in state if name not in tensors]
    return StateFile(path, entry, tensors, (*others, *rest))
