"""Draw the paper's figures from the archived full runs, for the pages.

Run ``python docs/paper_figures.py`` from the root of the repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

from normalign.paper.catalogue import items
from normalign.paper.reporting.drawings import svg_file
from normalign.paper.store import write_bytes

sys.path.insert(0, str(Path(__file__).parent))  # tests run this file from afar
from paper_tables import full

IMAGES = Path(__file__).parent / "images"


def drawn(name: str) -> str:
    """The first figure of an item, as the text of an SVG file."""
    found = full(name)
    return svg_file(found.item.figures[0], found.records, name=name)


if __name__ == "__main__":
    for one in items():
        if one.figures:
            write_bytes(IMAGES / f"paper-{one.name}.svg", drawn(one.name).encode())
