"""The benchmark of selection on the UCI tables runs from beginning to end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.uci_files import uci_members, write_tar

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.slow


def last_line(script: str, *arguments: str, timeout: float = 900) -> dict:
    """The JSON at the end of a run that must succeed."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_selection_benchmark_chooses_on_every_table(tmp_path):
    members = {}
    for name, n in {"one": 40, "two": 24}.items():
        members |= uci_members(name, n=n, d=3)
    write_tar(tmp_path / "uci/data.tar.gz", members)
    result = last_line("rfm_selection.py", "--data-dir", str(tmp_path))
    assert result["tables"] == 2
    assert [(r["table"], r["method"]) for r in result["records"]] == [
        ("two", "RFM"), ("two", "RFAM"), ("one", "RFM"), ("one", "RFAM"),
    ]  # fmt: skip
    # two float64 routes to one machine
    assert result["routes"]["plain"]["same"] == 1


@pytest.mark.data
def test_float32_chooses_like_float64_on_the_smallest_tables():
    result = last_line("rfm_selection.py", "--max-rows", "200")
    assert result["tables"] > 30
    assert result["routes"]["plain"]["same"] == 1
    assert result["routes"]["float32"]["tables_same"] >= 0.98
