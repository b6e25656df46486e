"""What a training run recorded: columns of numbers, one row per evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from normalign._errors import require

__all__ = ["History"]


@dataclass
class History:
    """A table of numbers by column name, with one row per evaluated epoch.

    Every row has the same columns, ``"epoch"`` among them, in rising order of epoch.

    Parameters
    ----------
    columns : dict of str to list of float
    interrupted : bool
        Whether training was ended by Ctrl-C; the rows are those made until then.
    seconds : float
        Time spent so far, training and evaluation together.

    Examples
    --------
    >>> history = History()
    >>> history.append({"epoch": 1, "test_accuracy": 0.5})
    >>> history.append({"epoch": 2, "test_accuracy": 0.9})
    >>> history.first(lambda row: row["test_accuracy"] > 0.8)
    {'epoch': 2, 'test_accuracy': 0.9}
    """

    columns: dict[str, list[float]] = field(default_factory=dict)
    interrupted: bool = False
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def __getitem__(self, name: str) -> list[float]:
        known = name in self.columns
        rule = f"one of {', '.join(self.columns) or 'no columns yet'}"
        require(known, "History", "column", rule, repr(name))
        return self.columns[name]

    def append(self, row: Mapping[str, float]) -> None:
        """Add a row; the first one names the columns.

        Raises
        ------
        ValueError
            If the row's names are not the columns, or its epoch does not rise.
        """
        callee = "History.append"
        require("epoch" in row, callee, "row", "one with an epoch", dict(row))
        if not self.columns:
            self.columns = {name: [] for name in row}
        same = row.keys() == self.columns.keys()
        rule = f"of the columns {', '.join(self.columns)}"
        require(same, callee, "row", rule, ", ".join(row))
        epochs = self.columns["epoch"]
        later = not epochs or row["epoch"] > epochs[-1]
        rule = "later than the last row's"
        require(later, callee, "epoch", rule, row["epoch"])
        for name, value in row.items():
            self.columns[name].append(value)

    def rows(self) -> list[dict[str, float]]:
        """Return the rows as dictionaries, earliest first."""
        names = list(self.columns)
        values = zip(*self.columns.values(), strict=True)
        return [dict(zip(names, row, strict=True)) for row in values]

    def first(
        self, condition: Callable[[dict[str, float]], bool]
    ) -> dict[str, float] | None:
        """Return the earliest row that meets the condition, or ``None``."""
        return next((row for row in self.rows() if condition(row)), None)

    def last(self) -> dict[str, float]:
        """Return the latest row.

        Raises
        ------
        ValueError
            If there is none.
        """
        require(len(self) > 0, "History.last", "history", "non-empty", "no rows")
        return self.rows()[-1]

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold exactly: a number that is not finite is a string.

        JSON has no NaN or infinity; writing them as ``"nan"``, ``"inf"`` and
        ``"-inf"`` keeps them apart and the text valid.
        """
        columns = {
            name: [value if math.isfinite(value) else str(value) for value in values]
            for name, values in self.columns.items()
        }
        return {
            "columns": columns,
            "interrupted": self.interrupted,
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> History:
        """Return the history that :meth:`to_dict` wrote.

        Raises
        ------
        ValueError
            If the columns have different lengths.
        """
        columns = {
            name: [float(v) if isinstance(v, str) else v for v in values]
            for name, values in stored["columns"].items()
        }
        lengths = {name: len(values) for name, values in columns.items()}
        even = len(set(lengths.values())) <= 1
        require(even, "History.from_dict", "columns", "of one length", lengths)
        return cls(columns, bool(stored["interrupted"]), float(stored["seconds"]))
