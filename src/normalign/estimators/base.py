"""How all kernel machine estimators are fitted."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from inspect import getattr_static, signature
from types import FunctionType
from typing import Any, Self, TypeVar

import numpy as np
import torch
from sklearn.utils import check_random_state
from tqdm import tqdm

from normalign.estimators.fitted import FittedMachine, kernel_named
from normalign.estimators.parameters import check_parameters
from normalign.estimators.partition.partitioned import fit_partitioned
from normalign.estimators.problem import Problem, held_out_rows
from normalign.estimators.recipe import Recipe, Report
from normalign.estimators.scale.limits import (
    callers_level,
    require_memory,
    warn_of_rounding,
    warn_of_scale,
)
from normalign.estimators.scale.placement import (
    DTYPES,
    PRECISE_ROWS,
    Frame,
    chosen_device,
    chosen_dtype,
    rounding_share,
)
from normalign.estimators.tables.arrays import Origin, checked_features, checked_weights
from normalign.estimators.tables.targets import Answers
from normalign.estimators.whole import CALIBRATION_ROWS, fit_whole
from normalign.estimators.workers import Clock
from normalign.kernels import Iteration, Solver

__all__ = [
    "KernelMachine",
    "two_seeds",
    "unchanged_on_failure",
    "under_its_own_name",
]

_Kind = TypeVar("_Kind")


class KernelMachine(FittedMachine, ABC):
    """Base of the estimators; a subclass says what answers are.

    ``fit`` turns tables into a :class:`~normalign.estimators.problem.Problem` and
    hands it to ``_fit_problem``, which a subclass may override to choose parameters
    first.
    """

    def __init__(
        self,
        *,
        kernel: str = "laplace",
        exponent: float = 1.0,
        bandwidth: float = 10.0,
        bandwidth_rule: str = "fixed",
        ridge: float = 1e-3,
        n_iter: int = 5,
        diagonal: bool = False,
        center: bool = True,
        solver: str = "auto",
        device: Any = "auto",
        dtype: str = "auto",
        memory_limit: int | None = None,
        max_leaf_size: int | None = None,
        validation_fraction: float | None = None,
        time_limit_s: float | None = None,
        agop_samples: int = 20_000,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.exponent = exponent
        self.bandwidth = bandwidth
        self.bandwidth_rule = bandwidth_rule
        self.ridge = ridge
        self.n_iter = n_iter
        self.diagonal = diagonal
        self.center = center
        self.solver = solver
        self.device = device
        self.dtype = dtype
        self.memory_limit = memory_limit
        self.max_leaf_size = max_leaf_size
        self.validation_fraction = validation_fraction
        self.time_limit_s = time_limit_s
        self.agop_samples = agop_samples
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the machine.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Numbers, without missing ones: numpy, torch, any array API, frames (answers
            to those are numpy's).
        y : array-like of shape (n,) or (n, o)
            Answers; several columns are several outputs.
        sample_weight : array-like of shape (n,), optional
            Weights act as repetitions (in one dtype): two is the row twice, zero is
            no row.

        Returns
        -------
        self
            If anything fails the estimator stays as it was.
        """
        with unchanged_on_failure(self):
            check_parameters(self)
            self._forget()
            table = checked_features(self, X, reset=True)
            weights = checked_weights(type(self).__name__, sample_weight, len(table))
            kept = None if weights is None else weights > 0
            answers = self._answers(y, len(table), kept)
            for caution in answers.cautions:
                warnings.warn(caution, stacklevel=callers_level())
            if weights is not None:
                table, weights = table[kept], weights[kept]
            self._fit_problem(self._problem(table, answers, weights, Origin.of(X)))
        return self

    @abstractmethod
    def _answers(self, y: Any, n: int, kept: np.ndarray | None) -> Answers:
        """Answers as columns of numbers: what a task makes of ``y``."""

    def _identity_weight(self) -> float:
        return 1.0  # an RFM starts with the identity

    def _calibrate(
        self, outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None
    ) -> None:
        """Learn from rows that were left out; nothing unless there are classes."""

    def _forget(self) -> None:
        found = [n for n in vars(self) if n.endswith("_") or n == "_machine"]
        # a subclass may have a parameter with such a name: lambda_
        given = _parameters(type(self)) if found else ()
        for name in found:
            if name not in given:
                delattr(self, name)

    def _problem(
        self,
        table: np.ndarray,
        answers: Answers,
        weights: np.ndarray | None,
        origin: Origin,
    ) -> Problem:
        callee, n = type(self).__name__, len(table)
        frame = Frame.around(table, weights)
        problem = Problem(
            table=table,
            inside=frame.enter(table, torch.float64),
            answers=answers,
            weights=weights,
            frame=frame,
            dtype=torch.float64,
            device=chosen_device(callee, self.device, n, given=origin.device),
            center=bool(self.center),
        )
        problem.require_sizes(callee)
        # By the median rule distances are of the size of one before the bandwidth.
        unit = frame.unit if self.bandwidth_rule == "fixed" else 1.0
        dtype = chosen_dtype(
            callee,
            self.dtype,
            n,
            spread=unit / self.bandwidth,
            noise=self._noise(problem),
            target_share=problem.target_share,
        )
        return problem.in_precision(dtype)

    def _noise(self, problem: Problem) -> float:
        """How much of small distances float32 would lose, as far as that matters."""
        settled = self.dtype != "auto" or problem.n <= PRECISE_ROWS
        if settled and problem.look.differs():
            return 0.0
        squares = self.kernel != "product_laplace"
        return rounding_share(problem.inside, torch.float32, squares=squares)

    def _limit(self) -> int | None:
        return None if self.memory_limit is None else int(self.memory_limit)

    def _recipe(self, problem: Problem) -> Recipe:
        """The parameters as the recursion takes them, in the problem's frame."""
        fixed = self.bandwidth_rule == "fixed"
        return Recipe(
            kernel=kernel_named(
                self.kernel,
                exponent=self.exponent,
                bandwidth=self.bandwidth / problem.frame.unit
                if fixed
                else self.bandwidth,
            ),
            ridge=float(self.ridge),
            n_iter=int(self.n_iter),
            identity_weight=problem.frame.identity_weight(self._identity_weight()),
            bandwidth_rule=self.bandwidth_rule,
            diagonal=bool(self.diagonal),
            solver=Solver(
                self.solver,  # type: ignore[arg-type]
                memory_limit=self._limit(),
                callee=type(self).__name__,
            ),
            agop_samples=int(self.agop_samples),
            dtype=problem.dtype,
            device=str(problem.device),
            centred=self.max_leaf_size is None or problem.n <= self.max_leaf_size,
        )

    def _fit_problem(self, problem: Problem) -> None:
        """Run Algorithm 1 on the problem and keep what it learned."""
        callee = type(self).__name__
        for_split, for_fit = two_seeds(self.random_state)
        held = None
        if self.validation_fraction is not None:
            apart = held_out_rows(
                callee, problem, float(self.validation_fraction), for_split
            )
            held, problem = problem.rows(apart), problem.rows(~apart)
        recipe = self._recipe(problem)
        in_parts = self.max_leaf_size is not None and problem.n > self.max_leaf_size
        require_memory(
            callee, problem, solver=self.solver, limit=self._limit(),
            most=self.max_leaf_size, diagonal=bool(self.diagonal),
        )  # fmt: skip
        fixed = self.bandwidth_rule == "fixed"
        if fixed:
            warn_of_scale(callee, problem, recipe.kernel)
        warn_of_rounding(callee, problem, recipe.kernel, fixed=fixed)
        if in_parts:
            self._fit_parts(problem, held, recipe, for_fit)
        else:
            self._fit_whole(problem, held, recipe, for_fit)
        self.location_, self.unit_ = problem.frame.location, problem.frame.unit
        self.kernel_, self.exponent_ = str(self.kernel), float(self.exponent)
        diagonal = self.metric_ if self.metric_.ndim == 1 else self.metric_.diagonal()
        share = np.maximum(diagonal, 0) * problem.variances()
        if problem.is_constant:
            share[:] = 0.0  # all coefficients are zero, whatever the initial metric
        self.feature_importances_ = share / (share.sum() or 1.0)
        self._machine = []  # made when it is first asked for
        if held is not None:
            x = torch.from_numpy(held.inside).to(problem.device, DTYPES[self.dtype_])
            self._calibrate(self._outputs_inside(x), held.answers.columns, held.weights)

    def _fit_whole(
        self, problem: Problem, held: Problem | None, recipe: Recipe, seed: int
    ) -> None:
        asked = None
        if held is None and problem.sizes:
            asked = problem.sample(CALIBRATION_ROWS)
        if self.verbose:
            recipe = _WatchedRecipe(**vars(recipe), title=type(self).__name__)
        fit = fit_whole(
            recipe,
            problem.inside,
            problem.targets(),
            problem.weights,
            seed=seed,
            validation=None if held is None else problem.validation(held),
            asked=asked,
            clock=Clock.within(self.time_limit_s),
        )
        self.metric_ = fit.metric
        self.dual_coef_ = np.multiply(fit.coef, problem.target_unit, dtype=np.float64)
        self.intercept_ = problem.intercept
        self.X_fit_ = problem.table.copy()
        self._tell(problem, fit.report, fit.coef.dtype)
        if fit.left_out is not None:
            rows, outputs = fit.left_out
            weights = None if problem.weights is None else problem.weights[rows]
            columns = problem.answers.columns[rows]
            self._calibrate(outputs + problem.intercept, columns, weights)

    def _fit_parts(
        self, problem: Problem, held: Problem | None, recipe: Recipe, seed: int
    ) -> None:
        fit = fit_partitioned(
            problem.inside,
            problem.targets(),
            problem.weights,
            recipe=recipe,
            max_leaf_size=int(self.max_leaf_size or 0),
            validation=None if held is None else problem.validation(held),
            n_left_out=CALIBRATION_ROWS if held is None and problem.sizes else 0,
            n_jobs=self.n_jobs,
            seed=seed,
            clock=Clock.within(self.time_limit_s),
            progress=bool(self.verbose),
        )
        frame = problem.frame
        self.metric_ = fit.metric
        self.dual_coef_ = np.multiply(fit.coef, problem.target_unit, dtype=np.float64)
        self.intercept_ = problem.intercept
        self.X_fit_ = fit.x_fit.astype(np.float64) * frame.unit + frame.location
        # As the machine sees them: to go back and forth would round them once more.
        self.leaves_ = {**fit.leaves, "centers": fit.x_fit}
        self._tell(problem, fit.report, fit.coef.dtype)
        if fit.left_out is not None:
            outputs, targets, weights = fit.left_out
            shift = problem.intercept
            self._calibrate(outputs + shift, targets + shift, weights)

    def _tell(self, problem: Problem, report: Report, dtype: np.dtype) -> None:
        """Say how it went: iterations, solver, precision, scores."""
        self.n_iter_ = report.n_iter
        self.bandwidth_ = report.bandwidth * problem.frame.unit
        self.solver_, self.solver_dtype_ = report.solver, report.dtype
        self.jitter_, self.converged_ = report.jitter, report.converged
        callee, said = type(self).__name__, [report.caution]
        if report.cut_short and report.n_iter == 0:
            said.append(
                "time_limit_s left no time for an update, so no metric was learned. "
                "Raise it, or set max_leaf_size."
            )
        for words in filter(None, said):
            warnings.warn(f"{callee}: {words}", UserWarning, stacklevel=callers_level())
        # float64 where float32 did not do
        self.dtype_ = "float32" if dtype == np.float32 else "float64"
        self.device_ = str(problem.device)
        if self.validation_fraction is not None:
            self.validation_scores_ = np.array(report.scores)


