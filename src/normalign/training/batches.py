"""What is done to each training batch before its step: augmentation, attacks.

A hook is a callable ``prepare(stack, x, y, keys)`` that returns the inputs in place of
``x``, (s, b, ...). It may not write into ``x``, which can be the data themselves. Its
randomness comes from ``keys``, (s,), one for each network and step
(:mod:`normalign.training.randomness`): a resumed run draws the same numbers, and so
does a network that trains alone. On CUDA it becomes part of a captured graph, so it may
not wait for the device; what it brings there it must bring in its first call
(:class:`PerMember`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from normalign._errors import require
from normalign.data._augment import moved_images
from normalign.training.attack import check_attack, stacked_pgd
from normalign.training.randomness import BATCHES, normal_pairs, streams, uniform
from normalign.training.stack import Stack

__all__ = ["Attacked", "Augmented", "PerMember"]


class PerMember:
    """A number for each member of an ensemble, found again by the rows of a stack.

    Parameters
    ----------
    values : float, or a sequence of one for each member
    argument : str
        What the numbers are, for complaints.

    Examples
    --------
    >>> PerMember([0.5, 1.0], "strength").values
    (0.5, 1.0)
    """

    def __init__(self, values: float | Sequence[float], argument: str) -> None:
        several = [values] if isinstance(values, int | float) else values
        self.values = tuple(float(value) for value in several)
        self._argument = argument
        rule = "finite and at least 0"
        legal = all(0 <= value < math.inf for value in self.values)
        require(legal and len(self.values) > 0, "PerMember", argument, rule, values)
        self._placed: dict[Any, Tensor] = {}

    def of(self, stack: Stack) -> Tensor:
        """Return the numbers of the networks that the stack still holds, (s,)."""
        rows, positions = stack.rows, stack.positions
        place = rows.device, rows.dtype, tuple(positions)
        if place not in self._placed:
            n, last = len(self.values), max(positions)
            rule = f"one, or one for each member of the ensemble, {last + 1} or more"
            require(n == 1 or n > last, "PerMember", self._argument, rule, f"{n}")
            mine = [self.values[0 if n == 1 else i] for i in positions]
            # Not from within a capture: a graph is captured in a second call.
            self._placed[place] = rows.new_tensor(mine)
            if rows.device.type == "cuda":  # other stacks read it on other streams
                torch.cuda.current_stream(rows.device).synchronize()
        return self._placed[place]


class Augmented:
    r"""A hook that turns and shifts images, each by its own amount, and adds noise.

    .. math:: x \mapsto \mathrm{moved}(x; \theta, t) + g\,\sigma\,\varepsilon,\qquad
        |\theta| \le g\,\theta_{\max},\quad |t|_\infty \le g\,t_{\max},\quad
        \varepsilon \sim N(0, I)

    with angle and shift uniform and :math:`g` the strength of each member. Noise comes
    last, and no pixel is cut off at the ends of the range.

    Parameters
    ----------
    strength : float, or a sequence of one for each member
    shape : (int, int, int)
        Of an image: channels, height, width. Batches may be flattened.
    max_degrees, max_shift, noise : float
        At strength 1: the largest angle, the largest shift as a share of the width
        (down: of the height), and the standard deviation of the noise. By default
        those of the paper (exp. data_sparsity).
    fill : float, default=0
        What is seen beyond the border: the value of the background.

    Examples
    --------
    >>> Augmented(0.5, shape=(1, 28, 28)).describe()["max_degrees"]
    30.0
    """

    def __init__(
        self,
        strength: float | Sequence[float],
        *,
        shape: tuple[int, int, int],
        max_degrees: float = 30.0,
        max_shift: float = 0.2,
        noise: float = 0.3,
        fill: float = 0.0,
    ) -> None:
        amounts = {"max_degrees": max_degrees, "max_shift": max_shift, "noise": noise}
        for name, value in amounts.items():
            legal = 0 <= value < math.inf
            require(legal, "Augmented", name, "finite and at least 0", value)
        self.strength, self.shape = PerMember(strength, "strength"), tuple(shape)
        self.max_degrees, self.max_shift = float(max_degrees), float(max_shift)
        self.noise, self.fill = float(noise), float(fill)

    def describe(self) -> dict[str, Any]:
        """Return all settings, as JSON can hold them."""
        return {
            "strength": list(self.strength.values), "shape": list(self.shape),
            "max_degrees": self.max_degrees, "max_shift": self.max_shift,
            "noise": self.noise, "fill": self.fill,
        }  # fmt: skip

    def __call__(self, stack: Stack, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        """Return other views of the images of a batch."""
        s, b = x.shape[:2]
        fits = x[0, 0].numel() == math.prod(self.shape)
        rule = f"images of shape {self.shape}, flat or not"
        require(fits, "Augmented", "x", rule, x)
        strength = self.strength.of(stack)[:, None]
        drawn = uniform(streams(keys, BATCHES, 1), (3, b), dtype=x.dtype)
        angle, right, down = (2 * drawn - 1).unbind(1)
        moved = moved_images(
            x.reshape(s, b, *self.shape),
            angles=strength * (math.radians(self.max_degrees) * angle),
            shifts=(strength * self.max_shift)[..., None]
            * torch.stack([right, down], dim=-1),
            fill=self.fill,
        )
        keys, shape = streams(keys, BATCHES, 2), tuple(x.shape[1:])
        noise = normal_pairs(keys, shape, dtype=x.dtype)
        deviation = (self.noise * strength).view(s, *[1] * (x.ndim - 1))
        return torch.addcmul(moved.reshape(x.shape), noise, deviation)


class Attacked:
    r"""A hook for adversarial training: each network sees its batch under attack.

    .. math:: x \mapsto \arg\max_{\|z - x\| \le r} \ell(f_i(z), y), \text{ by }
        \texttt{stacked\_pgd}

    from a start drawn uniformly from the cube around ``x`` (Madry et al., 2018).

    Parameters
    ----------
    radius : float, or a sequence of one for each member
    n_steps, step_size, norm, low, high
        See :func:`normalign.training.attack.stacked_pgd`.
    random_start : bool, default=True
        Without, an attack starts at ``x``.

    Examples
    --------
    >>> Attacked(0.1, n_steps=10).describe()["radius"]
    [0.1]
    """

    def __init__(
        self,
        radius: float | Sequence[float],
        *,
        n_steps: int,
        step_size: float | None = None,
        norm: str = "linf",
        low: float | None = None,
        high: float | None = None,
        random_start: bool = True,
    ) -> None:
        self.radius = PerMember(radius, "radius")
        check_attack("Attacked", 0.0, n_steps, step_size, norm, low, high)
        self.random_start = random_start
        self.options: dict[str, Any] = {
            "n_steps": n_steps, "step_size": step_size, "norm": norm, "low": low,
            "high": high,
        }  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """Return all settings, as JSON can hold them."""
        radius, start = list(self.radius.values), self.random_start
        return {"radius": radius, "random_start": start, **self.options}

    def __call__(self, stack: Stack, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        """Return the batch of every network, moved against it."""
        radius, start = self.radius.of(stack), None
        if self.random_start:
            drawn = uniform(keys, tuple(x.shape[1:]), dtype=x.dtype)
            reach = radius.view(-1, *[1] * (x.ndim - 1))
            start = x + reach * (2 * drawn - 1)
        return stacked_pgd(
            stack.networks, stack.networks.split(stack.rows), x, y, loss=stack.loss,
            radius=radius, start=start, **self.options,
        )  # fmt: skip
