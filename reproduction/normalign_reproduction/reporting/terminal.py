"""Written tables for a terminal: nothing is cut, what does not fit goes on below."""

from __future__ import annotations

import io
from collections.abc import Sequence

from normalign_reproduction.reporting.escapes import one_line
from normalign_reproduction.reporting.grids import Grid

__all__ = ["terminal_table"]

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
