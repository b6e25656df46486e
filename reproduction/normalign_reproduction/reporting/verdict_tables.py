"""Verdicts as a table: what was claimed, by which rule, and how ours stands to it."""

from __future__ import annotations

from collections.abc import Sequence

from normalign_reproduction.reporting.compare import spoken
from normalign_reproduction.reporting.outcomes import Outcome
from normalign_reproduction.spec import Column, Row, Table

__all__ = ["COLUMNS", "verdict_rows", "verdict_tables"]

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


def verdict_tables(outcome: Outcome) -> list[Table]:
    """Return the verdicts of one item, a table for each claim under its rule."""
    item, names = outcome.item, ("cell", "paper", "ours", "verdict", "why")
    claims = dict.fromkeys(claim.name for claim, _ in outcome.verdicts)
    rules = {claim.name: claim.rule for claim, _ in outcome.verdicts}
    return [
        Table(
            "verdicts", f"{item.reference}. {name}: {rules[name]}",
            lambda records, name=name: [
                row for row in verdict_rows([outcome]) if row["claim"] == name
            ],
            [Column(column, column.capitalize()) for column in names],
        )
        for name in claims
    ]  # fmt: skip
