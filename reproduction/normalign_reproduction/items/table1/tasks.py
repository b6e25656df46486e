"""The five tasks of Table 1: data, networks, optimizers, criteria, in both presets.

Every constant is from the paper's settings section or its criteria table (preset
``"text"``), or from the settings that its published numbers come from (``"released"``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from normalign.data import (
    Dataset,
    modular_addition,
    sparse_parity,
    xor_clusters,
    xor_noise,
)
from normalign.nn import mlp
from normalign.regularizers import PenaltyForm
from normalign.training import rules, span_reduction
from normalign_reproduction._errors import require
from normalign_reproduction.data.digits import digits

__all__ = [
    "TASKS", "Images", "Instance", "Modular", "Parity", "Task", "Xor", "task",
]  # fmt: skip

RELEASED_PENALTY = PenaltyForm(power=1, released=True)
TEXT_PENALTY = PenaltyForm(power=2)


@dataclass(frozen=True)
class Instance:
    """One seed of a task: a network at its start, its data, further test sets."""

    network: nn.Module
    data: Dataset
    also: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Xor:
    """XOR clusters, in the span of the first weights and the training inputs.

    The reduction changes no number of the run but by rounding: 2448 inputs stand for
    40000.
    """

    n_inputs: int = 40_000
    width: int = 2048

    def __call__(self, seed: int, device: torch.device) -> Instance:
        """Return a network and its data for a seed."""
        data = xor_clusters(n_inputs=self.n_inputs, seed=seed)
        sizes = [self.n_inputs, self.width, 1]
        network = mlp(sizes, bias=False, generator=_generator(seed)).to(device)
        noisy = xor_noise(data.x_test, seed=seed)
        reduced = span_reduction(network, data.x_train.to(device))
        small = replace(
            data, x_train=reduced.x_train.cpu(),
            x_test=reduced.project(data.x_test.to(device)).cpu(),
        )  # fmt: skip
        noise = reduced.project(noisy.to(device)).cpu(), data.y_test
        return Instance(reduced.network.cpu(), small, {"noise": noise})


@dataclass(frozen=True)
class Parity:
    """The parity of three bits among some of noise."""

    n_noise: int = 40
    width: int = 200

    def __call__(self, seed: int, device: torch.device) -> Instance:
        """Return a network and its data for a seed."""
        sizes = [3 + self.n_noise, self.width, self.width, 2]
        network = mlp(sizes, generator=_generator(seed))
        return Instance(network, sparse_parity(n_noise=self.n_noise, seed=seed))


@dataclass(frozen=True)
class Images:
    """Digits, three hidden layers, all parameters large at the start.

    Parameters
    ----------
    subset : {"first", "random"}
        Random images differ from seed to seed.
    source : {"mnist", "digits_5000"}
    """

    width: int = 200
    bias: bool = True
    init_scale: float = 8.0
    subset: str = "first"
    n_images: int = 1024
    dtype: str = "float64"
    source: str = "mnist"

    def __call__(self, seed: int, device: torch.device) -> Instance:
        """Return a network and its data for a seed."""
        network = mlp(
            [784, self.width, self.width, self.width, 10], bias=self.bias,
            init_scale=self.init_scale, generator=_generator(seed),
            dtype=getattr(torch, self.dtype),
        )  # fmt: skip
        data = digits(
            self.source, n_train=self.n_images, n_test=1024, subset=self.subset,
            seed=seed if self.subset == "random" else 0,
        )  # fmt: skip
        return Instance(network, data)


@dataclass(frozen=True)
class Modular:
    """Addition modulo a prime, by a network that squares."""

    modulus: int = 61
    width: int = 256
    dtype: str = "float64"

    def __call__(self, seed: int, device: torch.device) -> Instance:
        """Return a network and its data for a seed."""
        network = mlp(
            [2 * self.modulus, self.width, self.modulus], activation="quadratic",
            bias=False, generator=_generator(seed), dtype=getattr(torch, self.dtype),
        )  # fmt: skip
        return Instance(network, modular_addition(modulus=self.modulus, seed=seed))


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

    def described(self) -> dict[str, Any]:
        """Return every constant of the task, as JSON can hold it."""
        return asdict(self)

    def resized(self, **sizes: Any) -> Task:
        """Return the task with other epochs, or another size of data or network."""
        own = {name: sizes.pop(name) for name in ("epochs",) if name in sizes}
        build: Any = self.build
        return replace(self, **own, build=replace(build, **sizes) if sizes else build)


def _grokking_rule(test: float, **further: float) -> dict[str, float]:
    return {"train_accuracy": 0.99, "test_accuracy": test, **further}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _adamw(learning_rate: float, weight_decay: float) -> rules.AdamW:
    return rules.AdamW(learning_rate, beta2=0.99, eps=1e-25, weight_decay=weight_decay)


_TEXT_IMAGES = Images(width=196, bias=False, init_scale=4.0, subset="random")

TASKS: dict[str, dict[str, Task]] = {
    "released": {
        "xor": Task(
            "XOR", Xor(), "squared_error",
            rules.SGD(0.1, momentum=0.2, weight_decay=0.1), 1.0, 1000,
            _grokking_rule(0.95, noise_accuracy=0.95), orthograd_momentum=0.8,
        ),
        "parity": Task(
            "Sparse Parity", Parity(), "cross_entropy", _adamw(0.01, 0.1), 0.1,
            20_000, _grokking_rule(0.9),
        ),
        "mnist_ce": Task(
            "MNIST - Cross Entropy", Images(), "cross_entropy",
            _adamw(1e-3, 0.01), 0.01, 20_000, _grokking_rule(0.8), 196,
        ),
        "mnist_se": Task(
            "MNIST - Squared Error", Images(), "squared_error",
            _adamw(1e-3, 0.01), 0.01, 20_000, _grokking_rule(0.8), 196,
        ),
        "modular": Task(
            "Modular Addition", Modular(), "cross_entropy", _adamw(1e-3, 1.0), 0.01,
            1000, _grokking_rule(0.99), 32,
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
            {"build": Parity(n_noise=37)},
            {"build": _TEXT_IMAGES, "batch_size": 128},
            {"build": _TEXT_IMAGES, "batch_size": 128},
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
