"""Files that are written whole or not at all, and names made of settings."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["settings_hash", "write_bytes", "write_json"]


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits that name a setting, whatever its order.

    Examples
    --------
    >>> settings_hash({"a": 1, "b": 2}) == settings_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file in one step: a reader sees the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner can read
        Path(name).chmod(0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def write_json(
    path: Path, content: Mapping[str, Any], *, indent: int | None = 1
) -> Path:
    """Write a mapping as JSON that any parser reads: no NaN, no infinity."""
    text = json.dumps(
        content, indent=indent, allow_nan=False, ensure_ascii=False,
        separators=(",", ":") if indent is None else None,
    )  # fmt: skip
    return write_bytes(path, f"{text}\n".encode())
