"""The report on disk: one page, and each table and figure as a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from normalign_reproduction._errors import require
from normalign_reproduction.files import read_json, write_bytes, write_json
from normalign_reproduction.report.contents import contents_of, figures, tables
from normalign_reproduction.report.html import page
from normalign_reproduction.report.outcome import Outcome, outcomes
from normalign_reproduction.report.svg import svg_file
from normalign_reproduction.report.tables import render
from normalign_reproduction.spec import Item
from normalign_reproduction.store import Store

__all__ = ["sync_files", "write_report"]

# Which tables and figures the report of a folder has.
_LIST = ".report-files.json"


def write_report(
    out: Path,
    *,
    items: Iterable[Item],
    size: str,
    preset: str,
    digits: str | None,
    store: Store,
    seeds: int | None = None,
    command: str,
) -> Path:
    """Write what the store has of some items, and return the page's path.

    The page is ``out/report.html``; beside it are ``tables/NAME.csv``, ``.md`` and
    ``.tex`` and ``figures/NAME.svg``. The same results give the same files, byte for
    byte. Items with missing runs say so, and show what the others allow. Tables and
    figures of an earlier report in the folder that this one does not have are removed,
    unless somebody has changed them since.

    Parameters
    ----------
    digits : {"mnist", "digits_5000"}, optional
        By default those of which more runs are finished.
    seeds : int, optional
        Another number of seeds than the size's.
    command : str
        What asked for the report.

    Raises
    ------
    ValueError
        If there are no items.
    """
    there = outcomes(
        items, size=size, preset=preset, store=store, digits=digits, seeds=seeds
    )
    require(len(there) > 0, "write_report", "items", "non-empty", there)
    files: dict[str, str] = {}
    for outcome in there:
        files |= _tables(outcome) | _figures(outcome)
    sync_files(out, files, list_name=_LIST)
    text = page(there, [contents_of(outcome) for outcome in there], command=command)
    return write_bytes(out / "report.html", text.encode())


def _tables(outcome: Outcome) -> dict[str, str]:
    return {
        f"tables/{name}.{form}": render(
            table, outcome.records, form=form, about=outcome.about
        )
        for name, table in tables(outcome).items()
        for form in ("csv", "md", "tex")
    }


def _figures(outcome: Outcome) -> dict[str, str]:
    return {
        f"figures/{name}.svg": svg_file(
            figure, outcome.records, name=name, about=outcome.about
        )
        for name, figure in figures(outcome).items()
    }


def sync_files(folder: Path, files: Mapping[str, str], *, list_name: str) -> None:
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
    earlier = _file_list(folder / list_name)
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


def _file_list(path: Path) -> dict[str, list[str]]:
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
