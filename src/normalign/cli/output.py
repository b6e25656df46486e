"""How commands speak: tables and text to stdout, progress to stderr."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["as_json", "note", "number", "say", "table"]

_WIDE = 160  # columns for a reader that is not a terminal


def say(text: str) -> None:
    """Write a result, one line or several, to stdout."""
    sys.stdout.write(text.rstrip("\n") + "\n")


def note(text: str) -> None:
    """Write progress to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numeric: bool = False,
) -> None:
    """Write a table to stdout; all columns but the first are numbers if `numeric`."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    # Text: a name such as "[1]" is itself, not markup
    for i, column in enumerate(columns):
        grid.add_column(Text(column), justify="right" if numeric and i else "left")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    terminal = sys.stdout.isatty()
    # Rendered first, written after: a closed pipe is then ours to deal with.
    page = io.StringIO()
    width = None if terminal else _WIDE
    Console(file=page, width=width, force_terminal=terminal).print(grid)
    say("\n".join(line.rstrip() for line in page.getvalue().splitlines()))


def number(value: float) -> str:
    """Format a measured value: four significant digits."""
    return f"{value:.4g}"


def as_json(value: Any) -> str:
    """Return strict JSON; what is not finite becomes null."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
