"""Tables of the report: rows of cells that sort, scroll, or become cards."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from normalign_reproduction.reporting.escapes import one_line
from normalign_reproduction.reporting.rendering import Grid

__all__ = ["Cell", "downloads", "grid_table", "html_table", "pill"]


@dataclass(frozen=True)
class Cell:
    """A cell: its HTML, what it is sorted by, and its classes."""

    html: str
    key: Any = None
    kind: str = ""


def html_table(
    name: str, heads: Sequence[Cell], rows: Sequence[Sequence[Cell]], *, kind: str = ""
) -> str:
    """Return a table in a box that it scrolls in; the first cell of a row is its head.

    Parameters
    ----------
    name : str
        What a screen reader says.
    kind : str
        Classes of the box. With ``cards``, the rows are cards where there is no width.
    """
    labels = "cards" in kind.split()
    head = "".join(f'<th scope="col"{_kind(h)}>{h.html}</th>' for h in heads)
    body = []
    for row in rows:
        cells = []
        for i, (cell, above) in enumerate(zip(row, heads, strict=True)):
            tag, scope = ("td", "") if i else ("th", ' scope="row"')
            label = f' data-label="{above.html}"' if labels and i else ""
            cells.append(
                f"<{tag}{scope}{_kind(cell)}{_key(cell)}{label}>{cell.html}</{tag}>"
            )
        body.append(f"<tr>{''.join(cells)}</tr>")
    label = escape(one_line(name))
    return (
        f'<div class="box {kind}" role="region" aria-label="{label}" tabindex="0">'
        f'<table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{chr(10).join(body)}\n</tbody></table></div>"
    )


def grid_table(written: Grid) -> str:
    """Return a written table as HTML, the paper's numbers in softer ink."""
    kinds = [
        " ".join(["number"] * head.numeric + ["paper"] * head.paper)
        for head in written.heads
    ]
    heads = [
        Cell(escape(head.text), kind=kind)
        for head, kind in zip(written.heads, kinds, strict=True)
    ]
    rows = [
        [
            Cell(escape(text), "" if key is None else key, kind)
            for text, key, kind in zip(cells, keys, kinds, strict=True)
        ]
        for cells, keys in zip(written.cells, written.keys, strict=True)
    ]
    return html_table(written.title, heads, rows)


def downloads(files: Mapping[str, str]) -> str:
    """Return links to files that the page itself carries, by their names."""
    links = []
    for name, text in files.items():
        content = base64.b64encode(text.encode()).decode()
        ending = escape(name.rpartition(".")[2].upper())
        links.append(
            f'<a download="{escape(name)}" '
            f'href="data:text/plain;charset=utf-8;base64,{content}">{ending}</a>'
        )
    return f'<p class="files">This table as {", ".join(links)}</p>'


def pill(text: str, kind: str) -> str:
    """Return a short word on a coloured ground."""
    return f'<span class="pill {kind}">{escape(text)}</span>'


def _kind(cell: Cell) -> str:
    return f' class="{cell.kind}"' if cell.kind else ""


def _key(cell: Cell) -> str:
    if cell.key is None:
        return ""
    key = "" if isinstance(cell.key, float) and math.isnan(cell.key) else cell.key
    return f' data-key="{escape(str(key))}"'
