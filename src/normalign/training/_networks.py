"""Many networks of one architecture: their outputs, gradients and local maps.

The parameters of s networks lie in one tensor ``rows`` of shape (s, p). There are two
implementations with the same results: products of matrices for networks that are a
:class:`Chain` of linear layers and activations, and ``torch.func`` for other modules.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from normalign._errors import require_kind
from normalign._hooks import location_in, middle_of
from normalign._torch_compat import attention_with_derivatives
from normalign.nn import Quadratic
from normalign.regularizers import PenaltyForm
from normalign.regularizers._call import penalised
from normalign.regularizers._formulas import penalty
from normalign.training._targets import StackedLoss
from normalign.training._validation import check_alike, check_pure, check_trainable

__all__ = [
    "Chain",
    "ChainPass",
    "Gradients",
    "Networks",
    "Objective",
    "RecordedPass",
    "StackedChains",
    "StackedModules",
    "stack_networks",
]


class Gradients(NamedTuple):
    """What one batch gives: gradients (s, p), and weighted mean penalties (s,)."""

    rows: Tensor
    penalty: Tensor


@dataclass(frozen=True)
class Objective:
    """What every network lowers: a loss, and a penalty with a weight of its own.

    Parameters
    ----------
    loss : callable
        From outputs (s, n, k) and targets to one number for each network, (s,).
    form : PenaltyForm, optional
        Without, there is no penalty.
    weight : Tensor of shape (s,), optional
    """

    loss: StackedLoss
    form: PenaltyForm | None = None
    weight: Tensor | None = None

    def total(
        self, output: Tensor, y: Tensor, values: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the sum over the networks, and the weighted penalty of each, (s,).

        ``values`` are the unweighted penalties of the samples, (s, n).
        """
        weighted = output.new_zeros(len(output))
        if values is not None and self.weight is not None:
            weighted = self.weight * values.mean(1)
        return (self.loss(output, y) + weighted).sum(), weighted.detach()


