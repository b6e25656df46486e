"""Interrupted runs: resumed bit for bit, and never resumed as another run.

A case trains something small with a checkpoint, interrupts it at a random row, changes
one ingredient, and expects an error that names the ingredient and leaves the file
unchanged. Without a change the result must equal that of an uninterrupted run, bit for
bit.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from normalign.regularizers import PenaltyForm
from normalign.training import Ensemble, Member, span_reduction, tune_weight
from normalign.training._attack import Attacked, Augmented, measures, robust_accuracy
from normalign.training._checkpoint import CheckpointRefused
from normalign.training._measures import stacked_centroid_alignment, stacked_geometry
from normalign.training.rules import SGD, AdamW, Grokfast, OrthoGrad
from normalign_reproduction.context import Context, RunCache
from normalign_reproduction.files import read_checked, write_checked
from normalign_reproduction.plan import Batch
from normalign_reproduction.robust import Recipe, RobustTrainer
from normalign_reproduction.spec import Run
from normalign_reproduction.store import Store

K = 3  # classes


class WeightedLoss:
    """A loss of the user's own, with a setting."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, output, target):
        return self.factor * nn.functional.cross_entropy(output, target)


def smoothed_loss(output, target):
    return nn.functional.cross_entropy(output, target, label_smoothing=0.1)


LOSSES = {
    "name": lambda c: "cross_entropy",
    "square": lambda c: "squared_error",
    "object": lambda c: WeightedLoss(c["loss_factor"]),
    "module": lambda c: nn.CrossEntropyLoss(label_smoothing=0.1 * c["loss_factor"]),
    "function": lambda c: smoothed_loss,
}
ACTIVATIONS = {
    "relu": lambda c: nn.ReLU(),
    "tanh": lambda c: nn.Tanh(),
    "leaky": lambda c: nn.LeakyReLU(c["slope"]),
    "softplus": lambda c: nn.Softplus(beta=1 + c["slope"]),
    "norm": lambda c: nn.Sequential(
        nn.LayerNorm(c["hidden"], eps=c["slope"]), nn.GELU()
    ),
}  # fmt: skip
MEASURES = {
    "none": lambda c, d: None,
    "geometry": lambda c, d: stacked_geometry(d.x_test[: c["n_measured"]]),
    "attack": lambda c, d: robust_accuracy(
        d.x_test, d.y_test, radius=c["radius"], n_steps=2
    ),
    "centroids": lambda c, d: stacked_centroid_alignment(d.x_test[: c["n_measured"]]),
    "both": lambda c, d: measures(
        MEASURES["geometry"](c, d), MEASURES["attack"](c, d)
    ),
}  # fmt: skip
PREPARES = {
    "none": lambda c: None,
    "attacked": lambda c: Attacked(c["radius"], n_steps=2),
    "augmented": lambda c: Augmented(c["radius"], shape=(1, 2, 3)),
}

