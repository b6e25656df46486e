"""``normalign compare``: the claims of the paper, judged by stored results."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from normalign.cli import say
from normalign_reproduction.commands import _options, _terminal

if TYPE_CHECKING:
    from normalign_reproduction.report.outcome import Outcome
    from normalign_reproduction.spec import Cell, Claim

__all__ = ["JudgedClaim", "add_to", "judge_claims", "run", "totals"]

# In the order of the output, with the color of each.
_COLORS = {"fails": "red", "undecided": "yellow", "holds": "green"}


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "compare",
        allow_abbrev=False,
        help="compare stored results with the paper",
        description="Judge the claims of the paper by stored results: first the "
        "totals, then a line for each claim, failures first. Exit code 1 if a claim "
        "fails. A claim that cannot be judged, for example because runs are missing, "
        "is undecided. Exit code 2 if no run is stored.",
    )
    _options.add_options(parser, digits=_options.MORE_FINISHED)
    forms = ("table", "md", "csv")
    parser.add_argument("--format", choices=forms, default="table")
    text = "print the rule and the numbers of each claim"
    parser.add_argument("--verbose", action="store_true", help=text)
    parser.set_defaults(run=run)


class JudgedClaim(NamedTuple):
    """A claim, the cells that it was judged by, and whether it holds."""

    item: str
    claim: Claim
    cells: Sequence[Cell]

    @property
    def status(self) -> str:
        """``"fails"`` if a cell does, ``"undecided"`` if one is, else ``"holds"``."""
        found = {cell.holds for cell in self.cells}
        return "fails" if False in found else "undecided" if None in found else "holds"

    def describe(self) -> str:
        """Return status, item, claim, and the number of cells if they disagree."""
        text = f"{self.status:9}  {self.item}: {self.claim.statement}"
        holds = {"fails": False, "undecided": None, "holds": True}[self.status]
        n, n_cells = sum(one.holds is holds for one in self.cells), len(self.cells)
        return text if n == n_cells else f"{text} ({n} of {n_cells} cells)"


def judge_claims(outcomes: Sequence[Outcome]) -> list[JudgedClaim]:
    """Return the claims of some items, failures first."""
    judged = []
    for outcome in outcomes:
        cells: dict[str, list[Cell]] = {}
        claims = {claim.statement: claim for claim, _ in outcome.verdicts}
        for claim, verdict in outcome.verdicts:
            cells.setdefault(claim.statement, []).append(verdict)
        name = outcome.item.name
        judged += [JudgedClaim(name, claims[key], cells[key]) for key in claims]
    return sorted(judged, key=lambda one: list(_COLORS).index(one.status))


def totals(claims: Sequence[JudgedClaim]) -> str:
    """Return how many claims hold, fail and are undecided, in a sentence."""
    n = Counter(one.status for one in claims)
    return (
        f"{n['holds']} of {len(claims)} claims hold, {n['fails']} fail, "
        f"{n['undecided']} are undecided."
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the verdicts; 1 if a claim fails."""
    outcomes = _options.load_outcomes(arguments)
    _options.check_records(outcomes, arguments, "compare")
    claims = judge_claims(outcomes)
    if arguments.format == "csv":
        say(_csv(outcomes))
    elif arguments.format == "md":
        say(_markdown(outcomes))
    else:
        say(_terminal.wrap(f"{totals(claims)} {_origin(outcomes)}"))
        say("")
        for claim in claims:
            line = _terminal.wrap(claim.describe(), indent=13)
            say(_terminal.color(line, _COLORS[claim.status]))
            if arguments.verbose:
                say("\n".join(_details(claim)))
        for outcome in outcomes:
            if outcome.missing:
                say(
                    _terminal.wrap(f"{outcome.item.name}: {outcome.missing}.", indent=2)
                )
    return int(any(claim.status == "fails" for claim in claims))


def _origin(outcomes: Sequence[Outcome]) -> str:
    presets = sorted({outcome.preset for outcome in outcomes})
    return f"({outcomes[0].size} size, preset {' or '.join(presets)})"


def _details(claim: JudgedClaim) -> list[str]:
    """Return the rule of a claim and the numbers of its cells."""
    lines = [f"    Rule: {claim.claim.rule}"]
    words = {True: "holds", False: "fails", None: "undecided"}
    for cell in claim.cells:
        numbers = f"paper {cell.paper}, ours {cell.ours}, " if cell.ours else ""
        lines.append(f"    {cell.name}: {numbers}{words[cell.holds]}: {cell.why}")
    return [_terminal.wrap(line, indent=6) for line in lines]


def _markdown(outcomes: Sequence[Outcome]) -> str:
    from normalign_reproduction.report.outcome import verdict_tables
    from normalign_reproduction.report.tables import render

    return "\n".join(
        render(table, outcome.records, form="md", about=outcome.about)
        for outcome in outcomes
        for table in verdict_tables(outcome)
    )


def _csv(outcomes: Sequence[Outcome]) -> str:
    import csv
    import io

    from normalign_reproduction.report.outcome import COLUMNS, verdict_rows

    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(verdict_rows(outcomes))
    return file.getvalue()
