"""Verdicts as a table: what was claimed, by which rule, and how ours stands to it."""

from __future__ import annotations

from collections.abc import Sequence

from normalign.paper.compare import spoken
from normalign.paper.outcomes import Outcome
from normalign.paper.spec import Column, Row, Table

__all__ = ["COLUMNS", "verdict_rows", "verdict_table"]

_ORIGIN = ("item", "size", "preset", "data")
_VERDICT = ("claim", "cell", "rule", "paper", "ours", "verdict", "why")
COLUMNS: tuple[str, ...] = _ORIGIN + _VERDICT


def verdict_rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return a row for each cell of some items, with what it is from."""
    return [
        {
            "item": outcome.item.name, "size": outcome.size,
            "preset": outcome.preset, "data": outcome.data,
            "claim": claim.name, "cell": verdict.cell, "rule": claim.rule,
            "paper": verdict.paper, "ours": verdict.ours,
            "verdict": spoken(verdict.holds), "why": verdict.why,
        }
        for outcome in outcomes
        for claim, verdict in outcome.verdicts
    ]  # fmt: skip


def verdict_table(outcome: Outcome) -> Table:
    """Return the verdicts of one item; what they are from is said with the title."""
    item = outcome.item
    return Table(
        "verdicts", f"{item.name}, {item.reference}: {item.title}",
        lambda records: verdict_rows([outcome]),
        [Column(name, name.capitalize()) for name in _VERDICT],
    )  # fmt: skip
