"""``normalign verify``: whether archives of results are whole."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from normalign.cli import say
from normalign_reproduction._errors import require

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "verify", allow_abbrev=False, help="whether archives of results are whole",
        description="Check archives by their checksums and the keys of their results. "
        "Exits with 2 at the first that is damaged.",
    )  # fmt: skip
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE",
        help="as `normalign reproduce --archive` writes them",
    )  # fmt: skip
    parser.add_argument(
        "--update", action="store_true",
        help="add a checksum to archives of earlier versions, which have none",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check the files, and write those anew that have no checksum."""
    from normalign_reproduction.results import (
        has_checksum,
        read_archive,
        update_archive,
    )

    for path in arguments.files:
        require(
            path.is_file(), "normalign verify", "FILE", "an archive of results",
            f"{path}, which is no file",
        )  # fmt: skip
        count, whole = len(read_archive(path)), has_checksum(path)
        words = "with a checksum" if whole else "without a checksum"
        if arguments.update and not whole:
            update_archive(path)
            words = "checksum added"
        say(f"{path}: {count} results, {words}")
    return 0
