"""Models in float64, a penalised step, and a batch normalisation written out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev
from torch.utils.checkpoint import checkpoint

from normalign.nn import resnet18
from normalign.regularizers._second_order import lean_operations

# Both routes add up the same products in another order: a few hundred of them, of
# order one, in float64.
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def bf16():
    return torch.autocast("cpu", dtype=torch.bfloat16)


class Step:
    """One penalised step: the outputs, the pull-back and every gradient."""

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        *,
        lean: bool = True,
        point_gradient: bool = True,
        context: Callable = torch.enable_grad,
    ) -> None:
        model.zero_grad()
        self.x = x.detach().clone().requires_grad_()
        operations = lean_operations(self.x, point_gradient=point_gradient)
        with operations if lean else nullcontext(), context():
            self.output = model(self.x)
        v = normal(*self.output.shape).to(self.output)
        with operations.pulling():  # means nothing to torch's own layers
            (self.pulled,) = torch.autograd.grad(
                self.output, self.x, v, create_graph=True
            )
        labels = torch.arange(len(x), device=x.device) % self.output.shape[1]
        offset = (v * self.output).sum() - (self.pulled * x).sum()
        penalty = self.pulled.square().sum() + offset.square() / len(x)
        (F.cross_entropy(self.output.double(), labels) + penalty).backward()
        self.gradients = {n: p.grad for n, p in model.named_parameters()}

    def agrees_with(self, other: Step, **tolerance: float) -> None:
        tolerance = tolerance or CLOSE
        torch.testing.assert_close(self.output, other.output, **tolerance)
        torch.testing.assert_close(self.pulled, other.pulled, **tolerance)
        assert self.gradients.keys() == other.gradients.keys()
        for name, gradient in other.gradients.items():
            if gradient is None:
                assert self.gradients[name] is None, name
                continue
            torch.testing.assert_close(self.gradients[name], gradient, **tolerance)


def mlp() -> nn.Module:
    layers = nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 4)
    return nn.Sequential(*layers).double()


def cnn() -> nn.Module:
    """Groups, strides, dilation, asymmetric padding, a transposed convolution."""
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, dilation=2, padding="same", groups=6),
        nn.Tanh(),
        nn.Conv2d(6, 5, (1, 3), padding=(0, 1)),
        nn.GELU(),
        nn.ConvTranspose2d(5, 3, 3, stride=2, output_padding=1),
        nn.Flatten(),
        nn.Linear(3 * 12 * 12, 4),
    ).double()


def residual() -> nn.Module:
    return with_statistics(resnet18(width=4).double()).eval()


def normalised(*, tracked: bool = False) -> nn.Module:
    """Batch normalisation of pictures and of vectors, with and without weights."""
    return nn.Sequential(
        nn.Conv2d(4, 5, 3, padding=1, bias=False),
        nn.BatchNorm2d(5),
        nn.Tanh(),
        nn.Conv2d(5, 6, 3, stride=2),
        nn.BatchNorm2d(6, affine=False),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(6 * 3 * 3, 7),
        nn.BatchNorm1d(7, track_running_stats=tracked),
        nn.Softplus(),
        nn.Linear(7, 4),
    ).double()


def held() -> nn.Module:
    return with_statistics(normalised(tracked=True)).eval()


def with_statistics(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is not None:
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
            if module.weight is not None:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias)
    return model


MODELS = {
    "mlp": (mlp, (6,)),
    "cnn": (cnn, (4, 9, 9)),
    "resnet": (residual, (3, 16, 16)),
    "normalised": (held, (4, 8, 8)),
}


class Decomposed:
    """The model of :func:`normalised`, written out, its statistics in the open."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.layers, self.statistics = model, []
        self.output = self.run(x, None)
        self.x = x

    def run(self, h: Tensor, statistics: list | None) -> Tensor:
        """Run on one batch, or on one sample at the statistics of another batch."""
        given = iter(statistics or [])
        for layer in self.layers:
            if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
                h = F.relu(h) if isinstance(layer, nn.ReLU) else layer(h)
                continue
            axes = (0, *range(2, h.ndim))
            if statistics is None:
                mean = h.mean(dim=axes, keepdim=True)
                var = (h - mean).square().mean(dim=axes, keepdim=True)
                self.statistics.append((mean, var))
            else:
                mean, var = next(given)
            h = (h - mean) / (var + layer.eps).sqrt()
            if layer.affine:
                shape = (1, -1, *(1,) * (h.ndim - 2))
                h = h * layer.weight.view(shape) + layer.bias.view(shape)
        return h

    def jacobians(self) -> Tensor:
        def single(sample: Tensor) -> Tensor:
            return self.run(sample.unsqueeze(0), self.statistics).squeeze(0)

        return torch.stack([jacrev(single)(sample) for sample in self.x]).flatten(2)


class Checkpointed(nn.Module):
    def __init__(self, model: nn.Module, *cuts: int) -> None:
        super().__init__()
        self.model, self.cuts = model, cuts

    def forward(self, x: Tensor) -> Tensor:
        for start, stop in pairwise(self.cuts):
            x = checkpoint(self.model[start:stop], x, use_reentrant=False)
        return x


def under_lean(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x: Tensor, *rest: Tensor) -> Tensor:
        with lean_operations(x):
            return function(x, *rest)

    return run


def pulled_by(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x: Tensor, v: Tensor, *rest: Tensor) -> Tensor:
        x = x.clone()  # torch's differences do not know of a dead end
        with lean_operations(x, point_gradient=False) as operations:
            y = function(x, *rest)
        with operations.pulling():
            return torch.autograd.grad(y, x, v, create_graph=True)[0]

    return run


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [normal(*s, seed=i).requires_grad_() for i, s in enumerate(shapes)]
