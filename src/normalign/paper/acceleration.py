"""The five tasks and four methods of Table 1, as ensembles ready to train.

Every constant is from the paper's settings section or its criteria table (preset
``"text"``), or from the settings that its published numbers come from (``"released"``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor, nn

from normalign._checks import require
from normalign.data import (
    load_mnist,
    modular_addition,
    sparse_parity,
    xor_clusters,
    xor_noise,
)
from normalign.data.dataset import Dataset
from normalign.nn import mlp
from normalign.regularizers import PenaltyForm
from normalign.training import Ensemble, Member, rules, span_reduction

__all__ = [
    "METHODS", "TASKS", "Instance", "Task", "acceleration_ensemble", "mnist_start",
    "task",
]  # fmt: skip

RELEASED_PENALTY = PenaltyForm(power=1, released=True)
TEXT_PENALTY = PenaltyForm(power=2)

# Table 1's columns. Grokfast's numbers were chosen by its authors on one seed.
METHODS = ("baseline", "grokfast", "orthograd", "grokalign")
GROKFAST = rules.Grokfast(decay=0.8, strength=0.1)


@dataclass(frozen=True)
class Instance:
    """One seed of a task: a network at its start, its data, further test sets."""

    network: nn.Module
    data: Dataset
    also: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One row of Table 1.

    Parameters
    ----------
    title : str
        As the paper prints it.
    build : callable
        From a seed and a device to an :class:`Instance`.
    loss : {"cross_entropy", "squared_error"}
    optimizer : SGD or AdamW
    weight : float
        Of GrokAlign.
    epochs : int
        After which a run counts as not having grokked.
    criteria : dict of str to float
        Columns of a history and what they must exceed.
    batch_size : int or None
        None is all samples at once.
    penalty : PenaltyForm
    orthograd_momentum : float, optional
        Where OrthoGrad's runs have another momentum.
    """

    title: str
    build: Callable[[int, torch.device], Instance]
    loss: str
    optimizer: rules.SGD | rules.AdamW
    weight: float
    epochs: int
    criteria: dict[str, float]
    batch_size: int | None = None
    penalty: PenaltyForm = RELEASED_PENALTY
    orthograd_momentum: float | None = None

    def has_grokked(self, row: dict[str, float]) -> bool:
        """Say whether a row meets the paper's criteria (tab. grokking_criteria)."""
        return all(row[name] > least for name, least in self.criteria.items())

    def member(self, method: str, seed: int) -> Member:
        """Return how one seed is trained by a method."""
        rule = f"one of {', '.join(METHODS)}"
        require(method in METHODS, "Task.member", "method", rule, repr(method))
        plain = Member(seed, self.optimizer, penalty=self.penalty)
        if method == "grokfast":
            return replace(plain, gradient_filter=GROKFAST)
        if method == "grokalign":
            return replace(plain, weight=self.weight)
        if method == "orthograd":
            optimizer, momentum = self.optimizer, self.orthograd_momentum
            if isinstance(optimizer, rules.SGD) and momentum is not None:
                optimizer = replace(optimizer, momentum=momentum)
            return replace(
                plain, optimizer=optimizer, gradient_filter=rules.OrthoGrad()
            )
        return plain


def _grokked(test: float, **further: float) -> dict[str, float]:
    return {"train_accuracy": 0.99, "test_accuracy": test, **further}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _xor(seed: int, device: torch.device) -> Instance:
    """XOR clusters, in the span of the first weights and the training inputs.

    The reduction changes no number of the run but by rounding: 2448 inputs stand for
    40000.
    """
    data = xor_clusters(seed=seed)
    network = mlp([40000, 2048, 1], bias=False, generator=_generator(seed)).to(device)
    noisy = xor_noise(data.x_test, seed=seed)
    reduced = span_reduction(network, data.x_train.to(device))
    small = replace(
        data, x_train=reduced.x_train.cpu(),
        x_test=reduced.project(data.x_test.to(device)).cpu(),
    )  # fmt: skip
    noise = reduced.project(noisy.to(device)).cpu(), data.y_test
    return Instance(reduced.network.cpu(), small, {"noise": noise})


def _parity(n_noise: int) -> Callable[[int, torch.device], Instance]:
    def build(seed: int, device: torch.device) -> Instance:
        network = mlp([3 + n_noise, 200, 200, 2], generator=_generator(seed))
        return Instance(network, sparse_parity(n_noise=n_noise, seed=seed))

    return build


@cache
def _digits(subset: str, seed: int) -> Dataset:
    """MNIST as the tasks take it; members that share data must share the tensors."""
    return load_mnist(
        n_train=1024, n_test=1024, normalise=True, flatten=True, subset=subset,
        seed=seed,
    )  # fmt: skip


