"""The report's page: a summary of all items, then a section for each."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from normalign_reproduction.claims import verdict_word
from normalign_reproduction.report.contents import Contents
from normalign_reproduction.report.outcome import (
    Outcome,
    differences,
    duration_words,
    origin,
)
from normalign_reproduction.report.style import SCRIPT, STYLE
from normalign_reproduction.report.svg import Drawing
from normalign_reproduction.report.tables import Grid, grid, one_line, render
from normalign_reproduction.spec import Cell as ClaimCell
from normalign_reproduction.spec import Claim, Table

__all__ = [
    "VERDICT_KINDS", "Cell", "document", "downloads", "facts", "grid_table",
    "html_table", "page", "paragraph", "pill", "section",
]  # fmt: skip

_LIGHT = """--ground: #fff; --ink: #1d2330; --soft: #5b6475; --line: #d9dde5;
  --card: #f6f7f9; --accent: #1f66ad; --good: #17693b; --good-ground: #e0f3e7;
  --bad: #a83019; --bad-ground: #fbe7e2; --open: #4d5566; --open-ground: #eaedf2;
  --small: #7a4f00; --small-ground: #fbf0d6;"""
_DARK = """--ground: #14171d; --ink: #e6e9ef; --soft: #a0a8b8; --line: #343a46;
  --card: #1c2028; --accent: #7fb6ec; --good: #7fd6a3; --good-ground: #173526;
  --bad: #f3a08e; --bad-ground: #43201a; --open: #c0c7d4; --open-ground: #2b313c;
  --small: #ecc878; --small-ground: #3a2f16;"""

# A chosen theme goes before the system's.
_STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
:root[data-theme=light] {{ color-scheme: light; {_LIGHT} }}
:root[data-theme=dark] {{ color-scheme: dark; {_DARK} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; padding: 1.25rem 1rem 3rem; max-width: 76rem;
  background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }}
h1 {{ font-size: 1.6rem; line-height: 1.2; margin: .2rem 0 .6rem; }}
h2 {{ font-size: 1.15rem; margin: 2.2rem 0 .3rem; }}
p {{ max-width: 46rem; margin: .4rem 0; }}
a {{ color: var(--accent); }}
.soft, figcaption {{ color: var(--soft); font-size: .9rem; }}
figure {{ margin: 0; padding: .5rem; background: var(--card);
  border: 1px solid var(--line); border-radius: .5rem; min-width: 0; }}
figure svg {{ display: block; width: 100%; height: auto; color: var(--ink);
  max-width: 34rem; margin: 0 auto; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); }}
