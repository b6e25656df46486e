"""The runs of Tables 2 and 3 and of the alpha path: which, how many, which shared."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from normalign_reproduction.context import Context, experiment_named
from normalign_reproduction.items.alpha_path.item import ITEM as PATH
from normalign_reproduction.items.table2.data import BUNDLED, TABLES
from normalign_reproduction.items.table2.item import (
    ITEM,
    QUICK_RFAM_SETTINGS,
    RFAM_SETTINGS,
)
from normalign_reproduction.report.tables import FORMS, render
from normalign_reproduction.spec import Record


def runs_of(item, size):
    return item.runs(size=size, preset="released", digits="mnist")


def test_the_constants_are_the_released_ones():
    assert RFAM_SETTINGS == {
        "ridges": [10, 1, 0.1, 0.01, 0.001], "n_iter": 4, "bandwidth": 10,
        "agop_samples": 20000, "radii": [0.1, 1, 2], "n_steps": 20, "step": 0.1,
        "strong_restarts": 2,
    }  # fmt: skip
    assert set(QUICK_RFAM_SETTINGS) == set(RFAM_SETTINGS)


def test_every_table_is_run_by_both_methods_and_protocols_and_small_ones_thrice():
    runs = runs_of(ITEM, "full")
    small = sum(table.rows <= 10_000 for table in TABLES)
    assert small == 113
    assert {run.data for run in runs} == {"uci"}
    counts = Counter((run["protocol"], run["identity_weight"]) for run in runs)
    assert set(counts.values()) == {3 * small + len(TABLES) - small}
    seeds = Counter((run["rows"] <= 10_000, run.seed) for run in runs)
    assert set(seeds) == {(True, 0), (True, 1), (True, 2), (False, 0)}
    assert {run.data for run in runs_of(ITEM, "quick")} == {"bundled"}
    assert {r["dataset"] for r in runs_of(ITEM, "quick")} == {t.name for t in BUNDLED}


@pytest.mark.parametrize("size", ["quick", "full"])
def test_the_ends_of_the_path_are_runs_of_the_table(size):
    table = {run.key for run in runs_of(ITEM, size)}
    ends = [r for r in runs_of(PATH, size) if r["identity_weight"] in (0.0, 1.0)]
    assert ends
    assert all(run.key in table for run in ends)
    between = {r.key for r in runs_of(PATH, size) if r not in ends}
    assert between
    assert not between & table


def test_the_path_is_of_small_tables_and_leak_free():
    runs = runs_of(PATH, "full")
    assert max(run["rows"] for run in runs) <= 2000
    assert {run["protocol"] for run in runs} == {"leak-free"}
    small = [table for table in TABLES if table.rows <= 2000]
    assert len(runs) == len(small) * 6 * 3


def made_up(item, size, seed=0):
    """A record for each run, with numbers drawn at random."""
    draw = random.Random(seed)
    records = []
    for run in runs_of(item, size):
        folds = []
        for _ in range(4):
            accuracy = draw.uniform(0.5, 1)
            attacked = [accuracy * draw.random() for _ in run["radii"]]
            folds.append(
                {
                    "accuracy": accuracy,
                    "attacked": attacked,
                    "validation": draw.random(),
                }
            )
        clean = sum(fold["accuracy"] for fold in folds) / 4
        attacked = [sum(f["attacked"][i] for f in folds) / 4 for i in range(3)]
        result = {
            "n_rows": run["rows"], "n_inputs": 4, "n_classes": 2, "accuracy": clean,
            "attacked": attacked, "validation": draw.random(), "folds": folds,
            "attack_success": [100 * (clean - a) / clean for a in attacked],
            "strong_success": [100 * draw.random() for _ in attacked],
            "normal_alignment": draw.random(), "effective_rank": 1.5,
            "participation_rank": 1.8, "alignment_ratio": 0.2,
        }  # fmt: skip
        records.append(Record(run, result))
    return records


@pytest.mark.parametrize("item", [ITEM, PATH], ids=lambda item: item.name)
def test_all_that_is_shown_of_full_runs_is_written(item):
    records = made_up(item, "full")
    for table in item.tables:
        rows = table.rows(records)
        # Every column has a number in some row.
        for column in table.columns:
            assert any(row.get(column.name) is not None for row in rows), column.name
            if column.interval:
                assert any(row.get(column.interval) for row in rows), column.name
            if column.published:
                assert any(row.get(column.published) for row in rows), column.name
        # A few rows are written as many are, and sooner.
        few = made_up(item, "quick")
        for form in FORMS:
            assert render(table, few, form=form, about="quick")
    assert all(figure.draw(records).axes for figure in item.figures)


def test_numbers_at_random_do_not_meet_the_papers():
    records = made_up(ITEM, "full")
    verdicts = [v for claim in ITEM.claims for v in claim.check(records)]
    assert {verdict.holds for verdict in verdicts} >= {False}
    assert all(verdict.why for verdict in verdicts)


def test_a_quick_table_goes_through_its_experiment(tmp_path):
    runs = [
        replace(run, settings={**run.settings, "ridges": [0.1], "n_iter": 1})
        for run in runs_of(PATH, "quick")
        if run["dataset"] == "iris" and run.seed == 0
    ]
    context = Context(torch.device("cpu"), tmp_path / "kept")
    results = experiment_named("tabular").compute(runs, context)
    records = [Record(*pair) for pair in zip(runs, results, strict=True)]
    rows = {row["weight"]: row for table in PATH.tables[:1]
            for row in table.rows(records)}  # fmt: skip
    assert set(rows) == {0.0, 0.001, 0.01, 0.1, 0.5, 1.0}
    # Iris is easy, and an attack never helps.
    assert all(row["accuracy"] > 85 for row in rows.values())
    assert all(row["asr_1"] >= row["asr_0.1"] >= 0 for row in rows.values())
    for table in PATH.tables:
        assert table.rows(records)
