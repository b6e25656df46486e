import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.estimators import RFAMRegressor, _search
from normalign.estimators._search import score_trajectory
from normalign_reproduction.context import Context
from normalign_reproduction.items.tabarena import experiment as module
from normalign_reproduction.items.tabarena import tasks
from normalign_reproduction.items.tabarena.experiment import (
    batches,
    compute,
    divide,
    error_of,
)
from normalign_reproduction.items.tabarena.tasks import (
    BUNDLED,
    HELD_ROWS,
    LACKING,
    TASKS,
    TabArenaTask,
    task_named,
)
from normalign_reproduction.spec import Run

ROOT = Path(__file__).parents[2]
WEIGHTS = (1.0, 0.1, 0.0)
SETTINGS = {
    "ridges": [1.0, 0.1], "n_iter": 1, "bandwidth": 10.0, "agop_samples": 20_000,
    "max_categories": 100, "test_share": 1 / 3, "validation_share": 0.2, "repeat": 0,
}  # fmt: skip
SHARES = {"test_share": 1 / 3, "validation_share": 0.2}


def runs_of(task, weights=WEIGHTS, seed=0, **settings):
    return [
        Run("tabarena", 1, "quick", "text", "bundled",
            {**SETTINGS, "task": task, "identity_weight": weight, **settings}, seed)
        for weight in weights
    ]  # fmt: skip


@pytest.fixture
def context(tmp_path):
    return Context(torch.device("cpu"), tmp_path / "0123456789ab")


def timeless(results):
    return [{k: v for k, v in one.items() if k != "seconds"} for one in results]


