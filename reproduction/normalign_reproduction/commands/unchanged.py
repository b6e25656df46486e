"""A command that would do again what it did last time says again what it said.

What was printed is kept with a fingerprint of all that it depends on: the words of the
command, the code, the results, the report, and the data that were looked for. What was
read is looked at before it is read, and again at the end: text made of files that have
changed since is not kept. To look at dates and sizes takes milliseconds; to import
torch takes seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import normalign

__all__ = ["fingerprint", "load_output", "save_output"]

# Variables that decide where data are looked for.
_PLACES = ("NORMALIGN_DATA", "NORMALIGN_CACHE", "XDG_CACHE_HOME", "HOME")


def load_output(path: Path, words: Sequence[str]) -> str | None:
    """Return what was printed last time, if nothing has changed since.

    Parameters
    ----------
    path : Path
        Where :func:`save_output` wrote it.
    words : sequence of str
        Of the command; other words are another command.
    """
    from normalign_reproduction.files import read_checked

    try:
        kept = read_checked(path)
        same = kept["fingerprint"] == fingerprint(words, map(Path, kept["seen"]))
        return str(kept["printed"]) if same else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_output(
    path: Path,
    words: Sequence[str],
    printed: str,
    *,
    seen: Iterable[Path],
    before: Iterable[tuple[str, Iterable[Path]]] = (),
) -> None:
    """Keep what was printed, unless what it was made of has changed meanwhile.

    Parameters
    ----------
    seen : iterable of Path
        Files and folders that it depends on, there or not.
    before : iterable of (str, iterable of Path)
        Fingerprints with the files and folders that they are of, each taken before
        these were read.
    """
    from normalign_reproduction.files import write_checked

    places = sorted({Path(place).absolute() for place in seen})
    content = {
        "fingerprint": fingerprint(words, places),
        "printed": printed,
        "seen": [str(place) for place in places],
    }
    # Last: what changes later than this has another fingerprint than the one above.
    if all(fingerprint(words, of) == taken for taken, of in before):
        write_checked(path, content)


def fingerprint(words: Sequence[str], seen: Iterable[Path]) -> str:
    """Return a name for the words, the places of data, the code and some files.

    Parameters
    ----------
    words : sequence of str
    seen : iterable of Path
        Files and folders, there or not, by name, date and size.
    """
    packages = (Path(__file__).parents[1], Path(normalign.__file__).parent)
    facts: list[Any] = [list(words), [_place(name) for name in _PLACES]]
    facts += [fact for place in (*packages, *seen) for fact in _facts(place)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _place(name: str) -> str | None:
    """Return the folder that a variable names: the same word may name another one."""
    given = os.environ.get(name)
    return given and str(Path(given).expanduser().absolute())


def _facts(place: Path) -> Iterator[tuple[str, int, int]]:
    """Yield name, date and size of a file, or of all files below a folder."""
    if place.is_dir():
        for path in sorted(place.iterdir()):
            if path.name != "__pycache__" and not path.name.startswith("."):
                yield from _facts(path)
    elif place.exists():
        about = place.stat()
        yield str(place), about.st_mtime_ns, about.st_size
    else:
        yield str(place), 0, -1
