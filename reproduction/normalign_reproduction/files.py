"""Atomic writes, JSON files with a checksum, and hashes of settings."""

from __future__ import annotations

import csv
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

__all__ = [
    "load_cache",
    "read_checked",
    "read_csv",
    "read_json",
    "settings_hash",
    "write_bytes",
    "write_checked",
    "write_json",
]

_CHECKSUM = "sha256"  # the key of a file's checksum
_log = logging.getLogger(__name__)


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Return twelve hexadecimal digits of a hash that ignores the order of keys.

    Examples
    --------
    >>> settings_hash({"a": 1, "b": 2}) == settings_hash({"b": 2, "a": 1})
    True
    """
    return _sha256(settings)[:12]


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file atomically: a reader sees the complete old or new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # mkstemp lets only the owner read
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def write_json(
    path: Path, content: Mapping[str, Any], *, indent: int | None = 1
) -> Path:
    """Write a mapping as standard JSON, without NaN and infinity."""
    text = json.dumps(
        content,
        indent=indent,
        allow_nan=False,
        ensure_ascii=False,
        separators=(",", ":") if indent is None else None,
    )
    return write_bytes(path, f"{text}\n".encode())


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; a ``ValueError`` if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error}).") from error


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a header."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def write_checked(
    path: Path, content: Mapping[str, Any], *, indent: int | None = 1
) -> Path:
    """Write a mapping as JSON with a checksum, for :func:`read_checked`.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "file.json")
    >>> read_checked(write_checked(path, {"loss": 0.5}))
    {'loss': 0.5}
    >>> _ = path.write_text(path.read_text().replace("0.5", "0.7"))
    >>> read_checked(path)
    Traceback (most recent call last):
    ValueError: ...file.json is damaged: its checksum does not match its content.
    """
    # As it will be read: tuples become lists, keys become strings.
    plain = json.loads(json.dumps(content, allow_nan=False))
    plain[_CHECKSUM] = _sha256(plain)
    return write_json(path, plain, indent=indent)


def read_checked(path: Path) -> dict[str, Any]:
    """Return the mapping that :func:`write_checked` wrote.

    Raises
    ------
    ValueError
        If the file is damaged or has no checksum; the message names it.
    """
    content, reason = read_json(path), ""
    if not isinstance(content, dict) or _CHECKSUM not in content:
        reason = "it has no checksum"
    else:
        expected = content.pop(_CHECKSUM)
        try:
            is_same = expected == _sha256(content)
        except (ValueError, RecursionError):  # an infinite number, or deep nesting
            is_same = False
        reason = "" if is_same else "its checksum does not match its content"
    if reason:
        raise ValueError(f"{path} is damaged: {reason}.")
    return content


def load_cache(path: Path) -> dict[str, Any] | None:
    """Return the mapping in a file of :func:`write_checked` that can be recomputed.

    ``None`` if there is no file or if it is damaged, which is logged.
    """
    try:
        return read_checked(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        _log.warning("%s It is ignored and will be replaced.", error)
        return None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _sha256(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