# The ingredients of an ensemble: the values of each, of which a case has one and a
# changed case another, and the words with which an error must name it.
ENSEMBLE: dict[str, tuple[list[Any], str]] = {
    "activation": (list(ACTIVATIONS), "networks"),
    "slope": ([0.05, 0.1, 0.3], "networks"),
    "hidden": ([4, 5, 7], "networks"),
    "start": ([0, 1, 2], "weights"),
    "start_bit": ([0, 1], "weights"),
    "dtype": (["float32", "float64"], "networks"),
    "buffer": ([0.5, 0.6], "buffers"),
    "data": ([0, 1, 2], "train inputs"),
    "x_bit": ([0, 1], "train inputs"),
    "order": ([0, 1], "train inputs"),
    "labels": ([0, 1, 2], "train targets"),
    "test_bit": ([0, 1], "test inputs"),
    "test_labels": ([0, 1], "test targets"),
    "also": ([0, 1], "more inputs"),
    "loss": (list(LOSSES), "loss"),
    "loss_factor": ([1.0, 1.5], "loss"),
    "optimizer": (["sgd", "adamw"], "the members' optimizer"),
    "rate": ([0.01, 0.02], "the members' optimizer"),
    "momentum": ([0.0, 0.5, 0.9], "the members' optimizer"),
    "decay": ([0.0, 0.01], "the members' optimizer"),
    "eps": ([1e-8, 1e-6], "the members' optimizer"),
    "filter": ([None, "grokfast", "orthograd"], "the members' gradient_filter"),
    "strength": ([0.5, 2.0], "the members' gradient_filter"),
    "weight": ([0.0, 0.01, 0.02], "the members' weight"),
    "power": ([1, 2, "ratio"], "the members' penalty"),
    "estimator": (["output", "orthogonal", "exact"], "the members' penalty"),
    "offset": ([True, False], "the members' penalty"),
    "probe": (["sphere", "normal"], "the members' penalty"),
    "n_probes": ([1, 2], "the members' penalty"),
    "seed": ([0, 1, 2**40], "the members' seed"),
    "n": ([1, 2, 3], "weights"),
    "batch_size": ([4, 5, 12], "batch_size"),
    "epochs": ([3, 4], "epochs and evaluate"),
    "evaluate": ([1, 2], "epochs and evaluate"),
    "measure": (list(MEASURES), "measure"),
    "n_measured": ([2, 3], "measure"),
    "measure_at": ([1, 2], "measure_at"),
    "prepare": (list(PREPARES), "prepare"),
    "radius": ([0.1, 0.2], "prepare|measure"),
    "reduced": ([False, True], "networks"),
}
ROBUST: dict[str, tuple[list[Any], str]] = {
    "activation": (["relu", "tanh", "leaky", "softplus"], "network"),
    "slope": ([0.1, 0.3], "network"),
    "hidden": ([4, 5], "network"),
    "start": ([0, 1], "weights"),
    "start_bit": ([0, 1], "weights"),
    "data": ([0, 1], "x"),
    "x_bit": ([0, 1], "x"),
    "order": ([0, 1], "x"),
    "labels": ([0, 1, 2], "y"),
    "seed": ([0, 1], "seed"),
    "evaluate": ([1, 2], "evaluate"),
    "measure": (["none", "object"], "measure"),
    "slope_of_measure": ([1.0, 2.0], "measure"),
} | {
    f"recipe.{name}": (values, f"recipe.{name}")
    for name, values in {
        "objective": ["dkl", "trades", "pgd"], "epochs": [3, 4], "batch_size": [5, 7],
        "learning_rate": [0.1, 0.05], "momentum": [0.9, 0.8], "radius": [0.03, 0.05],
        "weight_decay": [0.0, 5e-4], "n_steps": [1, 2], "step_size": [0.01, 0.02],
        "ramp": [False, True], "augment": ["basic", "none"], "soft_weight": [4.0, 2.0],
        "square_weight": [20.0, 10.0], "temperature": [4.0, 2.0],
        "trades_weight": [6.0, 3.0], "perturbation": [0.0, 0.005],
        "perturbed_from": [1, 2], "averaging": [0.9, 0.99, 0.0],
        "averaged_from": [0.0, 0.5],
    }.items()
}  # fmt: skip
STORE: dict[str, tuple[list[Any], str]] = {
    "experiment": (["one", "two"], ""), "version": ([1, 2], ""),
    "size": (["quick", "full"], ""), "preset": (["released", "text"], ""),
    "data": (["mnist", "synthetic"], ""), "seed": ([0, 1, 7], ""),
    "setting": ([0.1, 0.2, None, "0.1", [0.1], {"a": 1}], ""),
    "name": (["rate", "decay"], ""),
}  # fmt: skip
KINDS = {"ensemble": ENSEMBLE, "robust": ROBUST, "store": STORE, "tune": {}}


def draw(rng: np.random.Generator) -> dict:
    kind = str(rng.choice(list(KINDS), p=[0.5, 0.3, 0.15, 0.05]))
    table = KINDS[kind]
    values = {name: int(rng.integers(len(v))) for name, (v, _) in table.items()}
    case: dict[str, Any] = {
        "kind": kind,
        "values": values,
        "seed": int(rng.integers(99)),
    }
    case["change"] = None
    if table and rng.random() < 0.7:
        case["change"] = str(rng.choice(list(table)))
        n = len(table[case["change"]][0])
        case["to"] = int((values[case["change"]] + rng.integers(1, n)) % n)
    case["break_at"] = [int(rng.integers(3)), int(rng.integers(3))]
    return case


def check(case: dict) -> None:
    with tempfile.TemporaryDirectory() as folder:
        CHECKS[case["kind"]](case, Path(folder))


class _Break(Exception):
    """Raised during a run to interrupt it."""


