"""The peers: fair, deterministic, without a leak, and robust to rare classes."""

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss
from sklearn.svm import SVC

from normalign_reproduction.data import UCITable
from normalign_reproduction.items.peers import experiment
from normalign_reproduction.items.peers.experiment import (
    PEER_SETTINGS,
    PEERS,
    QUICK_PEER_SETTINGS,
    Peer,
    PeerTask,
    TablePart,
    peer_result,
)
from normalign_reproduction.spec import Run

SMALL = {
    "most_frequent": {},
    "logistic_regression": {"costs": [0.1, 1.0], "max_iter": 50},
    "svc": {"costs": [1.0, 10.0], "widths": [0.1, 1.0], "max_rows": 1000},
    "random_forest": {"n_trees": 8, "max_features": ["sqrt", 0.5]},
    "hist_gradient_boosting": {
        "learning_rate": 0.3, "max_rounds": 12, "patience": 4, "leaves": [2, 5],
    },
    "catboost": {
        "max_rounds": 10, "patience": 4, "many_classes": 4, "borders_of_many": 8,
    },
    "xrfm": {"ridges": [1e-3, 1.0], "n_iter": 2},
}  # fmt: skip
METHODS = list(SMALL)
CPU = torch.device("cpu")


def table_of(x, y, n_classes, folds):
    every, none = torch.arange(len(y)), slice(0)
    split = every[::2], every[1::2]
    return UCITable(
        "made", x, y, n_classes, split, tuple(folds), x[none], y[none], "made by hand"
    )


