"""The report on disk: one page, and each table and figure as a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from normalign._checks import require
from normalign.paper.files import write_bytes
from normalign.paper.reporting.drawings import svg_file
from normalign.paper.reporting.outcomes import Outcome, outcomes
from normalign.paper.reporting.page import page
from normalign.paper.reporting.rendering import render
from normalign.paper.reporting.shown import figures, shown, tables
from normalign.paper.results import Store
from normalign.paper.spec import Item

__all__ = ["write_report"]


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
    byte. Items with missing runs say so, and show what the others allow.

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
    for outcome in there:
        _write_tables(out / "tables", outcome)
        _write_figures(out / "figures", outcome)
    text = page(there, [shown(outcome) for outcome in there], command=command)
    return write_bytes(out / "report.html", text.encode())


def _write_tables(folder: Path, outcome: Outcome) -> None:
    for name, table in tables(outcome).items():
        for form in ("csv", "md", "tex"):
            text = render(table, outcome.records, form=form, about=outcome.about)
            write_bytes(folder / f"{name}.{form}", text.encode())


def _write_figures(folder: Path, outcome: Outcome) -> None:
    for name, figure in figures(outcome).items():
        text = svg_file(figure, outcome.records, name=name)
        write_bytes(folder / f"{name}.svg", text.encode())
