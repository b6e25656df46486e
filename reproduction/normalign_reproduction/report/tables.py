"""Tables as text: for a terminal, Markdown, CSV and LaTeX, ours beside the paper's."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from normalign_reproduction._errors import require
from normalign_reproduction.spec import Column, Records, Row, Run, Table

__all__ = [
    "DASH", "DATA", "FORMS", "ORIGIN", "Grid", "Head", "data_of", "data_words", "grid",
    "latex", "markdown", "one_line", "origin_columns", "origin_words", "render",
    "terminal_table",
]  # fmt: skip

_MARKDOWN = {sign: f"\\{sign}" for sign in "\\`*_[]|#~$"} | {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
}
_LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    # A bracket after \\ would be read as its argument.
    "[": "{[}",
    "]": "{]}",
    "–": "--",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "→": r"$\to$",
    "∞": r"$\infty$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "⊥": r"$\perp$",
}
_MARKDOWN_TABLE = str.maketrans(_MARKDOWN)
_LATEX_TABLE = str.maketrans(_LATEX)


def one_line(text: str) -> str:
    """Return a text with each run of white space as one space.

    Examples
    --------
    >>> one_line(" two   words ")
    'two words'
    """
    return " ".join(text.split())


def markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, in a table's cell too.

    Examples
    --------
    >>> markdown("a < b")
    'a &lt; b'
    """
    return text.translate(_MARKDOWN_TABLE)


def latex(text: str) -> str:
    r"""Return a text that LaTeX sets as it is; some signs become mathematics.

    Examples
    --------
    >>> latex("5 %")
    '5 \\%'
    """
    return text.translate(_LATEX_TABLE)


DASH = "–"


@dataclass(frozen=True)
class Head:
    """The head of a column: its text, whether of numbers, and whether the paper's."""

    text: str
    numeric: bool = False
    paper: bool = False


@dataclass(frozen=True)
class Grid:
    """A table whose cells are written, the same for all formats but CSV.

    ``keys`` are what the rows of a column are sorted by: numbers, text or ``None``.
    """

    title: str
    heads: Sequence[Head]
    cells: Sequence[Sequence[str]]
    keys: Sequence[Sequence[Any]]
    note: str = ""


# Which data a run may be computed on, and what they are called.
DATA = {
    "mnist": "MNIST",
    "digits_5000": "5000 embedded digits",
    "synthetic": "synthetic data",
    "bundled": "scikit-learn's tables and synthetic ones",
    "uci": "UCI tables",
    "tabarena": "TabArena's tables",
    "cifar10": "CIFAR-10",
}
ORIGIN: tuple[str, ...] = ("size", "preset", "data")


def data_words(names: Iterable[str]) -> str:
    """Return what data are called, each once.

    Examples
    --------
    >>> data_words(["mnist", "synthetic", "mnist"])
    'MNIST and synthetic data'
    """
    return " and ".join(DATA.get(name, name) for name in dict.fromkeys(names))


def data_of(runs: Iterable[Run], records: Records) -> str:
    """Return what runs are computed on, in words.

    A result may say by ``"exact"`` that its files were not the published ones; what
    they were, its ``"origin"``, then stands in place of the data's name.

    Examples
    --------
    >>> run = Run("robust_images", 1, "full", "text", "cifar10", {}, seed=0)
    >>> data_of([run], [])
    'CIFAR-10'
    >>> from normalign_reproduction.spec import Record
    >>> result = {"exact": False, "origin": "a part of CIFAR-10"}
    >>> data_of([run], [Record(run, result)])
    'a part of CIFAR-10'
    """
    copies: dict[str, list[str]] = {}
    for record in records:
        if record.result.get("exact") is False and record.result.get("origin"):
            copies.setdefault(record.run.data, []).append(record.result["origin"])
    names = dict.fromkeys(run.data for run in runs)
    return data_words(one for name in names for one in copies.get(name, [name]))


def origin_columns(records: Records) -> dict[str, str]:
    """Return size, preset and data of some records; of several, all."""
    runs = [record.run for record in records]
    return {
        "size": "/".join(sorted({run.size for run in runs})),
        "preset": "/".join(sorted({run.preset for run in runs})),
        "data": data_of(runs, records),
    }


def origin_words(records: Records) -> str:
    """Return size, preset and data of some records, as a line of text."""
    if not records:
        return ""
    found = origin_columns(records)
    return f"{found['size']} size, {found['preset']} preset, {found['data']}"


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


def _format(value: Any, form: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    return form.format(value) if _is_number(value) else one_line(str(value))


def _cells(column: Column, row: Row) -> list[str]:
    text = _format(row.get(column.name), column.form)
    reach = row.get(column.interval) if column.interval is not None else None
    if reach is not None and text != DASH:
        low, high = (_format(end, column.form) for end in reach)
        text = f"{text} [{low}, {high}]"
    if column.published is None:
        return [text]
    return [text, _format(row.get(column.published), column.form)]


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


_WIDE = 160  # columns of text
_EDGE = 3  # of them between two columns, or around all
_NARROW = 8  # of them that a column has at least, if need be beyond the width


def terminal_table(written: Grid, title: str) -> str:
    """Return a table as plain text, 160 signs wide, or more with very many columns.

    What is longer than its column is folded: between words where that is enough, in a
    word where it is not. Numbers stay on one line as long as there is room.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as Lines
    from rich.text import Text

    lines = Lines(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    # Text: a name such as "[1]" is itself, not markup
    for head, width in zip(written.heads, _widths(written), strict=True):
        text, side = Text(one_line(head.text)), "right" if head.numeric else "left"
        lines.add_column(text, justify=side, overflow="fold", width=width)
    for row in written.cells:
        lines.add_row(*(Text(cell) for cell in row))
    file = io.StringIO()
    width = max(_WIDE, (_NARROW + _EDGE) * len(written.heads) + 1)
    console = Console(file=file, width=width, force_terminal=False, color_system=None)
    console.print(lines)
    if written.note:
        console.print(Text(one_line(written.note)))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _widths(written: Grid) -> Sequence[int | None]:
    """Return how wide columns are; ``None`` each where words must be broken to fit."""
    from rich.cells import cell_len

    least, most = [], []
    for i, head in enumerate(written.heads):
        cells, name = [row[i] for row in written.cells], one_line(head.text)
        whole = cells if head.numeric else [w for cell in cells for w in cell.split()]
        least.append(max(map(cell_len, [*whole, *name.split()]), default=1))
        most.append(max(map(cell_len, [*cells, name]), default=1))
    room = _WIDE - _EDGE * len(least) - sum(least) - 1
    if room < 0:
        return [None] * len(least)
    widths = list(least)
    while room > 0 and widths != most:
        # to the column that lacks most
        lack = [full - width for full, width in zip(most, widths, strict=True)]
        widths[lack.index(max(lack))] += 1
        room -= 1
    return widths
