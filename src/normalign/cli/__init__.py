"""The command line: words choose the action, results go to stdout.

Progress goes to stderr. Exit codes: 0, 1 (a result differs or a run failed), 2
(usage: one line on stderr says which argument or file and why), 130 (interrupted).
Heavy packages are imported inside the commands, so ``normalign --help`` is instant.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, NoReturn

import normalign
from normalign._errors import complaint
from normalign.cli import data, doctor, export_web, measure
from normalign.cli.output import as_json, note, number, say, table

__all__ = ["as_json", "main", "note", "number", "say", "table"]

_COMMANDS = (measure, data, doctor, export_web)
_GROUP = "normalign.commands"  # entry points: modules with `add_to(subparsers)`
# Commands of the package normalign-reproduction, named where it is not installed.
_REPRODUCTION = ("reproduce", "list", "show", "compare", "report", "verify")


class _Parser(argparse.ArgumentParser):
    """Reports a usage error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. See `{self.prog} --help`.\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="normalign", allow_abbrev=False,
        description="Measure, induce and use normal alignment.",
    )  # fmt: skip
    parser.add_argument(
        "--version", action="version", version=f"normalign {normalign.__version__}"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add_to(commands)
    plugins = {entry.name: entry for entry in entry_points(group=_GROUP)}
    for entry in plugins.values():
        entry.load().add_to(commands)
    for name in _REPRODUCTION:
        if name not in plugins:
            _add_missing(commands, name)
    return parser


def _add_missing(commands: Any, name: str) -> None:
    """Add a command that names the package to install."""

    def run(_: argparse.Namespace) -> int:
        text = complaint(
            f"normalign {name}", "the package normalign-reproduction", "installed",
            "none", "Install it: pip install normalign-reproduction.",
        )  # fmt: skip
        raise ModuleNotFoundError(text)

    # No word begins with this prefix, so `--full` and `--help` are arguments, too.
    parser = commands.add_parser(
        name, add_help=False, prefix_chars="\0",
        help="needs the package normalign-reproduction",
    )  # fmt: skip
    parser.add_argument("words", nargs="*")
    parser.set_defaults(run=run)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The words after ``normalign``; by default those of the process.

    Returns
    -------
    int
        0, 1, 2 or 130, see the module's docstring.

    Examples
    --------
    >>> main(["--version"])
    normalign ...
    0
    """
    try:
        arguments = _parser().parse_args(argv)
        code = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # argparse has said what there is to say
        return stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        return _exit_with("normalign: interrupted.", 130)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ConnectionError, MemoryError, RuntimeError) as error:
        return _exit_with(str(error) or type(error).__name__, 1)
    except (ValueError, TypeError, OSError, ImportError) as error:
        return _exit_with(str(error), 2)


def _exit_with(message: str, code: int) -> int:
    sys.stderr.write(" ".join(message.split()) + "\n")
    return code
