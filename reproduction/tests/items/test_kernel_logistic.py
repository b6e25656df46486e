"""Gaussian kernel logistic regression: what its figure trains and what it says."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from normalign import effective_rank, normal_alignment
from normalign.data import gaussian_blobs
from normalign.nn import GaussianKernelLogistic
from normalign.training import Ensemble, Member, rules
from normalign_reproduction.context import Context
from normalign_reproduction.items.kernel_logistic import experiment as kernel_logistic
from normalign_reproduction.items.kernel_logistic.experiment import CoupledDecay
from normalign_reproduction.items.kernel_logistic.item import ITEM
from normalign_reproduction.spec import Record, Run

CPU = torch.device("cpu")
SMALL = {
    "n_samples": 120, "n_centers": 12, "n_inputs": 4, "epochs": 12, "n_evaluated": 8,
    "n_measured": 20, "n_classes": 3,
}  # fmt: skip


def small_run(seed=0, **changed):
    settings = {**ITEM.settings["text"], **SMALL, **changed}
    return Run("kernel_logistic", 1, "quick", "text", "synthetic", settings, seed)


def record(n_classes, alignment, rank, accuracy, seed=0):
    columns = {
        "epoch": [0, 10], "normal_alignment": alignment, "effective_rank": rank,
        "test_accuracy": accuracy,
    }  # fmt: skip
    run = small_run(seed, n_classes=n_classes)
    return Record(run, {"history": {"columns": columns}})


def computed(tmp_path, *runs):
    return kernel_logistic.compute(runs, Context(CPU, tmp_path / "state"))


@pytest.fixture
def blobs():
    return gaussian_blobs(n_samples=60, n_inputs=4, n_classes=3)


def test_a_network_with_coupled_decay_goes_the_way_of_torchs_adam(blobs):
    start = GaussianKernelLogistic(4, 3, 5, 0.1, centers=blobs.x_train[:5]).double()
    ours = Ensemble(
        [CoupledDecay(start, decay=0.3)], blobs,
        [Member(0, rules.AdamW(0.01, weight_decay=0.0))],
        loss="cross_entropy", epochs=10,
    ).train()[0]  # fmt: skip
    theirs = copy.deepcopy(start)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01, weight_decay=0.3)
    for _ in range(10):
        optimizer.zero_grad()
        loss = cross_entropy(theirs(blobs.x_train.double()), blobs.y_train)
        loss.backward()
        optimizer.step()
    for name, parameter in theirs.named_parameters():
        weight = ours.weights[f"network.{name}"]
        torch.testing.assert_close(weight, parameter.detach(), rtol=1e-9, atol=1e-9)


def test_coupled_decay_leaves_output_and_input_gradient_alone():
    plain, x = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    decayed = CoupledDecay(plain, decay=7.0)
    torch.testing.assert_close(decayed(x), plain(x))
    jacobian = torch.func.vmap(torch.func.jacrev(decayed))(x)
    torch.testing.assert_close(jacobian, plain.weight.expand(4, 2, 3))


def test_the_curves_are_those_of_the_trained_models(tmp_path):
    """The last rows against a plain loop with torch's Adam and the closed form."""
    run = small_run(seed=3)
    (result,) = computed(tmp_path, run)
    blobs = kernel_logistic._blobs(run)
    model = kernel_logistic._start(run, blobs)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.001)
    for _ in range(run["epochs"]):
        optimizer.zero_grad()
        cross_entropy(model(blobs.x_train), blobs.y_train).backward()
        optimizer.step()
    x = blobs.x_train[:20]
    jacobian = model.jacobian(x).detach()
    columns = result["history"]["columns"]
    # float32 steps, and numbers stored with six digits
    near = {"rel": 1e-3}
    wanted = float(normal_alignment(jacobian, x).mean())
    assert columns["normal_alignment"][-1] == pytest.approx(wanted, **near)
    wanted = float(effective_rank(jacobian).mean())
    assert columns["effective_rank"][-1] == pytest.approx(wanted, **near)


