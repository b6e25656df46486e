"""The public names of the package with their signatures, as lines of text.

    python -m tests.public_api

rewrites the stored list, `public_api.txt`, unless a name that is gone or has changed
is missing from the section "Unreleased" of CHANGELOG.md: in backticks, and elsewhere
than under "Added", which says what is new. Signatures are those of our
own source, as written: they are the same on every version of Python and of the
libraries.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import normalign

STORED = Path(__file__).with_suffix(".txt")
CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
COMMAND = "python -m tests.public_api"


def folders() -> list[str]:
    return ["normalign", *(f"normalign.{name}" for name in normalign._FOLDERS)]


def kind_of(value: object) -> str:
    if isinstance(value, types.ModuleType):
        return "module"
    if inspect.isclass(value):
        return "class"
    return "function" if callable(value) else "value"


def lines() -> Iterator[str]:
    """Yield one line for each public name and each public method, unsorted."""
    for name, home in normalign._HOMES.items():
        yield f"normalign.{name}: normalign.{home}.{name}"
    for folder in [*folders()[1:], "normalign.cli", "normalign.training.randomness"]:
        package = importlib.import_module(folder)
        for name in package.__all__:
            yield from describe(f"{folder}.{name}", getattr(package, name))


def describe(name: str, value: object) -> Iterator[str]:
    kind = kind_of(value)
    if kind == "function" and hasattr(value, "__code__"):
        yield f"{name}{signature(value)}"
        return
    if kind != "class":
        yield f"{name}: {kind}"
        return
    assert isinstance(value, type)
    yield f"{name}: class{constructor(value)}"
    for base in ours(value):
        for attribute, member in vars(base).items():
            own = getattr(value, attribute, None) is not None
            public = not attribute.startswith("_") or attribute == "__call__"
            if own and public:
                yield from member_line(f"{name}.{attribute}", member)


def ours(kind: type) -> list[type]:
    """The class and its bases that this package defines."""
    return [base for base in kind.__mro__ if base.__module__.startswith("normalign")]


def constructor(kind: type) -> str:
    """The arguments of a class: of its __init__, or its fields as they are written."""
    for base in ours(kind):
        if "__init__" in vars(base) and not hasattr(base, "__dataclass_fields__"):
            return signature(vars(base)["__init__"])
    fields = [
        ast.unparse(node)
        for base in reversed(ours(kind))
        for node in tree_of(base).body
        if isinstance(node, ast.AnnAssign)
    ]
    return f"({', '.join(fields)})" if fields else ""


def member_line(name: str, member: object) -> Iterator[str]:
    if isinstance(member, property):
        yield f"{name}: property"
    elif isinstance(member, classmethod | staticmethod):
        yield f"{name}{signature(member.__func__)}"
    elif inspect.isfunction(member):
        yield f"{name}{signature(member)}"


def signature(function: object) -> str:
    """The arguments and the result, annotations and defaults as they are written."""
    node = tree_of(inspect.unwrap(function))  # pyright: ignore
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}"


def tree_of(thing: type | Callable) -> ast.AST:
    """The syntax tree of a class or function."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(thing))).body
    return node


def text() -> str:
    return "".join(f"{line}\n" for line in sorted(set(lines())))


def name_of(line: str) -> str:
    return re.match(r"[\w.]+", line)[0]


def missing_names(old: str, new: str, changelog: str) -> list[str]:
    """The names that are gone or have changed and that "Unreleased" does not have."""
    section = changelog.partition("## Unreleased")[2].partition("\n## ")[0]
    parts = [part for part in section.split("\n### ") if not part.startswith("Added")]
    code = re.findall(r"`([^`]+)`", "\n".join(parts))
    words = {word for text in code for word in re.findall(r"\w+", text)}
    lost = {name_of(line) for line in set(old.splitlines()) - set(new.splitlines())}
    return sorted(name for name in lost if name.rpartition(".")[2] not in words)


def complaint(names: list[str]) -> str:
    return (
        "These public names are gone, or their signatures have changed:\n"
        + "".join(f"  {name}\n" for name in names)
        + "Restore them. If the change is meant, name each in backticks in the section "
        "Unreleased of CHANGELOG.md, under Changed, Removed or Fixed; "
        f"then run {COMMAND}.\n"
    )


def main() -> int:
    """Rewrite the stored list, or say which names CHANGELOG.md must mention."""
    old = STORED.read_text(encoding="utf-8") if STORED.exists() else ""
    names = missing_names(old, text(), CHANGELOG.read_text(encoding="utf-8"))
    if names:
        sys.stderr.write(complaint(names))
        return 1
    STORED.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
