"""``normalign report``: write the page again, from what is stored."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from normalign.cli import say
from normalign_reproduction.commands import options
from normalign_reproduction.commands.show import add_digits

__all__ = ["add_to", "run"]

_CALLEE = "normalign report"


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "report", allow_abbrev=False, help="write the report from stored results",
        description="Write the report, its tables and its figures from finished runs, "
        "without running anything.",
    )  # fmt: skip
    options.add_options(parser)
    add_digits(parser)
    parser.add_argument("--open", action="store_true", help="open it in a browser")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the report and print where it is."""
    options.check_options(arguments, _CALLEE)
    from normalign_reproduction.report.files import write_report

    path = write_report(
        arguments.out, items=options.select_items(arguments),
        size=options.size_of(arguments),
        preset=arguments.preset, digits=arguments.digits, seeds=arguments.seeds,
        store=options.store_of(arguments), command=_words(arguments),
    )  # fmt: skip
    say(f"report: {path}")
    if arguments.open:
        import webbrowser

        webbrowser.open(path.absolute().as_uri())
    return 0


def _words(arguments: argparse.Namespace) -> str:
    words = ["normalign", "report", *arguments.names]
    words += ["--full"] if arguments.full else []
    if arguments.preset != "released":
        words += ["--preset", arguments.preset]
    for name in ("seeds", "digits"):
        value = getattr(arguments, name)
        words += [] if value is None else [f"--{name}", str(value)]
    return shlex.join(words)
