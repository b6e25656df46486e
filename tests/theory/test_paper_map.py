"""The table from the paper to the code names things that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "paper-map.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the docs are not shipped")


def functions_of(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = ast.FunctionDef | ast.ClassDef
    names = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    return names


def test_every_test_named_exists():
    named = re.findall(
        r"`((?:reproduction/)?tests/[\w/]+\.py)(?:::(\w+))?`", PAGE.read_text("utf-8")
    )
    assert named
    for path, test in named:
        assert (ROOT / path).exists(), path
        assert not test or test in functions_of(ROOT / path), f"{path}::{test}"


def test_every_function_named_exists():
    folders = "theory|geometry|nn|regularizers|optim|kernels|estimators|robustness"
    folders += "|experiments|tables|figures|reporting|evidence"
    pattern = rf"`((?:{folders})/\w+\.py)` ((?:`[\w.()=]+`(?:, )?)+)"
    named = re.findall(pattern, PAGE.read_text("utf-8"))
    assert named
    for path, names in named:
        library = ROOT / "src" / "normalign" / path
        reproduction = ROOT / "reproduction" / "normalign_reproduction" / path
        known = functions_of(library if library.exists() else reproduction)
        for name in re.findall(r"`([\w.]+)", names):
            assert set(name.split(".")) <= known, f"{path} {name}"


def test_every_public_name_of_the_theory_is_in_the_table():
    from normalign import theory

    text = PAGE.read_text("utf-8")
    records = {"AlignedMap", "CentroidAcceleration"}  # results, not statements
    missing = [n for n in theory.__all__ if n not in records and f"`{n}" not in text]
    assert not missing
