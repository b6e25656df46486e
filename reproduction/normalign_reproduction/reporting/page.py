"""The report's page: a summary of all items, then a section for each."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from normalign_reproduction.reporting.differences import differences, spoken
from normalign_reproduction.reporting.html import document
from normalign_reproduction.reporting.outcomes import Outcome
from normalign_reproduction.reporting.page_item import VERDICT_KINDS, section, size_pill
from normalign_reproduction.reporting.page_style import SCRIPT, STYLE
from normalign_reproduction.reporting.page_tables import Cell, html_table, pill
from normalign_reproduction.reporting.shown import Shown

__all__ = ["page"]


def page(outcomes: Sequence[Outcome], parts: Sequence[Shown], *, command: str) -> str:
    """Return the report as the text of one HTML file that loads nothing.

    Parameters
    ----------
    parts : sequence of Shown
        What is shown of each outcome.
    command : str
        What wrote the page.
    """
    body = [
        '<header class="top"><div><p class="over">normalign</p>'
        "<h1>The paper's tables and figures, computed again</h1></div>"
        '<button type="button" class="theme" hidden>Dark</button></header>',
        _lead(outcomes),
        '<div class="tools" hidden><input type="search" placeholder="Filter items" '
        'aria-label="Filter items"><span class="soft" aria-live="polite"></span></div>',
        _summary(outcomes),
        *(section(o, p) for o, p in zip(outcomes, parts, strict=True)),
        "<section><h3>This page was written by</h3>"
        f"<pre>{escape(command)}</pre></section>",
    ]
    title = "normalign: the paper's tables and figures"
    return document(title, "\n".join(body), style=STYLE, script=SCRIPT)


def _lead(outcomes: Sequence[Outcome]) -> str:
    holds, fails, open_ = (
        sum(outcome.count(kind) for outcome in outcomes) for kind in (True, False, None)
    )
    total = holds + fails + open_
    counted = f"{holds} of {total} verdicts hold"
    counted += f", {fails} {'does' if fails == 1 else 'do'} not" if fails else ""
    counted += f", {open_} cannot be told yet" if open_ else ""
    sizes = sorted({outcome.size for outcome in outcomes})
    differs = any(differences(o) or o.item.departures for o in outcomes)
    words = {
        "quick": "Quick size: fewer seeds, shorter or smaller than the paper's. What "
        "differs is said with each item; the option --full makes the paper's size.",
        "full": "Full size: the paper's, but for what is said with each item under "
        "“What differs from the paper”."
        if differs
        else "Full size: the paper's.",
    }
    note = " ".join(words.get(size, size) for size in sizes)
    return (
        f'<p class="lead">{len(outcomes)} items; {escape(counted)}.</p>'
        f'<p class="soft">{escape(note)}</p>'
    )


def _summary(outcomes: Sequence[Outcome]) -> str:
    titles = (
        ("Item", ""), ("The paper shows", "words"), ("Ours", "words"),
        ("Verdicts", "short"), ("Seeds", "short"), ("Size", "short"),
        ("Time", "short"),
    )  # fmt: skip
    heads = [Cell(title, kind=kind) for title, kind in titles]
    rows = [_row(outcome, place) for place, outcome in enumerate(outcomes)]
    return html_table("All items", heads, rows, kind="summary cards")


def _row(outcome: Outcome, place: int) -> list[Cell]:
    item, seconds = outcome.item, outcome.seconds
    link = (
        f'<a href="#{escape(item.name)}">{escape(item.reference)}</a><br>'
        f"{escape(item.title)}"
    )
    ours = outcome.finding or outcome.missing
    return [
        Cell(link, place),
        Cell(escape(item.shows), item.shows, "words"),
        Cell(escape(ours), ours, "words"),
        Cell(_counts(outcome), _share(outcome), "short"),
        Cell(escape(outcome.seeds), outcome.seeds.split()[0], "short"),
        Cell(size_pill(outcome.size), outcome.size, "short"),
        Cell("–" if seconds is None else spoken(seconds), "" if seconds is None
             else f"{seconds:.6g}", "short"),
    ]  # fmt: skip


def _counts(outcome: Outcome) -> str:
    total = len(outcome.verdicts)
    if not total:
        return "–"
    holds, fails, open_ = (outcome.count(kind) for kind in (True, False, None))
    if open_ == total:
        return pill("cannot tell", VERDICT_KINDS[None])
    kind = VERDICT_KINDS[False if fails else None if open_ else True]
    return pill(f"{holds} of {total} hold", kind)


def _share(outcome: Outcome) -> str:
    total = len(outcome.verdicts)
    if not total or outcome.count(None) == total:
        return ""
    return f"{outcome.count(True) / total:.6g}"
