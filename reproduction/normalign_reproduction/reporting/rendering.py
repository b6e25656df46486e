"""Tables as text: for a terminal, Markdown, CSV and LaTeX, ours beside the paper's."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import Any

from normalign_reproduction._errors import require
from normalign_reproduction.reporting.escapes import latex, markdown, one_line
from normalign_reproduction.reporting.grids import DASH, Grid, Head
from normalign_reproduction.reporting.sources import ORIGIN, origin_columns
from normalign_reproduction.reporting.terminal import terminal_table
from normalign_reproduction.spec import Column, Records, Row, Table

__all__ = ["FORMS", "Grid", "Head", "grid", "render"]

FORMS = ("table", "md", "csv", "tex")


def grid(table: Table, records: Records) -> Grid:
    """Return a table with its numbers written as its columns say.

    A column that answers to a number of the paper is followed by that number's.
    """
    rows = table.rows(records)
    heads: list[Head] = []
    for column in table.columns:
        numeric = all(_is_number(row.get(column.name), none=True) for row in rows)
        heads.append(Head(column.title, numeric))
        if column.published is not None:
            heads.append(Head(f"{column.title} (paper)", numeric, paper=True))
    cells = [[text for c in table.columns for text in _cells(c, row)] for row in rows]
    keys = [[value for c in table.columns for value in _keys(c, row)] for row in rows]
    return Grid(table.title, heads, cells, keys, table.note)


def render(table: Table, records: Records, *, form: str, about: str) -> str:
    """Return a table as text.

    Parameters
    ----------
    form : {"table", "md", "csv", "tex"}
        For a terminal, Markdown, CSV with all digits, or LaTeX with booktabs.
    about : str
        Size, preset, data and seeds; stands in the title. In CSV, which has none, the
        first columns are size, preset and data: a row's own where it has them, else
        those of all records.

    Raises
    ------
    ValueError
        If there is no such format.
    """
    require(form in FORMS, "render", "form", f"one of {', '.join(FORMS)}", repr(form))
    if form == "csv":
        return _csv(table, records)
    written = grid(table, records)
    title = one_line(f"{written.title} ({about})" if about else written.title)
    if form == "md":
        return _markdown(written, title)
    return (
        _latex(table.name, written, title)
        if form == "tex"
        else terminal_table(written, title)
    )


def _is_number(value: Any, *, none: bool = False) -> bool:
    if value is None:
        return none
    return isinstance(value, int | float) and not isinstance(value, bool)


def _written(value: Any, form: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    return form.format(value) if _is_number(value) else one_line(str(value))


def _cells(column: Column, row: Row) -> list[str]:
    text = _written(row.get(column.name), column.form)
    reach = row.get(column.interval) if column.interval is not None else None
    if reach is not None and text != DASH:
        low, high = (_written(end, column.form) for end in reach)
        text = f"{text} [{low}, {high}]"
    if column.published is None:
        return [text]
    return [text, _written(row.get(column.published), column.form)]


def _keys(column: Column, row: Row) -> list[Any]:
    names = [column.name] + ([column.published] if column.published else [])
    return [row.get(name) for name in names]


def _csv(table: Table, records: Records) -> str:
    """Write numbers with all their digits, and ends of intervals apart."""
    origin = origin_columns(records)
    names = list(ORIGIN)
    for column in table.columns:
        names.append(column.name)
        names += [f"{column.name}_{end}" for end in ("low", "high")] * bool(
            column.interval
        )
        names += [f"{column.name}_paper"] * bool(column.published)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for row in table.rows(records):
        values: list[Any] = [row.get(name, origin[name]) for name in ORIGIN]
        for column in table.columns:
            values.append(row.get(column.name))
            if column.interval:
                values += row.get(column.interval) or (None, None)
            if column.published:
                values.append(row.get(column.published))
        writer.writerow(values)
    return file.getvalue()


def _markdown(written: Grid, title: str) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    rule = ["---:" if head.numeric else "---" for head in written.heads]
    lines = [
        f"**{markdown(title)}**",
        "",
        line([markdown(one_line(head.text)) for head in written.heads]),
        line(rule),
        *(line([markdown(cell) for cell in row]) for row in written.cells),
    ]
    if written.note:
        lines += ["", markdown(one_line(written.note))]
    return "\n".join(lines) + "\n"


def _latex(name: str, written: Grid, title: str) -> str:
    def line(cells: Sequence[str]) -> str:
        return rf"    {' & '.join(latex(one_line(cell)) for cell in cells)} \\"

    shape = "".join("r" if head.numeric else "l" for head in written.heads)
    note = f" {latex(one_line(written.note))}" if written.note else ""
    lines = [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex(title)}.{note}}}",
        rf"  \label{{tab:{name}}}",
        rf"  \begin{{tabular}}{{{shape}}}",
        r"    \toprule",
        line([head.text for head in written.heads]),
        r"    \midrule",
        *(line(row) for row in written.cells),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
