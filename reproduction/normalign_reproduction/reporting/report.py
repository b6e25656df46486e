"""The report on disk: one page, and each table and figure as a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from normalign_reproduction._errors import require
from normalign_reproduction.files import write_bytes
from normalign_reproduction.reporting.drawings import svg_file
from normalign_reproduction.reporting.kept_files import write_anew
from normalign_reproduction.reporting.outcomes import Outcome, outcomes
from normalign_reproduction.reporting.page import page
from normalign_reproduction.reporting.rendering import render
from normalign_reproduction.reporting.shown import figures, shown, tables
from normalign_reproduction.results import Store
from normalign_reproduction.spec import Item

__all__ = ["write_report"]

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
    write_anew(out, files, list_name=_LIST)
    text = page(there, [shown(outcome) for outcome in there], command=command)
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