class Networks(ABC):
    """The architecture shared by all networks of a stack.

    Parameters
    ----------
    network : torch.nn.Module
        One of the networks; its parameters are not used.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.shapes = {name: p.shape for name, p in network.named_parameters()}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]

    def split(self, rows: Tensor) -> list[Tensor]:
        """Return the parameters in the rows as views, each of shape (s, ...)."""
        parts = rows.split(self.sizes, dim=1)
        return [
            part.unflatten(1, shape) if shape else part.squeeze(1)
            for part, shape in zip(parts, self.shapes.values(), strict=True)
        ]

    @abstractmethod
    def gradients(
        self,
        rows: Tensor,
        x: Tensor,
        y: Tensor,
        objective: Objective,
        *,
        noise: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Gradients:
        """Return the gradient of each network's objective in its parameters.

        Parameters
        ----------
        rows : Tensor of shape (s, p)
        x, y : Tensor of shape (s, n, ...)
        objective : Objective
        noise : Tensor of shape (s, n_probes, n, ...), optional
            Standard normal numbers for the probes of the penalty.
        out : Tensor of shape (s, p), optional
            Where the gradients may be written.
        """

    def noise_shape(self, form: PenaltyForm, x: Tensor, k: int) -> tuple[int, ...]:
        """Return the shape of the noise of n samples ``x``, for one network of k."""
        cut = form.estimator == "nuclear"
        if not cut and (form.at is None or form.estimator in ("output", "exact")):
            return form.noise_shape(x, (len(x), k))
        at = form.at or middle_of(self.network, "Ensemble")
        location = location_in(self.network, at, "Ensemble")
        device = next(self.network.parameters()).device
        with torch.no_grad():
            found = location.read(lambda: self.network(x[:1].to(device)))
        hidden = (len(x), *found.shape[1:])
        return form.noise_shape(x, (len(x), k), hidden_shape=hidden)

    @abstractmethod
    def outputs(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the outputs, (s, n, k), of each network at its own inputs."""

    @abstractmethod
    def jacobians(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the Jacobians, (s, n, k, d), of each network at its own inputs."""


class StackedChains(Networks):
    """Networks that are chains of linear maps and elementwise activations."""

    def __init__(self, network: nn.Module, chain: Chain) -> None:
        super().__init__(network)
        self.chain = chain
        self._general = StackedModules(network)

    def outputs(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the outputs by stacked products."""
        return self.chain.run(parameters, x).stacked

    def gradients(
        self,
        rows: Tensor,
        x: Tensor,
        y: Tensor,
        objective: Objective,
        *,
        noise: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Gradients:
        """Return the gradients as products, written where they belong."""
        form = objective.form
        # A place inside a network is a submodule's, and a chain has none.
        if form is not None and (form.estimator == "nuclear" or form.at is not None):
            return self._general.gradients(rows, x, y, objective, noise=noise)
        local, values = RecordedPass(self.chain, self.split(rows), x), None
        with torch.enable_grad():
            if form is not None:
                # Probe after probe, each for the one long batch of all networks.
                probes = iter(() if noise is None else noise.transpose(0, 1))
                values = penalty(local, lambda z: next(probes).reshape(z.shape), form)
                values = values.view(x.shape[:2])
            total, weighted = objective.total(local.stacked, y, values)
        out = torch.empty_like(rows) if out is None else out
        local.write_gradients(total, self.split(out))
        return Gradients(out, weighted)

    def jacobians(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the Jacobians as products of weights and slopes."""
        return self.chain.run(parameters, x).jacobian()


class StackedModules(Networks):
    """Networks of any architecture that ``torch.func`` can differentiate."""

    def outputs(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the outputs by ``vmap`` over the networks."""
        with attention_with_derivatives():
            return vmap(self._call)(list(parameters), x)

    def gradients(
        self,
        rows: Tensor,
        x: Tensor,
        y: Tensor,
        objective: Objective,
        *,
        noise: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Gradients:
        """Return the gradients by autograd over the stacked networks."""
        leaves = [part.detach().requires_grad_() for part in self.split(rows)]
        with torch.enable_grad():
            if objective.form is None:
                output, values = self.outputs(leaves, x), None
            else:
                output, values = self._penalise(leaves, x, noise, objective.form)
            total, weighted = objective.total(output, y, values)
        # A parameter that the output does not depend on has gradient 0.
        each = torch.autograd.grad(total, leaves, materialize_grads=True)
        flat = [
            gradient.reshape(len(rows), size)
            for gradient, size in zip(each, self.sizes, strict=True)
        ]
        return Gradients(torch.cat(flat, dim=1, out=out), weighted)

    def _penalise(
        self,
        parameters: Sequence[Tensor],
        x: Tensor,
        noise: Tensor | None,
        form: PenaltyForm,
    ) -> tuple[Tensor, Tensor]:
        """Return outputs and penalties by ``torch.func`` under ``vmap``."""

        def one(
            parameters: list[Tensor], x: Tensor, noise: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            def function(z: Tensor) -> Tensor:
                return self._call(parameters, z)

            return penalised(function, x, noise, form, inside=self.network)

        in_dims = (0, 0, None if noise is None else 0)
        with attention_with_derivatives():
            return vmap(one, in_dims)(list(parameters), x, noise)

    def jacobians(self, parameters: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the Jacobians by reverse mode, sample by sample under ``vmap``."""

        def one(parameters: list[Tensor], x: Tensor) -> Tensor:
            def output(z: Tensor) -> Tensor:
                return self._call(parameters, z[None])[0]

            return vmap(jacrev(output))(x).flatten(2)

        with attention_with_derivatives():
            return vmap(one)(list(parameters), x)

    def _call(self, parameters: list[Tensor], x: Tensor) -> Tensor:
        named = dict(zip(self.shapes, parameters, strict=True))
        output = functional_call(self.network, named, (x,))
        rule = "modules that return one tensor"
        require_kind(isinstance(output, Tensor), "Ensemble", "networks", rule, output)
        return output.reshape(len(x), -1)


def stack_networks(
    networks: Sequence[nn.Module], x: Tensor, *, device: torch.device | None = None
) -> tuple[Networks, Tensor]:
    """Return the common architecture of some networks, and their parameters as rows.

    Parameters
    ----------
    networks : sequence of torch.nn.Module
        Of one architecture, dtype and device; they are not changed.
    x : Tensor of shape (n, ...)
        Inputs, which decide whether the chain is used.
    device : torch.device, optional
        Where the architecture will run; the rows stay where the networks are.

    Returns
    -------
    architecture : Networks
        Its module is a copy: buffers go along, and later changes do not reach it.
    rows : Tensor of shape (s, p)

    Raises
    ------
    TypeError
        If something is no module, or has parameters that are not real.
    ValueError
        If the networks differ in more than their numbers, hold frozen parameters or
        none, or hold layers whose course depends on more than their own seed (dropout,
        batch normalisation in training mode).
    """
    for position, network in enumerate(networks):
        check_trainable(network, position)
        check_alike(network, networks[0], position)
        check_pure(network, position)
    rows = torch.stack([
        torch.cat([p.detach().reshape(-1) for p in network.parameters()])
        for network in networks
    ])  # fmt: skip
    first = copy.deepcopy(networks[0]).to(device)
    chain = Chain.of(first)
    if chain is not None and (x.ndim == 2 or chain.flattens):
        return StackedChains(first, chain), rows
    return StackedModules(first), rows


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


@dataclass(frozen=True)
class Sweep:
    """A pull-back or push-forward: its result, and what each layer took and gave."""

    result: Tensor
    taken: list[Tensor]
    given: list[Tensor]


class RecordedPass(ChainPass):
    """A pass through stacked chains that remembers what its gradient needs.

    Its outputs, pull-backs and push-forwards are leaves for autograd, each of them to
    be had as often as wanted. Their derivatives in the weights are found by
    :meth:`write_gradients`.
    """

    def __init__(self, chain: Chain, parameters: Sequence[Tensor], x: Tensor) -> None:
        with torch.no_grad():
            super().__init__(chain, parameters, x)
        self.stacked = self.stacked.requires_grad_()
        self._pulls: list[Sweep] = []
        self._pushes: list[Sweep] = []
        self._moves: list[RecordedPass] = []

    def output_after(self, step: Tensor) -> Tensor:
        """Return the outputs at the inputs plus a step, (s * n, k)."""
        x = self._x + step.reshape(self._x.shape)
        self._moves.append(RecordedPass(self._chain, self._parameters, x))
        return self._moves[-1].output

    @torch.no_grad()
    def pull(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T v`` at each sample, (s * n, ...), for v of shape (s * n, k)."""
        row = cotangent.reshape(self.stacked.shape)
        taken, given = list[Tensor](), list[Tensor]()
        for i in range(len(self._weights) - 1, -1, -1):
            taken.insert(0, row)
            row = torch.bmm(row, self._weights[i])
            given.insert(0, row)
            if i > 0:
                row = row * self._slope(i - 1)
        result = row.reshape(self.point.shape).requires_grad_()
        self._pulls.append(Sweep(result, taken, given))
        return result

    @torch.no_grad()
    def push(self, tangent: Tensor) -> Tensor:
        """Return ``J u`` at each sample, (s * n, k), for u of shape (s * n, ...)."""
        s, n, _ = self.stacked.shape
        column = tangent.reshape(s, n, -1)
        taken, given = list[Tensor](), list[Tensor]()
        for i, weight in enumerate(self._weights):
            taken.append(column)
            column = torch.bmm(column, weight.mT)
            given.append(column)
            if i < len(self._weights) - 1:
                column = column * self._slope(i)
        result = column.flatten(0, 1).requires_grad_()
        self._pushes.append(Sweep(result, taken, given))
        return result

    def write_gradients(self, total: Tensor, into: Sequence[Tensor]) -> None:
        """Write the gradient of a scalar made of this pass, for each parameter.

        Parameters
        ----------
        total : Tensor of shape ()
        into : sequence of Tensor
            Overwritten; shaped like the parameters.
        """
        leaves = [sweep.result for sweep in (*self._pulls, *self._pushes)]
        leaves += [one.stacked for one in (*self._moves, self)]
        found = torch.autograd.grad(total, leaves, materialize_grads=True)
        cotangents = iter(found)
        with torch.no_grad():
            sums = Sums(self._chain, into)
            bent: dict[int, Tensor] = {}  # what arrives at each slope
            for sweep in self._pulls:
                self._back_through_pull(sweep, next(cotangents), sums, bent)
            for sweep in self._pushes:
                self._back_through_push(sweep, next(cotangents), sums, bent)
            for one in self._moves:
                one._back_through_output(next(cotangents), sums, {})
            self._back_through_output(next(cotangents), sums, bent)
            sums.finish()

    def _back_through_output(
        self, cotangent: Tensor, sums: Sums, bent: dict[int, Tensor]
    ) -> None:
        for i in range(len(self._weights) - 1, -1, -1):
            sums.add_product(i, cotangent, self._received[i])
            sums.add_bias(i, cotangent)
            if i > 0:
                cotangent = torch.bmm(cotangent, self._weights[i])
                cotangent = cotangent.mul_(self._slope(i - 1))
                activation = self._chain.layers[i - 1].activation
                if i - 1 in bent and activation is not None:
                    assert activation.curvature is not None
                    value, hidden = self._given[i - 1], self._received[i]
                    curvature = activation.curvature(value, hidden)
                    cotangent.addcmul_(bent[i - 1], curvature)

    def _back_through_pull(
        self, sweep: Sweep, cotangent: Tensor, sums: Sums, bent: dict[int, Tensor]
    ) -> None:
        s, n, _ = self.stacked.shape
        arriving = cotangent.reshape(s, n, -1)
        last = len(self._weights) - 1
        for i, weight in enumerate(self._weights):
            sums.add_product(i, sweep.taken[i], arriving)
            if i == last:  # the probe does not depend on the weights
                break
            arriving = torch.bmm(arriving, weight.mT)
            self._note(bent, i, arriving, sweep.given[i + 1])
            arriving = arriving.mul_(self._slope(i))

    def _back_through_push(
        self, sweep: Sweep, cotangent: Tensor, sums: Sums, bent: dict[int, Tensor]
    ) -> None:
        arriving = cotangent.reshape(self.stacked.shape)
        for i in range(len(self._weights) - 1, -1, -1):
            sums.add_product(i, arriving, sweep.taken[i])
            if i > 0:
                arriving = torch.bmm(arriving, self._weights[i])
                self._note(bent, i - 1, arriving, sweep.given[i - 1])
                arriving = arriving.mul_(self._slope(i - 1))

    def _note(
        self, bent: dict[int, Tensor], i: int, arriving: Tensor, other: Tensor
    ) -> None:
        """Add what arrives at the slope after layer i, if that slope can bend."""
        activation = self._chain.layers[i].activation
        if activation is None or activation.curvature is None:
            return
        if i in bent:
            bent[i].addcmul_(arriving, other)
        else:
            bent[i] = arriving * other


class Sums:
    """The products that make up each gradient, gathered and then summed at once."""

    def __init__(self, chain: Chain, into: Sequence[Tensor]) -> None:
        self._layers, self._into = chain.layers, into
        self._products: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._begun: set[int] = set()

    def add_product(self, i: int, left: Tensor, right: Tensor) -> None:
        """Add the sum over samples of ``left right^T`` to the weight of layer i."""
        self._products.setdefault(self._layers[i].weight, []).append((left, right))

    def add_bias(self, i: int, cotangent: Tensor) -> None:
        """Add the sum over samples to the bias of layer i, if it has one."""
        place = self._layers[i].bias
        if place is None:
            return
        if place in self._begun:
            self._into[place].add_(cotangent.sum(1))
        else:
            torch.sum(cotangent, 1, out=self._into[place])
            self._begun.add(place)

    def finish(self) -> None:
        """Write the weights' gradients."""
        for place, products in self._products.items():
            target, (left, right) = self._into[place], products[0]
            if len(products) > 1 and _is_small(left, right):
                sides = zip(*products, strict=True)
                left, right = (torch.cat(side, dim=1) for side in sides)
                products = []
            torch.bmm(left.mT, right, out=target)
            for left, right in products[1:]:
                target.baddbmm_(left.mT, right)


def _is_small(left: Tensor, right: Tensor) -> bool:
    """Whether copying both sides is less than to read and write their product again."""
    n, rows, columns = left.shape[1], left.shape[2], right.shape[2]
    return n * (rows + columns) < rows * columns