def test_centers_start_at_the_means_of_clusters():
    run = small_run(n_centers=3, std=1e-3, n_classes=3)
    blobs = kernel_logistic._blobs(run)
    centers = kernel_logistic._start(run, blobs).centers.detach()
    means = torch.stack([blobs.x_train[blobs.y_train == c].mean(0) for c in range(3)])
    # three tight blobs and three clusters: every center is a blob's mean
    assert torch.cdist(means, centers).amin(1).max() < 1e-2


def test_a_run_has_the_same_numbers_alone_and_in_company(tmp_path):
    runs = [small_run(seed) for seed in (0, 1)]
    together = computed(tmp_path / "both", *runs)
    alone = computed(tmp_path / "one", runs[1])
    for name, values in alone[0]["history"]["columns"].items():
        # sums of float32 may run in another order
        assert together[1]["history"]["columns"][name] == pytest.approx(
            values, rel=1e-3, abs=1e-4
        )


def test_a_batch_is_computed_twice_alike(tmp_path):
    runs = [small_run(seed) for seed in (0, 1)]
    assert computed(tmp_path / "a", *runs) == computed(tmp_path / "b", *runs)


def test_decoupled_decay_gives_other_curves(tmp_path):
    coupled, decoupled = (
        computed(tmp_path / kind, small_run(decay_kind=kind, weight_decay=1.0))[0]
        for kind in ("coupled", "decoupled")
    )
    assert coupled != decoupled


def test_an_unknown_decay_is_refused(tmp_path):
    with pytest.raises(ValueError, match="decay_kind must be 'coupled' or"):
        computed(tmp_path, small_run(decay_kind="loose"))


def test_batches_hold_one_number_of_classes_and_all_seeds():
    runs = ITEM.runs(size="full", preset="text", digits="mnist")
    groups = kernel_logistic.batches(runs, CPU)
    assert [{run["n_classes"] for run in group} for group in groups] == [{6}, {8}, {10}]
    assert all([run.seed for run in group] == [0, 1, 2, 3, 4] for group in groups)


def test_the_full_size_is_the_papers():
    run = ITEM.runs(size="full", preset="text", digits="mnist")[0]
    paper = {
        "n_samples": 1000, "n_inputs": 10, "train_fraction": 0.8, "n_centers": 50,
        "learning_rate": 0.01, "weight_decay": 0.001, "epochs": 1000,
    }  # fmt: skip
    assert {name: run[name] for name in paper} == paper


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (0, ([0.3, 0.95], [1, 1], [1, 1]), ([0.3, 0.85], [1, 1], [1, 1])),
        (0, ([0.3, 0.95], [1, 1], [1, 1]), ([0.9, 0.95], [1, 1], [1, 1])),
        (1, ([1, 1], [1.4, 1.1], [1, 1]), ([1, 1], [1.4, 1.24], [1, 1])),
        (1, ([1, 1], [1.4, 1.1], [1, 1]), ([1, 1], [3.0, 1.3], [1, 1])),
        (1, ([1, 1], [1.4, 1.1], [1, 1]), ([1, 1], [1.0, 1.0], [1, 1])),
        (2, ([1, 1], [1, 1], [0.1, 0.96]), ([1, 1], [1, 1], [0.1, 0.9])),
    ],
)
def test_each_claim_holds_and_fails_by_its_rule(claim, good, bad):
    records = [record(8, *bad), record(6, *good)]
    verdicts = ITEM.claims[claim].check(records)
    assert [(v.name, v.holds) for v in verdicts] == [
        ("6 classes", True),
        ("8 classes", False),
    ]


def test_the_figure_has_a_line_for_each_number_of_classes_in_three_panels():
    records = [record(k, [0.3, 0.9], [1.5, 1.1], [0.1, 1.0]) for k in (6, 8, 10)]
    drawing = ITEM.figures[0].draw(records)
    assert [len(axis.lines) for axis in drawing.axes] == [3, 3, 3]
    assert all(axis.get_xscale() == "log" for axis in drawing.axes)


def test_results_stay_small(tmp_path):
    (result,) = computed(Path(tmp_path), small_run())
    assert len(result["history"]["columns"]["epoch"]) <= 8
