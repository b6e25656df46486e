"""``normalign list``: the paper's tables and figures, and what there is of them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from normalign.cli import stored
from normalign.cli.output import say, table

if TYPE_CHECKING:
    from normalign.paper.results import Store
    from normalign.paper.spec import Item

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "list", allow_abbrev=False, help="the paper's tables and figures",
        description="List the paper's tables and figures: how many of their runs are "
        "finished at both sizes, and how long all of them take.",
    )  # fmt: skip
    stored.add_options(parser, names="", size=False)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a row for each item."""
    stored.checked(arguments, "normalign list")
    from normalign.paper import catalogue
    from normalign.paper.experiments.digits import digits_source

    store, digits = stored.store_of(arguments), digits_source()
    rows = []
    for name in catalogue.NAMES:
        item = catalogue.item(name)
        row = [name, item.reference, item.title]
        for size in ("quick", "full"):
            row += _standing(item, size, store, digits, arguments)
        rows.append(row)
    columns = ("name", "reference", "title", "quick", "time", "full", "time")
    table(f"Tables and figures, {arguments.preset} preset", columns, rows)
    say("runs finished of all; `normalign reproduce NAME` makes those that are missing")
    return 0


def _standing(
    item: Item, size: str, store: Store, digits: str, arguments: argparse.Namespace
) -> list[str]:
    """Return how many runs of an item are finished, and how long all take."""
    from normalign.paper.running.progress import duration

    if size not in item.sizes:
        return ["-", "-"]
    runs = item.runs(
        size=size, preset=arguments.preset, digits=digits, seeds=arguments.seeds
    )
    times = item.sizes[size].seconds.items()
    spoken = ", ".join(f"{duration(seconds)} {device}" for device, seconds in times)
    return [f"{len(store.records(runs))} of {len(runs)}", spoken or "unknown"]
