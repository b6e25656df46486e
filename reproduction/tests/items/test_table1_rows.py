"""From histories to the cells of Table 1, and the paper's own beside them."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from normalign_reproduction.items.table1.experiment import METHODS
from normalign_reproduction.items.table1.rows import (
    acceleration_rows,
    cost_rows,
    epochs_by_seed,
    paired_p,
    published_acceleration,
    table_rows,
    welch_p,
)
from normalign_reproduction.items.table1.tasks import TASKS
from normalign_reproduction.spec import Record, Run

EPOCHS = st.integers(1, 20_000)
BY_SEED = st.dictionaries(st.integers(0, 9), EPOCHS | st.none(), min_size=1)
RESULTS = st.dictionaries(
    st.sampled_from(list(TASKS["released"])),
    st.dictionaries(st.sampled_from(METHODS), BY_SEED, min_size=1),
    min_size=1,
)


def record(method, seed, epoch, *, name="modular", pace=0.1, weight=0.0):
    """A finished run that grokked at an epoch, or did not."""
    run = Run("acceleration", 1, "full", "released", "synthetic",
              {"task": name, "method": method}, seed)  # fmt: skip
    return Record(run, {"epoch": epoch, "seconds_per_epoch": pace, "weight": weight})


def table(**methods):
    """Records of one task: the epochs of each method, seed by seed."""
    return [
        record(method, seed, epoch)
        for method, epochs in methods.items()
        for seed, epoch in enumerate(epochs)
    ]


def test_epochs_are_found_by_task_method_and_seed_in_the_tables_order():
    records = [
        record(m, s, 10 * s or None, name=t)
        for t in ("modular", "xor") for s in (1, 0) for m in reversed(METHODS)
    ]  # fmt: skip
    found = epochs_by_seed(records)
    assert list(found) == ["xor", "modular"]
    assert list(found["xor"]) == list(METHODS)
    assert found["modular"]["orthograd"] == {0: None, 1: 10}


def test_rows_have_titles_and_an_interval_over_the_seeds_that_grokked():
    base, ours = table_rows(table(baseline=[100, 120], grokalign=[50, None]))
    assert (base["task"], base["method"]) == ("Modular addition", "Baseline")
    low, high = base["epochs_interval"]
    # Two numbers 20 apart: mean 110, standard error 10, t(0.975, 1) = 12.706.
    assert (low, high) == pytest.approx((110 - 127.06, 110 + 127.06), abs=0.01)
    assert ours["epochs_interval"] is None
    assert ours["share"] == 0.5


def test_seconds_take_the_price_of_an_epoch_into_account():
    records = [
        record("baseline", 0, 300, pace=0.1), record("grokalign", 0, 100, pace=0.15),
    ]  # fmt: skip
    base, ours = cost_rows(records)
    assert (base["relative"], base["speedup"]) == (1.0, None)
    assert ours["relative"] == pytest.approx(1.5)
    assert ours["speedup"] == 3.0
    assert ours["faster"] == pytest.approx(2.0)
    assert ours["pace"] == pytest.approx(150)
    (alone,) = cost_rows(records[1:])
    assert alone["relative"] is alone["faster"] is None


def test_seconds_of_different_machines_are_not_compared():
    fast = {"device": "a GPU"}
    records = [
        replace(record("baseline", 0, 300, pace=0.1), made=fast),
        record("baseline", 1, 300, pace=20.0),
        record("grokalign", 1, 100, pace=40.0), record("grokalign", 2, 100, pace=40.0),
    ]  # fmt: skip
    _, ours = cost_rows(records)
    assert ours["relative"] == pytest.approx(2.0)
    _, apart = cost_rows([records[0], *records[2:]])
    assert apart["relative"] is apart["faster"] is None


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
