"""``normalign show``: the tables and figures of an item, from stored results."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from normalign.cli import note, say
from normalign_reproduction.commands import _options, _terminal

if TYPE_CHECKING:
    from normalign_reproduction.report.outcome import Outcome
    from normalign_reproduction.spec import Table

__all__ = ["add_to", "run"]

_SINGLE = ("csv", "svg")  # formats with one table or figure in a file


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "show",
        allow_abbrev=False,
        help="show tables and figures of stored results",
        description="Print the tables of an item next to the paper's numbers; for a "
        "figure, the values at the end of its curves or the numbers of its runs, or "
        "with --format svg the figure itself; and what differs from the paper. Exit "
        "code 1 if no run of an item is finished.",
    )
    _options.add_options(parser, digits=_options.MORE_FINISHED)
    forms = ("table", "md", "csv", "tex", "svg")
    parser.add_argument("--format", choices=forms, default="table")
    text = "one of several tables or figures; CSV and SVG show the first by default"
    parser.add_argument("--part", metavar="NAME", help=text)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the results; 1 if an item has none."""
    form, n_names = arguments.format, len(arguments.names)
    if form in _SINGLE and n_names != 1:
        text = f"normalign show: --format {form} must have exactly one NAME"
        raise ValueError(f"{text}, got {n_names or 'none'}.")
    is_empty, texts = False, []
    for outcome in _options.load_outcomes(arguments):
        if outcome.missing:
            note(f"normalign show: {outcome.item.name}: {outcome.missing}")
        if outcome.records and form == "svg":
            texts += _figures(outcome, arguments.part)
        elif outcome.records:
            texts += _tables(outcome, form, arguments.part)
        else:
            is_empty = True
    if texts:
        say("\n".join(texts))
    return int(is_empty)


def _figures(outcome: Outcome, part: str | None) -> list[str]:
    from normalign_reproduction.report.contents import figures
    from normalign_reproduction.report.svg import svg_file

    drawings, name = figures(outcome), outcome.item.name
    if not drawings:
        raise ValueError(
            f"normalign show: {name} has no figure for --format svg. To print its "
            f"tables: `normalign show {name}`."
        )
    names = _select_parts(list(drawings), "svg", part)
    return [
        svg_file(drawings[name], outcome.records, name=name, about=outcome.about)
        for name in names
    ]


def _tables(outcome: Outcome, form: str, part: str | None) -> list[str]:
    """Return the tables of an item, and what differs from the paper, as text."""
    from normalign_reproduction.report.contents import tables
    from normalign_reproduction.report.outcome import difference_list, verdict_tables
    from normalign_reproduction.report.tables import render

    contents = tables(outcome) | tables(outcome, ends=True)
    if not contents:  # only claims
        claims = enumerate(verdict_tables(outcome), 1)
        contents = {f"{outcome.item.name}-claim{i}": table for i, table in claims}
    parts = [contents[name] for name in _select_parts(list(contents), form, part)]
    if form == "table":
        lines = difference_list(outcome, form=form).splitlines()
        differences = [_terminal.wrap(line, indent=2) for line in lines]
        return [*(_terminal_table(table, outcome) for table in parts), *differences]
    records, about = outcome.records, outcome.about
    texts = [render(table, records, form=form, about=about) for table in parts]
    return texts if form == "csv" else [*texts, difference_list(outcome, form=form)]


def _terminal_table(table: Table, outcome: Outcome) -> str:
    from normalign_reproduction.report.tables import grid

    content = grid(table, outcome.records)
    heads = [" ".join(head.text.split()) for head in content.heads]
    numeric = [head.numeric for head in content.heads]
    n_names = numeric.index(True) if any(numeric[1:]) else 1
    body = _terminal.table(heads, content.cells, numeric=numeric, n_names=n_names)
    title = _terminal.wrap(f"{content.title} ({outcome.about})")
    return f"{title}\n\n{body}\n\n{_terminal.wrap(content.note)}".rstrip() + "\n"


def _select_parts(names: list[str], form: str, part: str | None) -> list[str]:
    from normalign_reproduction.catalogue import check_name

    if part is not None:
        check_name(part, "normalign show: --part", names)
        return [part]
    if form in _SINGLE and len(names) > 1:
        note(f"normalign show: {names[0]}; --part shows {' or '.join(names[1:])}")
        return names[:1]
    return names
