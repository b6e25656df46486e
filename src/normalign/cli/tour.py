"""``normalign tour``: the ideas in a few minutes, on the data at hand."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from normalign._checks import require
from normalign.cli.output import say

__all__ = ["add_to", "run"]


def add_to(commands: Any) -> None:
    """Add the command to the parser's subcommands."""
    parser = commands.add_parser(
        "tour", allow_abbrev=False, help="train, measure and draw in a few minutes",
        description="Train small networks, measure their local geometry and write a "
        "report with pictures.",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path("out/tour"), metavar="DIR",
        help="where the report goes (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--epochs", type=int, default=None, metavar="N",
        help="training length (default: as long as the tour needs)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Take the tour; print its table and where its report is."""
    epochs, out = arguments.epochs, arguments.out
    require(
        epochs is None or epochs >= 1,
        "normalign tour",
        "--epochs",
        "at least 1",
        epochs,
    )
    require(
        not out.exists() or out.is_dir(), "normalign tour", "--out", "a folder",
        f"the file {out}",
    )  # fmt: skip
    from normalign.paper.tour import run_tour

    words = ["normalign tour", f"--out {shlex.quote(str(out))}"]
    words += [f"--seed {arguments.seed}", f"--epochs {epochs}" if epochs else ""]
    result = run_tour(
        out=out, seed=arguments.seed, epochs=epochs, command=" ".join(words).strip()
    )
    say(result.table)
    say(f"report: {result.report}")
    return 0
