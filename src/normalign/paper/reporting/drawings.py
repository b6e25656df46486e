"""Figures as SVG: in one piece for a file, panel by panel for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normalign.paper.reporting.panels import Line, Panels
from normalign.paper.spec import Figure, Records

__all__ = ["Drawing", "drawing", "svg_file"]

# Seeds from which a band is a standard deviation; see normalign.paper.reporting.curves.
_MANY = 5
_HEAD = '<?xml version="1.0" encoding="utf-8"?>\n'
# The ink is the page's; a file by itself follows the reader's theme.
_INK = (
    "<style>svg { color: #1d2330 } "
    "@media (prefers-color-scheme: dark) { svg { color: #e6e9ef } }</style>"
)


@dataclass(frozen=True)
class Drawing:
    """A figure of a page: its pictures, and the legend they share.

    Parameters
    ----------
    pictures : sequence of str
        SVG elements, one for each panel; or one for a figure that is no panels.
    lines : sequence of Line
        Of panels: their legend.
    heading, caption, bands : str
        Over the legend, under the pictures, and what the bands are.
    """

    pictures: Sequence[str]
    lines: Sequence[Line]
    heading: str
    caption: str
    bands: str


def drawing(figure: Figure, records: Records, *, name: str) -> Drawing:
    """Draw a figure for a page.

    Parameters
    ----------
    name : str
        A word that no other figure of the page has.
    """
    from normalign.paper.reporting.svg import drawing_style, svg_text

    panels = figure.draw
    with drawing_style():
        if not isinstance(panels, Panels):
            text = svg_text(panels(records), name=name, title=figure.caption)
            return Drawing([text], [], "", figure.caption, "")
        pictures = [
            svg_text(one(records), name=f"{name}-{i}", title=figure.caption)
            for i, one in enumerate(panels.apart())
        ]
        lines = panels.lines(records)
    return Drawing(
        pictures, lines, panels.heading(), figure.caption, _bands(panels, records)
    )


def svg_file(figure: Figure, records: Records, *, name: str) -> str:
    """Return a figure in the paper's arrangement, as the text of an SVG file."""
    from normalign.paper.reporting.svg import drawing_style, svg_text

    with drawing_style():
        text = svg_text(figure.draw(records), name=name, title=figure.caption)
    end = text.index(">", text.index("<svg")) + 1
    return f"{_HEAD}{text[:end]}{_INK}{text[end:]}"


def _bands(panels: Panels, records: Records) -> str:
    seeds = {record.run.seed for record in records}
    if len(seeds) < 2:
        return ""
    if len(seeds) < _MANY:
        return "Bands: from the least to the greatest of the seeds."
    return "Bands: one standard deviation over the seeds."
