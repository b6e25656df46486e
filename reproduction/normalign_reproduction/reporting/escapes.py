"""Words as they stand in Markdown and LaTeX: signs that mean something are escaped."""

from __future__ import annotations

__all__ = ["latex", "markdown", "one_line"]

_MARKDOWN = {sign: f"\\{sign}" for sign in "\\`*_[]|#~$"} | {
    "&": "&amp;",
    "<": "&lt;",
    ">": "&gt;",
}
_LATEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    # A bracket after \\ would be read as its argument.
    "[": "{[}",
    "]": "{]}",
    "–": "--",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "→": r"$\to$",
    "∞": r"$\infty$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "⊥": r"$\perp$",
}
_MARKDOWN_TABLE = str.maketrans(_MARKDOWN)
_LATEX_TABLE = str.maketrans(_LATEX)


def one_line(text: str) -> str:
    """Return a text with each run of white space as one space.

    Examples
    --------
    >>> one_line(" two   words ")
    'two words'
    """
    return " ".join(text.split())


def markdown(text: str) -> str:
    """Return a text that Markdown shows as it is, in a table's cell too.

    Examples
    --------
    >>> markdown("a < b")
    'a &lt; b'
    """
    return text.translate(_MARKDOWN_TABLE)


def latex(text: str) -> str:
    r"""Return a text that LaTeX sets as it is; some signs become mathematics.

    Examples
    --------
    >>> latex("5 %")
    '5 \\%'
    """
    return text.translate(_LATEX_TABLE)
