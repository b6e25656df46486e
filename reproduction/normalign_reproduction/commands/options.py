"""Options of the commands that work on stored results, and what they mean."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from normalign_reproduction._errors import require

if TYPE_CHECKING:
    from normalign_reproduction.spec import Item
    from normalign_reproduction.store import Store

__all__ = [
    "add_options", "archives", "check_options", "select_items", "size_of", "store_of",
    "words_of",
]  # fmt: skip

_OUT = Path("out/paper")
_RESULTS = Path(__file__).parents[1] / "results"


def add_options(
    parser: argparse.ArgumentParser, *, names: str = "*", size: bool = True
) -> None:
    """Add which results are meant and where they lie.

    Parameters
    ----------
    names : str
        How many items are named, as argparse counts; empty for none.
    size : bool
        Whether one size is chosen.
    """
    add = parser.add_argument
    if names:
        add(
            "names",
            nargs=names,
            metavar="NAME",
            help="items from `normalign list` (default: all)",
        )
        add(
            "--only", action="append", default=[], metavar="CONDITION",
            help="only variants with NAME=VALUE[,VALUE], NAME!=VALUE or NAME<=NUMBER, "
            "such as 'rows<=10000'; may be repeated",
        )  # fmt: skip
    if size:
        add(
            "--full",
            action="store_true",
            help="the paper's size instead of the quick one",
        )
    add(
        "--preset", choices=("released", "text"), default="released",
        help="constants of the released code or of the paper's text "
        "(default: %(default)s)",
    )  # fmt: skip
    add(
        "--seeds",
        type=int,
        metavar="N",
        help="number of seeds (default: that of the size)",
    )
    add(
        "--out", type=Path, default=_OUT, metavar="DIR",
        help="folder of results and report (default: %(default)s)",
    )  # fmt: skip
    add(
        "--results", type=Path, metavar="DIR",
        help="further archives of finished runs, beside those of the package",
    )  # fmt: skip


def check_options(arguments: argparse.Namespace, callee: str) -> None:
    """Refuse what the parser cannot.

    Raises
    ------
    ValueError
        If a name, a number or a folder is wrong.
    """
    from normalign_reproduction.catalogue import NAMES

    rule = f"one of {', '.join(NAMES)}"
    for name in getattr(arguments, "names", ()):
        require(name in NAMES, callee, "NAME", rule, repr(name))
    seeds, out, results = arguments.seeds, arguments.out, arguments.results
    require(seeds is None or seeds >= 1, callee, "--seeds", "at least 1", seeds)
    folder = not out.exists() or out.is_dir()
    require(folder, callee, "--out", "a folder", f"the file {out}")
    there = results is None or results.exists()
    require(there, callee, "--results", "a folder or file that exists", f"{results}")


def select_items(arguments: argparse.Namespace) -> list[Item]:
    """Return the items that are named, or all, in the paper's order."""
    from normalign_reproduction import catalogue
    from normalign_reproduction.catalogue import Condition, narrow

    named = arguments.names or catalogue.NAMES
    conditions = [Condition.read(text) for text in arguments.only]
    return [
        narrow(catalogue.item(name), conditions)
        for name in catalogue.NAMES
        if name in named
    ]


def size_of(arguments: argparse.Namespace) -> str:
    """Return the size that is asked for."""
    return "full" if arguments.full else "quick"


def archives(arguments: argparse.Namespace) -> list[Path]:
    """Return where archives of finished runs are."""
    added = [] if arguments.results is None else [arguments.results]
    return [_RESULTS, *added]


def store_of(arguments: argparse.Namespace) -> Store:
    """Return the results that the options name."""
    from normalign_reproduction.store import Store

    return Store(arguments.out / "results", archives=archives(arguments))


def words_of(arguments: argparse.Namespace) -> list[str]:
    """Return the words that ask for the same results, as they were given."""
    words = list(getattr(arguments, "names", ()))
    words += ["--full"] if getattr(arguments, "full", False) else []
    if arguments.preset != "released":
        words += ["--preset", arguments.preset]
    for condition in getattr(arguments, "only", ()):
        words += ["--only", condition]
    for name in ("seeds", "digits"):
        value = getattr(arguments, name, None)
        words += [] if value is None else [f"--{name}", str(value)]
    if arguments.out != _OUT:
        words += ["--out", str(arguments.out)]
    if arguments.results is not None:
        words += ["--results", str(arguments.results)]
    return words
