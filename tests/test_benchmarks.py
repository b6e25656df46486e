"""The scripts in benchmarks/ run from beginning to end, with little of each part."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

pytestmark = pytest.mark.slow


def test_the_ensemble_benchmark_runs_and_ends_with_its_json(tmp_path):
    saved, table = tmp_path / "all.json", tmp_path / "table1.json"
    command = [
        sys.executable, str(BENCHMARKS / "ensemble.py"), "--quick", "--commit", "abc",
        "--save", str(saved), "--table", str(table),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == json.loads(saved.read_text())
    assert (result["commit"], result["quick"]) == ("abc", True)
    lockstep, span, whole = result["records"]
    for method in ("baseline", "grokalign"):
        found = lockstep["methods"][method]
        assert len(found["contestants"]) == 4
        # A few float64 steps of the same networks, summed in another order.
        assert found["largest_difference_from_alone"] < 1e-9
    assert all(both["same_epochs"] for both in span["smaller"])
    assert {"setup", "in_span", "medians"} <= set(span["full"][0])
    written = json.loads(table.read_text())
    assert written["seconds"] == whole["seconds"]
    assert list(written["tasks"]) == list(whole["epochs"])


def test_an_unknown_part_is_refused():
    command = [sys.executable, str(BENCHMARKS / "ensemble.py"), "--only", "d"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--only must be some of a,b,c, got d" in done.stderr
