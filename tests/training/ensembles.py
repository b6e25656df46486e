"""Tasks, networks and members that the tests of the ensemble engine share."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

from normalign.nn import mlp
from normalign.regularizers import PenaltyForm
from normalign.training import Ensemble, Member, Trained
from normalign.training.rules import SGD, AdamW, Grokfast, OrthoGrad
from tests.cases import Attention, ResidualNet

# Two members of every kind, so that each kind is a stack and no two are alike.
METHODS: dict[str, list[dict]] = {
    "sgd": [
        {"optimizer": SGD(0.1, momentum=0.5, weight_decay=0.01)},
        {"optimizer": SGD(0.05)},
    ],
    "adamw": [
        {"optimizer": AdamW(1e-2, weight_decay=0.1)},
        {"optimizer": AdamW(3e-3, beta1=0.8, beta2=0.99, eps=1e-6)},
    ],
    "grokfast": [
        {"optimizer": AdamW(1e-2), "gradient_filter": Grokfast(0.8, 0.1)},
        {"optimizer": AdamW(1e-2), "gradient_filter": Grokfast(0.98, 2.0)},
    ],
    "orthograd": [
        {"optimizer": SGD(0.1, momentum=0.8), "gradient_filter": OrthoGrad()},
        {"optimizer": SGD(0.2, weight_decay=0.1), "gradient_filter": OrthoGrad()},
    ],
    "power 2": [
        {"optimizer": SGD(0.1), "weight": 0.02},
        {"optimizer": SGD(0.05, momentum=0.5), "weight": 0.001},
    ],
    "power 1": [
        {"optimizer": AdamW(1e-2), "weight": 0.05, "penalty": PenaltyForm(power=1)},
        {"optimizer": AdamW(1e-2), "weight": 0.01, "penalty": PenaltyForm(power=1)},
    ],
    "ratio": [
        {"optimizer": SGD(0.05), "weight": w, "penalty": PenaltyForm(power="ratio")}
        for w in (0.02, 0.05)
    ],
    "released": [
        {
            "optimizer": SGD(0.05),
            "weight": w,
            "penalty": PenaltyForm(power=1, released=True),
        }
        for w in (0.02, 0.05)
    ],
}


def members(*names: str, seed: int = 0) -> list[Member]:
    """Both members of each kind, with seeds of their own."""
    settings = [one for name in names or METHODS for one in METHODS[name]]
    return [Member(seed + i, **one) for i, one in enumerate(settings)]


def task(
    shape: tuple[int, ...] = (6,), *, seed: int = 0, n: int = 24, k: int = 3
) -> SimpleNamespace:
    """Classes that a linear rule decides, in float64; half as many test points."""
    source = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(n + n // 2, *shape, generator=source, dtype=torch.float64)
    rule = torch.randn(x[0].numel(), k, generator=source, dtype=torch.float64)
    y = (x.flatten(1) @ rule).argmax(1)
    return SimpleNamespace(x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])


def chains(s: int, *, activation: str = "tanh", seed: int = 0) -> list[nn.Module]:
    source = torch.Generator().manual_seed(seed)
    return [
        mlp([6, 10, 8, 3], activation=activation, generator=source, dtype=torch.float64)
        for _ in range(s)
    ]


class Normed(nn.Module):
    """Layer normalisation, a learned scale without dimensions, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.scale, self.head = nn.Parameter(torch.tensor(0.7)), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        return self.head(hidden + self.scale * torch.tanh(self.norm(hidden)))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


# What no chain is, with the shape of its inputs and its number of outputs.
GENERAL = {
    "residual": (ResidualNet, (9,), 4),
    "layer norm": (Normed, (6,), 3),
    "convolution": (convolutional, (2, 6, 6), 3),
    "attention": (Attention, (4, 8), 5),
}


def built(build, s: int, *, seed: int = 0) -> list[nn.Module]:
    """Some networks of one kind, with numbers of their own, in float64."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return [build().double() for _ in range(s)]


def never(epoch: int) -> bool:
    return False


def ensemble(networks, data, these, **options) -> Ensemble:
    settings = {"loss": "cross_entropy", "epochs": 5, "evaluate": never}
    return Ensemble(networks, data, these, **{**settings, **options})


def distance(one: Trained, other: Trained) -> float:
    """The largest difference between the parameters of two networks."""
    assert one.weights.keys() == other.weights.keys()
    return max(
        float((w - other.weights[n]).abs().max()) for n, w in one.weights.items()
    )


def travelled(network: nn.Module, trained: Trained) -> float:
    """How far training has moved the parameters of a network, at most."""
    start = dict(network.named_parameters())
    return max(
        float((w - start[n].detach()).abs().max()) for n, w in trained.weights.items()
    )


def identical(one: Trained, other: Trained) -> bool:
    """Whether two networks agree in every bit, and in every number recorded."""
    same = one.weights.keys() == other.weights.keys() and all(
        torch.equal(one.weights[name], other.weights[name]) for name in one.weights
    )
    columns = [
        {name: [repr(v) for v in values] for name, values in t.history.columns.items()}
        for t in (one, other)
    ]
    return same and columns[0] == columns[1] and one.stopped == other.stopped
