"""Chains of linear maps and elementwise activations, many networks at once.

The fast road of the ensemble. A network ``A_m φ A_{m-1} ... φ A_1`` has its derivatives
in closed form,

    J = W_m D_{m-1} W_{m-1} ... D_1 W_1,    D_i = diag(φ'(z_i)),

so that the pull-back ``v -> J^T v`` and the push-forward ``u -> J u`` are chains of
products, written out here. A penalty on them needs first derivatives only, where a
general network needs second derivatives of every operation; and those of chains of
products are chains of products again (:mod:`normalign.training.chain_gradient`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from normalign.nn import Quadratic

__all__ = ["Chain", "ChainPass"]


class Activation(NamedTuple):
    """An elementwise function φ with its slope φ' and its curvature φ''.

    Slope and curvature are functions of ``z`` and ``h = φ(z)``, whichever is cheaper.
    ``None`` is no curvature: φ is piecewise linear.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    curvature: Callable[[Tensor, Tensor], Tensor] | None = None


def _gelu_slope(z: Tensor, h: Tensor) -> Tensor:
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return torch.special.ndtr(z) + z * density


def _gelu_curvature(z: Tensor, h: Tensor) -> Tensor:
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return density * (2 - z.square())


def _silu_slope(z: Tensor, h: Tensor) -> Tensor:
    gate = z.sigmoid()
    return gate + h * (1 - gate)


def _silu_curvature(z: Tensor, h: Tensor) -> Tensor:
    gate = z.sigmoid()
    return gate * (1 - gate) * (2 + z * (1 - 2 * gate))


def _activation(module: nn.Module) -> Activation | None:
    """Return the function of an activation module, or ``None`` if it is not known."""
    kind = type(module)
    if kind is nn.LeakyReLU:
        slope = float(cast(nn.LeakyReLU, module).negative_slope)
        return Activation(
            lambda z: nn.functional.leaky_relu(z, slope),
            lambda z, h: (z > 0).to(z) * (1 - slope) + slope,
        )
    if kind is nn.GELU and module.approximate != "none":
        return None
    return _ACTIVATIONS.get(kind)


_IDENTITY = Activation(lambda z: z, lambda z, h: torch.ones_like(z))

_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: Activation(torch.relu, lambda z, h: (h > 0).to(z)),
    nn.Identity: _IDENTITY,
    Quadratic: Activation(
        torch.square, lambda z, h: 2 * z, lambda z, h: torch.full_like(z, 2.0)
    ),
    nn.Tanh: Activation(
        torch.tanh, lambda z, h: 1 - h.square(), lambda z, h: 2 * h * (h.square() - 1)
    ),
    nn.Sigmoid: Activation(
        torch.sigmoid, lambda z, h: h * (1 - h), lambda z, h: h * (1 - h) * (1 - 2 * h)
    ),
    nn.SiLU: Activation(nn.functional.silu, _silu_slope, _silu_curvature),
    nn.GELU: Activation(nn.functional.gelu, _gelu_slope, _gelu_curvature),
}


@dataclass(frozen=True)
class Layer:
    """A linear map and what follows it: positions in the list of parameters."""

    weight: int
    bias: int | None
    activation: Activation | None