def blobs(counts, *, seed=0, spread=0.5):
    """Classes with these numbers of rows around corners far apart, in four columns."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.tensor(counts))
    corners = 4 * torch.randn(len(counts), 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(y), 4, generator=generator, dtype=torch.float64)
    folds, cut = [], 3 * len(y) // 4
    for _ in range(4):
        order = torch.randperm(len(y), generator=generator)
        folds.append((order[:cut].sort().values, order[cut:].sort().values))
    return table_of(corners[y] + spread * noise, y, len(counts), folds)


def run_of(method, *, seed=0, **changes):
    if method in ("catboost", "xrfm"):
        pytest.importorskip(method)
    settings = {"dataset": "made", "rows": 1, "method": method, "protocol": "leak-free"}
    settings |= SMALL.get(method, {}) | changes
    return Run("tabular", 1, "quick", "released", "bundled", settings, seed)


def result_of(run, table):
    return peer_result(run, table, device=CPU, progress=lambda share, words: None)


def without_seconds(result):
    folds = [{k: v for k, v in f.items() if k != "seconds"} for f in result["folds"]]
    return {k: v for k, v in result.items() if k != "seconds"} | {"folds": folds}


@pytest.mark.parametrize("method", METHODS[1:])
def test_classes_far_apart_are_told_apart(method):
    result = result_of(run_of(method), blobs([40, 40, 40]))
    # Corners a dozen spreads apart: a tenth of the rows is more than chance can cost.
    assert result["accuracy"] >= 0.9
    assert result["validation"] >= 0.9
    shape = result["n_rows"], result["n_inputs"], result["n_classes"]
    assert shape == (120, 4, 3)
    assert [fold["n_train"] for fold in result["folds"]] == [90] * 4
    accuracies = [fold["accuracy"] for fold in result["folds"]]
    assert result["accuracy"] == pytest.approx(np.mean(accuracies), abs=1e-5)
    assert result["seconds"] > 0
    json.dumps(result, allow_nan=False)


def test_the_most_frequent_class_scores_its_share():
    table = blobs([60, 20])
    result = result_of(run_of("most_frequent"), table)
    shares = [float((table.y[test] == 0).double().mean()) for _, test in table.folds]
    assert result["accuracy"] == pytest.approx(np.mean(shares), abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_rare_and_missing_classes_do_no_harm(method):
    # Class 1 has no row, class 3 one, which some training folds lack.
    table = blobs([30, 0, 30, 1, 2])
    lacking = [3 not in table.y[train] for train, _ in table.folds]
    assert any(lacking)
    assert not all(lacking)
    assert 0.3 <= result_of(run_of(method), table)["accuracy"] <= 1.0
    # A training fold of one class predicts that class, here the wrong one.
    alone = (table.y == 2).nonzero().flatten(), torch.arange(10)
    result = result_of(run_of(method), replace(table, folds=(alone,) * 4))
    assert result["accuracy"] == 0.0


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_result_and_no_global_state_moves(method):
    table, run = blobs([25, 25, 10], spread=3.0), run_of(method, seed=3)
    plain, legacy = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    state = torch.random.get_rng_state()
    first = without_seconds(result_of(run, table))
    assert torch.equal(torch.random.get_rng_state(), state)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert without_seconds(result_of(run, table)) == first
    assert random.getstate() == plain
    np.testing.assert_array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002


@pytest.mark.parametrize("method", ["random_forest", "svc", "xrfm"])
def test_another_seed_validates_on_other_rows(method):
    table = blobs([40, 40, 40], spread=4.0)
    found = [result_of(run_of(method, seed=seed), table) for seed in range(4)]
    assert len({one["validation"] for one in found}) > 1


@pytest.mark.parametrize("method", METHODS)
def test_classes_of_test_rows_change_nothing_but_the_score(method, monkeypatch):
    run, table = run_of(method), blobs([30, 30, 30], spread=3.0)
    fold = table.folds[1]
    y = table.y.clone()
    y[fold[1]] = (y[fold[1]] + 1) % 3
    peer, predicted = PEERS[method], []

    def fitted(task, part, choice):
        predict = peer.fitted(task, part, choice)

        def spy(x):
            predicted.append(predict(x).tolist())
            return predict(x)

        return spy

    monkeypatch.setitem(PEERS, method, Peer(peer.choose, fitted))
    results = [
        without_seconds(result_of(run, replace(table, y=some, folds=(fold,) * 4)))
        for some in (table.y, y)
    ]
    assert predicted[:4] == predicted[4:]
    for name in ("chosen", "validation"):
        ours, theirs = ([f[name] for f in result["folds"]] for result in results)
        assert ours == theirs
    assert results[0]["accuracy"] != results[1]["accuracy"]


def test_a_better_candidate_is_chosen():
    # A ring in a ring, and a kernel so wide that it is a line: that cannot part them.
    generator = torch.Generator().manual_seed(0)
    angle = 2 * torch.pi * torch.rand(200, generator=generator, dtype=torch.float64)
    y = torch.arange(200) % 2
    x = torch.stack([angle.cos(), angle.sin()], 1) * (0.3 + y[:, None])
    fold = torch.arange(0, 150), torch.arange(150, 200)
    run = run_of("svc", costs=[1.0, 10.0], widths=[1e-6, 1.0])
    result = result_of(run, table_of(x, y, 2, (fold,) * 4))
    assert result["folds"][0]["chosen"] == {"cost": 1.0, "width": 1.0}  # the first
    assert result["accuracy"] == 1.0


def test_boosting_stops_early_on_noise():
    run = run_of(
        "hist_gradient_boosting", learning_rate=1.0, max_rounds=40, patience=5,
        leaves=[2],
    )  # fmt: skip
    folds = result_of(run, blobs([60, 60], spread=8.0))["folds"]
    rounds = [fold["chosen"]["n_rounds"] for fold in folds]
    assert 1 <= min(rounds) < 20
    assert max(rounds) <= 40


def halves(table):
    """The rows of a table in turn, to fit and to validate on; and all of them."""
    x, y = table.x.numpy(), table.y.numpy()
    fit, validation = (TablePart(x[start::2], y[start::2]) for start in (0, 1))
    return fit, validation, TablePart(x, y)


def task_of(method, **changes):
    return PeerTask(run_of(method, **changes).settings, 0, CPU, 1)


def test_boosting_chooses_the_best_of_plain_fits_of_each_length():
    fit, validation, _ = halves(blobs([40, 40], spread=6.0))
    task = task_of("hist_gradient_boosting", leaves=[20, 2], patience=12)
    losses, hits = {}, {}
    for leaf in (20, 2):
        for n_rounds in range(1, 13):
            plain = HistGradientBoostingClassifier(
                learning_rate=0.3, max_iter=n_rounds, min_samples_leaf=leaf,
                early_stopping=False, random_state=0,
            ).fit(fit.x, fit.y)  # fmt: skip
            one = leaf, n_rounds
            losses[one] = log_loss(validation.y, plain.predict_proba(validation.x))
            hits[one] = (plain.predict(validation.x) == validation.y).mean()
    best = min(losses, key=losses.__getitem__)
    chosen, accuracy = PEERS["hist_gradient_boosting"].choose(task, fit, validation)
    assert (chosen["leaf"], chosen["n_rounds"]) == best
    assert accuracy == pytest.approx(hits[best])


def test_catboost_is_refitted_at_the_rate_it_was_chosen_with():
    catboost = pytest.importorskip("catboost")
    *_, whole = halves(blobs([40, 40], spread=40.0))
    task, choice = task_of("catboost"), {"n_rounds": 7, "rate": 0.03}
    plain = catboost.CatBoostClassifier(
        iterations=7, learning_rate=0.03, random_seed=0, thread_count=1, verbose=False,
        allow_writing_files=False,
    ).fit(whole.x, whole.y)  # fmt: skip
    found = PEERS["catboost"].fitted(task, whole, choice)(whole.x)
    assert (found == plain.predict(whole.x)).all()
    other = PEERS["catboost"].fitted(task, whole, choice | {"rate": 0.5})(whole.x)
    assert (other != found).any()


@pytest.mark.parametrize(("classes", "borders"), [(4, None), (5, 8)])
def test_catboost_has_fewer_borders_for_more_than_many_classes(classes, borders):
    pytest.importorskip("catboost")
    *_, whole = halves(blobs([4] * classes))
    model = experiment._catboost(task_of("catboost"), whole)
    assert model.get_params().get("border_count") == borders


def test_xrfm_is_refitted_for_as_many_iterations_as_it_chose(monkeypatch):
    received = []

    def spy(task, part, validation, **changes):
        received.append((len(part.y), changes))
        return SimpleNamespace(predict=lambda x: np.zeros(len(x)))

    task = task_of("xrfm")
    monkeypatch.setattr(experiment, "_xrfm", spy)
    *_, whole = halves(blobs([6, 6]))
    PEERS["xrfm"].fitted(task, whole, {"ridge": 0.1, "iteration": 2})
    assert received == [(12, {"reg": 0.1, "iters": 2, "return_best_params": False})]


def test_a_width_of_one_is_scikit_learns_scale():
    table = blobs([40, 40], spread=6.0)
    fit, validation, _ = halves(replace(table, x=7 * table.x))
    predict = PEERS["svc"].fitted(task_of("svc"), fit, {"cost": 1.0, "width": 1.0})
    plain = SVC(C=1.0, gamma="scale").fit(fit.x, fit.y)
    assert (predict(validation.x) == plain.predict(validation.x)).all()
    assert (plain.predict(validation.x) == validation.y).mean() > 0.5


def test_the_choice_is_fitted_to_the_whole_fold(monkeypatch):
    sizes = []

    def choose(task, fit, validation):
        sizes.append(len(fit.y) + len(validation.y))
        return {}, 0.0

    def fitted(task, part, choice):
        sizes.append(len(part.y))
        return lambda x: np.zeros(len(x), dtype=int)

    monkeypatch.setitem(PEERS, "most_frequent", Peer(choose, fitted))
    result_of(run_of("most_frequent"), blobs([40, 40]))
    assert sizes == [60] * 8


def test_large_tables_are_skipped_with_a_reason():
    result = result_of(run_of("svc", max_rows=50), blobs([40, 40]))
    assert result["accuracy"] is None
    assert result["skipped"] == "more than 50 training rows"
    assert result["n_rows"] == 80
    # it is the training rows that count, 60 of 80
    assert result_of(run_of("svc", max_rows=60), blobs([40, 40]))["accuracy"] > 0


def test_refusals():
    table = blobs([20, 20])
    with pytest.raises(ValueError, match="method must be one of"):
        result_of(run_of("oracle"), table)
    with pytest.raises(ValueError, match="protocol must be 'leak-free'"):
        result_of(run_of("most_frequent", protocol="released"), table)
    with pytest.raises(ModuleNotFoundError, match=r"normalign-reproduction\[peers\]"):
        experiment._package("no_such_package")


def test_every_peer_has_settings_that_json_can_hold():
    assert set(PEER_SETTINGS) == set(PEERS)
    for name, settings in QUICK_PEER_SETTINGS.items():
        assert set(settings) == set(PEER_SETTINGS[name])
    json.dumps([PEER_SETTINGS, QUICK_PEER_SETTINGS], allow_nan=False)


def test_progress_rises_over_the_folds():
    received = []
    peer_result(
        run_of("most_frequent"), blobs([20, 20]), device=CPU,
        progress=lambda share, words: received.append((share, words)),
    )  # fmt: skip
    assert [share for share, _ in received] == [0.0, 0.25, 0.5, 0.75]
    assert received[0][1] == "most frequent"
