"""Options that several commands share: which results, and where they are stored."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normalign_reproduction.report.outcome import Outcome
    from normalign_reproduction.spec import Item
    from normalign_reproduction.store import Store

_OUT = Path("out/paper")
_RESULTS = Path("results/paper")
MORE_FINISHED = "those with more finished runs"


def add_options(
    parser: argparse.ArgumentParser, *, digits: str = "", items: bool = True
) -> None:
    """Add the options that select results.

    Parameters
    ----------
    digits : str
        Which digits are used by default.
    items : bool
        Whether some items and a size can be selected.
    """
    add = parser.add_argument
    if items:
        text = "items from `normalign list` (default: all)"
        add("names", nargs="*", metavar="NAME", help=text)
        text = (
            "only variants with NAME=VALUE[,VALUE], NAME!=VALUE or NAME<=NUMBER, such "
            "as 'rows<=10000'; may be repeated"
        )
        add("--only", action="append", default=[], metavar="CONDITION", help=text)
        text = "the paper's size instead of the quick one"
        add("--full", action="store_true", help=text)
        text = f"which digits (default: {digits})"
        add("--digits", choices=("mnist", "digits_5000"), help=text)
    text = "constants of the released code (default) or of the paper's text"
    add("--preset", choices=("released", "text"), default="released", help=text)
    text = "number of seeds (default: that of the size)"
    add("--seeds", type=at_least_one, metavar="N", help=text)
    text = "folder of results and report (default: %(default)s)"
    add("--out", type=Path, default=_OUT, metavar="DIR", help=text)
    text = f"archives of finished runs (default: {_RESULTS} if it exists)"
    add("--results", type=Path, metavar="DIR", help=text)


def at_least_one(text: str) -> int:
    """Parse a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)


def check_folders(arguments: argparse.Namespace) -> None:
    """Raise a ``ValueError`` for a folder that cannot be one or does not exist."""
    out, results = arguments.out, arguments.results
    if out.exists() and not out.is_dir():
        raise ValueError(f"normalign: --out must be a folder, got the file {out}.")
    if results is not None and not results.exists():
        text = "normalign: --results must be an existing folder or file"
        raise ValueError(f"{text}, got {results}.")


def select_items(arguments: argparse.Namespace) -> list[Item]:
    """Return the named items, or all, with the selected variants."""
    from normalign_reproduction import catalogue
    from normalign_reproduction.catalogue import Condition, check_name, narrow

    for name in arguments.names:
        check_name(name, "normalign: NAME", catalogue.NAMES)
    names = arguments.names or catalogue.NAMES
    items = [catalogue.item(name) for name in catalogue.NAMES if name in names]
    items = narrow(items, [Condition.parse(text) for text in arguments.only])
    size = settings_of(arguments)["size"]
    for item in items:
        if size not in item.sizes:
            text = (
                f"normalign: --only leaves no variants of {item.name} at {size} size."
            )
            remedy = "Add --full." if size == "quick" else "Leave out --full."
            raise ValueError(f"{text} {remedy}")
    return items


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the selected size, preset, digits and number of seeds."""
    names = ("preset", "digits", "seeds")
    settings = {name: getattr(arguments, name) for name in names}
    return {"size": "full" if arguments.full else "quick", **settings}


def store_of(arguments: argparse.Namespace) -> Store:
    """Return the store of the results, with archives to read from."""
    from normalign_reproduction.store import Store

    return Store(arguments.out / "results", archives=_archives(arguments))


def _archives(arguments: argparse.Namespace) -> list[Path]:
    default = [_RESULTS] if _RESULTS.is_dir() else []
    return default if arguments.results is None else [arguments.results]


def load_outcomes(arguments: argparse.Namespace) -> list[Outcome]:
    """Return what is stored of the selected items."""
    from normalign_reproduction.report.outcome import outcomes

    check_folders(arguments)
    items, store = select_items(arguments), store_of(arguments)
    return outcomes(items, store=store, **settings_of(arguments))


def check_records(
    outcomes: Iterable[Outcome], arguments: argparse.Namespace, command: str
) -> None:
    """Raise a ``ValueError`` if no run is stored."""
    if not any(outcome.records for outcome in outcomes):
        places = [arguments.out / "results", *_archives(arguments)]
        raise ValueError(
            f"normalign {command}: no run is stored in "
            f"{' or '.join(map(str, places))}. "
            f"To compute some: `{command_line('reproduce', arguments)}`."
        )


def write_page(command: str, arguments: argparse.Namespace) -> Path:
    """Write the report and return the path of its page."""
    from normalign_reproduction.report.files import write_report

    return write_report(
        arguments.out,
        items=select_items(arguments),
        store=store_of(arguments),
        command=command_line(command, arguments),
        **settings_of(arguments),
    )


def command_line(command: str, arguments: argparse.Namespace) -> str:
    """Return the command line that selects the same results."""
    words = [*arguments.names, *(["--full"] if arguments.full else [])]
    if arguments.preset != "released":
        words += ["--preset", arguments.preset]
    for condition in arguments.only:
        words += ["--only", condition]
    for name in ("seeds", "digits", "results"):
        if (value := getattr(arguments, name)) is not None:
            words += [f"--{name}", str(value)]
    if arguments.out != _OUT:
        words += ["--out", str(arguments.out)]
    return shlex.join(["normalign", command, *words])
