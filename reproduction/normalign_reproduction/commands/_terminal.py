"""Text that fits the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

_GAP = 2  # columns between two columns of a table
_LONGEST_WORD = 24  # longer ones may be divided, except in the first column
_COLORS = {"red": 31, "green": 32, "yellow": 33}


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def color(text: str, name: str) -> str:
    """Return a text in a color if the output is a terminal."""
    if not sys.stdout.isatty() or "NO_COLOR" in os.environ:
        return text
    return f"\033[{_COLORS[name]}m{text}\033[0m"


def wrap(text: str, indent: int = 0) -> str:
    """Return a text in lines that fit, all but the first indented."""
    return textwrap.fill(
        text, _width(), subsequent_indent=" " * indent, break_on_hyphens=False
    )


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numeric: Sequence[bool] | None = None,
    n_names: int = 1,
) -> str:
    """Return a table that fits.

    Columns for which there is no room follow below. There the first columns, at most
    `n_names`, are repeated, unless they take more than half of the width. Text is
    wrapped where necessary, but neither a number nor a word of the first column is
    divided.
    """
    numeric = numeric or [False] * len(heads)
    columns = list(zip(heads, *rows, strict=True))
    longest = [max(map(len, column)) for column in columns]
    least = [
        max(len(word) for cell in column for word in cell.split() or [""])
        for column in columns
    ]
    for i, (column, is_number) in enumerate(zip(columns, numeric, strict=True)):
        if is_number:
            least[i] = max([least[i], *map(len, column[1:])])
        elif i > 0:
            least[i] = min(least[i], _LONGEST_WORD)

    def total(part: Iterable[int]) -> int:
        return sum(least[i] + _GAP for i in part) - _GAP

    while n_names > 1 and total(range(n_names)) > _width() / 2:
        n_names -= 1
    parts = [list(range(n_names))]
    for i in range(n_names, len(heads)):
        if len(parts[-1]) > n_names and total([*parts[-1], i]) > _width():
            parts.append(list(range(n_names)))
        parts[-1].append(i)
    texts = []
    for part in parts:
        widths, room = {i: least[i] for i in part}, _width() - total(part)
        while room > 0 and any(widths[i] < longest[i] for i in part):
            narrowest = max(part, key=lambda i: longest[i] - widths[i])
            widths[narrowest] += 1
            room -= 1
        head = _lines([heads[i] for i in part], widths, numeric)
        lines = [*head, "─" * (sum(widths.values()) + _GAP * (len(widths) - 1))]
        for row in rows:
            lines += _lines([row[i] for i in part], widths, numeric)
        texts.append("\n".join(lines))
    return "\n\n".join(texts)


def _lines(
    cells: Sequence[str], widths: dict[int, int], numeric: Sequence[bool]
) -> list[str]:
    """Return the lines of one row."""
    wrapped = [
        textwrap.wrap(cell, width, break_on_hyphens=False) or [""]
        for cell, width in zip(cells, widths.values(), strict=True)
    ]
    lines = []
    for parts in zip_longest(*wrapped, fillvalue=""):
        padded = [
            part.rjust(width) if numeric[i] else part.ljust(width)
            for part, (i, width) in zip(parts, widths.items(), strict=True)
        ]
        lines.append((" " * _GAP).join(padded).rstrip())
    return lines
