"""``normalign compare``: stored results against the paper, cell by cell."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from normalign.cli import note, say
from normalign_reproduction._errors import require
from normalign_reproduction.commands import options
from normalign_reproduction.commands.show import add_digits, load_outcomes

if TYPE_CHECKING:
    from normalign_reproduction.report.outcome import Outcome

__all__ = ["add_to", "run"]

_CALLEE = "normalign compare"


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "compare", allow_abbrev=False, help="compare stored results with the paper",
        description="Compare stored results with the paper: a verdict for each cell, "
        "by the rule of its claim. Exit code 1 if a claim does not hold. A claim that "
        "cannot be checked, for example because runs are missing, is not a failure. "
        "Exit code 2 if no run is stored.",
    )  # fmt: skip
    options.add_options(parser)
    add_digits(parser)
    parser.add_argument(
        "--format", choices=("table", "md", "csv"), default="table",
        help="default: %(default)s",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the verdicts; 1 if one is that it does not hold."""
    options.check_options(arguments, _CALLEE)
    outcomes = load_outcomes(arguments)
    places = [arguments.out / "results", *options.archives(arguments)]
    remedy = shlex.join(["normalign", "reproduce", *options.words_of(arguments)])
    require(
        any(outcome.records for outcome in outcomes), _CALLEE, "the results",
        "there, at least one run of them",
        f"none in {' and '.join(map(str, places))}", f"`{remedy}` makes them.",
    )  # fmt: skip
    if arguments.format == "csv":
        say(_csv(outcomes))
    else:
        say("\n".join(_text(outcome, arguments.format) for outcome in outcomes))
    counts = [sum(o.count(how) for o in outcomes) for how in (True, False, None)]
    holds, fails, untold = counts
    note(f"{holds} hold, {fails} do not, {untold} cannot be told")
    return int(fails > 0)


def _text(outcome: Outcome, form: str) -> str:
    from normalign_reproduction.report.outcome import verdict_tables
    from normalign_reproduction.report.tables import render

    return "\n".join(
        render(table, outcome.records, form=form, about=outcome.about)
        for table in verdict_tables(outcome)
    )


def _csv(outcomes: Sequence[Outcome]) -> str:
    """Return all verdicts as one file; what each is from stands in its row."""
    import csv
    import io

    from normalign_reproduction.report.outcome import COLUMNS, verdict_rows

    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(verdict_rows(outcomes))
    return file.getvalue()
