"""A fit: the scaled table, its parameters, Algorithm 1 on it, and workers."""

from __future__ import annotations

import math
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from threading import Lock, local
from typing import Any, NamedTuple

import joblib
import numpy as np
import torch
from joblib.parallel import get_active_backend
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits
from torch import Tensor

from normalign._errors import complaint, require
from normalign.estimators._inputs import Answers, callers_level
from normalign.estimators._scaling import (
    Frame,
    Look,
    power_of_two,
    rounding_noise,
    rounding_share,
)
from normalign.kernels import (
    Gaussian,
    Iteration,
    Kernel,
    Laplace,
    Solver,
    estimate_memory,
    initial_metric,
)
from normalign.kernels.compiled import seconds_of_compiling
from normalign.kernels.functions import Radial
from normalign.kernels.memory import UNASKED, available_bytes, is_little
from normalign.kernels.recursion import iterate


def two_seeds(random_state: Any) -> tuple[int, int]:
    """Two seeds; without a random state fresh ones, never the global generator's."""
    if random_state is None:
        first, second = np.random.SeedSequence().generate_state(2) >> 1
        return int(first), int(second)
    if type(random_state) is int:
        return _seeds_of(random_state)
    return _drawn(check_random_state(random_state))


@lru_cache(maxsize=256)
def _seeds_of(seed: int) -> tuple[int, int]:
    """What a generator of that seed draws first; to make one takes 0.1 ms."""
    return _drawn(check_random_state(seed))


def _drawn(generator: np.random.RandomState) -> tuple[int, int]:
    first, second = generator.randint(2**31 - 1, size=2)
    return int(first), int(second)


@dataclass(frozen=True)
class Clock:
    """When a job has to end, and how many others run beside it.

    Parameters
    ----------
    deadline : float or None
        In seconds of ``time.monotonic()``. The processes of a machine share that clock;
        on another machine a clock goes on with the seconds that were left when it was
        pickled.
    n_jobs : int
        How many run at one time.
    """

    deadline: float | None = None
    n_jobs: int = 1

    @classmethod
    def within(cls, seconds: float | None) -> Clock:
        """A clock for one job that begins now; None is no limit."""
        return cls(None if seconds is None else time.monotonic() + float(seconds))

    def budget(self) -> float:
        """Seconds that are left; infinitely many without a deadline."""
        if self.deadline is None:
            return float("inf")
        return max(self.deadline - time.monotonic(), 0.0)

    def __reduce__(self) -> tuple[Any, ...]:
        """With the seconds left, and the machine whose clock the deadline is of."""
        if self.deadline is None:
            return Clock, (None, self.n_jobs)
        state = self.deadline, self.n_jobs, self.budget(), _machine()
        return _unpickled, state


def _unpickled(deadline: float, n_jobs: int, left: float, machine: str) -> Clock:
    """A clock as it is on this machine."""
    return Clock(deadline if machine == _machine() else time.monotonic() + left, n_jobs)


@cache
def _machine() -> str:
    """What tells apart machines, and their starts, where monotonic clocks differ."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text() if boot.exists() else platform.node()


class Pace:
    """How long iterations take, and whether another one would end in time.

    A compiler that has to be waited for, once on a machine, does not count: it says
    nothing about the next iteration.

    Parameters
    ----------
    budget : float
        Seconds, from now on.
    """

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.slowest, self.started = 0.0, self._now()
        self.before = self.started

    def another(self) -> bool:
        """Count an iteration; whether one more, as long as the longest, has time."""
        now = self._now()
        self.slowest, self.before = max(self.slowest, now - self.before), now
        return now - self.started + self.slowest <= self.budget

    def _now(self) -> float:
        return time.monotonic() - seconds_of_compiling()


def memory_share(
    limit: int | None, n_jobs: int, device: torch.device | str
) -> int | None:
    """Bytes for each of the workers at one time, of a limit or of what is free now.

    What is free is divided before they begin: one that asked later would see what
    the others have left.

    Examples
    --------
    >>> memory_share(1000, 4, "cpu"), memory_share(None, 1, "cpu")
    (250, None)
    """
    if n_jobs == 1:
        return limit
    if limit is None:
        return max(available_bytes(torch.device(device)) // n_jobs, UNASKED)
    return max(limit // n_jobs, 1)


def jobs_at_once(n_jobs: int | None) -> int:
    """How many jobs the active backend runs at one time, one at least.

    A cluster whose workers have not come yet says 0.
    """
    effective: Callable[..., int] = joblib.effective_n_jobs
    return max(int(effective(_plain(n_jobs))), 1)


def _plain(n_jobs: int | None) -> int | None:
    """A number of any library as Python's, which bytes can be multiplied by."""
    return None if n_jobs is None else int(n_jobs)


