"""Tables in the ARFF format, as OpenML sends them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normalign_reproduction._errors import complaint

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read_arff"]

_ROWS_AT_ONCE = 20_000
_NUMBERS = ("NUMERIC", "REAL", "INTEGER")


def read_arff(
    path: Path, *, callee: str = "read_arff", name: str | None = None
) -> pd.DataFrame:
    """Read an ARFF file: numbers as float64, nominal values and text as categories.

    Needs liac-arff, which the ``openml`` package brings.

    Parameters
    ----------
    path : Path
        The file, in UTF-8.
    callee, name : str, optional
        Who complains, and of which file.

    Raises
    ------
    ValueError
        If it is no ARFF file or is cut short within a row.
    """
    import arff
    import pandas as pd

    try:
        with path.open(encoding="utf-8") as stream:
            content = arff.load(stream, return_type=arff.DENSE_GEN)
            attributes = dict(content["attributes"])
            parts = [*_parts(attributes, content["data"])]
    except (arff.ArffException, ValueError) as error:
        text = complaint(callee, name or path.name, "an ARFF file", f"one with {error}")
        raise ValueError(text) from error
    frame = pd.concat(parts, ignore_index=True)
    texts = {name: "category" for name, kind in attributes.items() if _is_text(kind)}
    return frame.astype(texts)


def _parts(
    attributes: dict[str, Any], rows: Iterable[list[Any]]
) -> Iterator[pd.DataFrame]:
    """Frames of some rows at a time: Python's own lists of all would be huge."""
    import pandas as pd

    rows = iter(rows)
    while True:
        some = list(islice(rows, _ROWS_AT_ONCE))
        columns = zip(*some, strict=True) if some else [()] * len(attributes)
        yield pd.DataFrame(
            {
                name: _values(kind, column)
                for (name, kind), column in zip(
                    attributes.items(), columns, strict=True
                )
            }
        )
        if len(some) < _ROWS_AT_ONCE:
            return


def _is_text(kind: Any) -> bool:
    return isinstance(kind, str) and kind not in _NUMBERS


def _values(kind: Any, column: tuple[Any, ...]) -> Any:
    import pandas as pd

    if _is_text(kind):
        return pd.Series(column, dtype="object")
    if isinstance(kind, str):
        return pd.Series(column, dtype="float64")
    return pd.Categorical(column, categories=kind)
