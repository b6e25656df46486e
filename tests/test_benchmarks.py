"""The scripts in benchmarks/ run from beginning to end, with little of each part."""

import json
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import bench  # noqa: E402

pytestmark = pytest.mark.slow


def pairs_of(slower, *, noise, n, seed):
    """Ratios of a peer that takes twice as long, with noise on every turn."""
    draw = np.random.default_rng(seed)
    ours, peer = np.exp(noise * draw.standard_normal((2, n)))
    return list(0.5 * slower * ours / peer)


def share_lost(slower, *, noise, n, trials=300):
    """How often the rule calls a ratio lost, stored and measured by the same noise."""
    lost = [
        bench.is_lost(
            pairs_of(slower, noise=noise, n=n, seed=2 * trial),
            pairs_of(1.0, noise=noise, n=n, seed=2 * trial + 1),
        )
        for trial in range(trials)
    ]
    return sum(lost) / trials


@pytest.mark.parametrize("n", [5, 7, 15])
def test_a_loss_of_a_fifth_is_detected_and_noise_is_not(n):
    assert share_lost(1.2, noise=0.01, n=n) == 1
    assert share_lost(1.3, noise=0.03, n=n) > 0.95
    assert share_lost(1.0, noise=0.03, n=n) == 0
    # A busy machine: turns differ by a fifth, and there are two dozen ratios.
    assert share_lost(1.0, noise=0.2, n=n) < 0.02
    assert share_lost(0.7, noise=0.1, n=n) == 0


def test_a_loss_must_be_above_15_percent_and_outside_of_the_spread():
    stored = [0.98, 0.99, 1.0, 1.01, 1.02]
    assert bench.is_lost([1.2 * r for r in stored], stored)
    assert not bench.is_lost([1.14 * r for r in stored], stored)
    assert not bench.is_lost([r / 1.2 for r in stored], stored)
    # The same medians; two comparisons say that nothing is lost, or one.
    assert not bench.is_lost([0.985, 1.19, 1.2, 1.21, 1.22], stored)
    assert bench.is_lost([1.015, 1.19, 1.2, 1.21, 1.22], stored)


class Clock:
    """Time that passes by what is done alone."""

    def __init__(self):
        self.now, self.turns = 0.0, []

    def __call__(self):
        return self.now

    def turn(self, name, seconds, answer=1.0):
        def take():
            self.turns.append(name)
            self.now += next(seconds)
            return torch.tensor([answer])

        return take


def contest(clock, ours=1.0, **settings):
    lengths = (ours * (1 + 0.001 * i) for i in count())
    turns = {
        "ours": clock.turn("ours", lengths),
        "plain": clock.turn("plain", (2.0 for _ in count()), settings.pop("plain", 1)),
    }
    return bench.Contest("a contest", turns, 5, **settings)


def test_ours_and_the_peer_take_turns_after_one_that_does_not_count():
    clock = Clock()
    seconds = bench.seconds_of(contest(clock), clock=clock)
    assert clock.turns == ["ours", "plain"] * 6
    assert seconds["plain"] == pytest.approx([2.0] * 5)
    assert seconds["ours"] == pytest.approx([1.001, 1.002, 1.003, 1.004, 1.005])
    expected = {"plain": pytest.approx([0.5005, 0.501, 0.5015, 0.502, 0.5025])}
    assert bench.ratios_of(seconds) == expected


def test_who_computes_something_else_is_not_timed():
    clock = Clock()
    other = contest(clock, plain=1.1, answers=lambda result: result, limit=1e-3)
    with pytest.raises(ValueError, match=r"ours and plain must agree to 0.001, got 0"):
        bench.seconds_of(other, clock=clock)


def run_bench(monkeypatch, *arguments, ours=1.0):
    """The exit status of the command, with one contest that a clock decides."""
    clock = Clock()
    monkeypatch.setattr(bench, "CONTESTS", {"one": lambda quick: contest(clock, ours)})
    monkeypatch.setattr(bench.seconds_of, "__kwdefaults__", {"clock": clock})
    monkeypatch.setattr(sys, "argv", ["bench.py", *map(str, arguments)])
    try:
        return bench.main()
    except SystemExit as exit:
        return exit.code


