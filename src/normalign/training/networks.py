"""Many networks of one architecture: their outputs, gradients and local maps.

The parameters of s networks lie in one tensor ``rows`` of shape (s, p). Two roads lead
to the same numbers: chains of products for networks that are chains
(:mod:`normalign.training.chain`), and ``torch.func`` for every other module.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from normalign._errors import require_kind
from normalign._hooks import location_in, middle_of
from normalign._torch_compat import attention_with_derivatives
from normalign.regularizers import PenaltyForm
from normalign.regularizers._call import penalised
from normalign.regularizers._formulas import penalty
from normalign.training.chain import Chain
from normalign.training.chain_gradient import RecordedPass
from normalign.training.losses import StackedLoss
from normalign.training.refusals import check_alike, check_pure, check_trainable

__all__ = [
    "Gradients", "Networks", "Objective", "StackedChains", "StackedModules", "stacked",
]  # fmt: skip


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
        See :mod:`normalign.training.losses`.
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
                output, values = self._penalised(leaves, x, noise, objective.form)
            total, weighted = objective.total(output, y, values)
        # A parameter that the output does not depend on has gradient 0.
        each = torch.autograd.grad(total, leaves, materialize_grads=True)
        flat = [
            gradient.reshape(len(rows), size)
            for gradient, size in zip(each, self.sizes, strict=True)
        ]
        return Gradients(torch.cat(flat, dim=1, out=out), weighted)

    def _penalised(
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


def stacked(
    networks: Sequence[nn.Module], x: Tensor, *, device: torch.device | None = None
) -> tuple[Networks, Tensor]:
    """Return the common architecture of some networks, and their parameters as rows.

    Parameters
    ----------
    networks : sequence of torch.nn.Module
        Of one architecture, dtype and device; they are not changed.
    x : Tensor of shape (n, ...)
        Inputs, to tell whether the fast road fits.
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
