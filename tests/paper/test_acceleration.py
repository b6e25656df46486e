"""The presets of Table 1 are the published settings, and small ones really run."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from normalign.data import modular_addition, sparse_parity, xor_clusters, xor_noise
from normalign.data.dataset import Dataset
from normalign.nn import mlp
from normalign.nn.mlp import Quadratic
from normalign.paper import acceleration
from normalign.paper.acceleration import (
    METHODS,
    TASKS,
    Instance,
    acceleration_ensemble,
    task,
)
from normalign.regularizers import PenaltyForm
from normalign.training import rules, span_reduction, train_together

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

    monkeypatch.setattr(acceleration, "load_mnist", load)
    acceleration._digits.cache_clear()
    yield asked
    acceleration._digits.cache_clear()


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
    member = {method: one.member(method, 3) for method in METHODS}
    plain = member["baseline"]
    assert (plain.seed, plain.optimizer) == (3, one.optimizer)
    assert (plain.weight, plain.gradient_filter) == (0, None)
    filtered = rules.Grokfast(decay=0.8, strength=0.1)
    assert member["grokfast"] == replace(plain, gradient_filter=filtered)
    assert member["grokalign"] == replace(plain, weight=WEIGHTS[name])
    projected = replace(plain, gradient_filter=rules.OrthoGrad())
    if (name, preset) == ("xor", "released"):  # there OrthoGrad has more momentum
        heavier = replace(plain.optimizer, momentum=0.8)
        projected = replace(projected, optimizer=heavier)
    assert member["orthograd"] == projected


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"one of xor, parity, .*got 'sums'"):
        task("sums")
    with pytest.raises(ValueError, match=r"'released' or 'text', got 'paper'"):
        task("xor", preset="paper")
    with pytest.raises(ValueError, match=r"one of baseline, .*got 'adam'"):
        task("xor").member("adam", 0)


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
    assert digits == [
        {"n_train": 1024, "n_test": 1024, "normalise": True, "flatten": True,
         "subset": subset, "seed": seed}
    ]  # fmt: skip


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