thead th {{ font-weight: 600; }}
pre {{ background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .8rem; white-space: pre-wrap; overflow-wrap: anywhere;
  font-size: .85rem; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem;
  font-size: .9rem; }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
dt {{ color: var(--soft); }}
"""


def document(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """Return a whole page.

    Parameters
    ----------
    title : str
        As text.
    body : str
        As HTML.
    style, script : str
        What this page has beyond the others.
    """
    code = f"<script>{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body}\n{code}</body>\n</html>\n"
    )


def paragraph(text: str) -> str:
    """Return a text as a paragraph."""
    return f"<p>{escape(text)}</p>"


def facts(pairs: Mapping[str, str]) -> str:
    """Return names and their values as a list."""
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
        for name, value in pairs.items()
    )
    return f"<dl>{rows}</dl>"


@dataclass(frozen=True)
class Cell:
    """A cell: its HTML, what it is sorted by, and its classes."""

    html: str
    key: Any = None
    kind: str = ""


def html_table(
    name: str, heads: Sequence[Cell], rows: Sequence[Sequence[Cell]], *, kind: str = ""
) -> str:
    """Return a table in a box that it scrolls in; the first cell of a row is its head.

    Parameters
    ----------
    name : str
        What a screen reader says.
    kind : str
        Classes of the box. With ``cards``, the rows are cards where there is no width.
    """
    labels = "cards" in kind.split()
    head = "".join(f'<th scope="col"{_kind(h)}>{h.html}</th>' for h in heads)
    body = []
    for row in rows:
        cells = []
        for i, (cell, above) in enumerate(zip(row, heads, strict=True)):
            tag, scope = ("td", "") if i else ("th", ' scope="row"')
            label = f' data-label="{above.html}"' if labels and i else ""
            cells.append(
                f"<{tag}{scope}{_kind(cell)}{_key(cell)}{label}>{cell.html}</{tag}>"
            )
        body.append(f"<tr>{''.join(cells)}</tr>")
    label = escape(one_line(name))
    return (
        f'<div class="box {kind}" role="region" aria-label="{label}" tabindex="0">'
        f'<table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>\n{chr(10).join(body)}\n</tbody></table></div>"
    )


def grid_table(written: Grid) -> str:
    """Return a written table as HTML, the paper's numbers in softer ink."""
    kinds = [
        " ".join(["number"] * head.numeric + ["paper"] * head.paper)
        for head in written.heads
    ]
    heads = [
        Cell(escape(head.text), kind=kind)
        for head, kind in zip(written.heads, kinds, strict=True)
    ]
    rows = [
        [
            Cell(escape(text), "" if key is None else key, kind)
            for text, key, kind in zip(cells, keys, kinds, strict=True)
        ]
        for cells, keys in zip(written.cells, written.keys, strict=True)
    ]
    return html_table(written.title, heads, rows)


def downloads(files: Mapping[str, str]) -> str:
    """Return links to files that the page itself carries, by their names."""
    links = []
    for name, text in files.items():
        content = base64.b64encode(text.encode()).decode()
        ending = escape(name.rpartition(".")[2].upper())
        links.append(
            f'<a download="{escape(name)}" '
            f'href="data:text/plain;charset=utf-8;base64,{content}">{ending}</a>'
        )
    return f'<p class="files">This table as {", ".join(links)}</p>'


def pill(text: str, kind: str) -> str:
    """Return a short word on a coloured ground."""
    return f'<span class="pill {kind}">{escape(text)}</span>'


def _kind(cell: Cell) -> str:
    return f' class="{cell.kind}"' if cell.kind else ""


def _key(cell: Cell) -> str:
    if cell.key is None:
        return ""
    key = "" if isinstance(cell.key, float) and math.isnan(cell.key) else cell.key
    return f' data-key="{escape(str(key))}"'


VERDICT_KINDS = {True: "holds", False: "fails", None: "open"}
_SIGNS = {True: "✓", False: "✗", None: "?"}
_SEVERITY = {False: 0, None: 1, True: 2}
_MANY_CELLS = 6  # more that all hold are folded away


def section(outcome: Outcome, shown: Contents) -> str:
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
    by_claim: dict[str, list[tuple[Claim, ClaimCell]]] = {}
    for claim, verdict in outcome.verdicts:
        by_claim.setdefault(claim.statement, []).append((claim, verdict))
    blocks = [
        _claim(cells[0][0], [verdict for _, verdict in cells])
        for cells in by_claim.values()
    ]
    title = f"<h3>Does it agree? <small>{escape(outcome.about)}</small></h3>"
    return title + "\n".join(blocks)


def _claim(claim: Claim, verdicts: Sequence[ClaimCell]) -> str:
    holds = sum(verdict.holds is True for verdict in verdicts)
    total = len(verdicts)
    worst = min(verdicts, key=lambda verdict: _SEVERITY[verdict.holds]).holds
    word = verdict_word(worst) if total == 1 else f"{holds} of {total} hold"
    heads = [Cell(t) for t in ("Cell", "Verdict", "Paper", "Ours", "Why")]
    rows = [
        [
            Cell(escape(verdict.name), verdict.name),
            Cell(_mark(verdict.holds), verdict_word(verdict.holds), "short"),
            Cell(escape(verdict.paper), verdict.paper, "short"),
            Cell(escape(verdict.ours), verdict.ours, "short"),
            Cell(escape(verdict.why), verdict.why, "words"),
        ]
        for verdict in verdicts
    ]
    open_ = "" if worst is True and total > _MANY_CELLS else " open"
    return (
        f'<details class="claim"{open_}><summary><b>{escape(claim.statement)}</b> '
        f"{pill(word, VERDICT_KINDS[worst])}<br>"
        f'<span class="rule">Rule: {escape(claim.rule)}</span></summary>'
        f"{html_table(claim.statement, heads, rows, kind='verdicts cards')}</details>"
    )


def _mark(holds: bool | None) -> str:
    return pill(f"{_SIGNS[holds]} {verdict_word(holds)}", VERDICT_KINDS[holds])


def _making(outcome: Outcome) -> str:
    lines, always = differences(outcome), outcome.item.departures
    if not lines and not always:
        lines = ["nothing: all settings are those of the full size"]
    differs = _bullets(lines)
    if always:
        differs += '<p class="soft">At every size, where the paper is silent or ours '
        differs += f"departs from it:</p>{_bullets(always)}"
    return (
        '<div class="columns"><div><h3>What differs from the paper</h3>'
        f"{differs}</div>"
        f"<div><h3>How it was made</h3><pre>{escape(outcome.command)}</pre>"
        f"{facts(origin(outcome))}</div></div>"
    )


def _bullets(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="plain">{items}</ul>' if items else ""


def page(
    outcomes: Sequence[Outcome], parts: Sequence[Contents], *, command: str
) -> str:
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
        Cell("–" if seconds is None else duration_words(seconds), "" if seconds is None
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
