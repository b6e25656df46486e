"""How all kernel machine estimators are fitted."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any, Self

import numpy as np
import torch
from tqdm import tqdm

from normalign.estimators.fitted import FittedMachine, kernel_named
from normalign.estimators.parameters import check_parameters
from normalign.estimators.partition.blended import Partitioned
from normalign.estimators.partition.partitioned import fit_partitioned
from normalign.estimators.problem import Problem, Validation, held_out_rows
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
from normalign.estimators.seeds import two_seeds
from normalign.estimators.tables.arrays import Origin, checked_features, checked_weights
from normalign.estimators.tables.targets import Answers
from normalign.estimators.whole import CALIBRATION_ROWS, WholeFit, fit_whole
from normalign.estimators.workers import Clock
from normalign.kernels import Iteration, Solver

__all__ = ["KernelMachine", "unchanged_on_failure"]

# Rows up to which a table is fitted as a whole, unless it is told how, and rows of a
# part of a larger one: minutes on a few cores, a minute on an accelerator.
_WHOLE_ROWS = {"cpu": 20_000, "accelerator": 200_000}
_LEAF_ROWS = {"cpu": 8_000, "accelerator": 40_000}


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
        max_leaf_size: int | str | None = "auto",
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
        # Kernels that are steeper than a Laplace kernel at a point have large gradients
        # wherever rows are near each other.
        steep = self.exponent < 1 or self.kernel == "product_laplace"
        dtype = chosen_dtype(
            callee,
            "float64" if steep and self.dtype == "auto" else self.dtype,
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
        return rounding_share(problem.inside, torch.float32)

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
            centred=self._leaf_size(problem) is None,
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
        recipe, most = self._recipe(problem), self._leaf_size(problem)
        require_memory(
            callee, problem, kernel=self.kernel, solver=self.solver,
            limit=self._limit(), most=most, diagonal=bool(self.diagonal),
        )  # fmt: skip
        warn_of_scale(callee, problem, recipe)
        warn_of_rounding(callee, problem)
        validation = None if held is None else problem.validation(held)
        if most is None:
            fit = self._fitted_whole(problem, validation, recipe, for_fit)
        else:
            fit = self._fitted_parts(problem, validation, recipe, for_fit, most)
        self._warn(fit.report)
        self._keep(problem, fit)
        if held is not None:
            x = torch.from_numpy(held.inside).to(problem.device, DTYPES[self.dtype_])
            self._calibrate(self._outputs_inside(x), held.answers.columns, held.weights)
        elif fit.left_out is not None:
            self._calibrate(*problem.answered(fit.left_out))

    def _leaf_size(self, problem: Problem) -> int | None:
        """Most rows of a part; None where the table is fitted as a whole."""
        most = self.max_leaf_size
        if most is None:
            return None
        if not isinstance(most, str):
            return int(most) if problem.n > most else None
        # Who asks for a solver asks for one system.
        here = "cpu" if problem.device.type == "cpu" else "accelerator"
        large = self.solver == "auto" and problem.n > _WHOLE_ROWS[here]
        return _LEAF_ROWS[here] if large else None

    def _fitted_whole(
        self, problem: Problem, validation: Validation | None, recipe: Recipe, seed: int
    ) -> WholeFit:
        asked = None
        if validation is None and problem.sizes:
            asked = problem.sample(CALIBRATION_ROWS)
        if self.verbose:
            recipe = _WatchedRecipe(**vars(recipe), title=type(self).__name__)
        return fit_whole(
            recipe,
            problem.inside,
            problem.targets(),
            problem.weights,
            seed=seed,
            validation=validation,
            asked=asked,
            clock=Clock.within(self.time_limit_s),
        )

    def _fitted_parts(
        self, problem: Problem, validation: Validation | None, recipe: Recipe,
        seed: int, most: int,
    ) -> Partitioned:  # fmt: skip
        return fit_partitioned(
            problem.inside,
            problem.targets(),
            problem.weights,
            recipe=recipe,
            max_leaf_size=most,
            validation=validation,
            n_left_out=CALIBRATION_ROWS if validation is None and problem.sizes else 0,
            n_jobs=self.n_jobs,
            seed=seed,
            clock=Clock.within(self.time_limit_s),
            progress=bool(self.verbose),
        )

    def _warn(self, report: Report) -> None:
        """Tell what a user should know of a fit."""
        said = [report.caution]
        if report.cut_short and report.n_iter == 0:
            said.append(
                "time_limit_s left no time for an update, so no metric was learned. "
                "Raise it, or set max_leaf_size."
            )
        for words in filter(None, said):
            warnings.warn(
                f"{type(self).__name__}: {words}",
                UserWarning,
                stacklevel=callers_level(),
            )

    def _keep(self, problem: Problem, fit: WholeFit | Partitioned) -> None:
        """Make what was learned one's own, in the caller's units."""
        frame, report = problem.frame, fit.report
        self.metric_ = fit.metric
        self.dual_coef_ = np.multiply(fit.coef, problem.target_unit, dtype=np.float64)
        self.intercept_ = problem.intercept
        if isinstance(fit, Partitioned):
            self.X_fit_ = fit.x_fit.astype(np.float64) * frame.unit + frame.location
            # As the machine sees them: to go back and forth would round once more.
            self.leaves_ = {**fit.leaves, "centers": fit.x_fit}
        else:
            self.X_fit_ = problem.table.copy()
        self.location_, self.unit_ = frame.location, frame.unit
        self.kernel_, self.exponent_ = str(self.kernel), float(self.exponent)
        self.bandwidth_ = report.bandwidth * frame.unit
        self.n_iter_ = report.n_iter
        self.solver_, self.solver_dtype_ = report.solver, report.dtype
        self.jitter_, self.converged_ = report.jitter, report.converged
        # float64 where float32 did not do
        self.dtype_ = "float32" if fit.coef.dtype == np.float32 else "float64"
        self.device_ = str(problem.device)
        if self.validation_fraction is not None:
            self.validation_scores_ = np.array(report.scores)
        self.feature_importances_ = _importances(problem, fit.metric)
        self._machine = []  # made when it is first asked for


def _importances(problem: Problem, metric: np.ndarray) -> np.ndarray:
    """What each column, moved by its own deviation, has of the outputs' change."""
    diagonal = metric if metric.ndim == 1 else metric.diagonal()
    share = np.maximum(diagonal, 0) * problem.variances()
    if problem.is_constant:
        share[:] = 0.0  # all coefficients are zero, whatever the initial metric
    return share / (share.sum() or 1.0)


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
