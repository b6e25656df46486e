"""Matplotlib figures as SVG text that fits into a page, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

__all__ = ["drawing_style", "svg_text"]

# A colour nobody would choose stands for the page's own text colour.
_INK = "#010203"


@contextmanager
def drawing_style() -> Iterator[None]:
    """Draw without ground, in the page's ink, with the page's font."""
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


def svg_text(figure: Figure, *, name: str, title: str) -> str:
    """Return a figure as an SVG element and close it.

    Names inside the element are made its own, so that several can stand in one page;
    its ink follows the text around it; ``title`` is what a screen reader says.

    Parameters
    ----------
    name : str
        A word that no other figure of the page has.
    """
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
