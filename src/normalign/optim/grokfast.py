"""Grokfast: amplify the slow part of the gradients, by either published average."""

# pyright: reportPrivateImportUsage=false
# torch's own optimizers are built on torch._foreach_*, which have no public name.

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from normalign._errors import describe, require, require_kind
from normalign.optim.filter import GradientFilter, like
from normalign.optim.refusals import check_number

__all__ = ["Grokfast", "GrokfastWindow"]


class Grokfast(GradientFilter):
    r"""Add an exponential average of past gradients to each gradient.

    .. math::

        a_t = \mathrm{decay} \, a_{t-1} + (1 - \mathrm{decay}) \, g_t, \qquad
        \hat g_t = g_t + \mathrm{strength} \, a_t, \qquad a_0 = g_0

    This is Grokfast-EMA of [1]_, and the Grokfast of the paper's Table 1. The defaults
    are those of [1]_; the paper's released runs use ``decay=0.8, strength=0.1``. A
    constant gradient is multiplied by ``1 + strength``, so a step of plain SGD grows by
    as much: lower its learning rate, or use an adaptive optimizer.

    Costs one tensor per parameter, in the gradient's dtype. In bfloat16 an average with
    a decay near 1 stalls, because its increments fall below the last bit; keep the
    weights in float32 and let autocast do the rest. ``decay`` and ``strength`` may be
    changed between steps.

    See :class:`~normalign.optim.GradientFilter` for what happens to ``.grad``, mixed
    precision, checkpoints and copies.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    decay : float in [0, 1), default=0.98
        The share of the average that each step keeps.
    strength : float >= 0, default=2.0
        The weight of the average in the filtered gradient; 0 changes nothing.

    References
    ----------
    .. [1] J. Lee, B. G. Kang, K. Kim, K. M. Lee, "Grokfast: Accelerated Grokking by
       Amplifying Slow Gradients", 2024 (arXiv 2405.20233).

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.tensor([10.0]))
    >>> sgd = torch.optim.SGD([weight], lr=1.0)
    >>> Grokfast(sgd, strength=2.0)
    Grokfast(SGD, decay=0.98, strength=2.0)
    >>> weight.sum().backward(); sgd.step(); weight.data  # 10 - (1 + 2)
    tensor([7.])
    """

    decay: float
    strength: float

    def __init__(
        self, optimizer: Optimizer, *, decay: float = 0.98, strength: float = 2.0
    ) -> None:
        super().__init__(optimizer, decay=decay, strength=strength)

    def configure(self, settings: dict[str, Any]) -> None:
        """Check the settings and keep them."""
        callee, decay = type(self).__name__, settings["decay"]
        strength = settings["strength"]
        check_number(callee, "decay", decay)
        require(0 <= decay < 1, callee, "decay", "in [0, 1)", decay)
        _check_strength(callee, strength)
        self.decay, self.strength = float(decay), float(strength)

    def settings(self) -> dict[str, Any]:
        """The decay and the strength."""
        return {"decay": self.decay, "strength": self.strength}

    def transform(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Update the averages, then add them to the gradients."""
        averages = [
            self._average(*pair) for pair in zip(weights, gradients, strict=True)
        ]
        # One kernel, and exact for a constant gradient.
        torch._foreach_lerp_(averages, gradients, 1 - self.decay)
        torch._foreach_add_(gradients, averages, alpha=self.strength)

    def _average(self, weight: Tensor, gradient: Tensor) -> Tensor:
        entry = self.state.get(weight)
        if entry is None:
            entry = self.state[weight] = {"average": gradient.clone()}
        entry["average"] = like(entry["average"], gradient)
        return entry["average"]


class GrokfastWindow(GradientFilter):
    r"""Add the mean of the last ``window`` gradients to each gradient.

    .. math::

        \hat g_t = g_t + \frac{\mathrm{strength}}{n_t} \sum_{s = t - n_t + 1}^{t} g_s,
        \qquad n_t = \min(t + 1, \mathrm{window})

    This is Grokfast-MA of [1]_ with its defaults; the current gradient is one of the
    ``window``, and a parameter without a gradient does not count that step. With
    ``warmup`` nothing is added while :math:`n_t` is below ``window``.

    Costs ``window + 1`` tensors per parameter, in the gradient's dtype and taken at the
    first step, but no more time than a few additions: the sum is put together from the
    end of the last ``window`` steps, summed up once when they were complete, and the
    beginning of the next. Nothing is ever subtracted, so the rounding of a large
    gradient, or an infinite one, is gone once the window has passed it. Where the
    memory is too much, :class:`Grokfast` with ``decay = 1 - 2 / (window + 1)`` has the
    same mean age.

    See :class:`~normalign.optim.GradientFilter` for what happens to ``.grad``, mixed
    precision, checkpoints and copies.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
    window : int >= 1, default=100
        The number of gradients in the mean; fixed for the life of the filter.
    strength : float >= 0, default=5.0
        The weight of the mean in the filtered gradient; 0 changes nothing.
    warmup : bool, default=True
        Wait for ``window`` gradients before adding their mean; otherwise add the mean
        of those there are.

    References
    ----------
    .. [1] J. Lee, B. G. Kang, K. Kim, K. M. Lee, "Grokfast: Accelerated Grokking by
       Amplifying Slow Gradients", 2024 (arXiv 2405.20233).

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.tensor([10.0]))
    >>> sgd = torch.optim.SGD([weight], lr=1.0)
    >>> _ = GrokfastWindow(sgd, window=2, strength=5.0)
    >>> weight.sum().backward(); sgd.step(); weight.data  # not full yet: 10 - 1
    tensor([9.])
    >>> weight.grad.fill_(1.0); sgd.step(); weight.data  # 9 - (1 + 5)
    tensor([1.])
    tensor([3.])
    """

    strength: float
    warmup: bool

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        window: int = 100,
        strength: float = 5.0,
        warmup: bool = True,
    ) -> None:
        super().__init__(optimizer, window=window, strength=strength, warmup=warmup)

    def configure(self, settings: dict[str, Any]) -> None:
        """Check the settings and keep them."""
        callee, window = type(self).__name__, settings["window"]
        strength, warmup = settings["strength"], settings["warmup"]
        whole = isinstance(window, int) and not isinstance(window, bool)
        require_kind(whole, callee, "window", "an int", describe(window))
        require(window >= 1, callee, "window", "at least 1", window)
        _check_strength(callee, strength)
        told = isinstance(warmup, bool)
        require_kind(told, callee, "warmup", "a bool", describe(warmup))
        self._window, self.strength, self.warmup = window, float(strength), warmup

    def settings(self) -> dict[str, Any]:
        """The window, the strength and whether it warms up."""
        return {
            "window": self.window,
            "strength": self.strength,
            "warmup": self.warmup,
        }

    @property
    def window(self) -> int:
        """The number of gradients in the mean."""
        return self._window

    def transform(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Take the gradients into the window, then add its mean to them."""
        # Parameters that missed a step are elsewhere in their window.
        by_count: dict[int, list[tuple[dict[str, Any], Tensor]]] = {}
        for weight, gradient in zip(weights, gradients, strict=True):
            entry = self._entry(weight, gradient)
            by_count.setdefault(entry["count"], []).append((entry, gradient))
        for count, members in by_count.items():
            self._advance(
                count,
                [entry for entry, _ in members],
                [gradient for _, gradient in members],
            )

    def _entry(self, weight: Tensor, gradient: Tensor) -> dict[str, Any]:
        entry = self.state.get(weight)
        if entry is None:
            entry = self.state[weight] = {
                "count": 0,
                "ring": gradient.new_zeros((self.window, *gradient.shape)),
                "sum": torch.zeros_like(gradient),
            }
        for name in ("ring", "sum"):
            entry[name] = like(entry[name], gradient)
        return entry

    def _advance(
        self, count: int, entries: list[dict[str, Any]], gradients: list[Tensor]
    ) -> None:
        """One step of parameters that have all seen ``count`` gradients before.

        Slots up to this one hold the gradients of the present round, and ``sum`` their
        sum; each later slot holds what :func:`_fold` left, the sum of the last round's
        gradients from there to its end. So ``sum`` and the next slot are the window.
        """
        slot = count % self.window
        rings = [entry["ring"] for entry in entries]
        sums = [entry["sum"] for entry in entries]
        torch._foreach_copy_([ring[slot] for ring in rings], gradients)
        torch._foreach_add_(sums, gradients)
        filled = min(count + 1, self.window)
        if filled == self.window or not self.warmup:
            share = self.strength / filled
            torch._foreach_add_(gradients, sums, alpha=share)
            if count >= self.window and slot + 1 < self.window:
                older = [ring[slot + 1] for ring in rings]
                torch._foreach_add_(gradients, older, alpha=share)
        if slot + 1 == self.window:
            _fold(rings, sums)
        for entry in entries:
            entry["count"] = count + 1


def _check_strength(callee: str, strength: Any) -> None:
    check_number(callee, "strength", strength)
    fits = math.isfinite(strength) and strength >= 0
    require(fits, callee, "strength", "finite and at least 0", strength)


def _fold(rings: list[Tensor], sums: list[Tensor]) -> None:
    """Turn the gradients of a full round into the sums from each slot to the last."""
    for slot in reversed(range(len(rings[0]) - 1)):
        torch._foreach_add_(
            [ring[slot] for ring in rings], [ring[slot + 1] for ring in rings]
        )
    torch._foreach_zero_(sums)
