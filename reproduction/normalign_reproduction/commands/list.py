"""``normalign list``: the paper's tables and figures, and which runs are finished."""

from __future__ import annotations

import argparse
from typing import Any

from normalign.cli import say
from normalign_reproduction.commands import _options, _terminal

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "list",
        allow_abbrev=False,
        help="list the paper's tables and figures",
        description="List the paper's tables and figures, with the number of finished "
        "runs and the time that all runs take: at quick size on two cores, at full "
        "size on an H200.",
    )
    _options.add_options(parser, items=False)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a row for each item."""
    _options.check_folders(arguments)
    from normalign_reproduction import catalogue
    from normalign_reproduction.progress import duration
    from normalign_reproduction.report.outcome import outcome

    store, seeds, rows = _options.store_of(arguments), arguments.seeds, []
    for item in catalogue.items():
        row = [item.name, item.reference]
        for name, device in (("quick", "cpu"), ("full", "cuda")):
            size, settings = item.sizes[name], {"seeds": seeds, "store": store}
            stored = outcome(item, size=name, preset=arguments.preset, **settings)
            seconds = size.seconds.get(device)
            if seconds is not None and seeds is not None:
                seconds *= seeds / size.seeds
            row += [f"{len(stored.records)} of {len(stored.runs)}", duration(seconds)]
        rows.append(row)
    heads = ("name", "in the paper", "quick", "CPU time", "full", "GPU time")
    say(_terminal.table(heads, rows))
    say("\n`normalign reproduce NAME` computes the missing runs of an item.")
    return 0
