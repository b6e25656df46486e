"""What numbers are from: size, preset and data, as columns and in words."""

from __future__ import annotations

from collections.abc import Iterable

from normalign_reproduction.spec import Records, Run

__all__ = ["DATA", "ORIGIN", "data_of", "data_words", "origin_columns", "origin_words"]

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
