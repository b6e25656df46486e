"""A fit: the scaled table, the parameters of Algorithm 1, and its best iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor
from tqdm import tqdm

from normalign.estimators._inputs import Targets, warn_caller
from normalign.estimators._jobs import Clock, Pace, memory_share
from normalign.estimators._scaling import (
    DistanceSample,
    Scaling,
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
from normalign.kernels._functions import Radial
from normalign.kernels._memory import SMALL_BYTES, available_bytes, is_small_fit
from normalign.kernels._recursion import iterate

_ARRAYS = {torch.float32: np.float32, torch.float64: np.float64}

# Targets may be that large: coefficients are larger by the size of 1 / ridge.
_LARGEST_TARGET = 1e250
# Rows that temperatures are fitted on: what they cost is then below the solve's cost.
CALIBRATION_ROWS = 500
# The same where each takes conjugate gradients of its own.
_CG_CALIBRATION_ROWS = 64
# Share of small distances that may be lost to rounding without a warning, and how far
# below that a sample of distances must be to rule it out.
_ROUNDING, _MARGIN = 1e-3, 4
# Exponents of a kernel that distinguishes rows at the median distance.
_EXPONENTS = (1e-4, 20.0)


@dataclass(frozen=True)
class Score:
    """Accuracy, or R squared, of outputs as a machine has them (shifted and scaled).

    Higher is better. Several label columns, or targets, are averaged.

    Parameters
    ----------
    sizes : tuple of int
        Classes of each label column; empty for numbers.
    intercept : ndarray of shape (k,)
        What was subtracted from the targets, in their scaled units.

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
            return _r_squared(outputs.double(), targets.double(), share)
        shift = torch.tensor(self.intercept, dtype=outputs.dtype, device=outputs.device)
        blocks = zip(
            (outputs + shift).split(self.sizes, 1),
            (targets + shift).split(self.sizes, 1),
            strict=True,
        )
        right = [(f.argmax(1) == y.argmax(1)).double() @ share for f, y in blocks]
        return float(torch.stack(right).mean())


def _r_squared(outputs: Tensor, targets: Tensor, share: Tensor) -> float:
    """R squared; a target that is constant here counts as one of variance one."""
    error = share @ (outputs - targets).square()
    variance = share @ (targets - share @ targets).square()
    # A mean of equal numbers may be off by rounding, their range is not.
    varies = (variance > 0) & (targets.amax(0) > targets.amin(0))
    ratio = error / torch.where(varies, variance, torch.ones_like(variance))
    return float((1 - ratio).mean())


class LeaveOneOut(NamedTuple):
    """Outputs at some training rows of machines fitted without them.

    ``outputs`` and ``targets`` of shape (r, k) are shifted and scaled; ``weights`` of
    shape (r,) may be None for ones.
    """

    outputs: np.ndarray
    targets: np.ndarray
    weights: np.ndarray | None


@dataclass(frozen=True)
class Validation:
    """Held-out rows, as the machine sees them, and the score on them.

    ``score(outputs, targets, weights)`` is higher for better machines.
    """

    x: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    score: Callable[[Tensor, Tensor, Tensor], float]

    def __call__(self, machine: Any) -> float:
        """Return the score of a machine, single or blended."""
        x, y, weights = (
            torch.tensor(part, dtype=machine.dtype, device=machine.device)
            for part in (self.x, self.y, self.weights)
        )
        return self.score(machine(x), y, weights)


