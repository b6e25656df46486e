"""Draw the paper's figures from the archived full runs, for the pages.

Run ``python docs/paper_figures.py`` from the root of the repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

from normalign_reproduction.catalogue import items
from normalign_reproduction.files import write_bytes
from normalign_reproduction.report.outcome import Outcome
from normalign_reproduction.report.svg import svg_file
from normalign_reproduction.spec import Records

sys.path.insert(0, str(Path(__file__).parent))  # tests run this file from afar
from paper_tables import full
from tabular_tables import whole_tables

IMAGES = Path(__file__).parent / "images"


def drawable(found: Outcome) -> Records:
    """The records of an item that its figure is drawn of."""
    return whole_tables(found) if found.item.name == "peers" else found.records


def shown(name: str) -> Outcome:
    """The default preset of an item; that of the paper's text where it was not run."""
    found = full(name)
    return found if found.records else full(name, "text")


def drawn(name: str) -> str:
    """The first figure of an item, as the text of an SVG file."""
    found = shown(name)
    records = drawable(found)
    about = None
    if found.item.experiment == "tabular":
        tables = {record["dataset"] for record in records}
        about = f"{found.size} size, {len(tables)} UCI tables"
    return svg_file(found.item.figures[0], records, name=name, about=about)


if __name__ == "__main__":
    for one in items():
        if one.figures and drawable(shown(one.name)):
            write_bytes(IMAGES / f"paper-{one.name}.svg", drawn(one.name).encode())
