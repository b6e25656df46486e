"""Adversarially trained networks: their images, names, results and interruptions."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from normalign import local_affine, local_geometry
from normalign.nn import resnet18
from normalign_reproduction import catalogue
from normalign_reproduction.context import Context
from normalign_reproduction.items.capacity import experiment
from normalign_reproduction.items.capacity.geometry import answer_alignments
from normalign_reproduction.items.capacity.images import pictures, round_robin
from normalign_reproduction.items.capacity.networks import (
    calibrated,
    network_cost,
    network_named,
)
from normalign_reproduction.robust import Recipe
from normalign_reproduction.spec import Run

CPU = torch.device("cpu")
RECIPE = {
    "objective": "dkl", "epochs": 4, "batch_size": 8, "n_steps": 1, "step_size": 0.1,
    "radius": 0.1, "averaging": 0.5, "averaged_from": 0.5,
}  # fmt: skip
SMALL = {
    "network": "resnet10-w2", "images": "digits", "pooled": 4, "n_train": 20,
    "n_test": 20, "n_validation": 10, "n_measured": 10, "places": ["layer2"],
    "n_evaluated": 3, "control": True,
    "attack": {"radius": 0.1, "n_steps": 2, "n_restarts": 1}, "recipe": RECIPE,
}  # fmt: skip


def small_run(seed=0, *, recipe=None, **changed):
    settings = {**SMALL, **changed, "recipe": {**RECIPE, **(recipe or {})}}
    return Run("robust_images", 1, "quick", "text", "digits_5000", settings, seed)


def computed(folder, *runs, **options):
    found = experiment.compute(runs, Context(CPU, folder / "state", **options))
    return [{k: v for k, v in one.items() if k != "seconds"} for one in found]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return computed(tmp_path_factory.mktemp("whole"), small_run())[0]


# images


def test_rounds_of_classes_are_nested_and_balanced():
    labels = torch.tensor([2, 0, 0, 1, 2, 1, 0, 1, 2])
    assert round_robin(labels, count=6).tolist() == [1, 3, 0, 2, 5, 4]
    assert round_robin(labels, count=3).tolist() == [1, 3, 0]
    assert round_robin(labels, count=3, after=2).tolist() == [6, 7, 8]
    with pytest.raises(ValueError, match=r"multiple of the 3 classes .* got 4"):
        round_robin(labels, count=4)
    with pytest.raises(ValueError, match="at most 3, after 2 of each class, got 6"):
        round_robin(labels, count=6, after=2)


def test_digits_are_pictures_in_three_parts_that_share_nothing():
    data = pictures("digits", "digits_5000", n_train=60, n_test=20, n_validation=30)
    assert data.x_train.shape == (60, 1, 28, 28)
    assert 0 <= data.x_train.min() < data.x_train.max() <= 1
    assert data.y_train.tolist() == [*range(10)] * 6
    assert data.y_validation.tolist() == [*range(10)] * 3
    parts = torch.cat([data.x_train, data.x_test, data.x_validation]).flatten(1)
    assert len(parts.unique(dim=0)) == 110
    less = pictures("digits", "digits_5000", n_train=20, n_test=20)
    assert torch.equal(less.x_train, data.x_train[:20])
    assert len(less.x_validation) == 0
    assert less.exact
    half = pictures("digits", "digits_5000", n_train=20, n_test=20, pooled=2)
    torch.testing.assert_close(
        half.x_train[:, :, 3, 5], less.x_train[:, :, 6:8, 10:12].mean((2, 3))
    )


def test_impossible_images_are_refused():
    with pytest.raises(ValueError, match="images must be 'cifar10' or 'digits'"):
        pictures("mnist", "mnist", n_train=10, n_test=10)
    with pytest.raises(ValueError, match="n_train must be at most 2000"):
        pictures("digits", "digits_5000", n_train=3000, n_test=10, n_validation=10)


@pytest.mark.data
def test_subsets_of_cifar10_are_nested_and_say_what_they_are():
    data = pictures("cifar10", "cifar10", n_train=100, n_test=50, n_validation=100)
    assert data.x_train.shape == (100, 3, 32, 32)
    assert data.y_validation.bincount().tolist() == [10] * 10
    parts = torch.cat([data.x_train, data.x_validation]).flatten(1)
    assert len(parts.unique(dim=0)) == 200
    less = pictures("cifar10", "cifar10", n_train=50, n_test=50)
    assert torch.equal(less.x_train, data.x_train[:50])
    assert (data.origin == "CIFAR-10") is data.exact
    assert "CIFAR-10" in data.origin


# networks and their geometry


def test_a_name_gives_blocks_width_and_weights():
    options = {"n_channels": 1, "generator": torch.Generator().manual_seed(3)}
    network = network_named("resnet18-w4", **options)
    options["generator"].manual_seed(3)
    other = resnet18(width=4, **options)
    for mine, theirs in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for wrong in ("resnet19", "wrn28", "resnet18-4", "vgg"):
        with pytest.raises(ValueError, match="name must be 'wrn"):
            network_named(wrong)


def test_larger_networks_cost_more():
    names = ("resnet10-w2", "resnet18-w4", "wrn10-1", "wrn28-2", "resnet50", "wrn28-10")
    costs = [network_cost(name) for name in names]
    assert costs == sorted(costs)


def test_calibration_sets_the_statistics_of_the_images_and_no_weights():
    network = network_named("resnet10-w2", n_channels=1)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    x = torch.rand(40, 1, 8, 8)
    own = calibrated(network, x, batch_size=20)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    for mine, theirs in zip(own.parameters(), network.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert not own.training
    # Halves of equal size: the mean of their means is the mean of all.
    expected = own.stem[0](x).mean((0, 2, 3))
    torch.testing.assert_close(own.stem[1].running_mean, expected, rtol=1e-5, atol=1e-6)


def test_the_answers_row_is_that_of_the_jacobian():
    network = network_named("resnet10-w2", n_channels=1).double()
    x = torch.rand(7, 1, 6, 6, dtype=torch.float64)
    network, y = calibrated(network, x), torch.arange(7)
    found = answer_alignments(network, x, y, places=[None, "layer3"])
    inputs = {None: x, "layer3": network.layer2(network.layer1(network.stem(x)))}
    for at, z in inputs.items():
        rows = local_affine(network, x, at=at).jacobian[torch.arange(7), y]
        expected = torch.cosine_similarity(rows, z.flatten(1))
        torch.testing.assert_close(found[at], expected, rtol=1e-8, atol=1e-10)


# runs


def test_runs_are_alone_and_the_longest_come_first():
    runs = catalogue.item("capacity").runs(size="full", preset="text", digits="mnist")
    order = experiment.batches(runs, CPU)
    assert all(len(batch) == 1 for batch in order)
    found = [(batch[0]["network"], batch[0]["n_train"]) for batch in order]
    assert found[:2] == [("wrn28-10", 3000), ("wrn28-10", 1000)]
    assert found[-1] == ("wrn28-2", 100)


def test_a_smaller_size_changes_the_recipe_and_may_count_steps():
    run = small_run(shortened={"steps": 12, "batch_size": 5})
    recipe = experiment.recipe_of(run)
    assert (recipe.epochs, recipe.batch_size, recipe.n_steps) == (3, 5, 1)
    assert experiment.recipe_of(small_run()).epochs == 4


@pytest.mark.parametrize("preset", ["released", "text"])
def test_the_full_recipes_are_those_of_the_trainer(preset):
    runs = catalogue.item("capacity").runs(size="full", preset=preset, digits="mnist")
    theirs = Recipe.released() if preset == "released" else Recipe()
    for run in runs:
        recipe = experiment.recipe_of(run)
        assert asdict(recipe) == {**asdict(theirs), "precision": "bf16"}


def test_the_largest_subset_is_run_where_it_is_asked_for():
    item, options = catalogue.item("capacity"), {"preset": "text", "digits": "mnist"}
    usual = item.runs(size="full", **options)
    assert {run["n_train"] for run in usual} == {100, 300, 1000, 3000}
    asked = item.runs(size="full", **options, seeds=1)
    assert {run["n_train"] for run in asked} == {100, 300, 1000, 3000, 10_000}


@pytest.mark.parametrize("name", ["capacity", "layers"])
def test_full_size_is_on_photographs_and_quick_size_on_digits(name):
    item, options = catalogue.item(name), {"preset": "text", "digits": "digits_5000"}
    full, quick = (item.runs(size=size, **options) for size in ("full", "quick"))
    assert {(run.data, run["images"]) for run in full} == {("cifar10", "cifar10")}
    assert {run.data for run in quick} == {"digits_5000"}


# results


def test_a_result_has_accuracies_and_geometry_of_both_weights(result):
    assert json.loads(json.dumps(result)) == result
    names = {
        "train_accuracy", "test_accuracy", "robust_accuracy", "validation_accuracy",
        "validation_robust_accuracy", "normal_alignment", "effective_rank",
        "alignment_ratio", "centroid_alignment", "jacobian_norm", "answer_alignment",
    }  # fmt: skip
    for numbers in (result, result["averaged"]):
        assert names <= numbers.keys()
        assert numbers["robust_accuracy"] <= numbers["test_accuracy"]
        assert 0 <= numbers["normal_alignment"] <= 1
        assert set(numbers["places"]) == set(numbers["places_test"]) == {"layer2"}
    assert result["averaged"]["normal_alignment"] != result["normal_alignment"]
    assert result["places"] != result["places_test"]
    assert result["n_classes"] == 10
    network = network_named("resnet10-w2", n_channels=1)
    assert result["n_parameters"] == sum(p.numel() for p in network.parameters())
    columns = result["history"]["columns"]
    assert columns["epoch"] == [1, 4]
    assert columns["test_accuracy"][-1] == result["test_accuracy"]
    assert columns["normal_alignment"][-1] == result["normal_alignment"]


def test_the_control_is_the_network_before_training(tmp_path):
    run = small_run(recipe={"averaging": 0.0}, n_validation=0)
    (found,) = computed(tmp_path, run)
    data = pictures("digits", "digits_5000", n_train=20, n_test=20, pooled=4)
    start = network_named(
        "resnet10-w2", n_channels=1, generator=torch.Generator().manual_seed(0)
    )
    expected = local_geometry(calibrated(start, data.x_train), data.x_train[:10]).mean()
    for name in ("normal_alignment", "effective_rank", "jacobian_norm"):
        # Results have six digits.
        assert found["untrained"][name] == pytest.approx(expected[name], rel=1e-5)
    assert found["averaged"] is None
    assert found["validation_accuracy"] is None


def test_progress_names_network_images_epoch_and_numbers(tmp_path):
    received = []
    computed(tmp_path, small_run(), progress=lambda *one: received.append(one))
    shares = [share for share, _ in received]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    words = received[1][1]
    assert words.startswith("resnet10-w2, 20 images, epoch 2 of 4; after 1: train")
    for word in ("test", "robust", "alignment"):
        assert word in words


def test_an_interrupted_run_gives_the_same_numbers(tmp_path, result):
    class Stopped(Exception):
        pass

    def stop(share, words):
        if "epoch 3" in words:
            raise Stopped

    with pytest.raises(Stopped):
        computed(tmp_path, small_run(), progress=stop, checkpoint_seconds=0)
    (path,) = tmp_path.iterdir()
    assert path.name == f"state.{small_run().key}.safetensors"
    assert computed(tmp_path, small_run(), checkpoint_seconds=0) == [result]


_KILLED = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.items.test_capacity_experiment import computed, small_run
def kill(share, words):
    if "epoch 3" in words:
        os.kill(os.getpid(), signal.SIGKILL)
computed(Path(sys.argv[1]), small_run(), progress=kill, checkpoint_seconds=0)
"""


