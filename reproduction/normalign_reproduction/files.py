"""Atomic writes, checksums of JSON files, and hashes of settings.

A file that is read again contains a checksum (:func:`write_checked`), so that a
bit that changes on a disk or in a copy cannot change a result unnoticed.
"""

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

from normalign_reproduction._errors import complaint

__all__ = [
    "DamagedFile", "load_cache", "read_checked", "read_csv", "read_json",
    "settings_hash", "write_bytes", "write_checked", "write_json",
]  # fmt: skip

_CHECKSUM = "sha256"  # the key of a file's checksum
_log = logging.getLogger(__name__)


class DamagedFile(ValueError):
    """A file whose content is not what was written.

    Attributes
    ----------
    reason : str
        What is wrong, for other messages about the file.
    """

    reason: str = ""


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
        # files of mkstemp are readable only by their owner
        Path(name).chmod(0o644)
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
        content, indent=indent, allow_nan=False, ensure_ascii=False,
        separators=(",", ":") if indent is None else None,
    )  # fmt: skip
    return write_bytes(path, f"{text}\n".encode())


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises
    ------
    ValueError
        If it is not JSON, has NaN or an infinity, or is nested too deeply.
    OSError
        If it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise _damage("read_json", path, "JSON", reason) from error


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
    normalign_reproduction.files.DamagedFile: read_checked: path must be ... (...).
    """
    # As it will be read: tuples become lists, keys become strings.
    plain = json.loads(json.dumps(content, allow_nan=False))
    plain[_CHECKSUM] = _sha256(plain)
    return write_json(path, plain, indent=indent)


def read_checked(path: Path) -> dict[str, Any]:
    """Return the mapping in a file of :func:`write_checked`.

    Raises
    ------
    ValueError
        If the file is damaged or is not such a file; the message names it.
    OSError
        If it cannot be read.
    """
    content, reason = read_json(path), ""
    if not isinstance(content, dict):
        reason = f"it has a {type(content).__name__} instead of a mapping"
    elif (expected := content.pop(_CHECKSUM, None)) is None:
        reason = "it has no checksum"
    else:
        try:
            same = expected == _sha256(content)
        except ValueError:  # a number that is too large to be finite
            same = False
        reason = "" if same else "its checksum does not match its content"
    if reason:
        raise _damage("read_checked", path, "an undamaged file", reason)
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
        _log.warning("%s The file is ignored and written again.", error)
        return None


def _damage(callee: str, path: Path, rule: str, reason: str) -> DamagedFile:
    error = DamagedFile(complaint(callee, "path", rule, f"{path} ({reason})"))
    error.reason = reason
    return error


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _sha256(content: Any) -> str:
    try:
        text = json.dumps(
            content, sort_keys=True, separators=(",", ":"), allow_nan=False
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return hashlib.sha256(text.encode()).hexdigest()
