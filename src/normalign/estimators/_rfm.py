"""Recursive Feature (Alignment) Machines as scikit-learn estimators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from inspect import getattr_static, signature
from types import FunctionType
from typing import Any, Self, TypeVar

import numpy as np
import torch

from normalign.estimators._fit import (
    CALIBRATION_ROWS,
    Problem,
    Recipe,
    Report,
    SingleFit,
    fit_single,
    require_memory,
    select_rows,
    two_seeds,
    validation_rows,
    warn_of_rounding,
    warn_of_scale,
)
from normalign.estimators._inputs import (
    Origin,
    Targets,
    check_features,
    check_parameters,
    check_weights,
    warn_caller,
)
from normalign.estimators._jobs import Clock
from normalign.estimators._partition import PartitionedFit, fit_partitioned
from normalign.estimators._predict import (
    ClassifierPredictions,
    FittedMachine,
    RegressorPredictions,
    kernel_named,
)
from normalign.estimators._scaling import (
    DTYPES,
    PRECISE_ROWS,
    Scaling,
    rounding_share,
    select_device,
    select_dtype,
)
from normalign.kernels import Solver

# Rows up to which "auto" fits a table as one system, and rows of a part of a larger
# one: minutes on a few cores, a minute on an accelerator.
_SINGLE_ROWS = {"cpu": 20_000, "accelerator": 200_000}
_LEAF_ROWS = {"cpu": 8_000, "accelerator": 40_000}


class KernelMachine(FittedMachine, ABC):
    """The parameters of all estimators, and their fit."""

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
            Numbers, none missing: numpy, torch, any array API, frames. Predictions are
            of the same kind, and numpy's for frames.
        y : array-like of shape (n,) or (n, o)
            Targets; several columns are several outputs.
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
            self._reset()
            table = check_features(self, X, reset=True)
            weights = check_weights(type(self).__name__, sample_weight, len(table))
            used = None if weights is None else weights > 0
            targets = self._targets(y, len(table), used)
            for caution in targets.cautions:
                warn_caller(caution)
            if weights is not None:
                table, weights = table[used], weights[used]
            self._fit_problem(self._problem(table, targets, weights, Origin.of(X)))
        return self

    @abstractmethod
    def _targets(self, y: Any, n: int, used: np.ndarray | None) -> Targets:
        """The targets of the rows that are used, as columns of numbers."""

    def _calibrate(
        self, outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None
    ) -> None:
        """Learn from rows that were held out; nothing unless there are classes."""

    def _identity_weight(self) -> float:
        return 1.0  # an RFM starts with the identity

    def _reset(self) -> None:
        learned = [n for n in vars(self) if n.endswith("_") or n == "_machine"]
        # a subclass may have a parameter with such a name: lambda_
        parameters = _parameters(type(self)) if learned else ()
        for name in learned:
            if name not in parameters:
                delattr(self, name)

    def _problem(
        self,
        table: np.ndarray,
        targets: Targets,
        weights: np.ndarray | None,
        origin: Origin,
    ) -> Problem:
        """Scale the table, and select the device and the precision."""
        callee, n = type(self).__name__, len(table)
        scaling = Scaling.of(table, weights)
        problem = Problem(
            table=table,
            scaled=scaling.apply(table, torch.float64),
            targets=targets,
            weights=weights,
            scaling=scaling,
            dtype=torch.float64,
            device=select_device(callee, self.device, n, given=origin.device),
            center=bool(self.center),
        )
        problem.require_sizes(callee)
        # By the median rule distances are of the size of one before the bandwidth.
        unit = scaling.unit if self.bandwidth_rule == "fixed" else 1.0
        # Kernels that are steeper than a Laplace kernel at a point have large gradients
        # wherever rows are near each other.
        steep = self.exponent < 1 or self.kernel == "product_laplace"
        dtype = select_dtype(
            callee,
            "float64" if steep and self.dtype == "auto" else self.dtype,
            n,
            spread=unit / self.bandwidth,
            noise=self._noise(problem),
            target_share=problem.target_share,
        )
        return problem.in_precision(dtype)

    def _noise(self, problem: Problem) -> float:
        """The share of small distances that float32 would lose, where that matters."""
        settled = self.dtype != "auto" or problem.n <= PRECISE_ROWS
        if settled and problem.distances.are_distinct():
            return 0.0
        return rounding_share(problem.scaled, torch.float32)

    def _limit(self) -> int | None:
        return None if self.memory_limit is None else int(self.memory_limit)

    def _recipe(self, problem: Problem) -> Recipe:
        """The parameters of Algorithm 1 on the scaled table."""
        unit = problem.scaling.unit if self.bandwidth_rule == "fixed" else 1.0
        return Recipe(
            kernel=kernel_named(
                self.kernel, exponent=self.exponent, bandwidth=self.bandwidth / unit
            ),
            ridge=float(self.ridge),
            n_iter=int(self.n_iter),
            identity_weight=problem.scaling.identity_weight(self._identity_weight()),
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
        """Run Algorithm 1 on the problem and store what it learned."""
        callee = type(self).__name__
        split_seed, fit_seed = two_seeds(self.random_state)
        held_out = None
        if self.validation_fraction is not None:
            mask = validation_rows(
                callee, problem, float(self.validation_fraction), split_seed
            )
            held_out, problem = problem.rows(mask), problem.rows(~mask)
        recipe, leaf_size = self._recipe(problem), self._leaf_size(problem)
        self._require_memory(problem)
        warn_of_scale(callee, problem, recipe)
        warn_of_rounding(callee, problem)
        data = problem.scaled, problem.scaled_targets(), problem.weights
        validation = None if held_out is None else problem.validation(held_out)
        calibrate = bool(problem.sizes) and held_out is None
        clock = Clock.within(self.time_limit_s)
        fit: SingleFit | PartitionedFit
        if leaf_size is None:
            fit = fit_single(
                recipe,
                *data,
                seed=fit_seed,
                validation=validation,
                leave_out=select_rows(problem.n, CALIBRATION_ROWS)
                if calibrate
                else None,
                clock=clock,
                title=callee if self.verbose else "",
            )
        else:
            fit = fit_partitioned(
                *data,
                recipe=recipe,
                max_leaf_size=leaf_size,
                validation=validation,
                n_left_out=CALIBRATION_ROWS if calibrate else 0,
                n_jobs=self.n_jobs,
                seed=fit_seed,
                clock=clock,
                progress=bool(self.verbose),
            )
        self._warn_of_fit(fit.report)
        self._store(problem, fit)
        if held_out is not None:
            x = torch.from_numpy(held_out.scaled)
            outputs = self._outputs_of_scaled(x.to(problem.device, DTYPES[self.dtype_]))
            self._calibrate(outputs, held_out.targets.columns, held_out.weights)
        elif fit.left_out is not None:
            self._calibrate(*problem.in_caller_units(fit.left_out))

    def _require_memory(self, problem: Problem, n_jobs: int = 1) -> None:
        require_memory(
            type(self).__name__, problem, kernel=self.kernel, solver=self.solver,
            limit=self._limit(), most=self._leaf_size(problem),
            diagonal=bool(self.diagonal), n_jobs=n_jobs,
        )  # fmt: skip

    def _leaf_size(self, problem: Problem) -> int | None:
        """Most rows of a part; None where the table is fitted as one system."""
        most = self.max_leaf_size
        if most is None:
            return None
        if not isinstance(most, str):
            return int(most) if problem.n > most else None
        # Who names a solver wants one system.
        device = "cpu" if problem.device.type == "cpu" else "accelerator"
        large = self.solver == "auto" and problem.n > _SINGLE_ROWS[device]
        return _LEAF_ROWS[device] if large else None

    def _warn_of_fit(self, report: Report) -> None:
        cautions = [report.caution]
        if report.cut_short and report.n_iter == 0:
            cautions.append(
                "time_limit_s left no time for an update, so no metric was learned. "
                "Raise it, or set max_leaf_size."
            )
        for caution in filter(None, cautions):
            warn_caller(f"{type(self).__name__}: {caution}")

    def _store(self, problem: Problem, fit: SingleFit | PartitionedFit) -> None:
        """Set the learned attributes, in the caller's units."""
        scaling, report = problem.scaling, fit.report
        self.metric_ = fit.metric
        self.dual_coef_ = np.multiply(fit.coef, problem.target_unit, dtype=np.float64)
        self.intercept_ = problem.intercept
        if isinstance(fit, PartitionedFit):
            self.X_fit_ = fit.x_fit.astype(np.float64) * scaling.unit + scaling.location
            # Scaled: to go back and forth would round once more.
            self.leaves_ = {**fit.leaves, "centers": fit.x_fit}
        else:
            self.X_fit_ = problem.table.copy()
        self.location_, self.unit_ = scaling.location, scaling.unit
        self.kernel_, self.exponent_ = str(self.kernel), float(self.exponent)
        self.bandwidth_ = report.bandwidth * scaling.unit
        self.n_iter_ = report.n_iter
        self.solver_, self.solver_dtype_ = report.solver, report.dtype
        self.jitter_, self.converged_ = report.jitter, report.converged
        # float64 where float32 was not enough
        self.dtype_ = "float32" if fit.coef.dtype == np.float32 else "float64"
        self.device_ = str(problem.device)
        if self.validation_fraction is not None:
            self.validation_scores_ = np.array(report.scores)
        self.feature_importances_ = _importances(problem, fit.metric)
        self._machine = []  # the machine of tensors, made on first use