def parallel(
    call: Callable[[Any], Any], jobs: list[Any], n_jobs: int | None
) -> Iterator[Any]:
    """Answers in the order of the jobs, as they come where the backend can do that."""
    backend, _ = get_active_backend()
    alone = jobs_at_once(n_jobs) == 1
    lazily = alone or getattr(backend, "supports_return_generator", False)
    # One job at a time: each takes seconds.
    options: dict[str, Any] = {"n_jobs": _plain(n_jobs), "batch_size": 1}
    pool = joblib.Parallel(**options, return_as="generator" if lazily else "list")
    return iter(pool(joblib.delayed(call)(job) for job in jobs) or ())


class _Threads:
    """The limit on threads that several jobs of one process hold together.

    What was before is asked of the first, whose thread is as it was: jobs of a
    threading backend overlap, and one must not take for the original what another has
    set. torch remembers a number for each thread and one for threads to come, so every
    job sets its own thread and puts it back.
    """

    def __init__(self) -> None:
        self.lock, self.holders = Lock(), 0
        self.before, self.pools = 0, None
        self.here = local()

    def hold(self, threads: int) -> None:
        with self.lock:
            self.holders += 1
            if self.holders == 1:
                self.before = torch.get_num_threads()
                self.pools = threadpool_limits(min(threads, self.before))
            self.here.holds = getattr(self.here, "holds", 0) + 1
            if self.here.holds == 1:
                torch.set_num_threads(min(threads, self.before))

    def release(self) -> None:
        with self.lock:
            self.holders -= 1
            if self.holders == 0 and self.pools is not None:
                self.pools.restore_original_limits()
            self.here.holds -= 1
            if self.here.holds == 0:
                torch.set_num_threads(self.before)


_THREADS = _Threads()


