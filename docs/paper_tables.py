"""What the pages show of the paper: tables, findings and verdicts of archived runs.

They are read from the archives in ``normalign_reproduction/results``; nothing is
computed here.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import normalign_reproduction
from normalign_reproduction.catalogue import item
from normalign_reproduction.claims import verdict_word
from normalign_reproduction.items.table1.rows import (
    METHOD_TITLES,
    TASK_TITLES,
    acceleration_rows,
    epochs_by_seed,
)
from normalign_reproduction.report.outcome import Outcome, outcome
from normalign_reproduction.report.tables import render
from normalign_reproduction.store import Store

sys.path.insert(0, str(Path(__file__).parent))  # tests run this file from afar
import tabular_tables

ARCHIVES = Path(normalign_reproduction.__file__).parent / "results"


@cache
def archived() -> Store:
    """The archived runs, read once."""
    return Store(ARCHIVES / "nowhere", archives=[ARCHIVES])


@cache
def full(name: str, preset: str = "released") -> Outcome:
    """What there is of an item at full size."""
    found = item(name)
    return outcome(found, size="full", preset=preset, digits="mnist", store=archived())


def shown(words: str) -> str:
    """What stands at ``<!--paper:WORDS-->``: an item, what of it, and a preset."""
    name, what, *preset = words.split("/")
    found = full(name, *preset)
    if not found.records:
        return "Not computed yet.\n"
    text = KINDS[what](found) if what in KINDS else part(found, what)
    return f"{text}\n" if text else ""


def part(found: Outcome, name: str) -> str:
    """A table of the item, by its name."""
    (one,) = (one for one in found.item.tables if one.name == name)
    return render(one, found.records, form="md", about=found.about).strip()


def table(found: Outcome) -> str:
    """The item's first table, ours beside the paper's."""
    first = found.item.tables[0]
    return render(first, found.records, form="md", about=found.about).strip()


def cost(found: Outcome) -> str:
    """The item's table of seconds."""
    (last,) = (one for one in found.item.tables if not one.repeatable)
    return render(last, found.records, form="md", about=found.about).strip()


def finding(found: Outcome) -> str:
    """What came out, in a sentence."""
    return found.finding or found.missing


def verdicts(found: Outcome) -> str:
    """How many cells agree, and each that does not."""
    counts = {how: found.count(how) for how in (True, False, None)}
    lines = [f"{counts[True]} of {sum(counts.values())} verdicts hold."]
    failed = [(c, v) for c, v in found.verdicts if v.holds is not True]
    if failed:
        lines += ["", "| claim | cell | paper | ours | | why |", "|---" * 6 + "|"]
    for claim, one in failed:
        cells = (
            claim.statement,
            one.name,
            one.paper,
            one.ours,
            verdict_word(one.holds),
            one.why,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def made(found: Outcome) -> str:
    """Where, when and how fast."""
    return tabular_tables.made(found.records)


def epochs(found: Outcome) -> str:
    """Table 1 on one screen: mean epochs, the paper's in brackets."""
    rows = acceleration_rows(epochs_by_seed(found.records))
    cells = {(row["task"], row["method"]): row for row in rows}
    methods = [m for m in METHOD_TITLES if any(key[1] == m for key in cells)]
    lines = [
        "| | " + " | ".join(METHOD_TITLES[m] for m in methods) + " |",
        "|---" * (len(methods) + 1) + "|",
    ]
    for task, title in TASK_TITLES.items():
        told = [_epochs(cells[task, method]) for method in methods]
        lines.append(f"| {title} | {' | '.join(told)} |")
    return "\n".join(lines)


def _epochs(row: dict[str, Any]) -> str:
    def mean(epochs: float | None, share: float | None) -> str:
        if epochs is None:
            return "never"
        some = "" if share == 1 else f", {share:.0%} of seeds"
        return f"{epochs:.0f}{some}"

    ours = mean(row["epochs"], row["share"])
    if row["published_share"] is None:
        return ours
    return f"{ours} ({mean(row['published_epochs'], row['published_share'])})"


KINDS = {
    "cost": cost, "epochs": epochs, "finding": finding, "made": made, "table": table,
    "verdicts": verdicts, **tabular_tables.KINDS,
}  # fmt: skip
