"""Jacobians equal to zero: what the figure trains and what it says."""

import pytest
import torch

from normalign import local_geometry
from normalign.nn import mlp
from normalign.training import Ensemble, Member, rules
from normalign_reproduction.context import Context
from normalign_reproduction.data.digits import digits
from normalign_reproduction.items.zero_jacobian import experiment as zero_jacobian
from normalign_reproduction.items.zero_jacobian.item import ITEM
from normalign_reproduction.spec import Record, Run

CPU = torch.device("cpu")
SMALL = {
    "n_train": 40, "n_test": 20, "hidden": [12], "batch_size": 20, "epochs": 4,
    "evaluate_every": 2, "attack_steps": 2, "test_steps": 2, "n_measured": 5,
    "n_attacked": 20, "gamma": 1,
}  # fmt: skip
GROWS, VANISHES, DEGRADES, SETTLES = ITEM.claims


def small_run(seed=0, **changed):
    settings = {**ITEM.settings["text"], **SMALL, **changed}
    return Run("zero_jacobian", 1, "quick", "text", "digits_5000", settings, seed)


def computed(folder, *runs, **options):
    return zero_jacobian.compute(runs, Context(CPU, folder / "state", **options))


def record(gamma, *, jacobian=(1, 1), offset=(1, 1, 1), right=(0.9, 0.8), seed=0):
    columns = {
        "epoch": [0, 80, 100], "jacobian_norm": [jacobian[0], 5.0, jacobian[1]],
        "offset_norm": list(offset), "test_accuracy": [0.1, 0.1, right[0]],
        "robust_accuracy": [0.0, 0.0, right[1]],
    }  # fmt: skip
    run = small_run(seed, gamma=gamma)
    return Record(run, {"history": {"columns": columns}})


def verdicts(claim, *records):
    return {verdict.name: verdict.holds for verdict in claim.check(records)}


def test_the_full_size_is_the_papers():
    runs = ITEM.runs(size="full", preset="released", digits="mnist")
    assert {run["gamma"] for run in runs} == {0, 1, 10, 100, 1000}
    run = runs[0]
    assert (run["n_train"], run["epochs"], run["weight_decay"]) == (1000, 100, 1e-4)
    assert zero_jacobian.batches(runs, torch.device("cuda")) == [runs]


def test_on_a_cpu_a_batch_holds_all_weights_of_a_seed():
    runs = ITEM.runs(size="quick", preset="text", digits="digits_5000")
    seeds = [[run for run in runs if run.seed == seed] for seed in range(2)]
    assert zero_jacobian.batches(runs, CPU) == seeds
    other = small_run(n_train=30)
    assert zero_jacobian.batches([*runs, other], CPU) == [*seeds, [other]]


def test_curves_start_at_the_same_network_and_end_apart(tmp_path):
    free, bound = (
        result["history"]["columns"]
        for result in computed(
            tmp_path,
            *(small_run(gamma=g, epochs=40, learning_rate=0.01) for g in (0, 1000)),
        )
    )
    assert free["epoch"] == list(range(0, 41, 2))
    data = digits("digits_5000", n_train=40, n_test=20, normalise=False)
    start = mlp([784, 12, 10], generator=torch.Generator().manual_seed(0))
    geometry = local_geometry(start, data.x_train[:5]).mean()
    for name in ("jacobian_norm", "offset_norm"):
        assert free[name][0] == bound[name][0]
        # Six digits are kept.
        assert free[name][0] == pytest.approx(geometry[name], rel=1e-5)
    assert bound["jacobian_norm"][-1] < 0.5 * free["jacobian_norm"][-1]
    assert all(r <= t for r, t in zip(free["robust_accuracy"], free["test_accuracy"],
                                      strict=True))  # fmt: skip


def test_without_attack_and_penalty_it_is_plain_training(tmp_path):
    run = small_run(seed=2, gamma=0, radius=0.0)
    (result,) = computed(tmp_path, run)
    data = digits("digits_5000", n_train=40, n_test=20, normalise=False)
    plain = Ensemble(
        [mlp([784, 12, 10], generator=torch.Generator().manual_seed(2))], data,
        [Member(2, rules.AdamW(1e-3, weight_decay=1e-4))],
        loss="cross_entropy", epochs=4, batch_size=20,
    ).train()[0]  # fmt: skip
    columns = result["history"]["columns"]
    # The same steps on the same numbers; six digits are kept.
    expected = plain.history["train_loss"][-1]
    assert columns["train_loss"][-1] == pytest.approx(expected, rel=1e-5)
    assert columns["robust_accuracy"] == columns["test_accuracy"]


def test_a_killed_batch_gives_the_same_numbers(tmp_path):
    runs = [small_run(seed=s, gamma=g) for g in (0, 10) for s in range(2)]
    whole = computed(tmp_path / "a", *runs)

    class Killed(Exception):
        pass

    def kill(share, words):
        if share > 0.4:
            raise Killed

    with pytest.raises(Killed):
        computed(tmp_path / "b", *runs, progress=kill, checkpoint_seconds=0)
    assert computed(tmp_path / "b", *runs, checkpoint_seconds=0) == whole


def test_small_weights_must_let_jacobians_grow():
    records = [record(0, jacobian=(1, 2)), record(1, jacobian=(1, 1.05)), record(10)]
    assert verdicts(GROWS, *records) == {"gamma = 0": True, "gamma = 1": False}


def test_large_weights_must_make_jacobians_vanish():
    records = [
        record(1, jacobian=(1, 0.01)), record(100, jacobian=(1, 0.01)),
        record(1000, jacobian=(1, 0.2)),
    ]  # fmt: skip
    assert verdicts(VANISHES, *records) == {"gamma = 100": True, "gamma = 1000": False}


def test_large_weights_must_cost_accuracy():
    records = [
        record(0, right=(0.8, 0.6)), record(100, right=(0.2, 0.2)),
        record(1000, right=(0.7, 0.1)),
    ]  # fmt: skip
    assert verdicts(DEGRADES, *records) == {
        "test accuracy, gamma = 100": True,
        "robust accuracy, gamma = 100": True,
        "test accuracy, gamma = 1000": False,
        "robust accuracy, gamma = 1000": True,
    }
    assert DEGRADES.check(records[1:]) == []


def test_offsets_must_have_settled():
    records = [
        record(0, offset=(1, 1.9, 2.0)), record(1, offset=(1, 3.0, 2.0)),
        record(10, offset=(1, 1.0, 2.0)),
    ]  # fmt: skip
    assert verdicts(SETTLES, *records) == {
        "gamma = 0": True, "gamma = 1": False, "gamma = 10": False,
    }  # fmt: skip


def test_claims_are_of_means_over_seeds():
    pair = [record(0, jacobian=(1, end), seed=s) for s, end in enumerate((0.9, 1.4))]
    assert verdicts(GROWS, *pair) == {"gamma = 0": True}
    assert verdicts(GROWS, pair[0]) == {"gamma = 0": False}


def test_the_figure_has_the_papers_three_panels(tmp_path):
    runs = [small_run(gamma=g) for g in (0, 1, 10)]
    results = computed(tmp_path, *runs)
    records = [Record(*pair) for pair in zip(runs, results, strict=True)]
    left, middle, right = ITEM.figures[0].draw(records).axes
    assert left.get_xscale() == "log"
    assert middle.get_yscale() == "log"
    assert len(middle.get_lines()) == len(right.get_lines()) == 3
    clean = left.get_lines()[0].get_ydata()
    expected = results[0]["history"]["columns"]["test_accuracy"][-1]
    assert clean[0] == pytest.approx(100 * expected)
