"""``normalign show``: the tables and figures of an item, from what is stored."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from normalign.cli import note, say
from normalign_reproduction._errors import require
from normalign_reproduction.commands import options

if TYPE_CHECKING:
    from normalign_reproduction.report.outcome import Outcome

__all__ = ["add_digits", "add_to", "load_outcomes", "run"]

_CALLEE = "normalign show"


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "show", allow_abbrev=False, help="show tables and figures of stored results",
        description="Write the tables of an item to stdout, ours beside the paper's; "
        "of a figure, where its curves end or which numbers its runs gave, or with "
        "--format svg the figure itself; and what differs from the paper. Exit code "
        "1 if no run of an item is finished.",
    )  # fmt: skip
    options.add_options(parser)
    add_digits(parser)
    parser.add_argument(
        "--format", choices=("table", "md", "csv", "tex", "svg"), default="table",
        help="default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--part", metavar="NAME",
        help="one table or figure of an item that has several; CSV and SVG have only "
        "one in a file (default: its first)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def add_digits(parser: argparse.ArgumentParser) -> None:
    """Add the choice of digits to a command that only reads."""
    parser.add_argument(
        "--digits", choices=("mnist", "digits_5000"),
        help="which digits (default: those with more finished runs)",
    )  # fmt: skip


def load_outcomes(arguments: argparse.Namespace) -> list[Outcome]:
    """Return what is stored of the items that the options name."""
    from normalign_reproduction.report.outcome import outcomes

    return outcomes(
        options.select_items(arguments), size=options.size_of(arguments),
        preset=arguments.preset, digits=arguments.digits, seeds=arguments.seeds,
        store=options.store_of(arguments),
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Write what is asked for; 1 if there is nothing of an item."""
    options.check_options(arguments, _CALLEE)
    names, form = arguments.names, arguments.format
    single = form not in ("svg", "csv") or len(names) == 1
    rule = "one name for this format"
    require(single, _CALLEE, "NAME", rule, f"{len(names)} with --format {form}")
    empty, shown = False, []
    for outcome in load_outcomes(arguments):
        if outcome.missing:
            note(f"{_CALLEE}: {outcome.item.name}: {outcome.missing}")
        texts = _texts(outcome, form, arguments.part) if outcome.records else []
        shown += texts
        empty = empty or not texts
    if shown:
        say("\n".join(shown))
    return int(empty)


def _texts(outcome: Outcome, form: str, part: str | None) -> list[str]:
    """Return the parts of an item that are asked for, as text."""
    from normalign_reproduction.report.contents import figures, tables
    from normalign_reproduction.report.outcome import difference_list, verdict_tables
    from normalign_reproduction.report.svg import svg_file
    from normalign_reproduction.report.tables import render

    records = outcome.records
    if form == "svg":
        drawn = figures(outcome)
        names = _parts(list(drawn), form, part)
        return [
            svg_file(drawn[name], records, name=name, about=outcome.about)
            for name in names
        ]
    written = tables(outcome) | tables(outcome, ends=True)
    if not written:  # nothing to tabulate but what is said about it
        name = outcome.item.name
        claims = enumerate(verdict_tables(outcome), 1)
        written = {f"{name}-claim{i}": table for i, table in claims}
    names = _parts(list(written), form, part)
    texts = [
        render(written[name], records, form=form, about=outcome.about)
        for name in names
    ]  # fmt: skip
    return texts + ([] if form == "csv" else [difference_list(outcome, form=form)])


def _parts(there: list[str], form: str, part: str | None) -> list[str]:
    rule = f"one of {', '.join(there) or 'none'}"
    require(part is None or part in there, _CALLEE, "--part", rule, repr(part))
    names = there if part is None else [part]
    if form in ("csv", "svg") and len(names) > 1:
        note(f"{_CALLEE}: {names[0]}; --part shows {' or '.join(names[1:])}")
        return names[:1]
    return names