def _settings(case: dict) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the settings of a case, and those with the change."""
    table, change = KINDS[case["kind"]], case["change"]
    settings = {name: table[name][0][i] for name, i in case["values"].items()}
    if change is None:
        return settings, None
    return settings, {**settings, change: table[change][0][case["to"]]}


def _check_trainer(case: dict, folder: Path, build) -> None:
    """Interrupt a run and resume it with the same or other settings."""
    settings, other = _settings(case)
    path = folder / "run"
    with contextlib.suppress(_Break):
        build(settings, case)(path, case["break_at"])
    content = path.read_bytes()
    # Some settings have no effect in some runs, such as a slope on a ReLU. The rules
    # for that are here, not in the library.
    if other is None or _same(case["kind"], settings, other):
        found, expected = build(settings, case)(path), build(settings, case)(None)
        assert found == expected, "resumed, it is not the uninterrupted run"
        return
    words = KINDS[case["kind"]][case["change"]][1]
    try:
        build(other, case)(path)
    except CheckpointRefused as error:
        named = str(error).partition("differs in: ")[2].partition(". ")[0].split(", ")
        expected = words.split("|")
        assert any(word in named for word in expected), f"{words} is not in {named}"
        assert path.read_bytes() == content, "the refused checkpoint was changed"
        return
    raise AssertionError(f"a checkpoint of other {case['change']} was accepted")


def _same(kind: str, one: dict, other: dict) -> bool:
    """Return whether the settings in which two cases differ have no effect."""
    (name,) = [name for name in one if one[name] != other[name]]
    if kind == "robust":
        return {
            "slope": one["activation"] in ("relu", "tanh"),
            "slope_of_measure": one["measure"] == "none",
        }.get(name, False)
    return {
        "slope": one["activation"] in ("relu", "tanh"),
        "loss_factor": one["loss"] not in ("object", "module"),
        "offset": one["power"] == "ratio",
        "probe": one["estimator"] != "output",
        "n_probes": one["estimator"] != "output",
        "eps": one["optimizer"] == "sgd",
        "strength": one["filter"] != "grokfast",
        "n_measured": one["measure"] not in ("geometry", "centroids", "both"),
        "measure_at": one["measure"] == "none"
        or (one["evaluate"] == 2 and one["epochs"] == 4),  # at 0, 2 and 4 in any case
        "radius": one["prepare"] == "none" and one["measure"] not in ("attack", "both"),
        "prepare": one["reduced"] and "none" not in (one["prepare"], other["prepare"]),
    }.get(name, False)


def _network(settings: dict, seed: int, n_inputs: int, n_outputs: int) -> nn.Module:
    hidden = settings["hidden"]
    layers = [nn.Linear(n_inputs, hidden), nn.Linear(hidden, n_outputs)]
    generator = torch.Generator().manual_seed(seed)
    for value in (p for layer in layers for p in layer.parameters()):
        value.data = 0.5 * torch.randn(value.shape, generator=generator)
    if settings["start_bit"]:
        _nudge(layers[1].bias.data)
    first, last = layers
    return nn.Sequential(first, ACTIVATIONS[settings["activation"]](settings), last)


def _nudge(values: torch.Tensor) -> None:
    """Change one number by one unit in the last place."""
    flat = values.view(-1)
    flat[-1:] = torch.nextafter(flat[-1:], torch.full_like(flat[-1:], 9.0))


def _labels(y: torch.Tensor, how: int) -> torch.Tensor:
    if how == 1:  # one other label
        return torch.cat([(y[:1] + 1) % K, y[1:]])
    # Differences at the end that nearly cancel in a sum with weights 1, 3, 5, ...
    return y + how // 2 * torch.tensor([0] * (len(y) - 3) + [1, -2, 1])


class _Scale(nn.Module):
    """Outputs times a constant that is a buffer."""

    def __init__(self, network: nn.Sequential, value: float) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("value", torch.tensor(value))

    def forward(self, x):
        return self.value * self.network(x)


def _data(settings: dict) -> SimpleNamespace:
    generator = torch.Generator().manual_seed(settings["data"])
    dtype = getattr(torch, settings["dtype"])
    x = torch.randn(18, 6, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 2, 0, 1, 2, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
    if settings["order"]:
        x[:12], y[:12] = x[:12].flip(0), y[:12].flip(0)
    parts = [x[:12].to(dtype), x[12:].to(dtype)]
    for part, bit in zip(parts, ("x_bit", "test_bit"), strict=True):
        if settings[bit]:
            _nudge(part)
    y_test = y[12:].roll(settings["test_labels"])
    y_train = _labels(y[:12], settings["labels"]).clamp(0, K - 1)
    return SimpleNamespace(
        x_train=parts[0], y_train=y_train, x_test=parts[1], y_test=y_test
    )


def _member(settings: dict, i: int) -> Member:
    rule: SGD | AdamW = SGD(
        settings["rate"] * (1 + i), settings["momentum"], settings["decay"]
    )
    if settings["optimizer"] == "adamw":
        rule = AdamW(
            settings["rate"] * (1 + i), settings["momentum"], eps=settings["eps"],
            weight_decay=settings["decay"],
        )  # fmt: skip
    names = "power", "estimator", "offset", "probe", "n_probes"
    form = {name: settings[name] for name in names}
    if form["estimator"] != "output":  # these have one probe, or none
        form |= {"n_probes": 1, "probe": "sphere"}
    if form["power"] == "ratio":
        form["offset"] = False
    return Member(
        settings["seed"] + i, rule, settings["weight"] * (1 + i), PenaltyForm(**form),
        {None: None, "grokfast": Grokfast(strength=settings["strength"]),
         "orthograd": OrthoGrad()}[settings["filter"]],
    )  # fmt: skip


def _build_ensemble(settings: dict, case: dict):
    """Return a function that trains the ensemble of some settings."""
    data, n = _data(settings), settings["n"]
    dtype = getattr(torch, settings["dtype"])
    networks: list[nn.Module] = [
        _network(settings, settings["start"] + i, 6, K).to(dtype) for i in range(n)
    ]
    splits: Any = data
    if settings["reduced"]:  # to hidden + 12 inputs, which must be fewer
        wide = torch.Generator().manual_seed(5)
        turn = torch.randn(6, 40, generator=wide, dtype=torch.float64).to(dtype)
        data.x_train, data.x_test = data.x_train @ turn, data.x_test @ turn
        networks = [
            _network(settings, settings["start"] + i, 40, K).to(dtype) for i in range(n)
        ]
        spans = [span_reduction(network, data.x_train) for network in networks]
        networks = [span.network for span in spans]
        splits = [
            SimpleNamespace(
                x_train=span.x_train, y_train=data.y_train,
                x_test=span.project(data.x_test), y_test=data.y_test,
            )
            for span in spans
        ]  # fmt: skip
        data = splits[0]
    networks = [_Scale(network, settings["buffer"]).to(dtype) for network in networks]
    every = settings["evaluate"]
    options: dict[str, Any] = {"batch_size": settings["batch_size"]}
    if settings["also"]:
        options["also"] = {"more": (data.x_test[:2], data.y_test[:2])}
    reduced = settings["reduced"]
    measure = MEASURES[settings["measure"]](settings, data)
    at = settings["measure_at"]
    prepare = PREPARES[settings["prepare"]](settings)
    if reduced and settings["prepare"] == "augmented":  # its images have 6 pixels
        prepare = PREPARES["attacked"](settings)
    ensemble = Ensemble(
        networks, splits, [_member(settings, i) for i in range(n)],
        loss=LOSSES[settings["loss"]](settings), epochs=settings["epochs"],
        evaluate=lambda epoch: epoch % every == 0, measure=measure, prepare=prepare,
        measure_at=lambda epoch: epoch % at == 0, **options,
    )  # fmt: skip

    def train(path: Path | None, stop: list[int] | None = None) -> Any:
        def callback(i, row):
            if stop is not None and i == stop[0] % n and row["epoch"] >= stop[1]:
                raise _Break

        trained = ensemble.train(
            checkpoint=path, checkpoint_seconds=0.0, callback=callback
        )
        return [
            (one.stopped, _bits(one.weights), repr(one.history.columns))
            for one in trained
        ]

    return train


def _bits(tensors) -> dict[str, bytes]:
    return {k: v.detach().contiguous().numpy().tobytes() for k, v in tensors.items()}


class _Sum:
    """A measurement of the user's own, with a setting."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, network: nn.Module) -> dict[str, float]:
        return {
            "sum": self.factor
            * sum(float(p.detach().sum()) for p in network.parameters())
        }


