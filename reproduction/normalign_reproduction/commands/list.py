"""``normalign list``: the paper's tables and figures, and which runs are finished."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from normalign.cli import say, table
from normalign_reproduction.commands import options

if TYPE_CHECKING:
    from normalign_reproduction.spec import Item
    from normalign_reproduction.store import Store

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "list", allow_abbrev=False, help="the paper's tables and figures",
        description="List the paper's tables and figures: how many of their runs are "
        "finished at both sizes, and how long all of them take.",
    )  # fmt: skip
    options.add_options(parser, names="", size=False)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a row for each item."""
    options.check_options(arguments, "normalign list")
    from normalign_reproduction import catalogue

    store = options.store_of(arguments)
    rows = []
    for name in catalogue.NAMES:
        item = catalogue.item(name)
        row = [name, item.reference, item.title]
        for size in ("quick", "full"):
            row += _standing(item, size, store, arguments)
        rows.append(row)
    columns = ("name", "reference", "title", "quick", "time", "full", "time")
    table(f"Tables and figures, {arguments.preset} preset", columns, rows)
    say("finished runs of all runs; `normalign reproduce NAME` runs the missing ones")
    return 0


def _standing(
    item: Item, size: str, store: Store, arguments: argparse.Namespace
) -> list[str]:
    """Return how many runs of an item are finished, and how long all take.

    Of runs on either digits, those count of which more are finished, as everywhere.
    """
    from normalign_reproduction.progress import duration
    from normalign_reproduction.report.outcome import outcome

    if size not in item.sizes:
        return ["-", "-"]
    preset, seeds = arguments.preset, arguments.seeds
    there = outcome(item, size=size, preset=preset, store=store, seeds=seeds)
    chosen = item.sizes[size]
    share = 1.0 if seeds is None else seeds / chosen.seeds
    times = ", ".join(
        f"{duration(share * seconds)} {device}"
        for device, seconds in chosen.seconds.items()
    )
    return [f"{len(there.records)} of {len(there.runs)}", times or "unknown"]