@dataclass(frozen=True)
class Chain:
    """The shape of a chain, without its numbers.

    Parameters
    ----------
    layers : tuple of Layer
        In the order in which an input meets them; the last has no activation.
    flattens : bool
        Whether the network flattens its input first; without, inputs are vectors.
    """

    layers: tuple[Layer, ...]
    flattens: bool = False

    @classmethod
    def of(cls, network: nn.Module) -> Chain | None:
        """Return the chain of a sequential network, or ``None`` if it is none.

        Flattening of the input may come first: it changes no number. Shared layers,
        hooks and parametrizations are not chains: they need the module itself.
        """
        modules = _flat(network)
        if modules is None or len(set(modules)) < len(modules):
            return None
        names = {id(p): i for i, p in enumerate(network.parameters())}
        flattens = bool(modules) and type(modules[0]) is nn.Flatten
        if flattens:
            ends = (modules[0].start_dim, modules[0].end_dim)
            if ends != (1, -1):
                return None
            modules = modules[1:]
        layers: list[Layer] = []
        for module in modules:
            if type(module) is nn.Linear:
                if layers and layers[-1].activation is None:  # two maps in a row
                    layers[-1] = replace(layers[-1], activation=_IDENTITY)
                bias = None if module.bias is None else names[id(module.bias)]
                layers.append(Layer(names[id(module.weight)], bias, None))
                continue
            activation = _activation(module)
            if activation is None or not layers or layers[-1].activation:
                return None
            layers[-1] = replace(layers[-1], activation=activation)
        if not layers or layers[-1].activation is not None:
            return None
        return cls(tuple(layers), flattens)

    def run(self, parameters: Sequence[Tensor], x: Tensor) -> ChainPass:
        """Send the inputs of every network through it.

        Parameters
        ----------
        parameters : sequence of Tensor of shape (s, ...)
            The stacked parameters, in the order of ``network.parameters()``.
        x : Tensor of shape (s, n, ...)
        """
        return ChainPass(self, parameters, x)


class ChainPass:
    """One pass through stacked chains: outputs, slopes and Jacobians.

    The networks and their samples are one long batch here: ``s * n`` rows, those of
    the first network first.
    """

    def __init__(self, chain: Chain, parameters: Sequence[Tensor], x: Tensor) -> None:
        self._chain, self._parameters, self._x = chain, parameters, x
        self._weights = [parameters[layer.weight] for layer in chain.layers]
        # What each layer receives, and what it gives before its activation.
        self._received, self._given = [x.flatten(2)], list[Tensor]()
        self._slopes: dict[int, Tensor] = {}
        for layer in chain.layers:
            hidden, weight = self._received[-1], parameters[layer.weight].mT
            if layer.bias is None:
                value = torch.bmm(hidden, weight)
            else:
                value = torch.baddbmm(parameters[layer.bias][:, None], hidden, weight)
            self._given.append(value)
            if layer.activation is not None:
                self._received.append(layer.activation.value(value))
        self.stacked = self._given[-1]

    def _slope(self, i: int) -> Tensor:
        """Return the slope of the activation after layer i; worked out once."""
        if i not in self._slopes:
            activation = self._chain.layers[i].activation
            assert activation is not None
            slope = activation.slope(self._given[i], self._received[i + 1])
            self._slopes[i] = slope
        return self._slopes[i]

    @property
    def point(self) -> Tensor:
        """The inputs, (s * n, ...)."""
        return self._x.flatten(0, 1)

    @property
    def output(self) -> Tensor:
        """The outputs, (s * n, k)."""
        return self.stacked.flatten(0, 1)

    def jacobian(self) -> Tensor:
        """Return every Jacobian, (s, n, k, d)."""
        s, n, k = self.stacked.shape
        rows = self._weights[-1][:, None].expand(s, n, k, -1)
        for i in range(len(self._weights) - 2, -1, -1):
            rows = (rows * self._slope(i)[:, :, None]).flatten(1, 2)
            rows = torch.bmm(rows, self._weights[i]).unflatten(1, (n, k))
        return rows


def _flat(network: nn.Module) -> list[nn.Module] | None:
    """Return the layers of nested plain sequentials in order; ``None`` for others."""
    hooked = network._forward_hooks or network._forward_pre_hooks
    if hooked or getattr(network, "parametrizations", None) is not None:
        return None
    if type(network) is not nn.Sequential:
        return None if next(network.children(), None) is not None else [network]
    layers: list[nn.Module] = []
    for child in network:
        inner = _flat(child)
        if inner is None:
            return None
        layers += inner
    return layers
