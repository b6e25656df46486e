"""Bytes that this process may still take: of the machine's, and of its group's.

A container, a batch system or a service manager may have put the process into a control
group with a limit of its own. Beyond that limit it is killed, however much the machine
has free.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["free_bytes"]

_ROOT = Path("/")
# Files with a group's limit and use, in the two versions of the kernel's interface.
_UNIFIED = ("memory.max", "memory.current")
_LEGACY = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_UNKNOWN = 8 << 30  # neither Linux nor POSIX: a modest machine stands in


def free_bytes(root: Path = _ROOT) -> int:
    """Bytes that are free now, to the machine and to all groups of this process.

    Parameters
    ----------
    root : Path
        Where ``proc`` and ``sys`` are.
    """
    return min([_free_in_machine(root), *_free_in_groups(root)])


def _free_in_machine(root: Path) -> int:
    told = _table(root / "proc/meminfo")
    if "MemAvailable:" in told:
        return told["MemAvailable:"] * 1024
    # not Linux: half of the memory stands in for what is free
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return _UNKNOWN


def _free_in_groups(root: Path) -> Iterator[int]:
    """What each group that the process is in, up to the outermost, has left."""
    for folder, limit_file, use_file in _groups(root):
        limit, used = _number(folder / limit_file), _number(folder / use_file)
        if limit is not None and used is not None:
            # files that were read and can be dropped count as used
            dropped = _table(folder / "memory.stat")
            spare = dropped.get("total_inactive_file", dropped.get("inactive_file", 0))
            yield max(limit - used + spare, 0)


def _groups(root: Path) -> Iterator[tuple[Path, str, str]]:
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, files = root / "sys/fs/cgroup", _UNIFIED
        elif "memory" in controllers.split(","):
            top, files = root / "sys/fs/cgroup/memory", _LEGACY
        else:
            continue
        # Inside a container the path may be told from outside, where it is not to be
        # found; its own group is then the top.
        here = top / path.lstrip("/")
        for folder in (here, *here.parents):
            yield folder, files[0], files[1]
            if folder == top:
                break


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _number(path: Path) -> int | None:
    """The number in a file; None where there is none, or no limit ("max")."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].isdecimal() else None


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    words = (line.split() for line in _lines(path))
    return {word[0]: int(word[1]) for word in words if word[1:] and word[1].isdecimal()}
