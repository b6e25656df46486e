"""What numbers are from: size, preset and data, as columns and in words."""

from __future__ import annotations

from collections.abc import Iterable

from normalign.paper.spec import Records

__all__ = ["DATA", "ORIGIN", "data_words", "origin_columns", "origin_words"]

# Which data a run may be computed on, and what they are called.
DATA = {
    "mnist": "MNIST",
    "digits_5000": "5000 embedded digits",
    "synthetic": "synthetic data",
    "bundled": "scikit-learn's tables and synthetic ones",
    "uci": "UCI tables",
    "tabarena": "TabArena's tables",
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


def origin_columns(records: Records) -> dict[str, str]:
    """Return size, preset and data of some records; of several, all."""
    runs = [record.run for record in records]
    return {
        "size": "/".join(sorted({run.size for run in runs})),
        "preset": "/".join(sorted({run.preset for run in runs})),
        "data": data_words(run.data for run in runs),
    }


def origin_words(records: Records) -> str:
    """Return size, preset and data of some records, as a line of text."""
    if not records:
        return ""
    found = origin_columns(records)
    return f"{found['size']} size, {found['preset']} preset, {found['data']}"