def _build_robust(settings: dict, case: dict):
    generator = torch.Generator().manual_seed(settings["data"])
    x = torch.rand(14, 1, 4, 4, generator=generator)
    y = torch.tensor([0, 2, 0, 1, 2, 1, 0, 1, 2, 0, 1, 2, 0, 1])
    if settings["order"]:
        x, y = x.flip(0), y.flip(0)
    if settings["x_bit"]:
        _nudge(x)
        x.clamp_(max=1)
    y = _labels(y, settings["labels"]).clamp(0, K - 1)
    network = nn.Sequential(nn.Flatten(), _network(settings, settings["start"], 16, K))
    recipe = Recipe(
        **{
            name.removeprefix("recipe."): value
            for name, value in settings.items()
            if name.startswith("recipe.")
        }
    )
    trainer = RobustTrainer(network, x, y, recipe, seed=settings["seed"])
    measure = (
        None if settings["measure"] == "none" else _Sum(settings["slope_of_measure"])
    )
    every = settings["evaluate"]

    def train(path: Path | None, stop: list[int] | None = None) -> Any:
        take = trainer._take_step

        def count_rows():
            take()
            if stop is not None and trainer._n_steps > 1 + sum(stop):
                raise _Break

        trainer._take_step = count_rows
        history = trainer.train(
            checkpoint=path, checkpoint_seconds=0.0, measure=measure,
            evaluate=lambda epoch: epoch % every == 0,
        )  # fmt: skip
        averaged = trainer.averaged
        columns = {k: v for k, v in history.columns.items() if k != "seconds"}
        return (
            _bits(trainer.network.state_dict()), repr(columns),
            averaged and _bits(averaged.state_dict()),
        )  # fmt: skip

    return train


