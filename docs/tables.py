"""Fill the tables of the pages from the results that were saved.

    python docs/tables.py

A table stands between ``<!--table:NAME-->`` and ``<!--/table-->``; NAME is a file
``results/benchmarks/NAME.json`` that a script in ``benchmarks/`` wrote with ``--save``.
A test checks that every page shows what its files say.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results" / "benchmarks"
TABLE = re.compile(r"<!--table:(\S+)-->\n.*?<!--/table-->", re.DOTALL)


def table(result: dict[str, Any]) -> str:
    lines = [
        "| | plain | ours | faster | plain, peak | ours, peak | largest error |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in result["records"]:
        plain, ours = record["plain"], record["ours"]
        lines.append(
            f"| ({record['case']}) {record['title']} "
            f"| {plain['seconds']:.2f} s | {ours['seconds']:.2f} s "
            f"| **{record['faster']:.1f}x** "
            f"| {plain['megabytes']:.0f} MB | {ours['megabytes']:.0f} MB "
            f"| {max(record['errors'].values()):.0e} |"
        )
    where = f"{result['device']}, {result['cores']} cores"
    return "\n".join(lines) + (
        f"\n\n{where}, torch {result['torch']}, Python {result['python']}, "
        f"commit {result['commit'][:7]}.\n"
    )


def filled(page: str) -> str:
    """The page with every table made anew."""

    def fill(match: re.Match[str]) -> str:
        result = json.loads((RESULTS / f"{match[1]}.json").read_text())
        return f"<!--table:{match[1]}-->\n{table(result)}<!--/table-->"

    return TABLE.sub(fill, page)


if __name__ == "__main__":
    for path in sorted(DOCS.glob("*.md")):
        path.write_text(filled(path.read_text()))
