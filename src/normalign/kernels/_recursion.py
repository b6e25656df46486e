r"""Algorithm 1: Recursive Feature Machines.

::

    M <- M_init
    for t = 0, ..., T:
        K <- phi_M(x_i, x_j);   a <- (K + ridge I)^{-1} y
        M <- 1/n sum_i J_{x_i}^T J_{x_i},   scaled to trace d

:func:`recursions` yields the machine of every iteration; its caller scores them,
selects the best or stops. The metric of the next machine is computed only when that
machine is requested.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from normalign._errors import describe
from normalign.kernels._agop import centred_agop, cheaper_form
from normalign.kernels._distances import median_distance, new_generator, sampled_rows
from normalign.kernels._expansion import Machine
from normalign.kernels._functions import Kernel, require_points, require_table
from normalign.kernels._memory import Needs, available_bytes, fits_in_double
from normalign.kernels._metric import scaled_update
from normalign.kernels._precision import full_precision
from normalign.kernels._sides import middle
from normalign.kernels._solve import solve
from normalign.kernels._system import Solution, Solved, Solver, System

__all__ = ["Iteration", "iterate", "recursions"]

AGOP_SAMPLES = 20_000
_SMALL_SQUARE = 1 << 20  # entries below which memory is not checked


@dataclass(frozen=True)
class Iteration:
    """One pass of Algorithm 1: the machine, and how it was solved.

    ``left_out`` and ``room`` work until the next iteration is asked for, which takes
    the memory of the factor that they need; from then on they raise a
    ``RuntimeError``.
    """

    index: int
    machine: Machine
    solved: Solved
    seconds: float
    _system: System = field(repr=False)
    _solution: Solution = field(repr=False)
    _weights: Tensor = field(repr=False)
    _targets: Tensor = field(repr=False)

    def left_out(self, rows: Tensor) -> Tensor:
        r"""Outputs at training rows of machines fitted without them, ``(rows, k)``.

        .. math:: f_{-i}(x_i) = y_i - \frac{y_i - f(x_i)}{1 - h_i}, \qquad
                  h_i = \frac{1}{w_i}
                        \Bigl(1 - \frac{\rho}{w_i} (A^{-1})_{ii}\Bigr)

        In closed form, with :math:`A = K + \rho \, \mathrm{diag}(1/w)`, the metric and
        the intercept held fixed. One unit of weight is left out, so that a row of
        weight two counts as its two copies would; rows of weight below one are left out
        whole.
        """
        share = self._room_over_ridge(rows)
        return self._targets[rows] - self.machine.coef[rows] / share[:, None]

    def room(self, rows: Tensor) -> Tensor:
        r"""What :math:`1 - h_i` leaves of the residual at training rows, ``(rows,)``.

        A residual of the machine divided by it is that of the machine without the row,
        for any target that a unit of weight of the row may have had.
        """
        return self._system.ridges[rows] * self._room_over_ridge(rows)

    def _room_over_ridge(self, rows: Tensor) -> Tensor:
        """In which nothing cancels, however small the ridge is."""
        ridges, dtype = self._system.ridges[rows], self.machine.dtype
        with full_precision(rows.device):
            inverse = self._solution.inverse_diagonal(rows).to(dtype)
        weights = self._weights[rows].clamp(min=1).to(dtype)
        return (1 - 1 / weights) / ridges + inverse / weights


def recursions(  # noqa: PLR0913, an algorithm has the parameters it has
    x: Tensor,
    y: Tensor,
    *,
    kernel: Kernel,
    ridge: float,
    metric: Tensor,
    n_iter: int,
    weights: Tensor | None = None,
    center: bool = False,
    bandwidth_rule: Literal["fixed", "median"] = "fixed",
    solver: Solver | None = None,
    agop_samples: int = AGOP_SAMPLES,
    resampled: bool = False,
    every: bool = True,
    generator: torch.Generator | None = None,
) -> Iterator[Iteration]:
    """Return the machines of Algorithm 1 one by one, from the initial metric on.

    Parameters
    ----------
    x : Tensor of shape (n, d)
    y : Tensor of shape (n, k)
        Targets; classes as one-hot rows.
    kernel : Kernel
    ridge : float
        Added to the kernel's diagonal; over its weight, where rows have weights.
    metric : Tensor of shape (d, d) or (d,)
        Where the recursion starts, see :func:`~normalign.kernels.initial_metric`. A
        diagonal one stays diagonal.
    n_iter : int
        Updates of the metric: one machine more is yielded.
    weights : Tensor of shape (n,), optional
        Positive; a row of weight two is the row twice.
    center : bool, default=False
        Fit to deviations from the mean target, which becomes the intercept.
    bandwidth_rule : {"fixed", "median"}
        "median" multiplies the kernel's bandwidth by the median distance of two rows
        in the metric of each iteration.
    solver : Solver, optional
    agop_samples : int
        Above that many rows, gradients are averaged over a random sample of them,
        drawn without replacement for each update.
    resampled : bool, default=False
        Draw as many rows with replacement instead, all of them or `agop_samples`, as
        the code of the paper's experiments on tables does.
    every : bool, default=True
        False: only the last machine is yielded.
    generator : torch.Generator, optional
        For the samples, on the CPU; by default the same draws every time.

    Returns
    -------
    iterator of Iteration
        In float64 from the first one on for which float32 is not accurate enough.

    Examples
    --------
    >>> from normalign.kernels import Laplace
    >>> x = torch.tensor([[0.0, 1.0], [1.0, 5.0], [2.0, 3.0]])
    >>> settings = {"kernel": Laplace(), "ridge": 1e-3, "metric": torch.eye(2)}
    >>> *_, last = recursions(x, x[:, :1], n_iter=2, **settings)
    >>> bool(last.machine.metric[0, 0] > last.machine.metric[1, 1])  # column 0 matters
    True
    """
    _require_problem(x, y, ridge, n_iter, weights)
    if not isinstance(metric, Tensor):
        raise TypeError(f"recursions: metric must be a tensor, got {describe(metric)}.")
    require_points("recursions", x, x, kernel, metric)
    if bandwidth_rule not in ("fixed", "median"):
        raise ValueError(
            'recursions: bandwidth_rule must be "fixed" or "median", '
            f"got {bandwidth_rule!r}."
        )
    if agop_samples < 1:
        raise ValueError(
            f"recursions: agop_samples must be 1 or more, got {describe(agop_samples)}."
        )
    steps = iterate(
        x, y, kernel=kernel, ridge=ridge, metric=metric, n_iter=n_iter,
        weights=weights, center=center, bandwidth_rule=bandwidth_rule, solver=solver,
        agop_samples=agop_samples, resampled=resampled, generator=generator,
    )  # fmt: skip
    return _warn_once(steps, n_iter if not every else 0)


def _warn_once(steps: Iterator[Iteration], first: int) -> Iterator[Iteration]:
    """Warn of the first caution; yield iterations from ``first`` on."""
    warned = False
    for step in steps:
        if step.solved.caution and not warned:
            warned = True
            warnings.warn(
                f"recursions: {step.solved.caution}", UserWarning, stacklevel=3
            )
        if step.index >= first:
            yield step


def iterate(  # noqa: PLR0913, as above
    x: Tensor,
    y: Tensor,
    *,
    kernel: Kernel,
    ridge: float,
    metric: Tensor,
    n_iter: int,
    weights: Tensor | None = None,
    center: bool = False,
    bandwidth_rule: str = "fixed",
    solver: Solver | None = None,
    agop_samples: int = AGOP_SAMPLES,
    resampled: bool = False,
    generator: torch.Generator | None = None,
    centred: bool = False,
) -> Iterator[Iteration]:
    """:func:`recursions` without checks of the arguments.

    ``centred`` says that the columns' medians are already near zero.
    """
    started = time.perf_counter()
    solver = solver or Solver(callee="recursions")
    generator = generator or new_generator()
    rows = _Rows.of(x, y, ridge, weights, center=center, centred=centred)
    spare = None
    for index in range(n_iter + 1):
        at_hand = kernel
        if bandwidth_rule == "median":
            at_hand = _median_kernel(kernel, rows, metric, generator, solver.callee)
        learns = index < n_iter
        slopes = learns and not resampled and _slopes_pay(rows, at_hand, agop_samples)
        system = rows.system(at_hand, metric)
        with full_precision(x.device):
            solution = solve(system, rows.targets, solver, spare=spare, slopes=slopes)
        if solution.coef.dtype != rows.x.dtype:
            # float32 was not accurate enough: from here on everything is float64
            rows, metric = rows.double(), metric.double()
            system = rows.system(at_hand, metric)
        machine = Machine(rows.x, solution.coef, metric, at_hand, rows.intercept)
        seconds = time.perf_counter() - started
        iteration = Iteration(
            index, machine, solution.solved, seconds, system, solution, rows.mass,
            rows.y,
        )  # fmt: skip
        yield iteration
        spare = solution.spare  # its memory serves the next iteration
        if learns:
            solution.forget()
            with full_precision(x.device):
                chosen = _draw_rows(len(x), agop_samples, resampled, generator)
                metric = _next_metric(iteration, rows, chosen, slopes, solver)
            system.release()  # a caller may store the iteration
            if metric.dtype != rows.x.dtype:
                spare.release()
                rows, spare = rows.double(), None


@dataclass(frozen=True)
class _Rows:
    """A table and its targets as the recursion computes with them.

    Parameters
    ----------
    x, y : Tensor of shape (n, d) and (n, k)
        As they were given.
    points, targets : Tensor
        Centred.
    intercept : Tensor of shape (k,)
    weights : Tensor of shape (n,) or None
    mass, ridges : Tensor of shape (n,)
        The weights, or ones; what each adds to the kernel's diagonal.
    """

    x: Tensor
    y: Tensor
    points: Tensor
    targets: Tensor
    intercept: Tensor
    weights: Tensor | None
    mass: Tensor
    ridges: Tensor

    @classmethod
    def of(
        cls, x: Tensor, y: Tensor, ridge: float, weights: Tensor | None, *,
        center: bool, centred: bool,
    ) -> _Rows:  # fmt: skip
        """Centre a table, unless it is ``centred``, and its targets if ``center``."""
        n = len(x)
        if weights is None:
            value = ridge if ridge <= torch.finfo(x.dtype).max else math.inf
            mass, total, ridges = x.new_ones(n), float(n), x.new_full((n,), value)
        else:
            mass, total, ridges = weights, float(weights.sum()), ridge / weights
        intercept = (mass @ y) / total if center else y.new_zeros(y.shape[1])
        return cls(
            x, y,
            points=x if centred else x - middle(x),
            targets=y - intercept if center else y,
            intercept=intercept, weights=weights, mass=mass, ridges=ridges,
        )  # fmt: skip

    def system(self, kernel: Kernel, metric: Tensor) -> System:
        """Its linear system in a metric."""
        return System(self.points, kernel, metric, self.ridges)

    def double(self) -> _Rows:
        """The same in float64."""
        there = {name: part for name, part in vars(self).items() if part is not None}
        return replace(self, **{name: part.double() for name, part in there.items()})


def _median_kernel(
    kernel: Kernel, rows: _Rows, metric: Tensor, generator: torch.Generator, callee: str
) -> Kernel:
    """The kernel with its bandwidth in median distances."""
    median = median_distance(
        rows.points, kernel, metric=metric, weights=rows.weights, generator=generator
    )
    if not 1e-150 < kernel.bandwidth * median < 1e150:
        raise ValueError(
            f"{callee}: rows must be on a scale near the bandwidth, with none beside "
            f"which all others are one, got a median distance of {median:.1g}. Drop "
            "outliers, or scale the columns."
        )
    return kernel.rescaled(median)


def _next_metric(
    iteration: Iteration,
    rows: _Rows,
    chosen: tuple[Tensor, Tensor] | None,
    slopes: bool,
    solver: Solver,
) -> Tensor:
    """What a machine learns; in float64, if squares of its gradients need that range.

    The metric that it has, if there is nothing to learn: all coefficients are zero, or
    gradients vanish beside them, or have no squares in what memory allows.
    """
    machine, found = iteration.machine, None
    if chosen is None and slopes:
        found = iteration._solution.next_metric(rows.weights)
    if found is None:
        found = _average(machine, iteration._system, rows.weights, chosen, solver)
    single = machine.dtype != torch.float64 and bool(machine.coef.any())
    if found is None and single and _fits_in_double(iteration._system, rows.y, solver):
        fine = machine.to(dtype=torch.float64)
        weights = rows.double().weights
        system = iteration._system.to(torch.float64)
        found = _average(fine, system, weights, chosen, solver)
    return machine.metric if found is None else found


def _fits_in_double(system: System, y: Tensor, solver: Solver) -> bool:
    limit = solver.memory_limit or available_bytes(y.device)
    return fits_in_double(system, y.shape[1], limit, direct=solver.name == "cholesky")


def _slopes_pay(rows: _Rows, kernel: Kernel, agop_samples: int) -> bool:
    """Whether the update will want every slope between two rows, and no more."""
    n, d = rows.points.shape
    k, dtype = rows.targets.shape[1], rows.targets.dtype
    form = cheaper_form((n, n, k, d), kernel, dtype)
    return n <= agop_samples and form == "gradients"


def _draw_rows(
    n: int, most: int, resampled: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor] | None:
    """Rows at which gradients are taken and how often each; ``None`` for all, once."""
    if resampled:
        count = (min(n, most),)
        drawn = torch.randint(n, count, generator=generator, device="cpu")
        return drawn.unique(return_counts=True)
    if n <= most:
        return None
    chosen = sampled_rows(n, most, generator)
    return chosen, torch.ones_like(chosen)


def _average(
    machine: Machine,
    system: System,
    weights: Tensor | None,
    chosen: tuple[Tensor, Tensor] | None,
    solver: Solver,
) -> Tensor | None:
    """The metric of the gradients at some rows, or at all; None if it has no trace."""
    rows, own, share = system.points, system.sides, weights
    if chosen is not None:
        places, counts = (part.to(rows.device) for part in chosen)
        rows, own = rows[places], own[places]
        share = counts.to(rows.dtype)
        share = share if weights is None else share * weights[places]
    (n, d), (m, k) = rows.shape, machine.coef.shape
    form = cheaper_form((n, m, k, d), machine.kernel, machine.dtype)
    if machine.metric.ndim == 1 and d > m:
        form = "gradients"  # pairs would make a square of d for its diagonal
    if form == "pairs" and n * m > _SMALL_SQUARE:
        # It wants a square beside the solver's triangle.
        allowed = solver.memory_limit or available_bytes(rows.device)
        fits = Needs.of(system, k).by_pairs(n) <= allowed
        form = "pairs" if fits else "gradients"
    update = centred_agop(
        rows, system.points, machine.coef, machine.kernel, (own, system.sides),
        metric=machine.metric, weights=share, diagonal=machine.metric.ndim == 1,
        form=form,
    )  # fmt: skip
    return scaled_update(update)


def _require_problem(
    x: Tensor, y: Tensor, ridge: float, n_iter: int, weights: Tensor | None
) -> None:
    require_table("recursions", "x", x)
    if not len(x):
        raise ValueError(
            f"recursions: x must be of shape (n, d), n > 0, got {describe(x)}."
        )
    for argument, value in {"x": x, "y": y}.items():
        # A finite sum is one of finite numbers; another may be one of large ones.
        finite = math.isfinite(value.sum()) or bool(torch.isfinite(value).all())
        if not finite:
            raise ValueError(
                f"recursions: {argument} must be finite, got NaN or infinity."
            )
    if y.ndim != 2 or len(y) != len(x):
        raise ValueError(
            f"recursions: y must be of shape ({len(x)}, k), got {describe(y)}."
        )
    if y.dtype != x.dtype:
        raise ValueError(
            f"recursions: y must be of the dtype of x, {x.dtype}, got {describe(y)}."
        )
    if not ridge > 0:
        raise ValueError(f"recursions: ridge must be positive, got {describe(ridge)}.")
    if n_iter < 0:
        raise ValueError(
            f"recursions: n_iter must be 0 or more, got {describe(n_iter)}."
        )
    if weights is not None and not _are_weights(weights, len(x), ridge):
        raise ValueError(
            f"recursions: weights must be positive and finite, of shape ({len(x)},), "
            f"none so small that ridge / weight is no number, got {describe(weights)}. "
            "Leave out rows of weight zero."
        )


def _are_weights(weights: Tensor, n: int, ridge: float) -> bool:
    if weights.shape != (n,):
        return False
    positive = (weights > 0) & torch.isfinite(weights)
    return bool((positive & torch.isfinite(ridge / weights)).all())
