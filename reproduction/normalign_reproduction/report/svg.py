"""Matplotlib figures as SVG: one file each, or panel by panel for a page."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from normalign_reproduction.report.panels import Line, Panels
from normalign_reproduction.report.tables import origin_words
from normalign_reproduction.spec import Figure, Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["Drawing", "drawing", "drawing_style", "svg_file", "svg_text"]

# A colour nobody would choose stands for the page's own text colour.
_INK = "#010203"


@contextmanager
def drawing_style() -> Iterator[None]:
    """Draw without ground, in the page's ink, with the page's font."""
    import matplotlib as mpl

    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "normalign",
        "font.family": "sans-serif",
        "font.size": 9,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
    }
    inked = (
        "text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor",
        "xtick.color", "ytick.color", "grid.color",
    )  # fmt: skip
    with mpl.rc_context({**style, **dict.fromkeys(inked, _INK)}):
        yield


def svg_text(figure: Canvas, *, name: str, title: str) -> str:
    """Return a figure as an SVG element and close it.

    Names inside the element are made its own, so that several can stand in one page;
    its ink follows the text around it; ``title`` is what a screen reader says.

    Parameters
    ----------
    name : str
        A word that no other figure of the page has.
    """
    import matplotlib.pyplot as plt

    buffer = io.StringIO()
    # No date: the same numbers give the same file.
    figure.savefig(buffer, format="svg", metadata={"Date": None}, dpi=140)
    plt.close(figure)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = text.replace(_INK, "currentColor")
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


# Seeds from which a band is a standard deviation; see panels.py.
_MANY = 5
# The line under a file's drawing: its letters, their breadth in them, and the margin.
_SMALL, _LETTER, _MARGIN = 8, 0.56, 4
_HEAD = '<?xml version="1.0" encoding="utf-8"?>\n'
# The ink is the page's; a file by itself follows the reader's theme.
_INK_STYLE = (
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
    panels, title = figure.draw, _title(figure, origin_words(records))
    with drawing_style():
        if not isinstance(panels, Panels):
            text = svg_text(panels(records), name=name, title=title)
            return Drawing([text], [], "", figure.caption, "")
        pictures = [
            svg_text(one(records), name=f"{name}-{i}", title=title)
            for i, one in enumerate(panels.apart())
        ]
        lines = panels.lines(records)
    return Drawing(
        pictures, lines, panels.heading(), figure.caption, _bands(panels, records)
    )


def svg_file(
    figure: Figure, records: Records, *, name: str, about: str | None = None
) -> str:
    """Return a figure in the paper's arrangement, as the text of an SVG file.

    Parameters
    ----------
    about : str, optional
        What stands under it, and is said by a screen reader; by default size, preset
        and data of the records.
    """
    about = origin_words(records) if about is None else about
    with drawing_style():
        title = _title(figure, about)
        text = _add_footer(
            svg_text(figure.draw(records), name=name, title=title), about
        )
    end = text.index(">", text.index("<svg")) + 1
    return f"{_HEAD}{text[:end]}{_INK_STYLE}{text[end:]}"


def _title(figure: Figure, about: str) -> str:
    return f"{figure.caption} ({about})" if about else figure.caption


def _add_footer(text: str, about: str) -> str:
    """Make a drawing higher by as many lines as a text takes, and write it there."""
    box = re.search(r'height="[\d.]+pt" viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    if box is None or not about:
        return text
    width, height = float(box[1]), float(box[2])
    lines = textwrap.wrap(about, int((width - 2 * _MARGIN) / (_LETTER * _SMALL)))
    foot = "".join(
        f'<text x="{_MARGIN}" y="{height + _SMALL + 1.4 * _SMALL * i:g}" '
        f'style="font: {_SMALL}px system-ui, sans-serif; fill: currentColor; '
        f'opacity: 0.75">{escape(line)}</text>\n'
        for i, line in enumerate(lines)
    )
    higher = height + 1.4 * _SMALL * len(lines) + _MARGIN
    head = f'height="{higher:g}pt" viewBox="0 0 {width:g} {higher:g}"'
    end = text.rindex("</svg>")
    return f"{text[: box.start()]}{head}{text[box.end() : end]}{foot}{text[end:]}"


def _bands(panels: Panels, records: Records) -> str:
    seeds = {record.run.seed for record in records}
    if len(seeds) < 2:
        return ""
    if len(seeds) < _MANY:
        return "Bands: from the least to the greatest of the seeds."
    return "Bands: one standard deviation over the seeds."
