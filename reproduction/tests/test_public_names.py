"""The reproduction uses only public names of the library."""

import ast
import importlib
from pathlib import Path

import pytest

import normalign_reproduction

PACKAGE = Path(normalign_reproduction.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def is_public(module: str) -> bool:
    """Whether every part of a module's name is in the list of the part above it."""
    parent, _, name = module.rpartition(".")
    if parent == "normalign":
        return not name.startswith("_")
    return is_public(parent) and name in importlib.import_module(parent).__all__


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_from_the_library_are_public(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            assert not any(name.startswith("normalign.") for name in names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.partition(".")[0] == "normalign":
                assert is_public(module), module
                public = importlib.import_module(module).__all__
                assert {alias.name for alias in node.names} <= set(public)
