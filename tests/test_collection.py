"""The tests are collected where the packages of the extras are not installed."""

import ast
import os
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.conftest import OPTIONAL

TESTS = Path(__file__).parent
# What `pip install normalign pytest` brings; torch needs mpmath.
ALWAYS = {
    "joblib", "mpmath", "normalign", "numpy", "pytest", "rich", "scipy",
    "sklearn", "tests", "threadpoolctl", "torch", "tqdm",
}  # fmt: skip
# Modules of the repository in folders that some tests put on the path.
OWN = {
    path.stem
    for folder in ("benchmarks", "docs", "tests/data")
    for path in (TESTS.parent / folder).glob("*.py")
}
MISSING = (OPTIONAL | {"dask", "xdist"}) - {"matplotlib", "pandas"}


def collect(*arguments, missing=MISSING, cwd=TESTS.parent):
    """Collect the tests of a folder in a process that lacks some packages."""
    script = "import sys, pytest; sys.modules.update(dict.fromkeys({!r})); "
    script += "sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", script.format(sorted(missing)), "--collect-only"]
    paths = os.pathsep.join([str(TESTS.parent), *filter(None, sys.path)])
    environment = {
        **os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": paths,
    }  # fmt: skip
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def imports_of(path):
    """The packages that a module imports outside of functions."""
    names = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module)
    return {name.partition(".")[0] for name in names}


def test_a_test_module_imports_what_is_always_there_or_is_known_as_optional():
    known = ALWAYS | OPTIONAL | OWN | sys.stdlib_module_names
    for path in TESTS.rglob("*.py"):
        assert imports_of(path) <= known, path


def test_the_sdist_has_what_the_tests_read():
    settings = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    read = ["docs", "results", "benchmarks", "reproduction", "Makefile",
            "constraints.txt", "constraints-lowest.txt", "README.md",
            "CONTRIBUTING.md"]  # fmt: skip
    for name in ("src", "tests", *read):
        assert any(fnmatch(f"/{name}", pattern) for pattern in included), name
    # others would take parts of `reproduction/` alone, such as its tests
    assert all(pattern.startswith("/") for pattern in included)


def test_a_module_without_its_optional_package_is_skipped_and_others_are_not(tmp_path):
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    for name, imported in {
        "lacks": "skops.io", "has": "numpy", "broken": "no_such_package",
    }.items():  # fmt: skip
        text = f"import {imported}\ndef test_it(): pass\n"
        (tmp_path / f"test_{name}.py").write_text(text)
    done = collect("-rs", str(tmp_path), missing={"skops"}, cwd=tmp_path)
    assert "needs skops" in done.stdout
    assert "test_has.py" in done.stdout
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert "1 error" in done.stdout  # what is missing for another reason is an error
    assert "no_such_package" in done.stdout


@pytest.mark.full
def test_the_tests_for_a_gpu_are_collected_without_the_extras():
    done = collect("-m", "cuda")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "tests/kernels/test_device.py" in done.stdout
