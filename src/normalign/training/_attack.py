"""Attacks on all networks of an ensemble, and changes of their training batches.

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
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign.data._augment import moved_images
from normalign.robustness.balls import NORMS, Ball, direction
from normalign.training._networks import Networks
from normalign.training._stack import Measure, Stack
from normalign.training._targets import (
    ClassEncoding,
    StackedLoss,
    is_correct,
    prepared_target,
    stacked_loss,
)
from normalign.training.randomness import (
    BATCHES,
    STARTS,
    normal_pairs,
    streams,
    uniform,
)

__all__ = [
    "NORMS",
    "Attacked",
    "Augmented",
    "PerMember",
    "check_attack",
    "measures",
    "robust_accuracy",
    "stacked_pgd",
]

# Samples attacked at once by the measure.
_CHUNK = 1024


def stacked_pgd(  # noqa: PLR0913  (what an attack is made of)
    networks: Networks,
    parameters: Sequence[Tensor],
    x: Tensor,
    y: Tensor,
    *,
    loss: StackedLoss,
    radius: float | Tensor,
    n_steps: int,
    step_size: float | Tensor | None = None,
    start: Tensor | None = None,
    norm: str = "linf",
    low: float | None = None,
    high: float | None = None,
) -> Tensor:
    r"""Return inputs that raise the loss of each network, by projected gradient steps.

    .. math:: z_{t+1} = \Pi\big(z_t + a\, \mathrm{sign}\, \nabla_z \ell(f_i(z_t), y)
        \big), \qquad \Pi \text{ onto } \{ z : \| z - x \| \le r \}

    With ``norm="l2"`` the step goes along the unit gradient of each sample. Every
    network is attacked through its own gradient; all of them by one backward pass for
    each step. Where the gradient is zero a point stays. Radius 0 gives the inputs back,
    bit for bit. Nothing waits for the device: it can be part of a captured graph.

    Parameters
    ----------
    networks : Networks
        The shared architecture, such as ``stack.networks``.
    parameters : sequence of Tensor of shape (s, ...)
        Such as ``stack.networks.split(stack.rows)``.
    x : Tensor of shape (s, n, ...), or (1, n, ...) for inputs that all networks share
    y : Tensor of shape (s, n, ...), or (1, n, ...)
        Targets, as the loss takes them.
    loss : callable
        From outputs (s, n, k) and targets to one number for each network, (s,), such
        as the ``loss`` of a :class:`~normalign.training.Stack`.
    radius : float, or Tensor of shape (s,) on the device of ``x``
    n_steps : int
    step_size : float or Tensor of shape (s,), optional
        By default 2.5 radii divided among all steps, so that the border can be reached
        from everywhere.
    start : Tensor of the shape of ``x``, optional
        Where the attack begins, brought into the ball first; by default at ``x``.
    norm : {"linf", "l2"}
    low, high : float, optional
        The range of legal inputs, in which ``x`` must lie.

    Returns
    -------
    Tensor of shape (s, n, ...)

    Raises
    ------
    TypeError
        If ``x`` holds integers.
    ValueError
        If a setting is out of its range, or shapes do not fit.

    Examples
    --------
    >>> from normalign.training._targets import LOSSES
    >>> from normalign.training._networks import stack_networks
    >>> networks, rows = stack_networks([torch.nn.Linear(1, 1)], torch.zeros(1, 1))
    >>> stacked_pgd(networks, networks.split(0 * rows + 1), torch.zeros(1, 1, 1),
    ...     torch.zeros(1, 1, 1), loss=LOSSES["squared_error"], radius=0.5, n_steps=3)
    tensor([[[0.5000]]])
    """
    callee = "stacked_pgd"
    check_attack(callee, radius, n_steps, step_size, norm, low, high)
    real = x.is_floating_point()
    require_kind(real, callee, "x", "of a real dtype", x, "Tokens cannot be moved.")
    parameters = [part.detach() for part in parameters]
    s = len(parameters[0])
    for name, value in (("x", x), ("y", y), ("start", x if start is None else start)):
        rule = f"of shape ({s}, n, ...), or (1, n, ...) for all networks"
        require(len(value) in (1, s), callee, name, rule, value)
    x = x.detach().expand(s, *x.shape[1:])
    y = y.expand(s, *y.shape[1:])
    if step_size is None:
        step_size = 2.5 * radius / max(n_steps, 1)
    radius, step = (_for_each(value, x) for value in (radius, step_size))
    # A ball for each network and sample.
    rows, ball = x.flatten(0, 1), Ball(norm, low, high)

    def legal(point: Tensor) -> Tensor:
        return ball.project(point.flatten(0, 1), rows, radius).view_as(x)

    point = x if start is None else legal(start.detach().to(x).expand_as(x))
    for _ in range(n_steps):
        slope = _slope(networks, parameters, point, y, loss).flatten(0, 1)
        point = legal(point + (step * direction(slope, norm)).view_as(x))
    return point.clone() if point is x else point


def robust_accuracy(  # noqa: PLR0913  (what an attack is made of)
    x: Tensor,
    y: Tensor,
    *,
    radius: float,
    n_steps: int = 20,
    step_size: float | None = None,
    norm: str = "linf",
    low: float | None = None,
    high: float | None = None,
    loss: str | Callable[[Tensor, Tensor], Tensor] = "cross_entropy",
    seed: int | None = None,
    name: str = "robust_accuracy",
) -> Measure:
    r"""Return a measurement: the share of samples that stay right under attack.

    .. math:: \frac1n \big|\{ j : \arg\max f_i(z_j) = y_j \}\big|, \qquad
        z_j \text{ from stacked\_pgd at } x_j

    A sample counts only if it is right at the point where the attack ends, and at
    ``x`` itself. It costs ``n_steps`` forward and backward passes over the samples, and
    holds 1024 of them for each network at once.

    Parameters
    ----------
    x : Tensor of shape (n, ...)
        Brought to the networks' device and dtype once.
    y : integer Tensor of shape (n,)
        True classes.
    radius, n_steps, step_size, norm, low, high
        See :func:`stacked_pgd`.
    loss : {"cross_entropy", "squared_error"} or callable
        What the attack raises, as in :class:`~normalign.training.Ensemble`.
    seed : int, optional
        Of a start drawn uniformly from the cube of half-width ``radius`` and brought
        into the ball, the same for all networks and epochs; by default the attack
        starts at ``x``.
    name : str
        Of the column.

    Returns
    -------
    callable
        For ``Ensemble(measure=...)``; combine it with others by :func:`measures`.

    Raises
    ------
    TypeError
        If ``x`` is not real or ``y`` no integers.
    ValueError
        If a setting is out of its range, or shapes do not fit.

    Examples
    --------
    >>> x, y = torch.tensor([[1.0, 0.0], [0.2, 0.0]]), torch.tensor([0, 0])
    >>> measure = robust_accuracy(x, y, radius=0.3, n_steps=5)
    """
    callee = "robust_accuracy"
    check_attack(callee, radius, n_steps, step_size, norm, low, high)
    require_kind(x.is_floating_point(), callee, "x", "of a real dtype", x)
    whole = not (y.is_floating_point() or y.dtype == torch.bool)
    require_kind(whole, callee, "y", "of an integer dtype", y)
    fits = len(x) > 0 and y.shape == (len(x),)
    require(fits, callee, "y", f"of shape ({len(x)},), one for each sample", y)
    attack = {
        "radius": radius, "n_steps": n_steps, "step_size": step_size, "norm": norm,
        "low": low, "high": high,
    }  # fmt: skip
    start = x.detach()
    if seed is not None:
        keys = streams(torch.tensor([seed]), STARTS, 0)
        drawn = uniform(keys, tuple(x.shape), dtype=x.dtype)[0]
        start = start + radius * (2 * drawn.to(x.device) - 1)
    return _Survivors(x.detach(), y.long(), start, loss=loss, attack=attack, name=name)


class _Survivors:
    """The share of samples that every network gets right, attacked or not."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        start: Tensor,
        *,
        loss: str | Callable[[Tensor, Tensor], Tensor],
        attack: dict[str, Any],
        name: str,
    ) -> None:
        self.x, self.y, self.start, self.name = x, y, start, name
        self.loss, self.attack = loss, {"loss": stacked_loss(loss), **attack}
        self._placed: dict[Any, tuple[Tensor, Tensor, Tensor]] = {}

    def describe(self) -> dict[str, Any]:
        """Return all settings, the samples among them."""
        attack = {name: v for name, v in self.attack.items() if name != "loss"}
        return {
            "x": self.x, "y": self.y, "start": self.start, "name": self.name,
            "loss": self.loss, "attack": attack,
        }  # fmt: skip

    @torch.no_grad()
    def __call__(self, stack: Stack) -> dict[str, Tensor]:
        inputs, target, start = self._on_the_device_of(stack)
        encoding = ClassEncoding("classes" if target.ndim == 2 else "rows")
        parameters = stack.networks.split(stack.rows)
        right = torch.zeros_like(stack.seeds)
        for first in range(0, len(self.x), _CHUNK):
            part = slice(first, first + _CHUNK)
            clean, aim = inputs[:, part], target[:, part]
            point = stacked_pgd(
                stack.networks, parameters, clean, aim, start=start[:, part],
                **self.attack,
            )  # fmt: skip
            aim = aim.expand(stack.size, *aim.shape[1:])
            both = is_correct(_outputs(stack, clean), aim, encoding)
            both &= is_correct(_outputs(stack, point), aim, encoding)
            right += both.sum(1)
        return {self.name: right.double() / len(self.x)}

    def _on_the_device_of(self, stack: Stack) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, targets and starts, (1, n, ...), where the stack is."""
        rows = stack.rows
        place = rows.device, rows.dtype
        if place not in self._placed:
            x, start = (part.to(*place)[None] for part in (self.x, self.start))
            k = _outputs(stack, x[:, :1]).shape[2]
            target = prepared_target(self.y, self.loss, k).to(rows.device)[None]
            self._placed[place] = x, target, start
            if rows.device.type == "cuda":  # other stacks read it on other streams
                torch.cuda.current_stream(rows.device).synchronize()
        return self._placed[place]


def measures(*several: Measure) -> Measure:
    """Return one measurement that has the columns of all.

    Raises
    ------
    ValueError
        When it measures, if two of them give a column of the same name.

    Examples
    --------
    >>> one = measures(lambda stack: {"a": 1}, lambda stack: {"b": 2})
    >>> one(None)
    {'a': 1, 'b': 2}
    """
    for each in several:
        require_kind(callable(each), "measures", "each", "a function", describe(each))

    return _Several(several)


class _Several:
    """The columns of several measurements."""

    def __init__(self, several: Sequence[Measure]) -> None:
        self.several = several

    def __call__(self, stack: Stack) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for each in self.several:
            columns = each(stack)
            twice = sorted(found.keys() & columns.keys())
            rule = "of columns that no other has"
            require(not twice, "measures", "each", rule, ", ".join(twice))
            found.update(columns)
        return found


def _outputs(stack: Stack, x: Tensor) -> Tensor:
    """Return the outputs, (s, n, k), at inputs of (s, n, ...) or (1, n, ...)."""
    x = x.expand(stack.size, *x.shape[1:])
    return stack.networks.outputs(stack.networks.split(stack.rows), x)


def _slope(
    networks: Networks,
    parameters: Sequence[Tensor],
    point: Tensor,
    y: Tensor,
    loss: StackedLoss,
) -> Tensor:
    """Return the gradient of each network's loss in its own inputs."""
    leaf = point.detach().requires_grad_()
    with torch.enable_grad():
        total = loss(networks.outputs(parameters, leaf), y).sum()
    return torch.autograd.grad(total, leaf)[0]


