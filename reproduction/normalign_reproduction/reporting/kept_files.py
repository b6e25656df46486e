"""Files that replace those of an earlier time, and never a file of somebody else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from normalign_reproduction.files import read_json, write_bytes, write_json

__all__ = ["write_anew"]


def write_anew(folder: Path, files: Mapping[str, str], *, list_name: str) -> None:
    """Write files, and remove those that an earlier call wrote and this one does not.

    What was written is listed in ``folder/list_name``, with a digest of its content. A
    file is removed only if it is on the list and still has that content: what anybody
    else wrote or changed stays. The list is written before the files too, such that one
    that is stopped halfway leaves nothing unknown.

    Parameters
    ----------
    files : mapping of str to str
        Their contents, by paths below the folder, with slashes.
    """
    earlier = _listed(folder / list_name)
    now = {name: [_digest(text.encode())] for name, text in files.items()}
    both = {
        name: list(dict.fromkeys(earlier.get(name, []) + now.get(name, [])))
        for name in sorted({*earlier, *now})
    }
    write_json(folder / list_name, both)
    for name, text in files.items():
        write_bytes(folder / name, text.encode())
    _remove(folder, ((name, earlier[name]) for name in earlier if name not in now))
    write_json(folder / list_name, dict(sorted(now.items())))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _listed(path: Path) -> dict[str, list[str]]:
    """Return what a list says; nothing of one that is missing or is no such list."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: digests
        for name, digests in found.items()
        if isinstance(digests, list)
        and all(isinstance(digest, str) for digest in digests)
        and _is_below(name)
    }


def _is_below(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _remove(folder: Path, files: Iterable[tuple[str, list[str]]]) -> None:
    for name, digests in files:
        path = folder / name
        if path.is_file() and _digest(path.read_bytes()) in digests:
            path.unlink()
