"""The peers: fair, deterministic, without a leak, and not upset by rare classes."""

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
from normalign_reproduction.items.peers import experiment as tabular_peer_models
from normalign_reproduction.items.peers.experiment import (
    PEER_SETTINGS,
    PEERS,
    QUICK_PEER_SETTINGS,
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
NEEDS = {"catboost": "catboost", "xrfm": "xrfm"}
CPU = torch.device("cpu")


def blobs(counts, *, seed=0, spread=0.5, name="made"):
    """Classes of so many rows around corners far apart, in four columns."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.tensor(counts))
    corners = 4 * torch.randn(len(counts), 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(y), 4, generator=generator, dtype=torch.float64)
    x, every = corners[y] + spread * noise, torch.arange(len(y))
    folds = []
    for _ in range(4):
        order = torch.randperm(len(y), generator=generator)
        cut = 3 * len(y) // 4
        folds.append((order[:cut].sort().values, order[cut:].sort().values))
    return UCITable(
        name, x, y, len(counts), (every[::2], every[1::2]), tuple(folds), x[:0], y[:0],
        "made by hand",
    )  # fmt: skip


def run_of(method, *, seed=0, **changes):
    if method in NEEDS:
        pytest.importorskip(NEEDS[method])
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
def test_rare_classes_and_classes_that_a_fold_lacks_do_no_harm(method):
    # Class 1 has no row at all, class 3 one, which some training folds lack.
    table = blobs([30, 0, 30, 1, 2])
    lacking = [3 not in table.y[train] for train, _ in table.folds]
    assert any(lacking)
    assert not all(lacking)
    result = result_of(run_of(method), table)
    assert 0.3 <= result["accuracy"] <= 1.0


@pytest.mark.parametrize("method", METHODS)
def test_a_training_fold_of_one_class_answers_that_class(method):
    table = blobs([20, 20])
    own = (table.y == 1).nonzero().flatten()
    fold = own, torch.arange(10)
    one = UCITable(
        "one", table.x, table.y, 2, table.split, (fold,) * 4, table.x_test,
        table.y_test, "made by hand",
    )  # fmt: skip
    result = result_of(run_of(method), one)
    assert result["accuracy"] == 0.0  # rows 0 to 9 are of the other class


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_result_and_no_global_state_moves(method):
    table = blobs([25, 25, 10], spread=3.0)
    run = run_of(method, seed=3)
    states = random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    state = torch.random.get_rng_state()
    first = without_seconds(result_of(run, table))
    assert torch.equal(torch.random.get_rng_state(), state)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert without_seconds(result_of(run, table)) == first
    assert random.getstate() == states[0]
    np.testing.assert_array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002


@pytest.mark.parametrize("method", ["random_forest", "svc", "xrfm"])
def test_another_seed_validates_on_other_rows(method):
    table = blobs([40, 40, 40], spread=4.0)
    found = [result_of(run_of(method, seed=seed), table) for seed in range(4)]
    assert len({one["validation"] for one in found}) > 1


def answers_elsewhere(table, number):
    """The same table with other answers in the test rows of a fold."""
    y, test = table.y.clone(), table.folds[number][1]
    y[test] = (y[test] + 1) % table.n_classes
    folds = (table.folds[number],) * 4
    return [
        UCITable(
            "made", table.x, some, table.n_classes, table.split, folds, table.x_test,
            table.y_test, "made by hand",
        )
        for some in (table.y, y)
    ]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_answers_of_test_rows_change_nothing_but_the_score(method, monkeypatch):
    table, other = answers_elsewhere(blobs([30, 30, 30], spread=3.0), 1)
    peer, told = tabular_peer_models.PEERS[method], []

    def fitted(task, part, choice):
        predict = peer.fitted(task, part, choice)

        def heard(x):
            told.append(predict(x).tolist())
            return predict(x)

        return heard

    spied = tabular_peer_models.Peer(peer.choose, fitted)
    spying = {**tabular_peer_models.PEERS, method: spied}
    monkeypatch.setattr("normalign_reproduction.items.peers.experiment.PEERS", spying)
    results = [
        without_seconds(result_of(run_of(method), one)) for one in (table, other)
    ]
    assert told[:4] == told[4:]
    for kept in ("chosen", "validation"):
        ours, theirs = ([fold[kept] for fold in r["folds"]] for r in results)
        assert ours == theirs
    assert results[0]["accuracy"] != results[1]["accuracy"]


def test_a_better_candidate_is_chosen():
    # A ring in a ring, and a kernel so wide that it is a line: that cannot part them.
    generator = torch.Generator().manual_seed(0)
    angle = 2 * torch.pi * torch.rand(200, generator=generator, dtype=torch.float64)
    y = torch.arange(200) % 2
    x = torch.stack([angle.cos(), angle.sin()], 1) * (0.3 + y[:, None])
    fold = torch.arange(0, 150), torch.arange(150, 200)
    table = UCITable("rings", x, y, 2, fold, (fold,) * 4, x[:0], y[:0], "made by hand")
    run = run_of("svc", costs=[1.0, 10.0], widths=[1e-6, 1.0])
    result = result_of(run, table)
    assert result["folds"][0]["chosen"] == {"cost": 1.0, "width": 1.0}  # the first
    assert result["accuracy"] == 1.0


def test_the_rounds_of_boosting_are_those_of_the_least_loss():
    table = blobs([60, 60], spread=8.0)  # noise: more rounds do worse
    run = run_of(
        "hist_gradient_boosting", learning_rate=1.0, max_rounds=40, patience=5,
        leaves=[2],
    )  # fmt: skip
    rounds = [f["chosen"]["n_rounds"] for f in result_of(run, table)["folds"]]
    assert all(1 <= one <= 40 for one in rounds)
    assert min(rounds) < 20


def halves(table):
    """The rows of a table in turn, to fit and to validate on; and all of them."""
    x, y = table.x.numpy(), table.y.numpy()
    fit, validation = (TablePart(x[start::2], y[start::2]) for start in (0, 1))
    return fit, validation, TablePart(x, y)


def task_of(method, **changes):
    return PeerTask(run_of(method, **changes).settings, 0, CPU, 1)


def test_boosting_chooses_what_plain_fits_of_each_length_find_best():
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
    best = min(losses, key=lambda one: losses[one])
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
    model = tabular_peer_models._catboost(task_of("catboost"), whole)
    assert model.get_params().get("border_count") == borders


def test_xrfm_is_refitted_for_as_many_iterations_as_it_chose(monkeypatch):
    heard = []

    def fitted(task, part, validation, **changes):
        heard.append((len(part.y), changes))
        return SimpleNamespace(predict=lambda x: np.zeros(len(x)))

    task = task_of("xrfm")
    monkeypatch.setattr(tabular_peer_models, "_xrfm", fitted)
    *_, whole = halves(blobs([6, 6]))
    PEERS["xrfm"].fitted(task, whole, {"ridge": 0.1, "iteration": 2})
    assert heard == [(12, {"reg": 0.1, "iters": 2, "return_best_params": False})]


def test_a_width_of_one_is_scikit_learns_scale():
    table = blobs([40, 40], spread=6.0)
    fit, validation, _ = halves(replace(table, x=7 * table.x))
    predict = PEERS["svc"].fitted(task_of("svc"), fit, {"cost": 1.0, "width": 1.0})
    plain = SVC(C=1.0, gamma="scale").fit(fit.x, fit.y)
    assert (predict(validation.x) == plain.predict(validation.x)).all()
    assert (plain.predict(validation.x) == validation.y).mean() > 0.5


def test_what_was_chosen_on_a_part_is_fitted_to_the_whole_fold(monkeypatch):
    sizes = []

    def choose(task, fit, validation):
        sizes.append(len(fit.y) + len(validation.y))
        return {}, 0.0

    def fitted(task, part, choice):
        sizes.append(len(part.y))
        return lambda x: np.zeros(len(x), dtype=int)

    peer = tabular_peer_models.Peer(choose, fitted)
    monkeypatch.setitem(tabular_peer_models.PEERS, "most_frequent", peer)
    result_of(run_of("most_frequent"), blobs([40, 40]))
    assert sizes == [60] * 8


def test_too_many_rows_are_skipped_and_said_so():
    result = result_of(run_of("svc", max_rows=50), blobs([40, 40]))
    assert result["accuracy"] is None
    assert result["skipped"] == "more than 50 training rows"
    assert result["n_rows"] == 80
    # it is the training rows that count, 60 of 80
    assert result_of(run_of("svc", max_rows=60), blobs([40, 40]))["accuracy"] > 0


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(tabular_peer_models, "import_module", missing)
    settings = {"method": "catboost", "protocol": "leak-free", **SMALL["catboost"]}
    run = Run("tabular", 1, "quick", "released", "bundled", settings, 0)
    with pytest.raises(ModuleNotFoundError, match=r"normalign-reproduction\[peers\]"):
        result_of(run, blobs([20, 20]))


def test_unknown_peers_and_leaking_protocols_are_refused():
    table = blobs([20, 20])
    with pytest.raises(ValueError, match="method must be one of"):
        result_of(run_of("oracle"), table)
    with pytest.raises(ValueError, match="protocol must be 'leak-free'"):
        result_of(run_of("most_frequent", protocol="released"), table)


def test_every_peer_has_settings_that_json_can_hold():
    assert set(PEER_SETTINGS) == set(tabular_peer_models.PEERS)
    assert set(QUICK_PEER_SETTINGS) <= set(PEER_SETTINGS)
    for name, settings in QUICK_PEER_SETTINGS.items():
        assert set(settings) == set(PEER_SETTINGS[name])
    json.dumps([PEER_SETTINGS, QUICK_PEER_SETTINGS], allow_nan=False)


def test_progress_rises_over_the_folds():
    heard = []
    peer_result(
        run_of("most_frequent"), blobs([20, 20]), device=CPU,
        progress=lambda share, words: heard.append((share, words)),
    )  # fmt: skip
    assert [share for share, _ in heard] == [0.0, 0.25, 0.5, 0.75]
    assert heard[0][1] == "most frequent"


def test_a_package_that_is_not_installed_names_its_extra():
    with pytest.raises(ModuleNotFoundError, match=r"normalign-reproduction\[peers\]"):
        tabular_peer_models._package("no_such_package")