# Divisions -------------------------------------------------------------------------


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=6).filter(
        lambda counts: max(counts) > 4
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_row_is_in_one_part_and_each_class_is_shown(counts, seed):
    answers = np.repeat(np.arange(len(counts)), counts)
    task = TabArenaTask(np.zeros((len(answers), 1)), answers, len(counts), "log_loss")
    parts = divide(task, seeds=(seed, seed + 1), **SHARES)
    rows = np.concatenate([parts.fit, parts.validation, parts.test])
    assert sorted(rows) == list(range(len(answers)))
    assert set(parts.development) == set(parts.fit) | set(parts.validation)
    assert set(answers[parts.fit]) == set(range(len(counts)))


def test_a_third_is_tested_on_and_a_fifth_of_the_rest_validates():
    task = TabArenaTask(np.zeros((1500, 1)), np.arange(1500) % 2, 2, "roc_auc")
    parts = divide(task, seeds=(0, 1), **SHARES)
    assert [len(p) for p in (parts.fit, parts.validation, parts.test)] == [
        pytest.approx(n, abs=2) for n in (800, 200, 500)
    ]
    for part in (parts.fit, parts.validation, parts.test):
        assert task.answers[part].mean() == pytest.approx(0.5, abs=0.01)


def test_repeats_and_seeds_divide_anew(context):
    results = [
        compute(runs_of("wine", (1.0,), seed=seed, repeat=repeat),
                replace(context, checkpoint=context.checkpoint / f"{seed}{repeat}"))[0]
        for seed, repeat in ((0, 0), (0, 1), (1, 0))
    ]  # fmt: skip
    assert len({one["test_error"] for one in results}) == 3


def test_no_row_that_is_fitted_is_scored_and_test_rows_meet_no_choice(
    context, monkeypatch
):
    """Rows are told by a first column that is different in each of them."""
    shown = {"fit": [], "validated": [], "refit": [], "tested": []}

    def trajectory(job):
        shown["fit"].append(job.fold.train[0][:, 0])
        shown["validated"].append(job.fold.test[0][:, 0])
        return score_trajectory(job)

    def error(machine, x, truth, **settings):
        if hasattr(machine, "best_params_"):
            shown["refit"].append(machine.X_fit_[:, 0])
            shown["tested"].append(x[:, 0])
        return error_of(machine, x, truth, **settings)

    random = np.random.default_rng(0)
    table = np.column_stack([np.arange(120.0), random.normal(size=(120, 2))])
    task = TabArenaTask(table, table[:, 1] + random.normal(size=120), None, "rmse")
    monkeypatch.setattr(module, "task_named", lambda name, data: task)
    monkeypatch.setattr(_search, "score_trajectory", trajectory)
    monkeypatch.setattr(module, "error_of", error)
    compute(runs_of("marked"), context)

    for part in shown.values():  # all weights and ridges have the same rows
        assert len(part) > 0
        assert len({tuple(sorted(rows)) for rows in part}) == 1
    fit, validated, refit, tested = (set(part[0]) for part in shown.values())
    assert not fit & validated
    assert not (fit | validated) & tested
    assert refit == fit | validated
    assert (len(fit), len(validated), len(tested)) == (64, 16, 40)
    # the columns were scaled by development rows alone
    assert np.mean(list(refit)) == pytest.approx(0.0, abs=1e-9)
    assert np.std(list(refit)) == pytest.approx(1.0, abs=1e-9)
    assert abs(np.mean(list(refit | tested))) > 1e-6


# Results ---------------------------------------------------------------------------


@pytest.mark.parametrize("facts", BUNDLED, ids=lambda facts: facts.name)
def test_a_bundled_task_is_what_is_said_of_it_and_runs_to_its_end(facts, context):
    task = task_named(facts.name, "bundled")
    assert task.table.shape == (facts.rows, facts.inputs)
    assert (task.n_classes is None) == (facts.kind == "regression")
    (result,) = compute(runs_of(facts.name, (0.1,)), context)
    parts = [result[f"n_{part}"] for part in ("fit", "validation", "test")]
    assert sum(parts) == facts.rows
    assert result["metric"] == task.metric
    assert result["validation_error"] == min(result["validation_by_iteration"])
    assert result["ridge"] in SETTINGS["ridges"]
    assert len(result["validation_by_iteration"]) == SETTINGS["n_iter"] + 1
    assert result["partial"] is False
    # better than a guess: half of the pairs, all classes alike, the mean of answers
    if task.metric == "rmse":
        guess = task.answers.std()
    else:
        guess = 0.5 if task.metric == "roc_auc" else np.log(task.n_classes)
    assert 0 <= result["test_error"] < guess


def test_a_run_is_what_plain_machines_find(context):
    """Ridges and iterations by hand, the best one fitted again and tested."""
    (run,) = runs_of("diabetes-progression", (0.1,))
    (result,) = compute([run], context)
    rows = module._Prepared(run)
    fit, validation = rows.split
    errors = {}
    for ridge in SETTINGS["ridges"]:
        for n_iter in (0, 1):
            machine = RFAMRegressor(
                identity_weight=0.1, ridge=ridge, n_iter=n_iter, bandwidth=10.0,
                device="cpu", random_state=module._seeds(run)[2],
            )  # fmt: skip
            found = machine.fit(rows.x[fit], rows.y[fit]).predict(rows.x[validation])
            error = np.sqrt(np.mean((found - rows.y[validation]) ** 2))
            errors[error] = machine
    best = errors[min(errors)].fit(rows.x, rows.y)
    tested = np.sqrt(np.mean((best.predict(rows.x_test) - rows.y_test) ** 2))
    # the same sums in another order
    assert result["validation_error"] == pytest.approx(min(errors), rel=1e-6)
    assert result["test_error"] == pytest.approx(tested, rel=1e-6)
    assert (result["ridge"], result["iteration"]) == (best.ridge, best.n_iter)


def test_missing_values_and_categories_are_encoded():
    rows = module._Prepared(runs_of("orders")[0])
    # four numbers; four colours and three codes, each with a place for missing ones
    assert rows.x.shape[1] == 4 + (4 + 1) + (3 + 1)
    assert np.isfinite(rows.x).all()
    assert np.isfinite(rows.x_test).all()


def test_a_batch_is_all_weights_of_one_division():
    runs = [
        run
        for task in ("wine", "orders")
        for seed in (0, 1)
        for repeat in (0, 1)
        for run in runs_of(task, seed=seed, repeat=repeat)
    ]
    found = batches(runs, torch.device("cuda"))
    assert len(found) == 8
    assert all(len(batch) == len(WEIGHTS) for batch in found)


def test_progress_rises_to_the_end_and_is_told_for_every_candidate(context):
    told = []
    follow = replace(context, progress=lambda share, words: told.append((share, words)))
    compute(runs_of("wine"), follow)
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    candidates = len(SETTINGS["ridges"]) * (SETTINGS["n_iter"] + 1)
    assert len(told) == len(WEIGHTS) * (candidates + 1)
    assert told[0][1] == "wine, identity weight 1"


# Killed and resumed ----------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from normalign_reproduction.context import Context
from normalign_reproduction.items.tabarena.experiment import compute
from tests.items.test_tabarena_experiment import runs_of

def die(share, words):
    if share > 0.5:
        os.kill(os.getpid(), signal.SIGKILL)

compute(runs_of("wine"), Context(torch.device("cpu"), Path(sys.argv[1]), progress=die))
"""


def test_weights_that_were_done_before_a_kill_are_not_done_again(
    context, tmp_path, monkeypatch
):
    env = {**os.environ, "PYTHONPATH": "."}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(context.checkpoint)], env=env, check=False,
        cwd=str(ROOT), capture_output=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done, begun = module._result, []

    def result(run, *rest):
        begun.append(run["identity_weight"])
        return done(run, *rest)

    monkeypatch.setattr(module, "_result", result)
    resumed = compute(runs_of("wine"), context)
    assert begun == [0.1, 0.0]  # killed in the second of three
    begun.clear()
    elsewhere = replace(context, checkpoint=tmp_path / "elsewhere" / "batch")
    assert timeless(resumed) == timeless(compute(runs_of("wine"), elsewhere))
    assert begun == list(WEIGHTS)


def test_a_finished_batch_is_read_back_without_its_table(context, monkeypatch):
    first = compute(runs_of("wine"), context)

    def refuse(name, data):
        raise AssertionError(name)

    monkeypatch.setattr(module, "task_named", refuse)
    assert compute(runs_of("wine"), context) == first


# Tasks -----------------------------------------------------------------------------


def test_the_tasks_are_44_of_the_51_each_once():
    names = [facts.name for facts in TASKS]
    assert len(set(names)) == len(names) == 44
    assert not set(names) & set(LACKING)
    assert len(LACKING) == 51 - 44
    assert set(HELD_ROWS) < set(names)
    assert max(facts.rows for facts in TASKS) == 150_000


def test_a_table_of_the_benchmark_keeps_its_kind_and_its_gaps(monkeypatch):
    pd = pytest.importorskip("pandas")

    class Found:
        X = pd.DataFrame({"size": [1.0, None, 3.0], "colour": ["a", "b", None]})
        y = pd.Series(["yes", "no", "yes"], dtype="category")
        metric, categorical, matches_tabarena = "roc_auc", ("colour",), False

    monkeypatch.setattr(tasks, "load_tabarena", lambda name: Found)
    task_named.cache_clear()
    task = task_named("Found", "tabarena")
    task_named.cache_clear()
    assert task.answers.tolist() == [1, 0, 1]
    assert task.n_classes == 2
    assert task.partial
    assert task.table is Found.X


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [("wine", "uci", "'tabarena' or 'bundled'"), ("none", "bundled", "one of breast")],
)
def test_an_unknown_task_is_refused(name, data, words):
    with pytest.raises(ValueError, match=words):
        task_named(name, data)
