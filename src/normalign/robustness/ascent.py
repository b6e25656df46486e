"""`pgd`: projected gradient ascent on the loss, at all radii at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from normalign._errors import as_float, require, require_kind
from normalign._linear_map import ChunkSize, LocalMap
from normalign.robustness.attack import Attack
from normalign.robustness.balls import NORMS, Ball, Bound, direction, unit_offsets
from normalign.robustness.losses import Aim, Loss, check_loss
from normalign.robustness.routes import Route, has_closed_form
from normalign.robustness.steps import StepSize, require_count, shares
from normalign.robustness.target import Found, Target, preserve_state, require_model

__all__ = [
    "Ascent", "check_choice", "checked_generator", "checked_radii", "checked_range",
    "pgd",
]  # fmt: skip


def pgd(  # noqa: PLR0913  (what an attack is made of)
    model: Any,
    x: Any,
    y: Any,
    *,
    radii: float | Sequence[float] | Tensor,
    norm: Literal["linf", "l2"] = "linf",
    n_steps: int = 20,
    step_size: StepSize = None,
    n_restarts: int = 1,
    generator: torch.Generator | None = None,
    loss: Loss = "cross_entropy",
    start: Literal["uniform", "center"] = "uniform",
    keep: Literal["last", "best"] = "last",
    low: Bound = None,
    high: Bound = None,
    chunk_size: ChunkSize = "auto",
) -> Attack:
    r"""Attack of a classifier by projected gradient ascent, at several radii.

    .. math:: z_{t+1} = \Pi\big(z_t + s_t r \, \mathrm{sign}\, \nabla_z
        \ell(f(z_t), y)\big), \qquad \Pi \text{ onto } \{ z : \|z - x\| \le r \}

    With ``norm="l2"`` a step goes along the unit gradient of each sample. The attack of
    Table 2 [1]_ is ``step_size=0.1, loss="squared_error"``. All radii are worked on
    together, and share the draws of their starts: neither their order nor their number
    changes what is found at one of them. Radius 0 gives x back, bit for bit, and a
    sample wrong at x is broken at every radius. Where the gradient is zero a point
    stays, so that success is a lower bound: see
    :func:`~normalign.robustness.masking_report` before you trust a failure. A call
    costs ``n_restarts * n_steps`` passes forward and back over all radii and samples.

    Parameters
    ----------
    model : nn.Module, callable, or kernel machine
        A function of each sample alone: in evaluation mode if it holds BatchNorm. A
        model with a method ``pull_back(x, cotangent) -> (outputs, gradient)`` is asked
        for its own gradients, ``cotangent(outputs, rows)`` being the slope of the loss
        in the outputs of some of the rows; labels then go through ``model.classes_``
        where there is one, and arrays are taken for tensors.
    x : Tensor of shape (n, ...)
    y : integer Tensor of shape (n,)
        True classes; -1 and 1, or 0 and 1, for a model with one output, whose sign
        decides (zero is wrong for both).
    radii : float, or sequence of R of them
    norm : {"linf", "l2"}
    n_steps : int, default=20
    step_size : float or callable, optional
        Length of a step as a share of the radius, or a function from the number of the
        step to it, such as :func:`~normalign.robustness.cosine_steps`; by default 2.5
        radii are divided among the steps.
    n_restarts : int, default=1
        Runs from different starts; the worst is kept for each sample: a broken one
        before others, then the largest loss.
    generator : torch.Generator, optional
        Of the starts; by default a new one, seeded with 0.
    loss : {"cross_entropy", "squared_error", "margin"} or callable
        What is raised: "squared_error" is to the one-hot label, or to -1 and 1 for one
        output; "margin" is the largest other output minus the right one; a function
        takes outputs (n, k) and labels and gives (n,) losses.
    start : {"uniform", "center"}
        Whether the first run starts uniformly in the ball or at x; all others start
        uniformly.
    keep : {"last", "best"}
        Where a run ends: at its last point, as in [1]_, or at the worst on its way.
    low, high : float, or Tensor or array of the shape of one sample, optional
        The range of legal inputs, in which ``x`` must lie.
    chunk_size : int, "auto" or None
        Rows (samples times radii) worked on at once; "auto" keeps to a memory budget,
        None takes all. Models with a ``pull_back`` see to it themselves.

    Returns
    -------
    Attack

    Raises
    ------
    TypeError
        If the model is neither callable nor has a ``pull_back``, ``x`` is not floating,
        or a setting is of another kind.
    ValueError
        If a setting is out of its range, labels do not fit, ``x`` is not finite or not
        legal, or the model mixes the samples of a batch or is not differentiable.

    References
    ----------
    .. [1] Madry, Makelov, Schmidt, Tsipras, Vladu, Towards Deep Learning Models
       Resistant to Adversarial Attacks, 2018 (arXiv:1706.06083).

    Examples
    --------
    >>> sign = lambda z: torch.cat([z, -z], 1)  # right where z > 0 for class 0
    >>> x, y = torch.tensor([[0.5], [2.0]]), torch.tensor([0, 0])
    >>> pgd(sign, x, y, radii=[0.1, 1.0, 3.0]).robust_accuracy
    tensor([1.0000, 0.5000, 0.0000], dtype=torch.float64)
    """
    callee = "pgd"
    values = checked_radii(callee, radii)
    check_choice(callee, "norm", norm, NORMS)
    check_choice(callee, "start", start, ("uniform", "center"))
    check_choice(callee, "keep", keep, ("last", "best"))
    require_count(callee, "n_restarts", n_restarts, least=1)
    generator = checked_generator(callee, generator)
    check_loss(callee, loss)
    steps = shares(callee, step_size, n_steps)
    require_model(callee, model)
    # Built here, where its warnings point at the caller.
    local_map = None if has_closed_form(model) else LocalMap(model, callee=callee)
    with preserve_state():
        target = Target.of(
            callee, model, local_map, x, y, loss=loss, chunk_size=chunk_size
        )
        ball = Ball(norm, *checked_range(callee, target.x, low, high))
        ascent = Ascent(target.route, ball, steps, keep)
        found = _Rows(target, values)
        for run in range(n_restarts):
            centered = start == "center" and run == 0
            offsets = None if centered else unit_offsets(target.x, norm, generator)
            for rows in target.plan.pieces(len(found)):
                found.improve(rows, ascent, offsets)
        return found.attack(norm)


@dataclass(frozen=True)
class Ascent:
    """One run of the attack from given starts.

    Parameters
    ----------
    route : Route
    ball : Ball
    steps : list of float
        Shares of the radius.
    keep : {"last", "best"}
    """

    route: Route
    ball: Ball
    steps: list[float]
    keep: str = "last"

    def run(self, x: Tensor, aim: Aim, radius: Tensor, offsets: Tensor | None) -> Found:
        """Return where rows with radii (n,) end, starting at offsets of unit balls."""
        reach = radius.to(x).view(-1, *[1] * (x.ndim - 1))
        points, best = x, None
        if offsets is not None:
            points = self.ball.project(x + reach * offsets, x, reach)

        def slope(outputs: Tensor, rows: slice) -> Tensor:
            return aim.rows(rows).slope(outputs)

        for share in self.steps:
            outputs, gradient = self.route.pull_back(points, slope)
            if self.keep == "best":
                here = Found.of(points, aim, outputs)
                best = here if best is None else best.or_worse(here)
            points = points + share * reach * direction(gradient, self.ball.norm)
            points = self.ball.project(points, x, reach)
        # Not one bit of x is to be lost where nothing may move.
        points = torch.where(reach == 0, x, points)
        last = Found.of(points, aim, self.route.outputs(points))
        return last if best is None else best.or_worse(last)


class _Rows:
    """What was found so far for all radii and samples, radius by radius."""

    def __init__(self, target: Target, radii: list[float]) -> None:
        self.x, self.aim, self.clean = target.x, target.aim, target.clean
        self.radii, self.n = radii, len(target.x)
        self.radius = torch.tensor(radii, dtype=self.x.dtype, device=self.x.device)
        r = len(radii)
        self.points = self.x.repeat(r, *[1] * (self.x.ndim - 1))
        self.broken = self.clean.broken.repeat(r)
        self.reached = torch.zeros_like(self.broken)
        # Where x is right it is no candidate: what a run finds replaces it.
        losses = torch.where(self.clean.broken, self.clean.losses, -torch.inf)
        self.losses = losses.repeat(r)

    def __len__(self) -> int:
        return len(self.broken)

    def improve(self, rows: slice, ascent: Ascent, offsets: Tensor | None) -> None:
        """Attack some of the rows once more, and keep what is worse."""
        numbers = torch.arange(rows.start, rows.stop, device=self.x.device)
        samples = numbers % self.n
        found = ascent.run(
            self.x[samples],
            self.aim.rows(samples.to(self.aim.y.device)),
            self.radius[torch.div(numbers, self.n, rounding_mode="floor")],
            None if offsets is None else offsets[samples],
        )
        so_far = Found(self.points[rows], self.losses[rows], self.broken[rows])
        now = so_far.or_worse(found)
        self.points[rows] = now.points
        self.losses[rows] = now.losses
        self.broken[rows] = now.broken
        self.reached[rows] |= found.broken

    def attack(self, norm: str) -> Attack:
        shape = (len(self.radii), self.n)
        return Attack(
            radii=torch.tensor(self.radii, dtype=torch.float64),
            points=self.points.view(*shape, *self.x.shape[1:]),
            clean=~self.clean.broken,
            broken=self.broken.view(shape),
            reached=self.reached.view(shape),
            losses=self.losses.view(shape),
            x=self.x,
            norm=norm,
        )


def check_choice(callee: str, name: str, value: Any, known: tuple[str, ...]) -> None:
    """Refuse a word that is not among those known."""
    rule = " or ".join(map(repr, known))
    require(value in known, callee, name, rule, repr(value))


def checked_generator(
    callee: str, generator: torch.Generator | None
) -> torch.Generator:
    """Return the generator of the starts: the one given, or one seeded with 0."""
    if generator is None:
        return torch.Generator().manual_seed(0)
    kind = isinstance(generator, torch.Generator)
    remedy = "Say torch.Generator().manual_seed(seed)."
    rule = "a torch.Generator or None"
    require_kind(kind, callee, "generator", rule, repr(generator), remedy)
    return generator


def checked_radii(callee: str, radii: float | Sequence[float] | Tensor) -> list[float]:
    """Return the radii as numbers; refuse what is none."""
    if isinstance(radii, Tensor):
        radii = cast("list[float]", radii.double().reshape(-1).tolist())
    if isinstance(radii, np.ndarray):
        radii = cast("list[float]", radii.reshape(-1).tolist())
    several = isinstance(radii, Iterable) and not isinstance(radii, str)
    given: list[Any] = list(cast("Any", radii)) if several else [radii]
    require(len(given) > 0, callee, "radii", "at least one", "none")
    for radius in given:
        kind = isinstance(radius, Real)
        require_kind(kind, callee, "radii", "a number, or several", repr(radius))
        legal = 0 <= as_float(radius) < math.inf
        require(legal, callee, "radii", "finite and at least 0", radius)
    return [float(radius) for radius in given]


def checked_range(
    callee: str, x: Tensor, low: Bound, high: Bound
) -> tuple[Bound, Bound]:
    """Return the range of legal inputs where x is; refuse one that x is not in."""

    def on_x(name: str, bound: Bound) -> Bound:
        if isinstance(bound, np.ndarray):
            bound = torch.tensor(bound)  # it may be read-only
        if not isinstance(bound, Tensor):
            number = bound is None or isinstance(bound, Real)
            require_kind(number, callee, name, "a number or a tensor", repr(bound))
            return bound
        rule = f"a number, or of shape {tuple(x.shape[1:])} like one sample"
        fits = bound.ndim == 0 or bound.shape == x.shape[1:]
        require(fits, callee, name, rule, bound)
        return bound.detach().to(x)

    low, high = on_x("low", low), on_x("high", high)
    for name, bound, inside in (("low", low, torch.ge), ("high", high, torch.le)):
        legal = bound is None or bool(inside(x, bound).all())  # pyright: ignore
        rule = "such that x lies in the range of legal inputs"
        remedy = "Clip x first, or give the range in the units of x."
        require(legal, callee, name, rule, bound, remedy)
    return low, high
