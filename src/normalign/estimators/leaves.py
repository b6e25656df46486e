"""One machine as a job for any worker process.

A job is told everything by value (numpy arrays in, numpy arrays out) and draws from
its own seed, so its answer does not depend on which worker runs it or when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock, local
from typing import Any

import joblib
import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from normalign.estimators.problem import same_rows
from normalign.kernels import Iteration, Kernel, Solver, initial_metric
from normalign.kernels.memory import available_bytes
from normalign.kernels.recursion import iterate

__all__ = [
    "Clock",
    "FittedLeaf",
    "LeafJob",
    "Recipe",
    "fit_leaf",
    "left_out_rows",
    "memory_share",
    "shared_threads",
    "solver_report",
]

# Bytes for which nobody is asked what is free, not even by several workers.
_NEVER_MIND = 1 << 26

# Rows that are left out where each takes conjugate gradients of its own.
_LEFT_OUT_BY_PRODUCTS = 64
_ARRAYS = {torch.float32: np.float32, torch.float64: np.float64}


@dataclass(frozen=True)
class Recipe:
    """What every machine of a partition is made by.

    Parameters
    ----------
    kernel, ridge, n_iter, center, bandwidth_rule, diagonal, solver, agop_samples
        As :func:`normalign.kernels.recursions` takes them.
    identity_weight : float
        Of the initial metric; 1 is an RFM.
    dtype : torch.dtype
    device : str
    score : callable, optional
        ``score(outputs, targets, weights)``, higher is better, by which a leaf keeps
        its best iteration on the validation rows that reach it.
    centred : bool
        Whether rows come with medians near zero, as a whole table in its frame does.
    """

    kernel: Kernel
    ridge: float = 1e-3
    n_iter: int = 5
    identity_weight: float = 1.0
    center: bool = False
    bandwidth_rule: str = "fixed"
    diagonal: bool = False
    solver: Solver = field(default_factory=Solver)
    agop_samples: int = 20000
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    score: Callable[[Tensor, Tensor, Tensor], float] | None = None
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
            center=self.center,
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
class Clock:
    """When a job has to end, and how many others run beside it.

    Parameters
    ----------
    deadline : float or None
        Seconds since the epoch, which every machine of a cluster agrees on.
    n_jobs : int
        How many run at one time.
    """

    deadline: float | None = None
    n_jobs: int = 1

    def budget(self) -> float:
        """Seconds that are left; infinitely many without a deadline."""
        if self.deadline is None:
            return float("inf")
        return max(self.deadline - time.time(), 0.0)


@dataclass(frozen=True)
class LeafJob:
    """The rows of one machine, where it is scored and what else is asked of it."""

    recipe: Recipe
    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray | None
    seed: int
    validation: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    left_out: np.ndarray | None = None
    clock: Clock = Clock()


@dataclass(frozen=True)
class FittedLeaf:
    """A machine and how it came about, in numpy; `coef` has the machine's precision.

    ``asked`` are the rows whose outputs without them are in ``left_out``.
    """

    coef: np.ndarray
    metric: np.ndarray
    bandwidth: float
    intercept: np.ndarray
    n_iter: int
    scores: list[float]
    asked: np.ndarray | None
    left_out: np.ndarray | None
    solved: dict[str, Any]
    cut_short: bool


def fit_leaf(job: LeafJob) -> FittedLeaf:
    """Run the recursion on a job's rows and keep its last or best iteration.

    Iteration 0 is always made. A later one is begun only if the slowest so far would
    still end in time.
    """
    with shared_threads(job.clock.n_jobs):
        return _fitted(job)


def _fitted(job: LeafJob) -> FittedLeaf:
    recipe, started, budget = job.recipe, time.monotonic(), job.clock.budget()
    best: tuple[float, FittedLeaf] | None = None
    scores: list[float] = []
    slowest, before, cut_short = 0.0, started, False
    every = job.validation is not None or job.clock.deadline is not None
    for iteration in recipe.iterations(
        job.x, job.y, job.weights, job.seed, every=every
    ):
        worth = float(iteration.index)
        if job.validation is not None and recipe.score is not None:
            coef = iteration.machine.coef
            held = [
                torch.tensor(part, dtype=coef.dtype, device=coef.device)
                for part in job.validation
            ]
            worth = recipe.score(iteration.machine(held[0]), held[1], held[2])
            scores.append(worth)
        now = time.monotonic()
        slowest, before = max(slowest, now - before), now
        last = iteration.index == recipe.n_iter
        cut_short = not last and now - started + slowest > budget
        # left_out costs as much as a solve: asked only of what may be kept.
        scored = job.validation is not None and recipe.score is not None
        if (scored and (best is None or worth > best[0])) or (
            not scored and (last or cut_short)
        ):
            best = worth, _record(iteration, job.left_out)
        if cut_short:
            break
    if best is None:
        raise RuntimeError("the recursion ended before its last iteration")
    return replace(best[1], scores=scores, cut_short=cut_short)


def _record(iteration: Iteration, left_out: np.ndarray | None) -> FittedLeaf:
    machine, outputs = iteration.machine, None
    if left_out is not None:
        left_out = left_out_rows(iteration, left_out)
        rows = torch.as_tensor(left_out, device=machine.coef.device)
        outputs = iteration.left_out(rows).cpu().double().numpy()
    return FittedLeaf(
        coef=machine.coef.cpu().numpy(),
        metric=machine.metric.cpu().numpy(),
        bandwidth=machine.kernel.bandwidth,
        intercept=machine.intercept.cpu().numpy(),
        n_iter=iteration.index,
        scores=[],
        asked=left_out,
        left_out=outputs,
        solved=solver_report(iteration),
        cut_short=False,
    )


def left_out_rows(iteration: Iteration, rows: np.ndarray) -> np.ndarray:
    """Those of some rows that are left out: few where each costs as much as a solve."""
    if iteration.solved.solver != "cg":
        return rows
    return rows[same_rows(len(rows), _LEFT_OUT_BY_PRODUCTS)]


def solver_report(iteration: Iteration) -> dict[str, Any]:
    """What the solver of an iteration says of itself, in plain types."""
    solved = iteration.solved
    return {
        "solver": solved.solver,
        "dtype": str(solved.dtype).removeprefix("torch."),
        "jitter": float(solved.jitter),
        "converged": bool(solved.converged),
        "caution": solved.caution,
    }


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
        return max(available_bytes(torch.device(device)) // n_jobs, _NEVER_MIND)
    return max(limit // n_jobs, 1)


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