def _run(settings: dict) -> Run:
    names = "experiment", "version", "size", "preset", "data", "seed"
    own = {settings["name"]: settings["setting"], "epochs": 3}
    return Run(**{name: settings[name] for name in names}, settings=own)


def _check_store(case: dict, folder: Path) -> None:
    settings, other = _settings(case)
    run, store = _run(settings), Store(folder / "results")
    result = {"value": case["seed"] / 7, "history": {"columns": {"epoch": [0, 1]}}}
    store.write(run, result, {"commit": "abc"})
    kept = RunCache(Context(torch.device("cpu"), folder / "batch"))
    kept.put(run, result)
    again = copy.deepcopy(settings)
    turned = Run(**dict(reversed(_run(again).to_dict().items())))
    found = Store(folder / "results").read(turned)
    assert found is not None
    assert found.result == kept.get(turned) == result
    batches = [Batch((run,), device).key for device in ("cpu", "cuda")]
    assert batches[0] != batches[1]
    if other is None:
        return
    changed = _run(other)
    assert store.read(changed) is None, "the result of another run"
    assert kept.get(changed) is None, "the kept result of another run"
    assert Batch((changed,), "cpu").key not in batches
    # Under the name of the other run it is still not its result.
    path = store.path(changed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(store.path(run).read_bytes())
    assert store.read(changed) is None, "a result under the name of another run"
    entry = {**read_checked(store.path(run)), "key": changed.key}
    write_checked(path, entry)
    assert store.read(changed) is None, "a result with the key of another run"


def _check_tune(case: dict, folder: Path) -> None:
    """A tuning run that is stopped early has the first rows of a complete one."""
    settings = {name: values[0] for name, (values, _) in ENSEMBLE.items()}
    data = _data(settings)
    last = 1 + case["break_at"][0]

    def tune(callback=None):
        return tune_weight(
            _network({**settings, "hidden": 5}, case["seed"], 6, K), data.x_train,
            data.y_train, weights=(0.01, 0.1), powers=(2,), epochs=5, n_repeats=2,
            seed=case["seed"], callback=callback, optimizer=SGD(0.1),
        )  # fmt: skip

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole, again = tune(), tune()
        early = tune(lambda row: row["epoch"] >= last)
    rows = [[h.rows() for h in runs] for runs in whole.histories]
    assert rows == [[h.rows() for h in runs] for runs in again.histories]
    assert (whole.weight, whole.power) == (again.weight, again.power)
    assert early.stopped == "callback"
    for runs, others in zip(early.histories, rows, strict=True):
        for history, other in zip(runs, others, strict=True):
            assert history.rows() == other[: len(history)]
            assert len(history) == last + 1


CHECKS = {
    "ensemble": lambda case, folder: _check_trainer(case, folder, _build_ensemble),
    "robust": lambda case, folder: _check_trainer(case, folder, _build_robust),
    "store": _check_store,
    "tune": _check_tune,
}
