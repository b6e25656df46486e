"""Models, oracles and forms that the tests of the regularizers share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from normalign.nn.dense import mlp
from normalign.nn.transformer import Transformer
from normalign.regularizers import PenaltyForm


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def jacobian_of(model, x: Tensor) -> Tensor:
    """(n, k, d), the naive way."""
    single = jacrev(lambda z: model(z[None])[0].flatten())
    return vmap(single)(x).flatten(2).detach()


def local_map(model, x: Tensor) -> tuple[Tensor, Tensor]:
    """Jacobian (n, k, d) and offset (n, k)."""
    jacobian = jacobian_of(model, x)
    output = model(x).flatten(1)
    offset = output - torch.einsum("nkd,nd->nk", jacobian, x.flatten(1))
    return jacobian, offset.detach()


def attention() -> nn.Module:
    blocks = Transformer(4, 4, width=4, n_heads=2, hidden=5, generator=generator())
    return nn.Sequential(blocks.blocks, nn.Flatten(), nn.Linear(12, 2)).double()


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten()
    return nn.Sequential(*layers).double()


def network(activation: str, *widths: int) -> nn.Module:
    return mlp(
        widths, activation=activation, generator=generator(), dtype=torch.float64
    )


# A model, the shape of its input, and a place where everything passes.
CASES = {
    "relu": (network("relu", 5, 7, 3), (5,), "1"),
    "tanh": (network("tanh", 5, 7, 3), (5,), "2"),
    "wide": (network("tanh", 2, 6, 9), (2,), "1"),
    "images": (convolutional(), (2, 4, 4), "2"),
    "tokens": (attention(), (3, 4), "1"),
}

FORMS = [
    PenaltyForm(estimator=estimator, power=power, n_probes=n_probes)
    for estimator, n_probes in [
        ("output", 1), ("output", 2), ("input", 2), ("orthogonal", 1),
        ("nuclear", 2), ("exact", 1), ("noise", 1),
    ]
    for power in (1, 2, "ratio")
    if (estimator, power) != ("nuclear", "ratio")
] + [
    PenaltyForm(power=1, released=True),
    PenaltyForm(offset=False),
    PenaltyForm(estimator="exact", offset=False),
    PenaltyForm(probe="normal"),
]  # fmt: skip
