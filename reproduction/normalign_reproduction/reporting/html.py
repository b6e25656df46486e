"""What the pages share: one HTML file that loads nothing, in light and dark."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

__all__ = ["document", "facts", "paragraph"]

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
