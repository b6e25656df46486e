"""The presets of Table 1 are the published settings, and small ones really run."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from normalign.data import (
    Dataset,
    modular_addition,
    sparse_parity,
    xor_clusters,
    xor_noise,
)
from normalign.nn import Quadratic, mlp
from normalign.regularizers import PenaltyForm
from normalign.training import rules, span_reduction, train_together
from normalign_reproduction.context import Context
from normalign_reproduction.data import digits as loaded
from normalign_reproduction.files import write_checked
from normalign_reproduction.items.table1 import experiment as acceleration
from normalign_reproduction.items.table1.experiment import (
    EXTRA,
    METHODS,
    acceleration_ensemble,
    batches,
    compute,
    constants,
    member,
)
from normalign_reproduction.items.table1.tasks import TASKS, Instance, task
from normalign_reproduction.spec import Run

CPU = torch.device("cpu")
ADAM = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-25}

# The released settings; columns as in Task.
OPTIMIZERS = {
    "xor": rules.SGD(0.1, momentum=0.2, weight_decay=0.1),
    "parity": rules.AdamW(0.01, weight_decay=0.1, **ADAM),
    "mnist_ce": rules.AdamW(1e-3, weight_decay=0.01, **ADAM),
    "mnist_se": rules.AdamW(1e-3, weight_decay=0.01, **ADAM),
    "modular": rules.AdamW(1e-3, weight_decay=1.0, **ADAM),
}
WEIGHTS = {
    "xor": 1.0, "parity": 0.1, "mnist_ce": 0.01, "mnist_se": 0.01, "modular": 0.01,
}  # fmt: skip
EPOCHS = {
    "xor": 1000, "parity": 20_000, "mnist_ce": 20_000, "mnist_se": 20_000,
    "modular": 1000,
}  # fmt: skip
LOSSES = {
    "xor": "squared_error", "parity": "cross_entropy", "mnist_ce": "cross_entropy",
    "mnist_se": "squared_error", "modular": "cross_entropy",
}  # fmt: skip
TEST_ACCURACY = {
    "xor": 0.95, "parity": 0.9, "mnist_ce": 0.8, "mnist_se": 0.8, "modular": 0.99,
}  # fmt: skip
BATCHES = {
    "released": {
        "xor": None, "parity": None, "mnist_ce": 196, "mnist_se": 196, "modular": 32,
    },
    "text": {
        "xor": None, "parity": None, "mnist_ce": 128, "mnist_se": 128, "modular": 32,
    },
}  # fmt: skip
EVERY_TASK = pytest.mark.parametrize("name", list(OPTIMIZERS))
EVERY_PRESET = pytest.mark.parametrize("preset", ["released", "text"])


def first_inputs(network: nn.Module) -> list[int]:
    return [layer.in_features for layer in network if isinstance(layer, nn.Linear)]


@pytest.fixture
def digits(monkeypatch):
    """Stand-ins for MNIST's files: what was asked for, and images of the right size."""
    asked = []

    def load(**options):
        asked.append(options)
        x, y = torch.zeros(options["n_train"], 784), torch.zeros(1024).long()
        return Dataset(x, y, x, y, name="digits", origin="zeros")

    monkeypatch.setattr(loaded, "load_mnist", load)
    loaded.digits.cache_clear()
    yield asked
    loaded.digits.cache_clear()


def small_modular(seed, device):
    network = mlp(
        [14, 16, 7], activation="quadratic", bias=False,
        generator=torch.Generator().manual_seed(seed), dtype=torch.float64,
    )  # fmt: skip
    return Instance(network, modular_addition(modulus=7, seed=seed))


def small_parity(seed, device):
    network = mlp([9, 20, 2], generator=torch.Generator().manual_seed(seed))
    return Instance(network, sparse_parity(n_noise=6, n_samples=60, seed=seed))


