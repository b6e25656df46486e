"""``normalign verify``: check archives of results for damage."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from normalign.cli import say

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "verify",
        allow_abbrev=False,
        help="check archives of results for damage",
        description="Check archives by their checksums and the keys of their results. "
        "Stops with exit code 2 at the first damaged one.",
    )
    text = "an archive written by `normalign reproduce --archive`"
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=text)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check the files and print how many results each has."""
    from normalign_reproduction.store import read_archive

    for path in arguments.files:
        if not path.is_file():
            raise ValueError(f"normalign verify: FILE must be a file, got {path}.")
        say(f"{path}: {len(read_archive(path))} results")
    return 0
