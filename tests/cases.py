"""The models that every geometry test runs over, in float64, with their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    inner: str  # a submodule with one floating input

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.build().double()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
        return model.eval()

    def x(self, n: int = 6) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randn(n, *self.input_shape, generator=generator).double()

    def __repr__(self) -> str:
        return self.name


class ResidualNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(9, 12)
        self.body = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 12))
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.stem(x))
        return self.head(hidden + self.body(hidden))


class Attention(nn.Module):
    """One transformer layer on continuous tokens, with the fused attention call."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))
        self.unembed = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return self.unembed(x + self.mlp(x))[:, -1]


class TokenModel(nn.Module):
    """Integer tokens, an embedding, a layer that runs twice, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 8)
        self.twice = nn.Linear(8, 8)
        self.attention = Attention()

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.tanh(self.twice(self.embed(tokens)))
        return self.attention(self.twice(hidden))


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell = cell(6, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 4)
    )


def wide_head() -> nn.Module:
    """More outputs than inputs: the route by columns."""
    return nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 11))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 6, 3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


CASES = [
    Case("mlp", mlp, (10,), "2"),
    Case("wide_head", wide_head, (5,), "2"),
    Case("cnn", cnn, (2, 8, 8), "4"),
    Case("residual", ResidualNet, (9,), "body"),
    Case("attention", Attention, (4, 8), "out"),
]