@dataclass(frozen=True)
class _WatchedRecipe(Recipe):
    """A recipe whose iterations advance a bar on stderr."""

    title: str = ""

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
        """Algorithm 1 on these rows, every iteration of it."""
        plain = super().iterations(x, y, weights, seed, metric=metric)
        yield from tqdm(plain, total=self.n_iter + 1, desc=self.title)


def under_its_own_name(kind: type[_Kind]) -> type[_Kind]:
    """Give a class what it inherits from this package under its own name.

    Python complains of unknown and of missing arguments in the name of the function
    that it called, and the classes in which these stand are known to nobody.

    Examples
    --------
    >>> @under_its_own_name
    ... class Public(KernelMachine): ...
    >>> Public.fit.__qualname__
    'Public.fit'
    """
    for name in dir(kind):
        function = getattr_static(kind, name)
        public = name == "__init__" or not name.startswith("_")
        if not (public and isinstance(function, FunctionType)):
            continue
        if function.__module__.startswith(f"{__package__}."):
            setattr(kind, name, _named(function, f"{kind.__qualname__}.{name}"))
    return kind


def _named(function: FunctionType, qualname: str) -> FunctionType:
    """The same function under another name."""
    same = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    same.__kwdefaults__ = function.__kwdefaults__
    same.__annotations__, same.__doc__ = function.__annotations__, function.__doc__
    vars(same).update(vars(function))  # what it wraps, of which the signature is told
    same.__qualname__ = qualname
    return same


@contextmanager
def unchanged_on_failure(estimator: Any) -> Iterator[None]:
    """Put an estimator back as it was if its fit does not come to an end."""
    before, done = dict(vars(estimator)), False
    try:
        yield
        done = True
    finally:
        if not done:
            vars(estimator).clear()
            vars(estimator).update(before)


@lru_cache(maxsize=64)
def _parameters(kind: type) -> tuple[str, ...]:
    return tuple(signature(kind).parameters)


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