@contextmanager
def shared_threads(n_jobs: int) -> Iterator[None]:
    """Keep ``n_jobs`` workers of this machine to its cores together."""
    if n_jobs == 1:
        yield
        return
    # those that the process may use: fewer in a container, or in a batch job
    _THREADS.hold(max(joblib.cpu_count() // n_jobs, 1))
    try:
        yield
    finally:
        _THREADS.release()


# Targets may be that large: coefficients are larger by the size of 1 / ridge.
_LARGEST_TARGET = 1e250


@dataclass(frozen=True)
class Score:
    """How good outputs are: the share of right classes, or the explained variance.

    Called with outputs and targets as a machine of the problem has them (shifted and
    scaled) and weights; higher is better. Several label columns, or targets, are
    averaged.

    Parameters
    ----------
    sizes : tuple of int
        Classes of each label column; empty for numbers.
    intercept : ndarray of shape (k,)
        What was taken off the targets, in their scaled units.

    Examples
    --------
    >>> score = Score((2,), np.zeros(2))
    >>> score(torch.tensor([[0.9, 0.2]]), torch.tensor([[0.0, 1.0]]), torch.ones(1))
    0.0
    """

    sizes: tuple[int, ...]
    intercept: np.ndarray

    def __call__(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> float:
        """Return the score."""
        share = weights.double() / weights.double().sum()
        if not self.sizes:
            return _explained(outputs.double(), targets.double(), share)
        place = {"dtype": outputs.dtype, "device": outputs.device}
        shift = torch.tensor(self.intercept, **place)
        blocks = zip(
            (outputs + shift).split(self.sizes, 1),
            (targets + shift).split(self.sizes, 1),
            strict=True,
        )
        right = [(f.argmax(1) == y.argmax(1)).double() @ share for f, y in blocks]
        return float(torch.stack(right).mean())


def _explained(outputs: Tensor, targets: Tensor, share: Tensor) -> float:
    """R squared; a target that is constant here counts as one of variance one."""
    error = share @ (outputs - targets).square()
    variance = share @ (targets - share @ targets).square()
    # A mean of equal numbers may be off by rounding, their range is not.
    varies = (variance > 0) & (targets.amax(0) > targets.amin(0))
    ratio = error / torch.where(varies, variance, torch.ones_like(variance))
    return float((1 - ratio).mean())


class LeftOut(NamedTuple):
    """What machines fitted without a training row answer there.

    ``outputs`` and ``targets``, as a machine of the problem has them, of shape (r, k);
    ``weights`` of shape (r,), or None for ones.
    """

    outputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray | None


@dataclass(frozen=True)
class Validation:
    """Rows kept apart, by which iterations of a machine are judged.

    Parameters
    ----------
    x, y, weights : ndarray of shape (n, d), (n, k) and (n,)
        As the machine sees them.
    score : callable
        ``score(outputs, targets, weights)``, higher is better.
    """

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    score: Callable[[Tensor, Tensor, Tensor], float]

    def __call__(self, machine: Any) -> float:
        """The score of a machine, whole or in parts."""
        x, y, weights = (
            torch.tensor(part, dtype=machine.dtype, device=machine.device)
            for part in (self.x, self.y, self.weights)
        )
        return self.score(machine(x), y, weights)


@dataclass(frozen=True)
class Problem:
    """Rows of positive weight with their answers, and where they are computed with.

    Parameters
    ----------
    table : ndarray of shape (n, d)
        As the caller gave it.
    inside : ndarray of shape (n, d)
        The table in its frame, in float64; rounded where it is computed with.
    answers : Answers
    weights : ndarray of shape (n,), optional
        Positive.
    frame : Frame
        In which the kernel sees the table.
    dtype, device
        Of the computation.
    center : bool
        Whether the mean answer is taken off first. That happens in float64, like the
        shift of the table, so that single precision sees small numbers only.
    """

    table: np.ndarray
    inside: np.ndarray
    answers: Answers
    weights: np.ndarray | None
    frame: Frame
    dtype: torch.dtype
    device: torch.device
    center: bool

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.table)

    @property
    def k(self) -> int:
        """Outputs."""
        return self.answers.columns.shape[1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Classes of each label column; empty for numbers."""
        return self.answers.sizes

    @cached_property
    def intercept(self) -> np.ndarray:
        """The mean answer, or zeros; that of equal numbers is the number."""
        columns = self.answers.columns
        if not self.center:
            return np.zeros(self.k)
        if self.weights is None:
            mean = columns.sum(axis=0) / self.n
        else:
            weights = self.weights / self.weights.max()
            mean = np.average(columns, axis=0, weights=weights)
        return mean if self.sizes else _without_rounding(mean, columns)

    @cached_property
    def target_unit(self) -> float:
        """A power of two by which answers are divided to be of the size of one."""
        return 1.0 if self.sizes else power_of_two(self._largest_target)

    @property
    def is_constant(self) -> bool:
        """Whether there is nothing to fit besides the intercept."""
        return not self.sizes and self._largest_target == 0

    @cached_property
    def _largest_target(self) -> float:
        return float(self._target_sizes.max())

    @cached_property
    def _target_sizes(self) -> np.ndarray:
        return np.abs(self.answers.columns - self.intercept).max(axis=0)

    @property
    def target_share(self) -> float:
        """Size of the smallest target that varies at all, beside the largest.

        All targets are divided by one number, because the metric learns from the sum
        of their squared gradients.
        """
        sizes = self._target_sizes[self._target_sizes > 0]
        return float(sizes.min() / sizes.max()) if len(sizes) else 1.0

    def require_sizes(self, callee: str) -> None:
        """Complain about a table, or targets, too large or small to compute with."""
        self.frame.require_size(callee)
        largest = float(np.abs(self.answers.columns).max())
        require(
            largest <= _LARGEST_TARGET, callee, "y",
            f"of absolute values up to {_LARGEST_TARGET:g}, so that coefficients are "
            "finite", f"{largest:.1g}", "Divide the targets by a constant.",
        )  # fmt: skip

    @property
    def score(self) -> Score:
        """How outputs of this problem's machines are judged."""
        return Score(self.sizes, self.intercept / self.target_unit)

    def targets(self) -> np.ndarray:
        """The answers as the machine is fitted to them."""
        return self._shifted(self.answers.columns)

    def _shifted(self, columns: np.ndarray) -> np.ndarray:
        return (columns - self.intercept) / self.target_unit

    def validation(self, held: Problem) -> Validation:
        """Rows kept apart, as machines of this problem see and are scored on them."""
        weights = np.ones(held.n) if held.weights is None else held.weights
        targets = self._shifted(held.answers.columns)
        return Validation(held.inside, targets, weights, self.score)

    def rows(self, chosen: np.ndarray) -> Problem:
        """The problem of some rows, in the same frame; a mask or indices."""
        codes = self.answers.codes
        answers = replace(
            self.answers,
            columns=self.answers.columns[chosen],
            codes=None if codes is None else codes[chosen],
        )
        weights = None if self.weights is None else self.weights[chosen]
        return replace(
            self,
            table=self.table[chosen],
            inside=self.inside[chosen],
            answers=answers,
            weights=weights,
        )

    def answered(
        self, left_out: LeftOut
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Outputs of machines without a row, in the caller's units; their truth; mass.

        Classes are in units of their own, so that nothing is to be scaled.
        """
        shift = self.intercept
        return left_out.outputs + shift, left_out.targets + shift, left_out.weights

    def sample(self, most: int) -> np.ndarray:
        """Indices of all rows, or of that many; the same ones in every fit."""
        return same_rows(self.n, most)

    def in_precision(self, dtype: torch.dtype) -> Problem:
        """The same problem for a computation in another precision."""
        same = object.__new__(type(self))
        vars(same).update(vars(self), dtype=dtype)  # with all that was found out
        return same

    @cached_property
    def look(self) -> Look:
        """How far some of its rows are apart."""
        return Look.at(self.inside)

    def variances(self) -> np.ndarray:
        """The variance of each column in its frame."""
        inside, weights = self.inside, self.weights
        if weights is None:
            apart = inside - inside.sum(axis=0) / len(inside)
            return np.einsum("ij,ij->j", apart, apart) / len(inside)
        mean = np.average(inside, axis=0, weights=weights)
        return np.average((inside - mean) ** 2, axis=0, weights=weights)


def _without_rounding(mean: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The mean, exact for columns of one number: else they would seem to vary."""
    first, rounding = columns[0], len(columns) * 2.0**-50
    for middle, number in zip(mean.tolist(), first.tolist(), strict=True):
        if abs(middle - number) <= rounding * abs(number):
            return np.where((columns == first).all(axis=0), first, mean)
    return mean


def same_rows(n: int, most: int) -> np.ndarray:
    """Indices of all of n rows, or of that many, sorted; always the same ones.

    They look drawn at random, because every so-manieth row of a table may be of one
    class.

    Examples
    --------
    >>> same_rows(3, 5)
    array([0, 1, 2])
    """
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).permutation(n)[:most])


def held_out_rows(
    callee: str, problem: Problem, fraction: float, seed: int
) -> np.ndarray:
    """Choose rows to be kept apart: a mask, the same share of every class.

    Where there are several label columns, of every combination of labels. Every class
    keeps at least one row for training. Of however few rows one at least is kept apart,
    and one is not.

    Raises
    ------
    ValueError
        If there is no row to spare: a single one, or the only one of a class each.
    """
    random = np.random.default_rng(seed)
    order = shuffled = random.permutation(problem.n)
    codes = problem.answers.codes
    if codes is not None:
        _, groups = np.unique(codes, axis=0, return_inverse=True)
        order = order[np.argsort(groups.ravel()[order], kind="stable")]
    # Through the classes one after the other, every so-manieth row.
    steps = np.floor(np.arange(1, problem.n + 1) * fraction + random.uniform())
    chosen = np.zeros(problem.n, dtype=bool)
    chosen[order[np.diff(steps, prepend=0.0) > 0]] = True
    for column in () if codes is None else codes.T:
        for group in np.setdiff1d(column, column[~chosen]):
            chosen[np.flatnonzero(column == group)[0]] = False
    if chosen.all():
        chosen[shuffled[0]] = False
    if not chosen.any():
        # whether a share of few rows is a row must not be a matter of luck
        chosen[shuffled[_spare(problem)[shuffled]][:1]] = True
    require(
        bool(chosen.any()), callee, "validation_fraction",
        "such that rows remain on both sides",
        f"{fraction} of {problem.n} rows", "Set it to None for so few rows.",
    )  # fmt: skip
    return chosen


def _spare(problem: Problem) -> np.ndarray:
    """Rows without which there are others, of each of their classes."""
    spare = np.full(problem.n, problem.n > 1)
    codes = problem.answers.codes
    for column in () if codes is None else codes.T:
        spare &= np.bincount(column)[column] > 1
    return spare


_ARRAYS = {torch.float32: np.float32, torch.float64: np.float64}


@dataclass(frozen=True)
class Recipe:
    """What machines are made by, whole ones and those of parts.

    Parameters
    ----------
    kernel, ridge, n_iter, bandwidth_rule, solver, agop_samples
        As :func:`normalign.kernels.recursions` takes them.
    diagonal : bool
        Whether the metric is.
    identity_weight : float
        Of the initial metric; 1 is an RFM.
    dtype : torch.dtype
    device : str
    centred : bool
        Whether rows come with medians near zero, as a whole table in its frame does.
    """

    kernel: Kernel
    ridge: float = 1e-3
    n_iter: int = 5
    identity_weight: float = 1.0
    bandwidth_rule: str = "fixed"
    diagonal: bool = False
    solver: Solver = field(default_factory=Solver)
    agop_samples: int = 20000
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    centred: bool = False

    def sharing(self, n_jobs: int) -> Recipe:
        """Return the recipe with its memory divided among workers at one time."""
        share = memory_share(self.solver.memory_limit, n_jobs, self.device)
        return replace(self, solver=replace(self.solver, memory_limit=share))

    def tensor(self, array: np.ndarray) -> Tensor:
        """Copy an array, which may be a read-only map of a file, to the device."""
        copied = np.array(array, dtype=_ARRAYS[self.dtype])
        return torch.from_numpy(copied).to(self.device)

    def iterations(
        self,
        x: Any,
        y: Any,
        weights: Any,
        seed: int,
        *,
        metric: Any = None,
        every: bool = True,
    ) -> Iterator[Iteration]:
        """Algorithm 1 on these rows, in float64 from where float32 does not do.

        Parameters
        ----------
        x, y, weights : arrays or tensors
            Finer ones than `dtype` are rounded to it first. Where the recursion has to
            go on in float64 it does so with the rows as they were given: a machine with
            rounded centers would find no row where it learned one.
        metric : array or tensor, optional
            Where to start; by default as `identity_weight` says.
        every : bool, default=True
            Whether more than the last iteration is wanted.
        """
        generator = torch.Generator().manual_seed(seed)
        coarse = x.dtype.itemsize > self.dtype.itemsize
        first = 0
        for iteration in self._run(x, y, weights, metric, 0, generator, every):
            if not coarse or iteration.machine.coef.dtype == self.dtype:
                yield iteration
                continue
            metric, first = iteration.machine.metric, iteration.index
            break
        else:
            return
        del iteration  # and its factor
        finer = replace(self, dtype=torch.float64)
        yield from finer._run(x, y, weights, metric, first, generator, every)

    def _run(
        self,
        x: Any,
        y: Any,
        weights: Any,
        metric: Any,
        first: int,
        generator: Any,
        every: bool,
    ) -> Iterator[Iteration]:
        rows, mass = self._placed(x), None if weights is None else self._placed(weights)
        if metric is None:
            metric = initial_metric(
                rows,
                identity_weight=self.identity_weight,
                weights=mass,
                diagonal=self.diagonal,
            )
        steps = iterate(
            rows,
            self._placed(y),
            kernel=self.kernel,
            ridge=self.ridge,
            metric=self._placed(metric),
            n_iter=self.n_iter - first,
            weights=mass,
            bandwidth_rule=self.bandwidth_rule,
            solver=self.solver,
            agop_samples=self.agop_samples,
            every=every,
            generator=generator,
            centred=self.centred,
        )
        if first == 0:
            yield from steps
            return
        for step in steps:
            yield replace(step, index=step.index + first)

    def _placed(self, values: Any) -> Tensor:
        if isinstance(values, Tensor):
            return values.to(dtype=self.dtype, device=self.device)
        return self.tensor(values)


@dataclass(frozen=True)
class Report:
    """How a fit went, in plain types.

    Parameters
    ----------
    n_iter : int
        Updates behind the machine.
    bandwidth : float
        Of its kernel, in the frame of the table.
    solver, dtype : str
        Who solved its system, and in which precision.
    jitter : float
        What had to be added to the diagonal.
    converged : bool
    caution : str
        What a user should know of, or nothing.
    scores : tuple of float
        Of all iterations made, on rows kept apart.
    cut_short : bool
        Whether time was up before the last iteration.
    """

    n_iter: int
    bandwidth: float
    solver: str
    dtype: str
    jitter: float
    converged: bool
    caution: str
    scores: tuple[float, ...] = ()
    cut_short: bool = False

    @classmethod
    def of(cls, iteration: Iteration) -> Report:
        """The report of one solve."""
        solved = iteration.solved
        return cls(
            n_iter=int(iteration.index),
            bandwidth=float(iteration.machine.kernel.bandwidth),
            solver=solved.solver,
            dtype=str(solved.dtype).removeprefix("torch."),
            jitter=float(solved.jitter),
            converged=bool(solved.converged),
            caution=solved.caution,
        )

    @classmethod
    def together(cls, parts: Sequence[Report], *, n_iter: int) -> Report:
        """The report of many solves in one metric: the worst of each."""
        return cls(
            n_iter=n_iter,
            bandwidth=parts[0].bandwidth,
            solver="+".join(sorted({part.solver for part in parts})),
            dtype=max(part.dtype for part in parts),
            jitter=max(part.jitter for part in parts),
            converged=all(part.converged for part in parts),
            caution=max(part.caution for part in parts),
        )


# Rows that temperatures are fitted on: what they cost is then below the solve's cost.
CALIBRATION_ROWS = 500
# The same where each takes conjugate gradients of its own.
_BY_PRODUCTS = 64


@dataclass(frozen=True)
class WholeFit:
    """A machine and how it came about, in numpy.

    Parameters
    ----------
    coef : array of shape (n, k)
        In the machine's precision.
    metric : array of shape (d, d) or (d,)
    report : Report
    left_out : LeftOut or None
    """

    coef: np.ndarray
    metric: np.ndarray
    report: Report
    left_out: LeftOut | None


def fit_whole(
    recipe: Recipe,
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    seed: int = 0,
    validation: Validation | None = None,
    asked: np.ndarray | None = None,
    clock: Clock | None = None,
) -> WholeFit:
    """Run the recursion and keep its last iteration, or the best one.

    Iteration 0 is always made. A later one is begun only if the slowest so far would
    still end in time.

    Parameters
    ----------
    validation : Validation, optional
        By which the best iteration is picked; the first of equals.
    asked : array of int, optional
        Rows to be left out, one by one, of the machine that is kept.
    clock : Clock, optional
    """
    clock = clock or Clock()
    pace, scores = Pace(clock.budget()), []
    best: tuple[float, WholeFit] | None = None
    last = cut_short = False
    every = validation is not None or clock.deadline is not None
    for iteration in recipe.iterations(x, y, weights, seed, every=every):
        if validation is not None:
            scores.append(validation(iteration.machine))
        last = iteration.index == recipe.n_iter
        cut_short = not pace.another() and not last
        # Leaving rows out costs as much as a solve: asked only of what may be kept.
        if last or cut_short or scores:
            worth = scores[-1] if scores else 0.0
            if best is None or worth > best[0]:
                best = worth, kept(iteration, left_out(iteration, asked, y, weights))
        if cut_short:
            break
    if best is None or not (last or cut_short):
        raise RuntimeError("the recursion ended before its last iteration")
    report = replace(best[1].report, scores=tuple(scores), cut_short=cut_short)
    return replace(best[1], report=report)


def kept(iteration: Iteration, without: LeftOut | None = None) -> WholeFit:
    """An iteration as it is kept."""
    machine = iteration.machine
    return WholeFit(
        coef=machine.coef.cpu().numpy(),
        metric=machine.metric.cpu().numpy(),
        report=Report.of(iteration),
        left_out=without,
    )


def left_out(
    iteration: Iteration,
    asked: np.ndarray | None,
    y: np.ndarray,
    weights: np.ndarray | None,
) -> LeftOut | None:
    """What machines fitted without some rows answer there, in float64.

    Fewer rows than asked for where each costs as much as a solve.
    """
    if asked is None:
        return None
    if iteration.solved.solver == "cg":
        asked = asked[same_rows(len(asked), _BY_PRODUCTS)]
    rows = torch.as_tensor(asked, device=iteration.machine.device)
    outputs = iteration.left_out(rows).cpu().double().numpy()
    return LeftOut(outputs, y[asked], None if weights is None else weights[asked])


# Share of small distances that rounding may be without a word, and how far below that
# a quick look must find it.
_ROUNDING, _MARGIN = 1e-3, 4
# What a kernel may have in its exponent for rows at a middling distance.
_TELLING = (1e-4, 20.0)


def require_memory(
    callee: str,
    problem: Problem,
    *,
    kernel: str,
    solver: str,
    limit: int | None,
    most: int | None,
    diagonal: bool = False,
    n_jobs: int = 1,
) -> None:
    """Complain if a fit will not fit, before anything is allocated.

    Parameters
    ----------
    kernel : str
    solver : {"auto", "cholesky", "cg"}
        "auto" needs what its last resort needs.
    limit : int, optional
        Bytes above the data; by default most of what is free.
    most : int, optional
        Rows of one part.
    diagonal : bool, default=False
        Whether the metric is.
    n_jobs : int, default=1
        How many such fits share the limit at one time.

    Raises
    ------
    ValueError
        With three remedies, or four.
    """
    n, d = problem.table.shape
    rows = n if most is None else min(n, int(most))
    if limit is None and is_little(rows, d, problem.k):
        return
    name = "cholesky" if solver == "cholesky" else "cg"
    needed = estimate_memory(
        rows, d, problem.k, solver=name, dtype=problem.dtype, device=problem.device,
        rank=1, diagonal=diagonal, kernel=kernel,
    )  # fmt: skip
    if limit is None and needed <= UNASKED:
        return
    allowed = limit or available_bytes(problem.device)
    if n_jobs * needed <= allowed:
        return
    remedies = ["max_leaf_size to fit the rows in parts"]
    if d > rows and not diagonal:
        remedies = ["diagonal=True to keep one number a column of the metric"]
    if name == "cholesky" and d <= rows:
        remedies.append('solver="cg" to keep no kernel matrix')
    elif problem.dtype == torch.float64:
        remedies.append('dtype="float32" to need less')
    else:
        remedies.append("fewer columns" if d > rows else "fewer rows")
    remedies.append("a larger memory_limit")
    times = ""
    if n_jobs > 1:
        times, remedies = f", {n_jobs} times at once", ["fewer n_jobs", *remedies]
    raise ValueError(
        complaint(
            callee, "memory_limit",
            f"at least {n_jobs * needed / 1e6:.3g} MB to fit {rows} rows and {d} "
            f"columns by {name}{times}", f"{allowed / 1e6:.3g} MB",
            f"Set {', or '.join(remedies)}.",
        )
    )  # fmt: skip


def warn_of_scale(callee: str, problem: Problem, recipe: Recipe) -> None:
    """Warn if a kernel finds all rows alike, or none like another, to begin with.

    In the initial metric: the covariance makes columns of large numbers count more.
    """
    look, kernel = problem.look, recipe.kernel
    if recipe.bandwidth_rule != "fixed":
        return
    least, most = _telling(kernel)
    if isinstance(kernel, Radial) and look.lies_within(least, most):
        return
    some = torch.from_numpy(look.some)
    start = initial_metric(
        torch.from_numpy(problem.inside),
        identity_weight=recipe.identity_weight,
        weights=None if problem.weights is None else torch.from_numpy(problem.weights),
        diagonal=recipe.diagonal,
    )
    sides = kernel.sides(some, start)
    apart = kernel.distances_(sides, sides, some.new_empty(len(some), len(some)))
    apart = apart[apart > 0] * kernel.bandwidth
    if not len(apart) or least <= (middling := float(apart.median())) <= most:
        return
    finding = "all rows alike" if middling < least else "no row like another"
    warnings.warn(
        f"{callee}: rows are {middling / kernel.bandwidth:.1g} bandwidths apart, so "
        f"the kernel finds {finding}. Scale the columns (make_tabular_pipeline, or "
        "StandardScaler), or, if they are of one kind, set "
        'bandwidth_rule="median" and bandwidth=1.',
        UserWarning,
        stacklevel=callers_level(),
    )


def _telling(kernel: Kernel) -> tuple[float, float]:
    """Distances between which a kernel tells rows apart, by what is in its exponent."""
    if isinstance(kernel, Gaussian):
        low, high = (math.sqrt(2 * end) for end in _TELLING)
    else:
        power = kernel.exponent if isinstance(kernel, Laplace) else 1.0
        # of the flattest kernels everything is within
        low, high = (math.exp(min(math.log(end) / power, 99.0)) for end in _TELLING)
    return low * kernel.bandwidth, high * kernel.bandwidth


def warn_of_rounding(callee: str, problem: Problem) -> None:
    """Warn if single precision, which was asked for, takes distances between rows."""
    if problem.dtype == torch.float64:
        return
    inside = problem.inside
    # Far from the limit the few rows of a look will do.
    largest = float(np.einsum("ij,ij->i", inside, inside).max())
    noise = rounding_noise(problem.dtype, inside.shape[1])
    if (_MARGIN * noise) ** 2 * largest <= _ROUNDING**2 * problem.look.squares[0]:
        return
    lost = rounding_share(inside, problem.dtype)
    if lost <= _ROUNDING:
        return
    warnings.warn(
        f"{callee}: rows are so far apart that {lost:.1g} of a small distance between "
        'them may be rounding in float32. Set dtype="float64", or scale the columns '
        "(StandardScaler; RobustScaler if there are outliers).",
        UserWarning,
        stacklevel=callers_level(),
    )