def small_xor(seed, device):
    data = xor_clusters(n_train=12, n_test=12, n_inputs=60, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    reduced = span_reduction(
        mlp([60, 16, 1], bias=False, generator=generator), data.x_train
    )
    noise = reduced.project(xor_noise(data.x_test, seed=seed)), data.y_test
    x_test = reduced.project(data.x_test)
    data = replace(data, x_train=reduced.x_train, x_test=x_test)
    return Instance(reduced.network, data, {"noise": noise})


SMALL = {"modular": small_modular, "parity": small_parity, "xor": small_xor}


def small(name, **changes):
    return replace(task(name), build=SMALL[name], **{"epochs": 3, **changes})


def test_the_tasks_are_the_rows_of_the_table_in_its_order():
    for preset in ("released", "text"):
        titles = [one.title for one in TASKS[preset].values()]
        assert titles == [
            "XOR", "Sparse Parity", "MNIST - Cross Entropy", "MNIST - Squared Error",
            "Modular Addition",
        ]  # fmt: skip
    assert METHODS == ("baseline", "grokfast", "orthograd", "grokalign")


@EVERY_PRESET
@EVERY_TASK
def test_weights_losses_lengths_and_batches_are_the_published_ones(name, preset):
    one = task(name, preset=preset)
    assert one.weight == WEIGHTS[name]
    assert one.epochs == EPOCHS[name]
    assert one.loss == LOSSES[name]
    assert one.batch_size == BATCHES[preset][name]


@EVERY_TASK
def test_optimizers_are_the_released_ones_and_the_text_has_no_momentum(name):
    assert task(name).optimizer == OPTIMIZERS[name]
    written = task(name, preset="text").optimizer
    if name == "xor":
        assert written == rules.SGD(0.1, momentum=0.0, weight_decay=0.1)
    else:
        assert written == OPTIMIZERS[name]


@EVERY_PRESET
@EVERY_TASK
def test_grokked_means_more_than_the_criteria_in_every_column(name, preset):
    one = task(name, preset=preset)
    limits = {"train_accuracy": 0.99, "test_accuracy": TEST_ACCURACY[name]}
    if name == "xor":
        limits["noise_accuracy"] = 0.95
    above = {column: limit + 0.001 for column, limit in limits.items()}
    assert one.has_grokked({"epoch": 1, **above})
    for column, limit in limits.items():
        assert not one.has_grokked({"epoch": 1, **above, column: limit})


def test_penalties_are_the_released_one_and_the_squared_one_of_the_text():
    for name in OPTIMIZERS:
        assert task(name).penalty == PenaltyForm("output", power=1, released=True)
        assert task(name, preset="text").penalty == PenaltyForm("output", power=2)


@EVERY_PRESET
@EVERY_TASK
def test_methods_differ_from_the_baseline_in_what_names_them_alone(name, preset):
    one = task(name, preset=preset)
    ways = {method: member(one, method, 3) for method in METHODS}
    plain = ways["baseline"]
    assert (plain.seed, plain.optimizer) == (3, one.optimizer)
    assert (plain.weight, plain.gradient_filter) == (0, None)
    filtered = rules.Grokfast(decay=0.8, strength=0.1)
    assert ways["grokfast"] == replace(plain, gradient_filter=filtered)
    assert ways["grokalign"] == replace(plain, weight=WEIGHTS[name])
    projected = replace(plain, gradient_filter=rules.OrthoGrad())
    if (name, preset) == ("xor", "released"):  # there OrthoGrad has more momentum
        heavier = replace(plain.optimizer, momentum=0.8)
        projected = replace(projected, optimizer=heavier)
    assert ways["orthograd"] == projected


@EVERY_TASK
def test_matched_grokfast_steps_as_far_as_the_baseline_on_a_steady_gradient(name):
    one = task(name)
    plain, matched = one.optimizer, member(one, "grokfast_matched", 0).optimizer
    # A steady gradient g becomes (1 + 0.1) g; decay shrinks weights as before.
    assert matched.learning_rate * 1.1 == pytest.approx(plain.learning_rate)
    shrinking = matched.learning_rate * matched.weight_decay
    assert shrinking == pytest.approx(plain.learning_rate * plain.weight_decay)


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"one of xor, parity, .*got 'sums'"):
        task("sums")
    with pytest.raises(ValueError, match=r"'released' or 'text', got 'paper'"):
        task("xor", preset="paper")
    with pytest.raises(ValueError, match=r"one of baseline, .*got 'adam'"):
        member(task("xor"), "adam", 0)


