"""``normalign report``: write the page from stored results."""

from __future__ import annotations

import argparse
from typing import Any

from normalign.cli import say
from normalign_reproduction.commands import _options

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "report",
        allow_abbrev=False,
        help="write the report from stored results",
        description="Write the report, its tables and its figures from finished runs, "
        "without running anything. Exit code 2 if no run is stored.",
    )
    _options.add_options(parser, digits=_options.MORE_FINISHED)
    parser.add_argument("--open", action="store_true", help="open it in a browser")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the report and print where it is."""
    outcomes = _options.load_outcomes(arguments)
    _options.check_records(outcomes, arguments, "report")
    path = _options.write_page("report", arguments)
    say(f"report: {path}")
    if arguments.open:
        import webbrowser

        webbrowser.open(path.absolute().as_uri())
    return 0
