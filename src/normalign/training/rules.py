"""Update rules for many networks at once: each has its own numbers and its own state.

The parameters of s networks lie in one tensor of shape (s, p), a row for each network.
A learning rate is then a column of s numbers, and one elementwise kernel updates all
networks. The rules are those of ``torch.optim`` and :mod:`normalign.optim`, entry for
entry.
"""

# pyright: reportPrivateImportUsage=false
# torch's own fused AdamW is built on torch._fused_adamw_, which has no public name.

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from normalign._errors import require

if TYPE_CHECKING:
    from normalign.training._sweep import Sweep

__all__ = ["SGD", "AdamW", "Grokfast", "OrthoGrad", "StackedRule"]


@dataclass(frozen=True)
class SGD:
    r"""Gradient descent with momentum and coupled weight decay.

    .. math::
        \hat g = g + \text{decay}\,\theta, \qquad
        m \leftarrow \text{momentum}\, m + \hat g, \qquad
        \theta \leftarrow \theta - \text{rate}\, m

    As ``torch.optim.SGD``: the first step has :math:`m = \hat g`.

    Examples
    --------
    >>> SGD(0.1, momentum=0.2)
    SGD(learning_rate=0.1, momentum=0.2, weight_decay=0.0)
    """

    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _require_at_least_zero("SGD", self)