@pytest.mark.parametrize(("preset", "n_inputs"), [("released", 43), ("text", 40)])
def test_parity_has_a_thousand_strings_to_train_on(preset, n_inputs):
    one = task("parity", preset=preset).build(5, CPU)
    assert one.data.x_train.shape == one.data.x_test.shape == (1000, n_inputs)
    assert torch.equal(one.data.y_train, one.data.x_train[:, :3].sum(1).long() % 2)
    assert first_inputs(one.network) == [n_inputs, 200, 200]
    assert one.network[0].weight.dtype == torch.float32
    assert one.network[-1].bias.shape == (2,)


def test_modular_addition_is_the_quadratic_network_on_a_third_of_the_pairs():
    one = task("modular").build(5, CPU)
    assert one.data.x_train.shape == (int(0.3 * 61**2), 122)
    assert first_inputs(one.network) == [122, 256]
    assert isinstance(one.network[1], Quadratic)
    assert one.network[-1].weight.shape == (61, 256)
    assert {p.dtype for p in one.network.parameters()} == {torch.float64}
    assert not [name for name, _ in one.network.named_parameters() if "bias" in name]


@pytest.mark.parametrize(
    ("preset", "width", "scale", "biases", "subset"),
    [("released", 200, 8.0, True, "first"), ("text", 196, 4.0, False, "random")],
)
def test_mnist_networks_start_large(digits, preset, width, scale, biases, subset):
    one = task("mnist_ce", preset=preset).build(5, CPU)
    assert first_inputs(one.network) == [784, width, width, width]
    for layer in (layer for layer in one.network if isinstance(layer, nn.Linear)):
        bound = scale / layer.in_features**0.5
        # The largest of thousands of uniform draws is near the bound, not above it.
        assert 0.99 * bound < layer.weight.abs().max() <= bound
        assert layer.weight.dtype == torch.float64
        assert (layer.bias is not None) == biases
        if biases:
            assert 0.5 * bound < layer.bias.abs().max() <= bound
    seed = 5 if subset == "random" else 0
    (asked,) = digits
    assert asked == {
        "n_train": 1024, "n_test": 1024, "normalise": True, "flatten": True,
        "subset": subset, "seed": seed,
    }  # fmt: skip


def test_all_seeds_share_the_first_images_and_have_random_ones_of_their_own(digits):
    released, text = task("mnist_ce"), task("mnist_se", preset="text")
    same = [released.build(seed, CPU).data for seed in (0, 1)]
    assert same[0] is same[1] is task("mnist_se").build(2, CPU).data
    assert text.build(0, CPU).data is not text.build(1, CPU).data


@pytest.mark.slow
def test_xor_is_the_full_network_seen_in_its_span():
    one = task("xor").build(1, CPU)
    data = xor_clusters(
        n_train=400, n_test=400, n_inputs=40_000, amplitude=0.05, seed=1
    )
    generator = torch.Generator().manual_seed(1)
    whole = mlp([40_000, 2048, 1], bias=False, generator=generator)
    assert first_inputs(one.network) == [2448, 2048]
    noise = one.also["noise"]
    assert torch.equal(noise[1], data.y_test)
    with torch.no_grad():
        for small_x, x in (
            (one.data.x_train, data.x_train),
            (one.data.x_test, data.x_test),
            (noise[0], xor_noise(data.x_test, std=0.2, seed=1)),
        ):
            # Sums of 40000 float32 products, rounded in another order.
            expected = whole(x)
            error = (one.network(small_x) - expected).abs().max()
            assert error < 1e-5 * expected.abs().max().clamp(min=1)


def test_members_come_by_method_and_then_by_seed():
    ensemble = acceleration_ensemble(
        small("modular"), methods=("grokalign", "baseline"), seeds=(4, 9)
    )
    order = [(member.weight > 0, member.seed) for member in ensemble.members]
    assert order == [(True, 4), (True, 9), (False, 4), (False, 9)]


@pytest.mark.parametrize("name", list(SMALL))
def test_every_method_starts_from_the_same_networks_and_goes_its_own_way(name):
    runs = acceleration_ensemble(small(name, epochs=2), seeds=(0, 1)).train()
    first = [run.history.rows()[0] for run in runs]
    last = [run.history.rows()[-1]["train_loss"] for run in runs]
    for k in range(2, 8, 2):
        assert first[k : k + 2] == first[:2]
    assert first[0] != first[1]
    assert len(set(last)) == len(runs)
    expected = "noise_accuracy" in first[0]
    assert expected == (name == "xor")
    assert {run.stopped for run in runs} <= {"epochs", "criterion"}


