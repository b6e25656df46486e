"""From histories to the cells of Table 1, and the paper's own beside them."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from normalign.paper.acceleration import METHODS, TASKS, acceleration_ensemble, task
from normalign.paper.acceleration_table import (
    acceleration_rows,
    epochs_to_grok,
    paired_p,
    published_acceleration,
    read_acceleration,
    welch_p,
    write_acceleration,
)
from normalign.training import History, Trained
from tests.paper.test_acceleration import small

EPOCHS = st.integers(1, 20_000)
BY_SEED = st.dictionaries(st.integers(0, 9), EPOCHS | st.none(), min_size=1)
RESULTS = st.dictionaries(
    st.sampled_from(list(TASKS["released"])),
    st.dictionaries(st.sampled_from(METHODS), BY_SEED, min_size=1),
    min_size=1,
)


def run(method, seed, accuracies, *, stopped="epochs", name="modular"):
    """A run that was evaluated at epochs 0, 10, 20, ..."""
    history = History()
    for i, accuracy in enumerate(accuracies):
        row = {"epoch": 10 * i, "train_loss": 0.0, "train_accuracy": 1.0}
        history.append({**row, "test_accuracy": accuracy})
    return Trained(task(name).member(method, seed), history, stopped, {})


def test_a_run_groks_at_the_first_row_that_meets_the_criteria():
    runs = [
        run("baseline", 0, [0.1, 0.5, 0.995, 0.2, 1.0]),
        run("baseline", 1, [0.1, 0.99, 0.99], stopped="epochs"),  # not above 0.99
        run("baseline", 2, [0.1, 0.2], stopped="diverged"),
        run("baseline", 3, [0.1, 1.0], stopped="criterion"),
    ]
    found = epochs_to_grok(task("modular"), runs)
    assert found == {"baseline": {0: 20, 1: None, 2: None, 3: 10}}


def test_runs_find_their_methods_in_whatever_order_they_come():
    runs = [run(m, s, [0.0, 1.0]) for s in (0, 1) for m in reversed(METHODS)]
    found = epochs_to_grok(task("modular"), runs)
    assert list(found) == list(METHODS)
    assert all(seeds == {0: 10, 1: 10} for seeds in found.values())


@pytest.mark.parametrize("stopped", ["interrupted", "callback"])
def test_a_run_that_was_cut_short_is_no_failure_to_grok(stopped):
    runs = [run("baseline", 0, [0.1, 0.2], stopped=stopped)]
    with pytest.raises(ValueError, match=rf"trained\[0\] .*got '{stopped}'. Train"):
        epochs_to_grok(task("modular"), runs)
    whole = run("baseline", 0, [0.1, 1.0], stopped=stopped)
    assert epochs_to_grok(task("modular"), [whole]) == {"baseline": {0: 10}}


def test_runs_of_another_task_and_runs_that_come_twice_are_refused():
    with pytest.raises(ValueError, match="a run of the task 'XOR'"):
        epochs_to_grok(task("xor"), [run("baseline", 0, [1.0])])
    with pytest.raises(ValueError, match=r"trained\[1\] must be one run for each"):
        epochs_to_grok(task("modular"), [run("grokfast", 4, [1.0])] * 2)


@given(EPOCHS, EPOCHS)
def test_two_pairs_have_the_cauchy_distribution(a, b):
    assume(a != b)
    t = (a + b) / abs(a - b)  # mean over standard error, for two
    expected = 1 - 2 / math.pi * math.atan(t)
    # Written as 1 - ..., the closed form loses what p is smaller than one by.
    assert paired_p([a, b], [0, 0]) == pytest.approx(expected, abs=1e-12)


@given(EPOCHS, EPOCHS, st.integers(1, 100))
def test_two_samples_of_two_and_one_spread_have_two_degrees_of_freedom(a, b, spread):
    t = abs(a - b) / (spread * math.sqrt(2))  # each variance is 2 spread^2
    expected = 1 - t / math.sqrt(t * t + 2)
    value = welch_p([a - spread, a + spread], [b - spread, b + spread])
    assert value == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.tuples(EPOCHS, EPOCHS), min_size=3, max_size=10))
def test_swapping_the_samples_changes_no_p_value(pairs):
    one, other = zip(*pairs, strict=True)
    for test in (paired_p, welch_p):
        value = test(one, other)
        assert value == pytest.approx(test(other, one))
        assert value is None or 0 <= value <= 1


def test_a_test_that_does_not_exist_has_no_p_value():
    assert paired_p([], []) is None
    assert paired_p([3], [1]) is None
    assert paired_p([3, 4, 5], [1, 2, 3]) is None  # every difference is 2
    assert welch_p([3], [1, 2]) is None
    assert welch_p([3, 3], [1, 1]) is None


@pytest.mark.filterwarnings("error")
def test_one_sample_may_be_constant():
    # se^2 = 0 + 0.5 / 2, t = 1.5 / 0.5 with the one degree of freedom of the other.
    expected = 1 - 2 / math.pi * math.atan(3)
    assert welch_p([3, 3], [1, 2]) == pytest.approx(expected, rel=1e-12)


def test_means_are_over_those_that_grokked_and_pairs_over_those_that_did_both_ways():
    results = {
        "parity": {
            "baseline": {0: 100, 1: 300, 2: None, 3: 200},
            "grokalign": {0: 50, 1: 150, 2: 10, 3: None},
        }
    }
    base, ours = acceleration_rows(results)
    assert (base["n_seeds"], base["n_grokked"], base["share"]) == (4, 3, 0.75)
    assert (base["epochs"], base["epochs_std"]) == (200, 100)
    assert base["speedup"] is base["p_paired"] is base["p_welch"] is None
    assert ours["epochs"] == 70
    assert ours["speedup"] == 200 / 70
    assert ours["n_paired"] == 2
    assert ours["p_paired"] == paired_p([100, 300], [50, 150])
    assert ours["p_welch"] == welch_p([100, 300, 200], [50, 150, 10])


def test_nothing_is_compared_where_there_is_nothing_to_compare():
    none = {0: None, 1: None}
    missing, failed = acceleration_rows(
        {"xor": {"grokfast": {0: 5}}, "parity": {"baseline": none}}
    )
    assert missing["speedup"] is missing["p_welch"] is None
    assert (missing["share"], missing["epochs_std"]) == (1.0, None)
    assert (failed["share"], failed["epochs"]) == (0.0, None)
    one = acceleration_rows({"xor": {"baseline": {0: 9}, "grokalign": none}})[1]
    assert one["speedup"] is one["epochs"] is one["p_paired"] is None


@given(RESULTS)
def test_rows_are_the_cells_in_order_and_json_can_hold_them(results):
    rows = acceleration_rows(results)
    cells = [(task, method) for task in results for method in results[task]]
    assert [(row["task"], row["method"]) for row in rows] == cells
    json.dumps(rows, allow_nan=False)
    for row in rows:
        grokked = [e for e in results[row["task"]][row["method"]].values() if e]
        assert (row["epochs"] is None) == (not grokked)
        if grokked:
            assert min(grokked) <= row["epochs"] <= max(grokked)


@given(RESULTS)
def test_the_order_of_the_seeds_does_not_matter(results):
    turned = {
        task: {m: dict(reversed(list(seeds.items()))) for m, seeds in methods.items()}
        for task, methods in results.items()
    }
    for one, other in zip(
        acceleration_rows(results), acceleration_rows(turned), strict=True
    ):
        assert one == pytest.approx(other)


def test_the_papers_table_has_every_cell_and_agrees_with_itself():
    table = published_acceleration()
    assert list(table) == [(t, m) for t in TASKS["released"] for m in METHODS]
    for (name, method), cell in table.items():
        assert (cell["epochs"] is None) == (cell["share"] == 0)
        base = table[name, "baseline"]["epochs"]
        if cell["speedup"] is not None and base is not None:
            # Both means are printed to the nearest epoch, the ratio to a hundredth.
            ratio = base / cell["epochs"]
            slack = 0.005 + ratio * (0.5 / base + 0.5 / cell["epochs"])
            assert cell["speedup"] == pytest.approx(ratio, abs=slack), (name, method)
            assert method != "baseline"


def test_the_papers_numbers_stand_in_the_row_of_their_cell():
    (row,) = acceleration_rows({"mnist_se": {"grokalign": {0: 1200}}})
    printed = {name: row[f"published_{name}"] for name in ("share", "epochs")}
    assert printed == {"share": 1.0, "epochs": 1170.0}
    assert (row["published_speedup"], row["published_p"]) == (6.52, 6.6e-10)
    (other,) = acceleration_rows({"another": {"grokalign": {0: 1200}}})
    assert other["published_epochs"] is None


def test_what_was_written_can_be_read_and_says_where_it_is_from(tmp_path):
    results = {"xor": {"baseline": {0: 150, 3: None}, "grokalign": {0: 99, 3: 97}}}
    path = write_acceleration(
        tmp_path / "table1.json", results, preset="released", device="two cores",
        seconds=12.5, finished={"xor": {"baseline": 11.0}}, commit="abc",
    )  # fmt: skip
    assert read_acceleration(path) == results
    record = json.loads(path.read_text())
    assert record["tasks"]["xor"]["baseline"] == {
        "seeds": [0, 3], "epochs": [150, None], "finished": 11.0,
    }  # fmt: skip
    assert record["tasks"]["xor"]["grokalign"]["finished"] is None
    assert (record["device"], record["seconds"]) == ("two cores", 12.5)
    assert record["commit"] == "abc"
    assert {"torch", "normalign", "python"} <= set(record["versions"])


def test_other_files_and_presets_are_refused(tmp_path):
    path = tmp_path / "other.json"
    for text in ("{}", "[1]"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"got other\.json"):
            read_acceleration(path)
    with pytest.raises(ValueError, match="'released' or 'text', got 'mine'"):
        write_acceleration(path, {}, preset="mine", device="", seconds=0.0)


def test_epochs_come_from_real_runs_too():
    loose = {"train_accuracy": 0.99, "test_accuracy": -1.0}
    one = replace(small("modular"), epochs=300, criteria=loose)
    runs = acceleration_ensemble(one, seeds=(0, 1)).train()
    found = epochs_to_grok(one, runs)
    assert list(found) == list(METHODS)
    for method, seeds in found.items():
        for seed, epoch in seeds.items():
            member = one.member(method, seed)
            (run,) = (run for run in runs if run.member == member)
            grokked = run.stopped == "criterion"
            assert epoch == (run.history["epoch"][-1] if grokked else None)
    assert found["baseline"][0] is not None
