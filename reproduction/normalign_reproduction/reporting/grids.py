"""Tables whose cells are written: what all formats but CSV are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["DASH", "Grid", "Head"]

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