def test_a_run_ends_where_its_criteria_are_first_met():
    # Loose criteria: this test is about the stop, and 7 residues hardly generalise.
    loose = {"train_accuracy": 0.99, "test_accuracy": -1.0}
    one = small("modular", epochs=400, criteria=loose)
    (runs,) = train_together([acceleration_ensemble(one, seeds=(0, 1, 2))])
    stopped = [run for run in runs if run.stopped == "criterion"]
    assert len(stopped) >= 3
    for run in stopped:
        rows = run.history.rows()
        assert one.has_grokked(rows[-1])
        assert not any(map(one.has_grokked, rows[:-1]))


@pytest.mark.data
def test_mnist_runs_from_its_files():
    one = replace(task("mnist_ce"), epochs=1)
    runs = acceleration_ensemble(one, methods=("grokalign",), seeds=(0,)).train()
    row = runs[0].history.last()
    assert (row["epoch"], runs[0].stopped) == (1, "epochs")
    assert row["train_accuracy"] > runs[0].history["train_accuracy"][0]


def small_run(method, seed=0, name="modular", **resized):
    sizes = {"modulus": 5, "width": 8, "dtype": "float32", "epochs": 4, **resized}
    settings = {"task": name, "method": method, "resized": sizes}
    settings["constants"] = constants("released", settings)
    return Run("acceleration", 1, "quick", "released", "synthetic", settings, seed)


def test_the_key_of_a_run_knows_every_constant():
    keys = {
        small_run("baseline").key, small_run("grokalign").key,
        small_run("baseline", seed=1).key, small_run("baseline", width=9).key,
        small_run("baseline", epochs=5).key, small_run("grokfast").key,
        small_run("grokfast_matched").key, small_run("grokalign_tuned").key,
    }  # fmt: skip
    assert len(keys) == 8


def test_a_batch_is_all_on_a_gpu_and_one_method_of_a_task_on_a_cpu():
    runs = [small_run(m, seed) for m in METHODS + EXTRA for seed in (0, 1)]
    on_gpu = batches(runs, torch.device("cuda"))
    assert [len(batch) for batch in on_gpu] == [8, 4]
    on_cpu = batches(runs, CPU)
    assert [{run["method"] for run in batch} for batch in on_cpu] == [
        {method} for method in METHODS + EXTRA
    ]


def test_runs_are_computed_in_the_order_given_whatever_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(acceleration, "_TIMED_EPOCHS", 1)
    context = Context(CPU, tmp_path / "batch")
    runs = [small_run(m, seed) for seed in (1, 0) for m in ("grokalign", "baseline")]
    results = compute(runs, context)
    turned = compute(runs[::-1], Context(CPU, tmp_path / "other"))[::-1]
    for run, one, other in zip(runs, results, turned, strict=True):
        expected = 0.01 if run["method"] == "grokalign" else 0.0
        assert one["weight"] == other["weight"] == expected
        assert one["last"]["train_loss"] == pytest.approx(other["last"]["train_loss"])
        assert one["seeds_together"] == 2
        assert one["seconds_per_epoch"] > 0
        assert one["stopped"] == "epochs"
        assert one["epoch"] is None
    assert len({one["last"]["train_loss"] for one in results}) == 4


def test_the_tuned_weight_comes_from_a_pilot_and_is_found_once(tmp_path, monkeypatch):
    monkeypatch.setattr(acceleration, "_TIMED_EPOCHS", 1)
    monkeypatch.setitem(acceleration.PILOT, "epochs", 6)
    context = Context(CPU, tmp_path / "batch")
    runs = [small_run("grokalign_tuned", seed) for seed in (1, 2)]
    first = compute(runs, context)
    (kept,) = tmp_path.glob("batch.modular.pilot.json")
    grid = (0, 1e-4, 1e-3, 1e-2, 0.1, 1, 10)
    assert first[0]["weight"] == first[1]["weight"]
    assert first[0]["weight"] in grid
    write_checked(kept, {"weight": 0.5})
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    again = compute(runs, context)
    assert [one["weight"] for one in again] == [0.5, 0.5]
    assert {one["power"] for one in again} == {2}