def test_a_killed_process_leaves_a_run_that_ends_the_same(tmp_path, result):
    process = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)], check=False,
        cwd=Path(__file__).parents[2], env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    assert list(tmp_path.glob("state*"))
    assert computed(tmp_path, small_run(), checkpoint_seconds=0) == [result]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({}, "the loss must be finite"),
        # One step: the loss is finite, and a network without outputs right by chance.
        ({"epochs": 1, "batch_size": 20}, "outputs must be finite"),
    ],
)
def test_a_diverged_run_has_the_keys_of_others_and_no_numbers(
    tmp_path, result, caplog, recipe, message
):
    (lost,) = computed(tmp_path, small_run(recipe={"learning_rate": 1e30, **recipe}))
    assert lost.keys() | {"seconds"} >= result.keys()
    for name in ("train_accuracy", "robust_accuracy", "normal_alignment", "averaged"):
        assert lost[name] is None
    assert lost["places"] == {}
    assert message in caplog.text


def test_measurements_during_training_are_short_and_the_last_is_as_asked(
    tmp_path, monkeypatch
):
    asked = []

    def spy(network, x, y, **settings):
        asked.append((len(x), settings))
        return {"accuracy": 0.5, "robust_accuracy": 0.25}

    monkeypatch.setattr(experiment, "evaluate", spy)
    attack = {"radius": 0.1, "n_steps": 12, "n_restarts": 3}
    recipe = {"precision": "bf16", "epochs": 1}
    (found,) = computed(tmp_path, small_run(attack=attack, recipe=recipe))
    first, *rest = asked
    assert first == (20, {"radius": 0.1, "n_steps": 10, "precision": "bf16"})
    # Test and validation images, of the final and of the averaged weights.
    assert rest == [(20, attack), (10, attack)] * 2
    assert found["robust_accuracy"] == 0.25
    # Numbers of another attack have another name.
    assert "robust_accuracy" not in found["history"]["columns"]
    assert found["history"]["columns"]["rough_robust_accuracy"] == [0.25]


def test_runs_of_one_batch_have_their_own_seeds_networks_and_states(
    tmp_path, monkeypatch
):
    started = set()

    class Trainer(experiment.RobustTrainer):
        def __init__(self, network, *data, seed, device):
            started.add((seed, float(next(network.parameters()).detach().sum())))
            super().__init__(network, *data, seed=seed, device=device)

    monkeypatch.setattr(experiment, "RobustTrainer", Trainer)
    runs = [small_run(seed=seed, recipe={"epochs": 1}) for seed in (0, 3)]
    one, other = computed(tmp_path, *runs, checkpoint_seconds=0)
    assert one["history"] != other["history"]
    assert {seed for seed, _ in started} == {0, 3}
    assert len({total for _, total in started}) == 2
    kept = sorted(path.name for path in tmp_path.glob("state*"))
    assert kept == sorted(f"state.{run.key}.safetensors" for run in runs)
