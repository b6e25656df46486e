"""The oldest versions: those that the package admits are those that are tried."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UNTRIED = {
    # Tools, which the tests do not import.
    "import-linter", "pyright", "ruff", "playwright",
    # Needed by the long tests alone, and at home with newer numpy.
    "xrfm", "catboost", "foolbox", "adversarial-robustness-toolbox",
    # Old versions come with gigabytes for GPUs.
    "torch",
}  # fmt: skip


def release(version):
    """Return a version's numbers without the zeros at its end."""
    numbers = [int(part) for part in version.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def test_the_oldest_versions_that_are_tried_are_those_that_are_admitted():
    if not (ROOT / "constraints-lowest.txt").is_file():
        pytest.skip("the package's own repository is not here")
    asked = []
    for folder in (ROOT, ROOT / "reproduction"):
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        extras = project["optional-dependencies"].values()
        asked += [one for group in extras for one in group] + project["dependencies"]
    wanted = {
        name: release(version)
        for name, version in re.findall(r"([\w-]+)>=([\d.]+)", "\n".join(asked))
        if name not in UNTRIED
    }
    text = (ROOT / "constraints-lowest.txt").read_text()
    tried = dict(re.findall(r"^([\w-]+)==([\d.]+)$", text, re.MULTILINE))
    assert {name: release(tried[name]) for name in wanted} == wanted