def _for_each(value: float | Tensor, x: Tensor) -> float | Tensor:
    """Return a network's number for each of its samples, shaped to multiply them."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    s, n = x.shape[:2]
    rule = f"a number, or of shape ({s},)"
    fits = value.shape == (s,)
    require(fits, "stacked_pgd", "radius or step_size", rule, value)
    each = value.to(x.dtype)[:, None].expand(s, n)
    return each.reshape(-1, *[1] * (x.ndim - 2))


def check_attack(
    callee: str,
    radius: float | Tensor,
    n_steps: int,
    step_size: float | Tensor | None,
    norm: str,
    low: float | None,
    high: float | None,
) -> None:
    """Refuse settings out of their range; those in tensors are not looked at."""
    for name, value in (("radius", radius), ("step_size", step_size)):
        if isinstance(value, int | float):
            legal = 0 <= value < float("inf")
            require(legal, callee, name, "finite and at least 0", value)
    whole = isinstance(n_steps, int) and not isinstance(n_steps, bool)
    require_kind(whole, callee, "n_steps", "an integer", n_steps)
    require(n_steps >= 0, callee, "n_steps", "at least 0", n_steps)
    rule = " or ".join(map(repr, NORMS))
    require(norm in NORMS, callee, "norm", rule, repr(norm))
    ordered = low is None or high is None or low < high
    require(ordered, callee, "low", "below high", f"{low} with high {high}")


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
        See :func:`normalign.training.stacked_pgd`.
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