@dataclass(frozen=True)
class AdamW:
    r"""Adam with decoupled weight decay.

    .. math::
        \theta \leftarrow (1 - \text{rate}\cdot\text{decay})\,\theta
        - \text{rate}\;\hat m / (\sqrt{\hat v} + \text{eps})

    As ``torch.optim.AdamW``, whose ``betas`` are here two numbers.

    Examples
    --------
    >>> AdamW(weight_decay=1.0).weight_decay
    1.0
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        _require_at_least_zero("AdamW", self)
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            require(value < 1, "AdamW", name, "in [0, 1)", value)


@dataclass(frozen=True)
class Grokfast:
    """The filter :class:`normalign.optim.Grokfast`, for a network of an ensemble."""

    decay: float = 0.98
    strength: float = 2.0

    def __post_init__(self) -> None:
        _require_at_least_zero("Grokfast", self)
        require(self.decay < 1, "Grokfast", "decay", "in [0, 1)", self.decay)


@dataclass(frozen=True)
class OrthoGrad:
    """The filter :class:`normalign.optim.OrthoGrad`, for a network of an ensemble."""


def _require_at_least_zero(callee: str, rule: SGD | AdamW | Grokfast) -> None:
    for entry in fields(rule):
        value = getattr(rule, entry.name)
        legal = isinstance(value, int | float) and 0 <= value < float("inf")
        require(legal, callee, entry.name, "a finite number of at least 0", value)


class StackedRule:
    """The optimizers and gradient filters of s networks, as one update.

    Parameters
    ----------
    optimizers : sequence of SGD, or of AdamW
        One for each network, all of one kind.
    filters : sequence of Grokfast, OrthoGrad or None
        One for each network, all of one kind.
    sizes : sequence of int
        How many numbers each parameter tensor has, in their order in a row.
    like : Tensor of shape (s, p)
        The rows that will be updated: their device and dtype.

    Attributes
    ----------
    state : dict of str to Tensor
        ``"steps"`` of shape (), and moments and averages of shape (s, p): all that a
        later run needs to go on.
    """

    def __init__(
        self,
        optimizers: Sequence[SGD] | Sequence[AdamW],
        filters: Sequence[Grokfast | OrthoGrad | None],
        *,
        sizes: Sequence[int],
        like: Tensor,
    ) -> None:
        self.kind = type(optimizers[0])
        self.filter = type(filters[0])
        rules = [optimizers] if filters[0] is None else [optimizers, filters]
        # Differences such as 1 - beta are taken in float64, as torch takes them.
        self._numbers = {
            entry.name: torch.tensor(
                [[getattr(rule, entry.name)] for rule in group],
                dtype=torch.float64, device=like.device,
            )
            for group in rules
            for entry in fields(group[0])
        }  # fmt: skip
        self._dtype = like.dtype
        self._sweep = _sweep(sizes, like)
        # One AdamW for all: on a CPU torch's own fused kernel then does it in one go.
        first, fused = optimizers[0], self._sweep is None and len(set(optimizers)) == 1
        self._common = first if fused and isinstance(first, AdamW) else None
        self._parts = _parts(sizes, like) if self.filter is OrthoGrad else None
        self.state: dict[str, Tensor] = {"steps": torch.zeros((), device=like.device)}
        self._columns: dict[str, Tensor] = {}
        self._table: Tensor | None = None

    def begin(self, n_steps: int) -> None:
        """Work out the numbers of the next steps, which :meth:`update` then takes.

        Adam's bias corrections change with every step. A table for a whole epoch costs
        a few small kernels; computing them in each step would cost as many there.
        """
        numbers = self._numbers
        columns = dict(numbers)
        for name in ("decay", "beta1", "beta2"):
            if name in numbers:
                columns[f"one_minus_{name}"] = 1 - numbers[name]
        columns["rate"], columns["shrink"] = (
            numbers["learning_rate"],
            numbers["weight_decay"],
        )
        if self.kind is AdamW:
            columns["shrink"] = 1 - numbers["learning_rate"] * numbers["weight_decay"]
            count = torch.arange(1, n_steps + 1, device=self.state["steps"].device)
            steps = self.state["steps"].double() + count[:, None, None]
            scale = (1 - numbers["beta2"] ** steps).sqrt()
            rate = numbers["learning_rate"] * scale / (1 - numbers["beta1"] ** steps)
            # m / (sqrt(v) / scale + eps), numerator and denominator times the scale.
            columns["rate"], columns["eps"] = rate, numbers["eps"] * scale
        if self._sweep is not None:
            self._table = self._sweep.table(columns, n_steps)
        else:
            self._columns = {
                name: value.to(self._dtype).expand(n_steps, -1, 1)
                for name, value in columns.items()
            }

    def update(self, rows: Tensor, gradients: Tensor, step: int) -> None:
        """Take step number ``step`` of those begun, in place; uses up the gradients."""
        state = self.state
        state["steps"] += 1
        if "moment" not in state:
            state["moment"] = torch.zeros_like(rows)
            if self.kind is AdamW:
                state["square"] = torch.zeros_like(rows)
            if self.filter is Grokfast:  # its average starts at the first gradient
                state["average"] = gradients.clone()
        if self._sweep is not None and self._table is not None:
            orthograd = self.filter is OrthoGrad
            numbers = self._table[step]
            self._sweep.update(rows, gradients, state, numbers, orthograd=orthograd)
            return
        columns = {name: value[step] for name, value in self._columns.items()}
        if self.filter is Grokfast:
            average = state["average"].lerp_(gradients, columns["one_minus_decay"])
            gradients.addcmul_(average, columns["strength"])
        elif self.filter is OrthoGrad:
            self._project(rows, gradients)
        if self.kind is SGD:
            gradients.addcmul_(rows, columns["weight_decay"])
            state["moment"].mul_(columns["momentum"]).add_(gradients)
            rows.addcmul_(state["moment"], columns["rate"], value=-1)
        elif self._common is not None:
            self._adapt_alike(self._common, rows, gradients)
        else:
            self._adapt(rows, gradients, columns)

    def keep(self, index: Tensor) -> None:
        """Drop all networks but those at the given positions."""
        self._numbers = {name: value[index] for name, value in self._numbers.items()}
        self.state = {
            name: value[index] if value.ndim else value
            for name, value in self.state.items()
        }

    def _project(self, rows: Tensor, gradients: Tensor) -> None:
        assert self._parts is not None
        parts, part_of = self._parts
        products = (rows * gradients) @ parts  # one sum for each parameter tensor
        squares = rows.square() @ parts
        # Against zero weights; 1e-30 as published, and a float32 can hold it.
        shares = products / (squares + 1e-30)
        gradients.addcmul_(rows, shares[:, part_of], value=-1)

    def _adapt(
        self, rows: Tensor, gradients: Tensor, columns: dict[str, Tensor]
    ) -> None:
        moment, square = self.state["moment"], self.state["square"]
        moment.lerp_(gradients, columns["one_minus_beta1"])
        square.lerp_(gradients.square_(), columns["one_minus_beta2"])
        denominator = square.sqrt().add_(columns["eps"])
        ratio = torch.div(moment, denominator, out=denominator)
        rows.mul_(columns["shrink"]).addcmul_(ratio, columns["rate"], value=-1)

    def _adapt_alike(self, rule: AdamW, rows: Tensor, gradients: Tensor) -> None:
        state = self.state
        torch._fused_adamw_(
            [rows], [gradients], [state["moment"]], [state["square"]], [],
            [state["steps"]], amsgrad=False, lr=rule.learning_rate, beta1=rule.beta1,
            beta2=rule.beta2, weight_decay=rule.weight_decay, eps=rule.eps,
            maximize=False,
        )  # fmt: skip


def _parts(sizes: Sequence[int], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return which part of a row belongs to which tensor: (p, parts) and (p,)."""
    counts = torch.tensor(sizes, device=like.device)
    part_of = torch.arange(len(sizes), device=like.device).repeat_interleave(counts)
    return functional.one_hot(part_of, len(sizes)).to(like.dtype), part_of


def _sweep(sizes: Sequence[int], like: Tensor) -> Sweep | None:
    """Return the update as Triton kernels, where there are a CUDA device and Triton."""
    if like.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from normalign.training._sweep import Sweep  # Triton is not everywhere

    return Sweep(sizes, like.device)