def test_the_command_stores_a_baseline_and_fails_on_a_loss(
    monkeypatch, tmp_path, capsys
):
    baseline = "--baseline", tmp_path / "bench.json"
    assert run_bench(monkeypatch, *baseline) == 2
    assert "must have ratios of" in capsys.readouterr().err
    assert run_bench(monkeypatch, *baseline, "--reset") == 0
    (stored,) = bench.read_baselines(baseline[1]).values()
    assert stored["ratios"]["one/plain"]["ratio"] == pytest.approx(0.5015)
    assert {"commit", "versions", "threads", "seconds"} <= set(stored)
    before = baseline[1].read_bytes()
    assert run_bench(monkeypatch, *baseline, ours=1.1) == 0
    assert run_bench(monkeypatch, *baseline, ours=1.2) == 1
    assert "LOST" in capsys.readouterr().out
    assert baseline[1].read_bytes() == before
    assert run_bench(monkeypatch, *baseline, "--reset", ours=1.2) == 0
    assert run_bench(monkeypatch, *baseline, ours=1.2) == 0


def test_a_ratio_that_is_not_measured_any_more_is_no_success(
    monkeypatch, tmp_path, capsys
):
    baseline = "--baseline", tmp_path / "bench.json"
    assert run_bench(monkeypatch, *baseline, "--reset") == 0
    text = baseline[1].read_text()
    for other in ("another/plain", "one/another"):
        baseline[1].write_text(text.replace("one/plain", other))
        assert run_bench(monkeypatch, *baseline) == 2
        printed = capsys.readouterr().out
        assert f"Only measured, or only in the baseline: {other}, one/plain." in printed
    content = json.loads(text)
    (stored,) = content["devices"].values()
    stored["ratios"]["another/plain"] = stored["ratios"]["one/plain"]
    baseline[1].write_text(json.dumps(content))
    assert run_bench(monkeypatch, *baseline) == 2
    assert run_bench(monkeypatch, *baseline, "--only", "one") == 0


def test_quick_ratios_do_not_replace_the_baseline(monkeypatch, capsys):
    before = bench.BASELINE.read_bytes()
    for arguments in (["--quick"], ["--quick", "--reset"]):
        assert run_bench(monkeypatch, *arguments) == 2
        assert "--baseline must be given with --quick" in capsys.readouterr().err
    assert bench.BASELINE.read_bytes() == before


def test_each_processor_has_a_baseline_of_its_own(monkeypatch, tmp_path, capsys):
    baseline = "--baseline", tmp_path / "bench.json"
    assert run_bench(monkeypatch, *baseline, "--reset") == 0
    monkeypatch.setattr(bench, "device_name", lambda kind: "another")
    assert run_bench(monkeypatch, *baseline) == 2
    assert "must have ratios of another" in capsys.readouterr().err
    assert run_bench(monkeypatch, *baseline, "--reset", ours=1.2) == 0
    assert run_bench(monkeypatch, *baseline, ours=1.2) == 0
    monkeypatch.undo()
    assert run_bench(monkeypatch, *baseline, ours=1.2) == 1


def test_a_peer_that_is_not_installed_is_named_with_the_remedy(tmp_path):
    script = "import sys; sys.modules['xrfm'] = None; sys.argv[0] = 'bench.py'; "
    script += f"sys.path.insert(0, {str(BENCHMARKS)!r}); import bench; bench.main()"
    arguments = ["--only", "fit-2000", "--baseline", __file__]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "pip install --constraint constraints.txt xrfm" in done.stderr


@pytest.mark.full
def test_contests_run_and_their_peers_do_the_same_work():
    some = ["step", "geometry-a", "fit-300", "lockstep-baseline"]
    ratios = bench.measure(some, quick=True)
    assert set(ratios) == {
        "step/plain", "step/released", "geometry-a/plain", "fit-300/plain",
        "lockstep-baseline/loop",
    }  # fmt: skip
    assert all(len(one["ratios"]) == 5 and one["ratio"] > 0 for one in ratios.values())


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