def mnist_start(
    width: int, *, bias: bool, init_scale: float, subset: str
) -> Callable[[int, torch.device], Instance]:
    """Return how a seed of an MNIST task is built: three hidden layers, 1024 images."""

    def build(seed: int, device: torch.device) -> Instance:
        network = mlp(
            [784, width, width, width, 10], bias=bias, init_scale=init_scale,
            generator=_generator(seed), dtype=torch.float64,
        )  # fmt: skip
        return Instance(network, _digits(subset, seed if subset == "random" else 0))

    return build


def _modular(seed: int, device: torch.device) -> Instance:
    network = mlp(
        [122, 256, 61], activation="quadratic", bias=False,
        generator=_generator(seed), dtype=torch.float64,
    )  # fmt: skip
    return Instance(network, modular_addition(seed=seed))


def _adamw(learning_rate: float, weight_decay: float) -> rules.AdamW:
    return rules.AdamW(learning_rate, beta2=0.99, eps=1e-25, weight_decay=weight_decay)


_RELEASED_MNIST = mnist_start(200, bias=True, init_scale=8.0, subset="first")
_TEXT_MNIST = mnist_start(196, bias=False, init_scale=4.0, subset="random")

TASKS: dict[str, dict[str, Task]] = {
    "released": {
        "xor": Task(
            "XOR", _xor, "squared_error",
            rules.SGD(0.1, momentum=0.2, weight_decay=0.1), 1.0, 1000,
            _grokked(0.95, noise_accuracy=0.95), orthograd_momentum=0.8,
        ),
        "parity": Task(
            "Sparse Parity", _parity(40), "cross_entropy", _adamw(0.01, 0.1), 0.1,
            20_000, _grokked(0.9),
        ),
        "mnist_ce": Task(
            "MNIST - Cross Entropy", _RELEASED_MNIST, "cross_entropy",
            _adamw(1e-3, 0.01), 0.01, 20_000, _grokked(0.8), 196,
        ),
        "mnist_se": Task(
            "MNIST - Squared Error", _RELEASED_MNIST, "squared_error",
            _adamw(1e-3, 0.01), 0.01, 20_000, _grokked(0.8), 196,
        ),
        "modular": Task(
            "Modular Addition", _modular, "cross_entropy", _adamw(1e-3, 1.0), 0.01,
            1000, _grokked(0.99), 32,
        ),
    },
}  # fmt: skip
# The text differs in these; where it is silent, the released setting stands.
TASKS["text"] = {
    name: replace(released, penalty=TEXT_PENALTY, **changed)
    for (name, released), changed in zip(
        TASKS["released"].items(),
        (
            {"optimizer": rules.SGD(0.1, weight_decay=0.1), "orthograd_momentum": None},
            {"build": _parity(37)},
            {"build": _TEXT_MNIST, "batch_size": 128},
            {"build": _TEXT_MNIST, "batch_size": 128},
            {},
        ),
        strict=True,
    )
}


def task(name: str, *, preset: str = "released") -> Task:
    """Return a task of Table 1 by its name and preset.

    Raises
    ------
    ValueError
        If there is no such name or preset.

    Examples
    --------
    >>> task("modular").criteria["test_accuracy"]
    0.99
    """
    rule = " or ".join(map(repr, TASKS))
    require(preset in TASKS, "task", "preset", rule, repr(preset))
    rule = f"one of {', '.join(TASKS[preset])}"
    require(name in TASKS[preset], "task", "name", rule, repr(name))
    return TASKS[preset][name]


def acceleration_ensemble(
    task: Task,
    *,
    methods: Sequence[str] = METHODS,
    seeds: Sequence[int] = range(10),
    device: torch.device | str = "cpu",
) -> Ensemble:
    """Return the runs of a task: every method from the same starts, seed by seed.

    The members are in the order of ``methods``, and within a method of ``seeds``.
    """
    place = torch.device(device)
    instances = [task.build(seeds[0], place)]  # first alone: CUDA libraries load here
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        # torch draws its numbers outside Python's lock.
        instances += pool.map(lambda seed: task.build(seed, place), seeds[1:])
    starts = instances * len(methods)
    members = [task.member(method, seed) for method in methods for seed in seeds]
    also = {name: [one.also[name] for one in starts] for name in instances[0].also}
    return Ensemble(
        [one.network for one in starts], [one.data for one in starts], members,
        loss=task.loss, epochs=task.epochs, batch_size=task.batch_size, also=also,
        until=task.has_grokked, device=place,
    )  # fmt: skip