@dataclass(frozen=True)
class Problem:
    """Rows of positive weight with their targets, as Algorithm 1 is to see them.

    Parameters
    ----------
    table : ndarray of shape (n, d)
        As the caller gave it.
    scaled : ndarray of shape (n, d)
        The table after `scaling`, in float64.
    targets : Targets
    weights : ndarray of shape (n,), optional
    scaling : Scaling
    dtype, device
        Of the computation.
    center : bool
        Whether the mean target is subtracted first. That happens in float64, like the
        shift of the table, so that single precision sees small numbers only.
    """

    table: np.ndarray
    scaled: np.ndarray
    targets: Targets
    weights: np.ndarray | None
    scaling: Scaling
    dtype: torch.dtype
    device: torch.device
    center: bool

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.table)

    @property
    def k(self) -> int:
        """Number of outputs."""
        return self.targets.columns.shape[1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Classes of each label column; empty for numbers."""
        return self.targets.sizes

    @cached_property
    def intercept(self) -> np.ndarray:
        """The mean target, or zeros; that of equal numbers is the number."""
        columns = self.targets.columns
        if not self.center:
            return np.zeros(self.k)
        if self.weights is None:
            mean = columns.sum(axis=0) / self.n
        else:
            weights = self.weights / self.weights.max()
            mean = np.average(columns, axis=0, weights=weights)
        return mean if self.sizes else _exact_mean(mean, columns)

    @cached_property
    def target_unit(self) -> float:
        """A power of two by which targets are divided to be of the size of one."""
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
        return np.abs(self.targets.columns - self.intercept).max(axis=0)

    @property
    def target_share(self) -> float:
        """Size of the smallest target that varies, as a share of the largest.

        All targets are divided by one number, because the metric learns from the sum
        of their squared gradients.
        """
        sizes = self._target_sizes[self._target_sizes > 0]
        return float(sizes.min() / sizes.max()) if len(sizes) else 1.0

    def require_sizes(self, callee: str) -> None:
        """Raise if the table or the targets are too large or small to compute with."""
        self.scaling.require_size(callee)
        largest = float(np.abs(self.targets.columns).max())
        if largest > _LARGEST_TARGET:
            raise ValueError(
                f"{callee}: y must be of absolute values up to {_LARGEST_TARGET:g}, so "
                f"that coefficients are finite, got {largest:.1g}. Divide the targets "
                "by a constant."
            )

    @property
    def score(self) -> Score:
        """The score of outputs of this problem's machines."""
        return Score(self.sizes, self.intercept / self.target_unit)

    def scaled_targets(self) -> np.ndarray:
        """The targets as the machine is fitted to them."""
        return (self.targets.columns - self.intercept) / self.target_unit

    def validation(self, held_out: Problem) -> Validation:
        """Held-out rows, as machines of this problem see and are scored on them."""
        weights = np.ones(held_out.n) if held_out.weights is None else held_out.weights
        targets = (held_out.targets.columns - self.intercept) / self.target_unit
        return Validation(held_out.scaled, targets, weights, self.score)

    def rows(self, rows: np.ndarray) -> Problem:
        """The problem of some rows, with the same scaling; a mask or indices."""
        codes, weights = self.targets.codes, self.weights
        targets = replace(
            self.targets,
            columns=self.targets.columns[rows],
            codes=None if codes is None else codes[rows],
        )
        return replace(
            self,
            table=self.table[rows],
            scaled=self.scaled[rows],
            targets=targets,
            weights=None if weights is None else weights[rows],
        )

    def in_caller_units(
        self, left_out: LeaveOneOut
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Leave-one-out outputs of classes, with their targets and weights."""
        # Indicators of classes are never scaled.
        shift = self.intercept
        return left_out.outputs + shift, left_out.targets + shift, left_out.weights

    def in_precision(self, dtype: torch.dtype) -> Problem:
        """The same problem for a computation in another precision."""
        same = object.__new__(type(self))
        vars(same).update(vars(self), dtype=dtype)  # with all cached properties
        return same

    @cached_property
    def distances(self) -> DistanceSample:
        """Distances between some of its rows."""
        return DistanceSample.of(self.scaled)

    def variances(self) -> np.ndarray:
        """The variance of each scaled column."""
        scaled, weights = self.scaled, self.weights
        if weights is None:
            deviations = scaled - scaled.sum(axis=0) / len(scaled)
            return np.einsum("ij,ij->j", deviations, deviations) / len(scaled)
        mean = np.average(scaled, axis=0, weights=weights)
        return np.average((scaled - mean) ** 2, axis=0, weights=weights)


def _exact_mean(mean: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """The mean, exact for columns of one number: else they would seem to vary."""
    first, rounding = columns[0], len(columns) * 2.0**-50
    for middle, number in zip(mean.tolist(), first.tolist(), strict=True):
        if abs(middle - number) <= rounding * abs(number):
            return np.where((columns == first).all(axis=0), first, mean)
    return mean


def select_rows(n: int, most: int) -> np.ndarray:
    """Sorted indices of all of n rows, or of `most` of them; the same in every fit.

    They are a fixed random sample, because every k-th row of a table may be of one
    class.

    Examples
    --------
    >>> select_rows(3, 5)
    array([0, 1, 2])
    """
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).permutation(n)[:most])


def validation_rows(
    callee: str, problem: Problem, fraction: float, seed: int
) -> np.ndarray:
    """Mask of the rows to hold out: the same share of every class.

    With several label columns, of every combination of labels. Every class keeps at
    least one row for training. At least one row is on each side.
    """
    random = np.random.default_rng(seed)
    order = shuffled = random.permutation(problem.n)
    codes = problem.targets.codes
    if codes is not None:
        _, groups = np.unique(codes, axis=0, return_inverse=True)
        order = order[np.argsort(groups.ravel()[order], kind="stable")]
    # Through the classes one after the other, every k-th row.
    steps = np.floor(np.arange(1, problem.n + 1) * fraction + random.uniform())
    held_out = np.zeros(problem.n, dtype=bool)
    held_out[order[np.diff(steps, prepend=0.0) > 0]] = True
    for column in () if codes is None else codes.T:
        for group in np.setdiff1d(column, column[~held_out]):
            held_out[np.flatnonzero(column == group)[0]] = False
    if held_out.all():
        held_out[shuffled[0]] = False
    if not held_out.any():
        # whether a share of few rows is a row must not be a matter of luck
        held_out[shuffled[_dispensable(problem)[shuffled]][:1]] = True
    if not held_out.any():
        raise ValueError(
            f"{callee}: validation_fraction must be such that rows remain on both "
            f"sides, got {fraction} of {problem.n} rows. Set it to None for "
            "so few rows."
        )
    return held_out


def _dispensable(problem: Problem) -> np.ndarray:
    """Mask of rows that are not the only one of any of their classes."""
    mask = np.full(problem.n, problem.n > 1)
    codes = problem.targets.codes
    for column in () if codes is None else codes.T:
        mask &= np.bincount(column)[column] > 1
    return mask


def two_seeds(random_state: Any) -> tuple[int, int]:
    """Two seeds; without a random state fresh ones, never the global generator's."""
    if random_state is None:
        first, second = np.random.SeedSequence().generate_state(2) >> 1
        return int(first), int(second)
    if type(random_state) is int:
        return _seeds_of(random_state)
    return _draw_seeds(check_random_state(random_state))


@lru_cache(maxsize=256)
def _seeds_of(seed: int) -> tuple[int, int]:
    """What a generator of that seed draws first; to make one takes 0.1 ms."""
    return _draw_seeds(check_random_state(seed))


def _draw_seeds(generator: np.random.RandomState) -> tuple[int, int]:
    first, second = generator.randint(2**31 - 1, size=2)
    return int(first), int(second)


@dataclass(frozen=True)
class Recipe:
    """The parameters of Algorithm 1, for single machines and for those of parts.

    Those not listed are as :func:`normalign.kernels.recursions` takes them.

    Parameters
    ----------
    identity_weight : float
        Of the initial metric; 1 is an RFM.
    diagonal : bool
        Whether the metric is diagonal.
    centred : bool
        Whether the medians of the columns are near zero, as after scaling.
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

    def share_memory(self, n_jobs: int) -> Recipe:
        """Return the recipe with its memory divided among workers at one time."""
        share = memory_share(self.solver.memory_limit, n_jobs, self.device)
        return replace(self, solver=replace(self.solver, memory_limit=share))

    def tensor(self, values: Any) -> Tensor:
        """Copy an array, which may be a read-only map of a file, to the device."""
        if isinstance(values, Tensor):
            return values.to(dtype=self.dtype, device=self.device)
        copied = np.array(values, dtype=_ARRAYS[self.dtype])
        return torch.from_numpy(copied).to(self.device)

    def iterations(
        self,
        x: Any,
        y: Any,
        weights: Any,
        seed: int,
        *,
        metric: Any = None,
    ) -> Iterator[Iteration]:
        """Algorithm 1 on these rows, in float64 from where float32 is not enough.

        Parameters
        ----------
        x, y, weights : arrays or tensors
            Finer ones than `dtype` are rounded to it first. Where the recursion has to
            go on in float64 it does so with the rows as they were given: a machine with
            rounded centers would find no row where it learned one.
        metric : array or tensor, optional
            Where to start; by default as `identity_weight` says.
        """
        generator = torch.Generator().manual_seed(seed)
        coarse = x.dtype.itemsize > self.dtype.itemsize
        for iteration in self._run(x, y, weights, metric, 0, generator):
            if coarse and iteration.machine.coef.dtype != self.dtype:
                metric, first = iteration.machine.metric, iteration.index
                break
            yield iteration
        else:
            return
        del iteration  # and its factor
        finer = replace(self, dtype=torch.float64)
        yield from finer._run(x, y, weights, metric, first, generator)

    def _run(
        self,
        x: Any,
        y: Any,
        weights: Any,
        metric: Any,
        first: int,
        generator: torch.Generator,
    ) -> Iterator[Iteration]:
        rows = self.tensor(x)
        mass = None if weights is None else self.tensor(weights)
        if metric is None:
            metric = initial_metric(
                rows,
                identity_weight=self.identity_weight,
                weights=mass,
                diagonal=self.diagonal,
            )
        steps = iterate(
            rows,
            self.tensor(y),
            kernel=self.kernel,
            ridge=self.ridge,
            metric=self.tensor(metric),
            n_iter=self.n_iter - first,
            weights=mass,
            bandwidth_rule=self.bandwidth_rule,
            solver=self.solver,
            agop_samples=self.agop_samples,
            generator=generator,
            centred=self.centred,
        )
        for step in steps:
            yield replace(step, index=step.index + first) if first else step


@dataclass(frozen=True)
class Report:
    """How a fit went, in plain types; the bandwidth is that of the scaled table.

    ``caution`` is what a user should know, or empty; ``scores`` are those of all
    iterations on held-out rows; ``cut_short`` says whether time ran out before the last
    iteration.
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
        system = iteration.solved
        return cls(
            n_iter=int(iteration.index),
            bandwidth=float(iteration.machine.kernel.bandwidth),
            solver=system.solver,
            dtype=str(system.dtype).removeprefix("torch."),
            jitter=float(system.jitter),
            converged=bool(system.converged),
            caution=system.caution,
        )

    @classmethod
    def combine(cls, parts: Sequence[Report], *, n_iter: int) -> Report:
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


@dataclass(frozen=True)
class SingleFit:
    """Coefficients of shape (n, k), in the machine's precision, and the metric."""

    coef: np.ndarray
    metric: np.ndarray
    report: Report
    left_out: LeaveOneOut | None


def single_fit(iteration: Iteration, left_out: LeaveOneOut | None = None) -> SingleFit:
    """The fit that ends with an iteration, as numpy arrays."""
    machine = iteration.machine
    return SingleFit(
        coef=machine.coef.cpu().numpy(),
        metric=machine.metric.cpu().numpy(),
        report=Report.of(iteration),
        left_out=left_out,
    )


def leave_one_out(
    iteration: Iteration, rows: np.ndarray, y: np.ndarray, weights: np.ndarray | None
) -> LeaveOneOut:
    """Leave-one-out outputs at some rows; at fewer where each costs a solve."""
    if iteration.solved.solver == "cg":
        rows = rows[select_rows(len(rows), _CG_CALIBRATION_ROWS)]
    at = torch.as_tensor(rows, device=iteration.machine.device)
    outputs = iteration.left_out(at).cpu().double().numpy()
    return LeaveOneOut(outputs, y[rows], None if weights is None else weights[rows])


def best_iteration(
    steps: Iterable[tuple[int, Callable[[], Any], Callable[[], Any]]],
    n_iter: int,
    *,
    validation: Validation | None = None,
    clock: Clock | None = None,
) -> Any:
    """Return the fit of the last iteration, or of the best one on held-out rows.

    Iteration 0 is always made. A later one is begun only if the slowest so far would
    still end in time. Of iterations with equal scores the first is best.

    Parameters
    ----------
    steps : iterable
        The index of each iteration, a function that returns its machine, and one that
        returns its fit and is called before the next step.
    """
    pace, scores = Pace((clock or Clock()).budget()), []
    best: tuple[float, Any] | None = None
    is_last = cut_short = False
    for index, machine, fit in steps:
        if validation is not None:
            scores.append(validation(machine()))
        is_last = index == n_iter
        cut_short = not pace.another() and not is_last
        # Leave-one-out outputs cost as much as a solve: only of what may be best.
        if scores or is_last or cut_short:
            score = scores[-1] if scores else 0.0
            if best is None or score > best[0]:
                best = score, fit()
        if cut_short:
            break
    if best is None or not (is_last or cut_short):
        raise RuntimeError("the recursion ended before its last iteration")
    report = replace(best[1].report, scores=tuple(scores), cut_short=cut_short)
    return replace(best[1], report=report)


def fit_single(
    recipe: Recipe,
    x: np.ndarray,
    y: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    seed: int = 0,
    validation: Validation | None = None,
    leave_out: np.ndarray | None = None,
    clock: Clock | None = None,
    title: str = "",
) -> SingleFit:
    """Return the last, or the best, iteration of Algorithm 1 on one table.

    Parameters
    ----------
    validation : Validation, optional
        By which the best iteration is selected.
    leave_out : array of int, optional
        Rows of which leave-one-out outputs are made.
    title : str
        Of a progress bar on stderr, which is shown if there is one.
    """
    iterations = recipe.iterations(x, y, weights, seed)
    if title:
        iterations = tqdm(iterations, total=recipe.n_iter + 1, desc=title)

    def fit(iteration: Iteration) -> SingleFit:
        if leave_out is None:
            return single_fit(iteration)
        return single_fit(iteration, leave_one_out(iteration, leave_out, y, weights))

    def steps() -> Iterator[tuple[int, Callable[[], Any], Callable[[], SingleFit]]]:
        for one in iterations:
            yield one.index, partial(getattr, one, "machine"), partial(fit, one)

    return best_iteration(steps(), recipe.n_iter, validation=validation, clock=clock)


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
    """Raise if a fit needs more memory than it may take, before it is allocated.

    Parameters
    ----------
    solver : {"auto", "cholesky", "cg"}
        "auto" needs what conjugate gradients need.
    limit : int, optional
        Bytes above the data; by default most of what is free.
    most : int, optional
        Rows of one part.
    n_jobs : int, default=1
        How many such fits share the limit at one time.
    """
    n, d = problem.table.shape
    rows = n if most is None else min(n, int(most))
    if limit is None and is_small_fit(rows, d, problem.k):
        return
    name = "cholesky" if solver == "cholesky" else "cg"
    needed = estimate_memory(
        rows, d, problem.k, solver=name, dtype=problem.dtype, device=problem.device,
        rank=1, diagonal=diagonal, kernel=kernel,
    )  # fmt: skip
    if limit is None and needed <= SMALL_BYTES:
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
        f"{callee}: memory_limit must be at least {n_jobs * needed / 1e6:.3g} MB to "
        f"fit {rows} rows and {d} columns by {name}{times}, "
        f"got {allowed / 1e6:.3g} MB. Set {', or '.join(remedies)}."
    )


def warn_of_scale(callee: str, problem: Problem, recipe: Recipe) -> None:
    """Warn if all rows are equal, or unrelated, to the kernel in the initial metric."""
    sample, kernel = problem.distances, recipe.kernel
    if recipe.bandwidth_rule != "fixed":
        return
    least, most = _informative_distances(kernel)
    if isinstance(kernel, Radial) and sample.are_within(least, most):
        return
    rows = torch.from_numpy(sample.rows)
    start = initial_metric(
        torch.from_numpy(problem.scaled),
        identity_weight=recipe.identity_weight,
        weights=None if problem.weights is None else torch.from_numpy(problem.weights),
        diagonal=recipe.diagonal,
    )
    sides = kernel.sides(rows, start)
    apart = kernel.distances_(sides, sides, rows.new_empty(len(rows), len(rows)))
    apart = apart[apart > 0] * kernel.bandwidth
    if not len(apart) or least <= (median := float(apart.median())) <= most:
        return
    finding = "all rows alike" if median < least else "no row like another"
    warn_caller(
        f"{callee}: rows are {median / kernel.bandwidth:.1g} bandwidths apart, so "
        f"the kernel finds {finding}. Scale the columns (make_tabular_pipeline, or "
        "StandardScaler), or, if they are of one kind, set "
        'bandwidth_rule="median" and bandwidth=1.'
    )


def _informative_distances(kernel: Kernel) -> tuple[float, float]:
    """Least and largest distance at which a kernel distinguishes rows."""
    if isinstance(kernel, Gaussian):
        low, high = (math.sqrt(2 * end) for end in _EXPONENTS)
    else:
        power = kernel.exponent if isinstance(kernel, Laplace) else 1.0
        # of the flattest kernels everything is within
        low, high = (math.exp(min(math.log(end) / power, 99.0)) for end in _EXPONENTS)
    return low * kernel.bandwidth, high * kernel.bandwidth


def warn_of_rounding(callee: str, problem: Problem) -> None:
    """Warn if single precision, set by the caller, loses distances between rows."""
    if problem.dtype == torch.float64:
        return
    scaled = problem.scaled
    # Far from the limit the few rows of a sample are enough.
    largest = float(np.einsum("ij,ij->i", scaled, scaled).max())
    noise = rounding_noise(problem.dtype, scaled.shape[1])
    low = problem.distances.squares[0]
    if (_MARGIN * noise) ** 2 * largest <= _ROUNDING**2 * low:
        return
    lost = rounding_share(scaled, problem.dtype)
    if lost > _ROUNDING:
        warn_caller(
            f"{callee}: rows are so far apart that {lost:.1g} of a small distance "
            'between them may be rounding in float32. Set dtype="float64", or scale '
            "the columns (StandardScaler; RobustScaler if there are outliers)."
        )
