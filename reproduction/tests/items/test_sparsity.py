"""Data sparsity: what the figure trains and what it says."""

import math

import pytest
import torch

from normalign import local_geometry
from normalign.nn import mlp
from normalign.training import Ensemble, Member, rules
from normalign_reproduction.context import Context
from normalign_reproduction.data.digits import digits
from normalign_reproduction.items.sparsity import experiment as sparsity
from normalign_reproduction.items.sparsity.item import ITEM
from normalign_reproduction.spec import Record, Run

CPU = torch.device("cpu")
SMALL = {
    "n_train": 50, "n_test": 20, "hidden": [12, 12], "batch_size": 20, "epochs": 4,
    "n_evaluated": 4, "n_measured": 5, "strength": 0.5,
}  # fmt: skip


def small_run(seed=0, **changed):
    settings = {**ITEM.settings["text"], **SMALL, **changed}
    return Run("sparsity", 1, "quick", "text", "digits_5000", settings, seed)


def computed(folder, *runs, **options):
    return sparsity.compute(runs, Context(CPU, folder / "state", **options))


def record(strength, alignment, seed=0):
    columns = {"epoch": [0, 10], "normal_alignment": [0.3, alignment]}
    run = small_run(seed, strength=strength)
    return Record(run, {"history": {"columns": columns}})


def test_the_full_size_is_the_papers():
    runs = ITEM.runs(size="full", preset="released", digits="mnist")
    assert {run["strength"] for run in runs} == {0.1, 0.2, 0.3, 0.5, 0.75, 1.0}
    run = runs[0]
    assert (run["n_train"], run["batch_size"], run["hidden"]) == (2000, 100, [256] * 3)
    assert (run["learning_rate"], run["weight_decay"], run["weight"]) == (
        1e-3, 1e-4, 1e-4,
    )  # fmt: skip
    assert (run["max_degrees"], run["max_shift"], run["noise"]) == (30, 0.2, 0.3)
    assert run["epochs"] * run["n_train"] / run["batch_size"] == 1e5
    assert sparsity.batches(runs, torch.device("cuda")) == [runs]


def test_on_a_cpu_a_batch_holds_all_strengths_of_a_seed():
    runs = ITEM.runs(size="quick", preset="text", digits="digits_5000")
    seeds = [[run for run in runs if run.seed == seed] for seed in range(2)]
    assert sparsity.batches(runs, CPU) == seeds
    other = small_run(n_train=30)
    assert sparsity.batches([*runs, other], CPU) == [*seeds, [other]]


def test_curves_run_over_steps_and_start_at_the_same_network(tmp_path):
    runs = [small_run(strength=g) for g in (0.1, 1.0)]
    weak, strong = (
        result["history"]["columns"] for result in computed(tmp_path, *runs)
    )
    assert weak["epoch"] == [0, 1, 2, 4]
    assert weak["step"] == [0, 3, 6, 12]  # 50 images in batches of 20
    assert weak["normal_alignment"][0] == strong["normal_alignment"][0]
    assert weak["normal_alignment"][-1] != strong["normal_alignment"][-1]
    data = digits("digits_5000", n_train=50, n_test=20, normalise=False)
    start = mlp([784, 12, 12, 10], generator=torch.Generator().manual_seed(0))
    geometry = local_geometry(start, data.x_train[:5]).mean()
    # Six digits are kept.
    assert weak["normal_alignment"][0] == pytest.approx(
        geometry["normal_alignment"], rel=1e-5
    )


def test_without_augmentation_it_is_plain_training_with_grokalign(tmp_path):
    run = small_run(seed=2, strength=0.0)
    (result,) = computed(tmp_path, run)
    data = digits("digits_5000", n_train=50, n_test=20, normalise=False)
    plain = Ensemble(
        [mlp([784, 12, 12, 10], generator=torch.Generator().manual_seed(2))], data,
        [Member(2, rules.AdamW(1e-3, weight_decay=1e-4), weight=1e-4)],
        loss="cross_entropy", epochs=4, batch_size=20,
    ).train()[0]  # fmt: skip
    found = result["history"]["columns"]["train_loss"][-1]
    # float32, and bilinear weights of 1 up to rounding, over 12 steps.
    assert found == pytest.approx(plain.history["train_loss"][-1], rel=1e-3)


def test_a_killed_batch_gives_the_same_numbers(tmp_path):
    runs = [small_run(seed=s, strength=g) for g in (0.1, 1.0) for s in range(2)]
    whole = computed(tmp_path / "a", *runs)

    class Killed(Exception):
        pass

    def kill(share, words):
        if share > 0.4:
            raise Killed

    with pytest.raises(Killed):
        computed(tmp_path / "b", *runs, progress=kill, checkpoint_seconds=0)
    assert computed(tmp_path / "b", *runs, checkpoint_seconds=0) == whole


@pytest.mark.parametrize(
    ("ends", "holds"),
    [
        ([0.5, 0.4, 0.3, 0.2], True),
        ([0.5, 0.3, 0.4, 0.2], True),  # a rank correlation of -0.8
        ([0.5, 0.2, 0.3, 0.4], False),  # out of order
        ([0.5, 0.49, 0.48, 0.45], False),  # by too little
        ([0.2, 0.3, 0.4, 0.5], False),
        ([0.3, 0.3, 0.3, 0.3], False),
    ],
)
def test_the_claim_is_that_alignment_falls(ends, holds):
    strengths = [0.1, 0.3, 0.5, 1.0]
    records = [
        record(g, end + spread, seed)
        for g, end in zip(strengths, ends, strict=True)
        for seed, spread in enumerate((-0.01, 0.01))
    ]
    for given in (records, records[::-1]):
        (verdict,) = ITEM.claims[0].check(given)
        assert verdict.holds is holds
        assert "rank correlation" in verdict.why


def test_two_strengths_are_too_few_to_tell():
    (verdict,) = ITEM.claims[0].check([record(0.1, 0.5), record(1.0, 0.2)])
    assert verdict.holds is None


def test_the_figure_has_a_line_for_each_strength(tmp_path):
    runs = [small_run(strength=g) for g in (0.1, 1.0)]
    results = computed(tmp_path, *runs)
    records = [Record(*pair) for pair in zip(runs, results, strict=True)]
    (axis,) = ITEM.figures[0].draw(records).axes
    assert len(axis.get_lines()) == 2
    assert axis.get_xscale() == "log"
    shown = axis.get_lines()[0].get_ydata()
    assert math.isclose(
        shown[-1], results[0]["history"]["columns"]["normal_alignment"][-1]
    )
