"""The scripts in benchmarks/ run from beginning to end, with little of each part."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

pytestmark = pytest.mark.slow


def last_line(script: str, *arguments: str, timeout: float = 900) -> dict:
    """The JSON at the end of a run that must succeed."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_ensemble_benchmark_runs_and_ends_with_its_json(tmp_path):
    saved = tmp_path / "all.json"
    command = [
        sys.executable, str(BENCHMARKS / "ensemble.py"), "--quick", "--commit", "abc",
        "--save", str(saved),
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
    rows = [(row["task"], row["method"]) for row in whole["rows"]]
    assert rows == [(t, m) for t, methods in whole["epochs"].items() for m in methods]


def test_an_unknown_part_is_refused():
    command = [sys.executable, str(BENCHMARKS / "ensemble.py"), "--only", "d"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "--only must be some of a,b,c, got d" in done.stderr


@pytest.mark.full
def test_the_rfm_benchmark_runs_and_every_contestant_does_the_same_work(tmp_path):
    pytest.importorskip("xrfm", reason="needs the peers extra")
    saved = tmp_path / "all.json"
    result = last_line(
        "rfm.py", "--quick", "--only", "a,b,c,d,e", "--save", str(saved),
        "--commit", "abc",
    )  # fmt: skip
    assert result == json.loads(saved.read_text())
    assert (result["commit"], result["quick"]) == ("abc", True)
    records = result["records"]
    for part, quantity in {"a": "seconds", "b": "megabytes", "d": "seconds"}.items():
        for row in records[part]:
            assert all(value > 0 for value in row[quantity].values())
            assert row["differs"]
            assert max(row["differs"].values()) < result["agree"]
    assert {row["dtype"] for row in records["c"]} == {"float32", "float64"}
    for row in records["c"]:
        # float64 agrees far beyond what the benchmark asks of float32
        limit = result["agree"] if row["dtype"] == "float32" else 1e-6
        assert max(row["differs"].values()) < limit
    (large,) = records["e"]
    assert 0.7 < large["auc"] < large["best_auc"]
    again = last_line("rfm.py", "--quick", "--only", "e", "--against", str(saved))
    assert again["records"]["e"][0]["behind"] == 0


def test_the_benchmark_of_ridges_runs_and_ends_with_its_json(tmp_path):
    saved = tmp_path / "ridges.json"
    result = last_line("ridges.py", "--quick", "--rounds", "2", "--save", str(saved))
    assert result == json.loads(saved.read_text())
    assert [row["n"] for row in result["rows"]] == [100, 300]
    assert all(row["ratio"] > 0 for row in result["rows"])


def test_the_benchmark_of_profiles_runs_both_routes_to_the_same_numbers(tmp_path):
    saved = tmp_path / "layer_profile.json"
    result = last_line(
        "layer_profile.py", "--images", "2", "--width", "4", "--save", str(saved)
    )
    assert result == json.loads(saved.read_text())
    assert set(result["records"]) == {"shared", "separate"}
    for record in result["records"].values():
        assert record["seconds"] > 0
        assert list(record["means"]) == ["layer1", "layer2", "layer3", "layer4"]
    assert result["differs"] < 1e-3  # float32 rows of one pass and of another
