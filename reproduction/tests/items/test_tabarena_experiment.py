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
from sklearn import metrics

from normalign.estimators import RFAMRegressor
from normalign_reproduction.context import Context
from normalign_reproduction.items.tabarena import experiment, tasks
from normalign_reproduction.items.tabarena.experiment import (
    PreparedRows,
    auc_error,
    compute,
    divide,
    error_of,
    log_loss,
    rmse,
    seeds_of,
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

CPU = torch.device("cpu")
WEIGHTS = (1.0, 0.1, 0.0)
SHARES = {"test_share": 1 / 3, "validation_share": 0.2}
SETTINGS = {
    "ridges": [1.0, 0.1], "n_iter": 1, "bandwidth": 10.0, "agop_samples": 20_000,
    "max_categories": 100, "repeat": 0, **SHARES,
}  # fmt: skip
SEEDS = st.integers(0, 10_000)


def runs_of(task, weights=WEIGHTS, seed=0, **settings):
    common = {**SETTINGS, "task": task, **settings}
    return [
        Run("tabarena", 1, "quick", "text", "bundled",
            {**common, "identity_weight": weight}, seed)
        for weight in weights
    ]  # fmt: skip


@pytest.fixture
def context(tmp_path):
    return Context(CPU, tmp_path / "0123456789ab")


# divisions


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=6).filter(
        lambda counts: max(counts) > 4
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_row_is_in_one_part_and_each_class_is_fitted(counts, seed):
    answers = np.repeat(np.arange(len(counts)), counts)
    task = TabArenaTask(np.zeros((len(answers), 1)), answers, len(counts), "log_loss")
    fit, validation, test = divide(task, seeds=(seed, seed + 1), **SHARES)
    rows = np.concatenate([fit, validation, test])
    assert sorted(rows) == list(range(len(answers)))
    assert set(answers[fit]) == set(range(len(counts)))


def test_a_third_is_tested_on_and_a_fifth_of_the_rest_validates():
    task = TabArenaTask(np.zeros((1500, 1)), np.arange(1500) % 2, 2, "roc_auc")
    parts = divide(task, seeds=(0, 1), **SHARES)
    for part, n in zip(parts, (800, 200, 500), strict=True):
        assert len(part) == pytest.approx(n, abs=2)
        assert task.answers[part].mean() == pytest.approx(0.5, abs=0.01)


def test_repeats_and_seeds_divide_anew(context):
    errors = {
        compute(runs_of("wine", (1.0,), seed=seed, repeat=repeat), context)[0][
            "test_error"
        ]
        for seed, repeat in ((0, 0), (0, 1), (1, 0))
    }
    assert len(errors) == 3


def test_no_fitted_row_is_scored_and_test_rows_meet_no_choice(context, monkeypatch):
    """Rows are known by a first column that is different in each of them."""
    seen = {"fit": [], "validated": [], "refit": [], "tested": []}

    def error(machine, x, truth, **settings):
        last = hasattr(machine, "best_params_")
        seen["refit" if last else "fit"].append(machine.X_fit_[:, 0])
        seen["tested" if last else "validated"].append(x[:, 0])
        return error_of(machine, x, truth, **settings)

    random = np.random.default_rng(0)
    table = np.column_stack([np.arange(120.0), random.normal(size=(120, 2))])
    task = TabArenaTask(table, table[:, 1] + random.normal(size=120), None, "rmse")
    monkeypatch.setattr(experiment, "task_named", lambda name, data: task)
    monkeypatch.setattr(experiment, "error_of", error)
    compute(runs_of("marked"), context)
    for part in seen.values():  # all weights and ridges have the same rows
        assert len({tuple(sorted(rows)) for rows in part}) == 1
    fit, validated, refit, tested = (set(part[0]) for part in seen.values())
    assert not fit & validated
    assert not (fit | validated) & tested
    assert refit == fit | validated
    assert (len(fit), len(validated), len(tested)) == (64, 16, 40)
    # the columns were scaled by the fitted and validated rows alone
    assert np.mean(list(refit)) == pytest.approx(0.0, abs=1e-9)
    assert np.std(list(refit)) == pytest.approx(1.0, abs=1e-9)
    assert abs(np.mean(list(refit | tested))) > 1e-6


# results


@pytest.mark.parametrize("facts", BUNDLED, ids=lambda facts: facts.name)
def test_a_bundled_task_has_its_facts_and_is_learned(facts, context):
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
    # better than a guess: half of the pairs, all classes alike, the mean
    guess = {
        "rmse": task.answers.std(),
        "roc_auc": 0.5,
        "log_loss": np.log(task.n_classes or 1),
    }
    assert 0 <= result["test_error"] < guess[task.metric]


def test_a_run_is_what_plain_machines_find(context):
    (run,) = runs_of("diabetes-progression", (0.1,))
    (result,) = compute([run], context)
    rows = PreparedRows(run)
    fit, validation = rows.split
    errors = {}
    for ridge in SETTINGS["ridges"]:
        for n_iter in (0, 1):
            machine = RFAMRegressor(
                identity_weight=0.1, ridge=ridge, n_iter=n_iter, bandwidth=10.0,
                device="cpu", random_state=seeds_of(run)[2],
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
    rows = PreparedRows(runs_of("orders")[0])
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
    found = experiment.batches(runs, CPU)
    assert [len(batch) for batch in found] == [len(WEIGHTS)] * 8
    assert found[0][0]["task"] == "orders"  # the larger table


def test_progress_rises_with_every_candidate(context):
    received = []
    follow = replace(context, progress=lambda *one: received.append(one))
    compute(runs_of("wine"), follow)
    shares = [share for share, _ in received]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    candidates = len(SETTINGS["ridges"]) * (SETTINGS["n_iter"] + 1)
    assert len(received) == len(WEIGHTS) * (candidates + 1)
    assert received[0][1] == "wine, identity weight 1"


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


def test_weights_finished_before_a_kill_are_not_computed_again(
    context, tmp_path, monkeypatch
):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(context.checkpoint)], check=False,
        cwd=Path(__file__).parents[2], capture_output=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    select_and_test, begun = experiment.select_and_test, []

    def spy(run, *rest):
        begun.append(run["identity_weight"])
        return select_and_test(run, *rest)

    monkeypatch.setattr(experiment, "select_and_test", spy)
    resumed = compute(runs_of("wine"), context)
    assert begun == [0.1, 0.0]  # killed in the second of three
    elsewhere = replace(context, checkpoint=tmp_path / "elsewhere" / "batch")
    for one, other in zip(resumed, compute(runs_of("wine"), elsewhere), strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}
    # A finished batch needs no table.
    monkeypatch.setattr(experiment, "task_named", None)
    assert compute(runs_of("wine"), context) == resumed


# tasks


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
    assert (task.n_classes, task.partial) == (2, True)
    assert task.table is Found.X


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [("wine", "uci", "'tabarena' or 'bundled'"), ("none", "bundled", "one of breast")],
)
def test_an_unknown_task_is_refused(name, data, words):
    with pytest.raises(ValueError, match=words):
        task_named(name, data)


