"""A section of the report: one item, from what the paper shows to how ours was made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from normalign_reproduction.reporting.compare import spoken
from normalign_reproduction.reporting.differences import differences, origin
from normalign_reproduction.reporting.drawings import Drawing
from normalign_reproduction.reporting.html import facts
from normalign_reproduction.reporting.outcomes import Outcome
from normalign_reproduction.reporting.page_tables import (
    Cell,
    downloads,
    grid_table,
    html_table,
    pill,
)
from normalign_reproduction.reporting.rendering import grid, render
from normalign_reproduction.reporting.shown import Shown
from normalign_reproduction.spec import Claim, Table, Verdict

__all__ = ["VERDICT_KINDS", "section"]

VERDICT_KINDS = {True: "holds", False: "fails", None: "open"}
_SIGNS = {True: "✓", False: "✗", None: "?"}
_SEVERITY = {False: 0, None: 1, True: 2}
_MANY_CELLS = 6  # more that all hold are folded away


def section(outcome: Outcome, shown: Shown) -> str:
    """Return an item as a section of the page.

    Parameters
    ----------
    shown : Shown
        Its tables and drawings, as far as the runs at hand allow.
    """
    item = outcome.item
    parts = [
        f'<section id="{escape(item.name)}">',
        f'<p class="over">{escape(item.reference)} · <code>{escape(item.name)}</code> '
        f"{size_pill(outcome.size)}</p>",
        f"<h2>{escape(item.title)}</h2>",
        _says(outcome),
        _lacking(outcome),
        *(_plate(drawing, outcome) for drawing in shown.drawings),
        *(_ends(table, outcome) for table in shown.ends),
        *(_table(table, outcome, name) for name, table in shown.tables.items()),
        _verdicts(outcome),
        _making(outcome),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def size_pill(size: str) -> str:
    """Return the size as a word that stands out if it is not the paper's."""
    return pill(size, "quick" if size == "quick" else "open")


def _says(outcome: Outcome) -> str:
    ours = outcome.finding or "Not yet: runs are missing."
    return (
        f'<div class="says"><p><b>The paper shows</b>{escape(outcome.item.shows)}</p>'
        f"<p><b>Ours shows ({escape(outcome.about)})</b>{escape(ours)}</p></div>"
    )


def _lacking(outcome: Outcome) -> str:
    if outcome.complete:
        return ""
    return (
        f'<p class="lacking">{len(outcome.records)} of {len(outcome.runs)} runs are '
        f"there. <code>{escape(outcome.command)}</code> makes the others.</p>"
    )


def _plate(drawing: Drawing, outcome: Outcome) -> str:
    legend = ""
    if len(drawing.lines) > 1:
        names = "".join(
            f'<li><span class="swatch" style="background:{line.colour}"></span>'
            f"{escape(line.label)}</li>"
            for line in drawing.lines
        )
        heading = f'<li class="heading">{escape(drawing.heading)}</li>'
        legend = f'<ul class="legend">{heading * bool(drawing.heading)}{names}</ul>'
    pictures = "".join(f"<div>{picture}</div>" for picture in drawing.pictures)
    kind = "panels" if drawing.lines else "panels whole"
    kind += " wide" * (kind != "panels" and _is_wide(drawing.pictures[0]))
    note = f"{drawing.caption} {drawing.bands} ({outcome.about}.)"
    return (
        f'<figure class="plate">{legend}<div class="{kind}">{pictures}</div>'
        f"<figcaption>{escape(' '.join(note.split()))}</figcaption></figure>"
    )


def _is_wide(picture: str) -> bool:
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture)
    return box is not None and float(box[1]) > 2 * float(box[2])


def _table(table: Table, outcome: Outcome, name: str) -> str:
    written = grid(table, outcome.records)
    forms = {
        f"{name}.{form}": render(
            table, outcome.records, form=form, about=outcome.about
        )
        for form in ("csv", "md", "tex")
    }  # fmt: skip
    note = f'<p class="soft">{escape(written.note)}</p>' if written.note else ""
    return (
        f"<h3>{escape(written.title)} <small>{escape(outcome.about)}</small></h3>"
        f"{grid_table(written)}{note}{downloads(forms)}"
    )


def _ends(table: Table, outcome: Outcome) -> str:
    written = grid(table, outcome.records)
    title = written.title.removeprefix(f"{outcome.item.title}: ").capitalize()
    return (
        f"<details><summary>{escape(title)} ({escape(outcome.about)})</summary>"
        f'{grid_table(written)}<p class="soft">{escape(written.note)}</p></details>'
    )


def _verdicts(outcome: Outcome) -> str:
    if not outcome.verdicts:
        return (
            '<p class="soft">No claim of this item can be judged at '
            f"{escape(outcome.size)} size.</p>"
        )
    by_claim: dict[str, list[tuple[Claim, Verdict]]] = {}
    for claim, verdict in outcome.verdicts:
        by_claim.setdefault(claim.name, []).append((claim, verdict))
    blocks = [
        _claim(cells[0][0], [verdict for _, verdict in cells])
        for cells in by_claim.values()
    ]
    title = f"<h3>Does it agree? <small>{escape(outcome.about)}</small></h3>"
    return title + "\n".join(blocks)


def _claim(claim: Claim, verdicts: Sequence[Verdict]) -> str:
    holds = sum(verdict.holds is True for verdict in verdicts)
    total = len(verdicts)
    worst = min(verdicts, key=lambda verdict: _SEVERITY[verdict.holds]).holds
    word = spoken(worst) if total == 1 else f"{holds} of {total} hold"
    heads = [Cell(t) for t in ("Cell", "Verdict", "Paper", "Ours", "Why")]
    rows = [
        [
            Cell(escape(verdict.cell), verdict.cell),
            Cell(_mark(verdict.holds), spoken(verdict.holds), "short"),
            Cell(escape(verdict.paper), verdict.paper, "short"),
            Cell(escape(verdict.ours), verdict.ours, "short"),
            Cell(escape(verdict.why), verdict.why, "words"),
        ]
        for verdict in verdicts
    ]
    open_ = "" if worst is True and total > _MANY_CELLS else " open"
    return (
        f'<details class="claim"{open_}><summary><b>{escape(claim.name)}</b> '
        f"{pill(word, VERDICT_KINDS[worst])}<br>"
        f'<span class="rule">Rule: {escape(claim.rule)}</span></summary>'
        f"{html_table(claim.name, heads, rows, kind='verdicts cards')}</details>"
    )


def _mark(holds: bool | None) -> str:
    return pill(f"{_SIGNS[holds]} {spoken(holds)}", VERDICT_KINDS[holds])


def _making(outcome: Outcome) -> str:
    lines, always = differences(outcome), outcome.item.departures
    if not lines and not always:
        lines = ["nothing: all settings are those of the full size"]
    differs = _listed(lines)
    if always:
        differs += '<p class="soft">At every size, where the paper is silent or ours '
        differs += f"departs from it:</p>{_listed(always)}"
    return (
        '<div class="columns"><div><h3>What differs from the paper</h3>'
        f"{differs}</div>"
        f"<div><h3>How it was made</h3><pre>{escape(outcome.command)}</pre>"
        f"{facts(origin(outcome))}</div></div>"
    )


def _listed(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="plain">{items}</ul>' if items else ""