def _importances(problem: Problem, metric: np.ndarray) -> np.ndarray:
    """Shares of the columns, each moved by its deviation, in the outputs' change."""
    diagonal = metric if metric.ndim == 1 else metric.diagonal()
    share = np.maximum(diagonal, 0) * problem.variances()
    if problem.is_constant:
        share[:] = 0.0  # all coefficients are zero, whatever the initial metric
    return share / (share.sum() or 1.0)


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


_Kind = TypeVar("_Kind")


def report_own_name(kind: type[_Kind]) -> type[_Kind]:
    """Let errors about arguments name a public class, and not its private base.

    Examples
    --------
    >>> @report_own_name
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
            setattr(kind, name, _rename(function, f"{kind.__qualname__}.{name}"))
    return kind


def _rename(function: FunctionType, qualname: str) -> FunctionType:
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
    vars(same).update(vars(function))  # with __wrapped__, for the signature
    same.__qualname__ = qualname
    return same


@report_own_name
class RFMClassifier(ClassifierPredictions, KernelMachine):
    r"""Classifier that learns in which directions of a table classes differ.

    A Recursive Feature Machine: ridge regression to indicators of the classes in a
    kernel of the distance :math:`r^2 = (x - z)^\top M (x - z)`, whose metric M is
    replaced, `n_iter` times, by the average outer product of the machine's gradients
    (Algorithm 1 of the paper),

    .. math:: f(x) = b + \sum_j a_j \phi_M(x, x_j), \qquad
              M \leftarrow \tfrac1n \sum_i J_{x_i}^\top J_{x_i}

    starting from the identity. The class with the largest output is predicted.
    Several label columns work as in scikit-learn's trees. Scale the columns first:
    ``make_tabular_pipeline(RFMClassifier())``.

    Parameters
    ----------
    kernel : {"laplace", "gaussian", "product_laplace"}, default="laplace"
        Of the distance in the metric: :math:`e^{-(r/\ell)^q}`,
        :math:`e^{-r^2/2\ell^2}`, or the product over the columns of
        :math:`M^{1/2} x` of one-dimensional Laplace kernels.
    exponent : float in (0, 2], default=1.0
        The exponent q of the Laplace kernel.
    bandwidth : float, default=10.0
        The bandwidth :math:`\ell`, meant for columns scaled to unit variance.
    bandwidth_rule : {"fixed", "median"}, default="fixed"
        "median": `bandwidth` times the median distance of two rows in the metric of
        each iteration; a `bandwidth` of about 1 then suits any units.
    ridge : float, default=1e-3
        Added to the diagonal of the kernel matrix.
    n_iter : int, default=5
        Updates of the metric. 0 is kernel ridge regression in the initial metric.
    diagonal : bool, default=False
        Learn one weight per column instead of a full metric.
    center : bool, default=True
        Fit deviations from the shares of the classes, which are then the outputs
        far from all rows; without it class 0 wins there. The paper's scripts do not.
    solver : {"auto", "cholesky", "cg"}, default="auto"
        Direct, or conjugate gradients that never hold the kernel matrix; "auto" is
        direct while the matrix fits `memory_limit`.
    device : str, default="auto"
        Any device of torch. "auto": where X is, or the GPU if there is one and there
        are at least 2000 rows. A fitted machine moves to the processor if its device
        is missing.
    dtype : {"auto", "float32", "float64"}, default="auto"
        Working precision. "auto": float64 up to 1000 rows, for "product_laplace" and
        exponents below 1, and where float32 would blur distances. Where a solve in
        float32 loses digits the machine goes over to float64 in any case; `dtype_`
        says so.
    memory_limit : int, optional
        Bytes that a fit may take above its data (also an integral float, such as 1e9);
        by default 80% of what is free.
    max_leaf_size : int, "auto" or None, default="auto"
        Above that many rows, cut the table into overlapping parts of at most that
        size, fit machines with one metric to them and blend these smoothly. Work then
        grows like the number of rows. "auto": parts of 8000 rows above 20000 rows, on
        a GPU of 40000 above 200000, unless a `solver` is named. None: never.
    validation_fraction : float in (0, 1), optional
        Hold out that share of the rows (the same of every class, at least one row),
        score every iteration on them by accuracy and use the best one (the first of
        equals). Nothing is refitted: the held-out rows are not in the machine.
    time_limit_s : float, optional
        Begin no iteration that would end later than that; the first is always made.
    agop_samples : int, default=20000
        Above that many rows the metric is averaged over a random sample of them.
    n_jobs : int, optional
        Workers of joblib for the parts of `max_leaf_size`. A single machine uses the
        threads of torch.
    random_state : int, RandomState or None, default=None
        For held-out rows, samples and parts: nothing is random without
        `validation_fraction`, in a table of at most `max_leaf_size` and `agop_samples`
        rows (and 1000, where the median rule measures distances). None: other draws in
        each fit.
    verbose : int, default=0
        1 shows a progress bar on stderr.

    Attributes
    ----------
    X_fit_ : ndarray of shape (m, d)
        Training rows: those of positive weight that were not held out.
    dual_coef_ : ndarray of shape (m, k)
        Their coefficients, for each class.
    intercept_ : ndarray of shape (k,)
        The outputs far from all rows: the share of each class in the training
        rows, or 0.
    metric_ : ndarray of shape (d, d), or (d,) if diagonal
        The metric M, of trace d.
    feature_importances_ : ndarray of shape (d,)
        :math:`M_{jj} \mathrm{Var}_j` as shares of 1: how much of the outputs' squared
        change there is when each column moves by its own standard deviation (after at
        least one iteration). Columns that move together may share or swap it; zeros if
        nothing matters.
    bandwidth_ : float
        The bandwidth of the best iteration, in the units of X.
    n_iter_ : int
        Updates behind the machine.
    classes_ : ndarray of shape (k,), or a list of them for several label columns
        The labels, sorted.
    temperature_ : float, or ndarray for several label columns
        The factor t of ``predict_proba``.
    validation_scores_ : ndarray
        Scores of the iterations made, with `validation_fraction` only.
    solver_, solver_dtype_, dtype_, device_ : str
        What was used. `solver_dtype_` is float64 where float32 was not enough.
    jitter_ : float
        What was added to the diagonal besides the ridge; 0.0 almost always.
    converged_ : bool
        Whether conjugate gradients reached their tolerance; True for Cholesky.
    location_, unit_ : ndarray of shape (d,), float
        Rows enter the kernel as ``(x - location_) / unit_``, which spares digits and
        changes nothing else.
    leaves_ : dict of str to ndarray
        The parts, if there are any. The rows of `dual_coef_` are then those of
        ``X_fit_[leaves_["rows"]]``, part after part, each from one of "offsets" to the
        next. "directions", "bands" and "children" are the cuts, "centers" is `X_fit_`
        as the kernel sees it.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["low", "low", "high", "high"]
    >>> RFMClassifier().fit(X, y).predict([[0.5], [2.5]])
    array(['low', 'high'], dtype='<U4')
    """


@report_own_name
class RFMRegressor(RegressorPredictions, KernelMachine):
    r"""Regressor that learns which directions of a table matter.

    A Recursive Feature Machine: ridge regression in a kernel of the distance
    :math:`r^2 = (x - z)^\top M (x - z)`, whose metric M is replaced, `n_iter` times, by
    the average outer product of the machine's gradients (Algorithm 1 of the paper),

    .. math:: f(x) = b + \sum_j a_j \phi_M(x, x_j), \qquad
              M \leftarrow \tfrac1n \sum_i J_{x_i}^\top J_{x_i}

    starting from the identity. Several targets share one metric. Scale the columns
    first: ``make_tabular_pipeline(RFMRegressor())``.

    Parameters
    ----------
    ridge : float, default=1e-3
        Added to the diagonal of the kernel matrix. The default nearly interpolates;
        noisy targets need 0.1, 1 or more.
    center : bool, default=True
        Fit deviations from the mean target, which is then predicted far from all
        rows. The paper's scripts do not.
    validation_fraction : float in (0, 1), optional
        Hold out that share of the rows (at random, at least one), score every
        iteration on them by R squared and use the best one (the first of equals).
        Nothing is refitted: the held-out rows are not in the machine.
    kernel, exponent, bandwidth, bandwidth_rule, n_iter, diagonal, solver, device, \
    dtype, memory_limit, max_leaf_size, time_limit_s, agop_samples, n_jobs, \
    random_state, verbose
        As in :class:`RFMClassifier`.

    Attributes
    ----------
    dual_coef_, intercept_ : ndarray of shape (m, k), (k,)
        Coefficients of the rows for each target; the mean target, or 0.
    flat_ : bool
        Whether targets came as one column, ``(n,)``.
    X_fit_, metric_, feature_importances_ and all others
        As in :class:`RFMClassifier`, but for those of classes.

    Examples
    --------
    >>> machine = RFMRegressor().fit([[0.0], [2.0]], [10.0, 30.0])
    >>> machine.predict([[1.0]])  # as far from both
    array([20.])
    """


class _AlignedMachine(KernelMachine):
    """The initial metric of an RFAM, and its parameter."""

    def __init__(
        self,
        *,
        identity_weight: float = 0.0,
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
        super().__init__(
            kernel=kernel,
            exponent=exponent,
            bandwidth=bandwidth,
            bandwidth_rule=bandwidth_rule,
            ridge=ridge,
            n_iter=n_iter,
            diagonal=diagonal,
            center=center,
            solver=solver,
            device=device,
            dtype=dtype,
            memory_limit=memory_limit,
            max_leaf_size=max_leaf_size,
            validation_fraction=validation_fraction,
            time_limit_s=time_limit_s,
            agop_samples=agop_samples,
            n_jobs=n_jobs,
            random_state=random_state,
            verbose=verbose,
        )
        self.identity_weight = identity_weight

    def _identity_weight(self) -> float:
        return float(self.identity_weight)


@report_own_name
class RFAMClassifier(ClassifierPredictions, _AlignedMachine):
    r"""Classifier whose learned metric starts aligned with the table.

    A Recursive Feature Alignment Machine: an :class:`RFMClassifier` that starts from

    .. math:: M_{\mathrm{init}} = (1 - a) \, \mathrm{Cov}(X) + a I

    scaled to trace d, instead of the identity. With a = 0 the metric stays in the span
    of the rows (the paper's proposition on the feature matrix) and gradients point
    along them. On the tables of the paper the machine is more aligned than an RFM and
    a little less accurate; under a stronger attack than the paper's the median table
    shows next to no difference in robustness (``docs/tables-on-tables.md``).

    Parameters
    ----------
    identity_weight : float in [0, 1], default=0.0
        The weight a of the identity in the initial metric (the paper's alpha). 0, the
        covariance alone, is the machine of the paper's Table 2; 1 is an RFM. The
        covariance is in squared units of the columns, so scale them first.
    kernel, exponent, bandwidth, bandwidth_rule, ridge, n_iter, diagonal, center, \
    solver, device, dtype, memory_limit, max_leaf_size, validation_fraction, \
    time_limit_s, agop_samples, n_jobs, random_state, verbose
        As in :class:`~normalign.estimators.RFMClassifier`.

    Attributes
    ----------
    metric_, feature_importances_, dual_coef_, X_fit_, classes_ and all others
        As in :class:`~normalign.estimators.RFMClassifier`.

    Examples
    --------
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], ["low", "low", "high", "high"]
    >>> RFAMClassifier().fit(X, y).predict([[0.5], [2.5]])
    array(['low', 'high'], dtype='<U4')
    """


@report_own_name
class RFAMRegressor(RegressorPredictions, _AlignedMachine):
    r"""Regressor whose learned metric starts aligned with the table.

    A Recursive Feature Alignment Machine: an :class:`RFMRegressor` that starts from

    .. math:: M_{\mathrm{init}} = (1 - a) \, \mathrm{Cov}(X) + a I

    scaled to trace d, instead of the identity. With a = 0 the metric stays in the span
    of the rows (the paper's proposition on the feature matrix).

    Parameters
    ----------
    identity_weight : float in [0, 1], default=0.0
        As in :class:`RFAMClassifier`.
    kernel, exponent, bandwidth, bandwidth_rule, ridge, n_iter, diagonal, center, \
    solver, device, dtype, memory_limit, max_leaf_size, validation_fraction, \
    time_limit_s, agop_samples, n_jobs, random_state, verbose
        As in :class:`~normalign.estimators.RFMRegressor`.

    Attributes
    ----------
    metric_, feature_importances_, dual_coef_, X_fit_, flat_ and all others
        As in :class:`~normalign.estimators.RFMRegressor`.

    Examples
    --------
    >>> machine = RFAMRegressor().fit([[0.0], [2.0]], [10.0, 30.0])
    >>> machine.predict([[1.0]])  # as far from both
    array([20.])
    """