# errors, against scikit-learn's


@given(seed=SEEDS, n=st.integers(2, 40), levels=st.integers(1, 6))
def test_the_auc_is_scikit_learns_also_with_ties(seed, n, levels):
    random = np.random.default_rng(seed)
    scores = random.integers(levels, size=n).astype(float)
    truth = random.permutation(np.arange(n) % 2)
    expected = 1 - metrics.roc_auc_score(truth, scores)
    assert auc_error(scores, truth) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(auc_error(scores, 0 * truth))  # one class alone has none


@given(seed=SEEDS, n=st.integers(1, 30), k=st.integers(2, 6))
def test_the_log_loss_is_scikit_learns(seed, n, k):
    random = np.random.default_rng(seed)
    chances = random.dirichlet(np.full(k, 0.3), size=n)
    truth = random.integers(k, size=n)
    expected = metrics.log_loss(truth, chances, labels=np.arange(k))
    # one clips the result, the other its arguments
    assert log_loss(chances, truth) == pytest.approx(expected, rel=1e-6)


def test_a_certain_mistake_costs_the_precision_of_a_double():
    cost = log_loss(np.array([[1.0, 0.0]]), np.array([1]))
    assert cost == pytest.approx(52 * np.log(2))


def test_the_rmse_is_scikit_learns():
    random = np.random.default_rng(0)
    found, truth = random.normal(size=(2, 50))
    expected = metrics.root_mean_squared_error(truth, found)
    assert rmse(found, truth) == pytest.approx(expected, rel=1e-12)


def test_an_unseen_class_has_probability_zero():
    class Machine:
        classes_ = np.array([0, 2])  # of three

        def predict_proba(self, x):
            return np.tile([0.25, 0.75], (len(x), 1))

    def error(*truth):
        x, truth = np.zeros((2, 1)), np.array(truth)
        return error_of(Machine(), x, truth, metric="log_loss", n_classes=3)

    assert error(0, 0) == pytest.approx(np.log(4))
    assert error(1, 1) > 36
