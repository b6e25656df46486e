"""Recursive Feature (Alignment) Machines as scikit-learn estimators."""

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
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target
from tqdm import tqdm

from normalign._errors import describe, require
from normalign.estimators._fit import (
    CALIBRATION_ROWS,
    Clock,
    Problem,
    Recipe,
    Report,
    Validation,
    WholeFit,
    fit_whole,
    held_out_rows,
    require_memory,
    two_seeds,
    warn_of_rounding,
    warn_of_scale,
)
from normalign.estimators._inputs import (
    Answers,
    Origin,
    as_numpy,
    callers_level,
    check_parameters,
    checked_features,
    checked_weights,
    class_labels,
    numbers,
    plain_labels,
    side_by_side,
    split_blocks,
)
from normalign.estimators._partition import Partitioned, fit_partitioned
from normalign.estimators._predict import (
    FittedMachine,
    kernel_named,
    probabilities,
    temperature,
)
from normalign.estimators._scaling import (
    DTYPES,
    PRECISE_ROWS,
    Frame,
    chosen_device,
    chosen_dtype,
    rounding_share,
)
from normalign.kernels import Iteration, Solver

_Kind = TypeVar("_Kind")


def under_its_own_name(kind: type[_Kind]) -> type[_Kind]:
    """Give a class what it inherits from this package under its own name.

    Python complains of unknown and of missing arguments in the name of the function
    that it called, and the classes in which these stand are known to nobody.

    Examples
    --------
    >>> from normalign.estimators._rfm import KernelMachine
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


# Rows up to which a table is fitted as a whole, unless it is told how, and rows of a
# part of a larger one: minutes on a few cores, a minute on an accelerator.
_WHOLE_ROWS = {"cpu": 20_000, "accelerator": 200_000}
_LEAF_ROWS = {"cpu": 8_000, "accelerator": 40_000}


class KernelMachine(FittedMachine, ABC):
    """Base of the estimators; a subclass says what answers are.

    ``fit`` turns tables into a :class:`~normalign.estimators._fit.Problem` and
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


def _has_one_output(estimator: Any) -> bool:
    return not isinstance(getattr(estimator, "classes_", None), list)


def _length(X: Any) -> int | None:
    return len(X) if hasattr(X, "__len__") else None


def _sort(labels: np.ndarray) -> str:
    """What labels are, so that those of one sort can be compared."""
    kind = labels.dtype.kind
    return {"U": "text", "O": "text"}.get(kind, "number" if kind in "biuf" else kind)


def _require_indicators(callee: str, labels: np.ndarray) -> None:
    numeric = labels.dtype.kind in "biuf"
    require(
        numeric and type_of_target(labels) == "multilabel-indicator", callee, "y",
        "one column of labels, or indicators of 0 and 1",
        f"{labels.shape[1]} label columns",
        "Compare them one by one: (predict(X) == y).mean(axis=0).",
    )  # fmt: skip


class KernelClassifier(ClassifierMixin, KernelMachine):
    """A machine fitted to indicators of classes."""

    def predict(self, X: Any) -> Any:
        """Classes of the rows: those with the largest output.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        array of shape (n,), or (n, o) for several label columns
            Of the library of X, texts of numpy; in the labels' own dtype. Label columns
            of several kinds come back as objects.
        """
        outputs, _ = self._outputs(X)
        found = [
            classes[block.argmax(axis=1)]
            for classes, block in zip(self._classes, self._blocks(outputs), strict=True)
        ]
        # labels are names: in the precision of X they may be those of no class
        labels = found[0] if _has_one_output(self) else side_by_side(found)
        return Origin.of(X).restored(labels, exact=True)

    def predict_proba(self, X: Any) -> Any:
        r"""Probabilities of the classes.

        .. math:: p_c(x) = e^{t f_c(x)} / \sum_{c'} e^{t f_{c'}(x)}

        The temperature t makes the labels of at most 500 training rows (64 by conjugate
        gradients; the same ones in every fit) most likely, each under the machine
        fitted without it (in closed form, with the metric held fixed), or those of the
        rows kept apart by ``validation_fraction``. It does not change which class is
        the likeliest.

        The metric and the intercept (the shares of the classes) have still seen the
        row. Where few rows have noisy labels the probabilities are therefore too sure:
        with a fifth of the labels of a line in five columns wrong, by 0.2 on average
        at 30 rows, 0.07 at 90, and 0.01 at 300. ``validation_fraction`` and
        scikit-learn's ``CalibratedClassifierCV`` have no such flaw.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        array of shape (n, k), or a list of them for several label columns
        """
        outputs, finish = self._outputs(X)
        found = [
            finish(probabilities(block, float(factor)))
            for factor, block in zip(
                np.atleast_1d(self.temperature_), self._blocks(outputs), strict=True
            )
        ]
        return found[0] if _has_one_output(self) else found

    @available_if(_has_one_output)
    def decision_function(self, X: Any) -> Any:
        """Outputs of the machine; not there for several label columns, as in trees.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        array of shape (n, k), or (n,) for two classes
            For two classes the second output less the first: positive for the second.
        """
        outputs, finish = self._outputs(X)
        two = outputs.shape[1] == 2
        return finish(outputs[:, 1] - outputs[:, 0] if two else outputs)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy on rows and their labels.

        Several label columns must be multi-label indicators, as in scikit-learn, of
        which a row must have all right.
        """
        callee = type(self).__name__
        labels = plain_labels(callee, y, n=_length(X))
        if labels.ndim == 2 and labels.shape[1] > 1:
            _require_indicators(callee, labels)
        # not by scikit-learn, to which some labels that can be fitted are no labels
        found = self.predict(as_numpy(X))
        found, truth = (part.reshape(len(part), -1) for part in (found, labels))
        alike = _sort(found) == _sort(truth) and found.shape == truth.shape
        require(alike, callee, "y", "labels like those of fit", describe(labels))
        weights = checked_weights(callee, sample_weight, len(truth))
        return float(np.average((found == truth).all(axis=1), weights=weights))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_label = True
        return tags

    classes_: Any

    @property
    def _classes(self) -> list[np.ndarray]:
        return [self.classes_] if _has_one_output(self) else self.classes_

    def _blocks(self, outputs: np.ndarray) -> list[np.ndarray]:
        return split_blocks(outputs, tuple(len(part) for part in self._classes))

    def _answers(self, y: Any, n: int, kept: np.ndarray | None) -> Answers:
        answers = class_labels(type(self).__name__, y, n=n, kept=kept)
        self.classes_ = answers.classes[0] if answers.flat else list(answers.classes)
        return answers

    def _calibrate(
        self, outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None
    ) -> None:
        self.temperature_ = self._temperature(outputs, targets, weights)

    def _temperature(
        self, outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None
    ) -> float | np.ndarray:
        """The factor of ``predict_proba``, or one for each label column."""
        found = [
            temperature(block, wanted, weights=weights)
            for block, wanted in zip(
                self._blocks(outputs), self._blocks(targets), strict=True
            )
        ]
        return found[0] if _has_one_output(self) else np.array(found)


class KernelRegressor(MultiOutputMixin, RegressorMixin, KernelMachine):
    """A machine fitted to numbers."""

    def predict(self, X: Any) -> Any:
        """Predicted numbers.

        Parameters
        ----------
        X : array-like of shape (n, d)

        Returns
        -------
        array of shape (n,) or (n, k), as the targets were
            Of the kind of X; float64 if single precision would make infinity of them.
        """
        outputs, finish = self._outputs(X)
        return finish(outputs[:, 0] if self.flat_ else outputs)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R squared on rows and their targets."""
        answers = numbers(type(self).__name__, y, n=_length(X))
        truth = answers.columns[:, 0] if answers.flat else answers.columns
        return super().score(as_numpy(X), truth, as_numpy(sample_weight))

    def _answers(self, y: Any, n: int, kept: np.ndarray | None) -> Answers:
        answers = numbers(type(self).__name__, y, n=n, kept=kept)
        self.flat_ = answers.flat
        return answers


@under_its_own_name
class RFMClassifier(KernelClassifier):
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
        float32 loses digits the machine goes over to float64, whatever is asked;
        `dtype_` says so.
    memory_limit : int, optional
        Bytes that a fit may take above its data (a whole float, 1e9, is one, too); by
        default 80 % of what is free.
    max_leaf_size : int, "auto" or None, default="auto"
        Above that many rows, cut the table into overlapping parts of at most that
        size, fit machines with one metric to them and blend these smoothly. Work then
        grows like the number of rows. "auto": parts of 8000 rows above 20000 rows, on
        a GPU of 40000 above 200000, unless a `solver` is named. None: never.
    validation_fraction : float in (0, 1), optional
        Keep that share of the rows apart (the same of every class, at least one row),
        score every iteration on them by accuracy and keep the best one (the first of
        equals). Nothing is refitted: the rows kept apart are not in the machine.
    time_limit_s : float, optional
        Begin no iteration that would end later than that; the first is always made.
    agop_samples : int, default=20000
        Above that many rows the metric is averaged over a random sample of them.
    n_jobs : int, optional
        Workers of joblib for the parts of `max_leaf_size`. A whole machine uses the
        threads of torch.
    random_state : int, RandomState or None, default=None
        For rows kept apart, samples and parts: nothing is random without
        `validation_fraction`, in a table of at most `max_leaf_size` and `agop_samples`
        rows (and 1000, where the median rule measures distances). None: other draws in
        each fit.
    verbose : int, default=0
        1 shows a progress bar on stderr.

    Attributes
    ----------
    X_fit_ : ndarray of shape (m, d)
        Training rows: those of positive weight that were not kept apart.
    dual_coef_ : ndarray of shape (m, k)
        Their coefficients, for each class.
    intercept_ : ndarray of shape (k,)
        What the outputs tend to far from all rows: the share of each
        class in the training rows, or 0.
    metric_ : ndarray of shape (d, d), or (d,) if diagonal
        The metric M, of trace d.
    feature_importances_ : ndarray of shape (d,)
        :math:`M_{jj} \mathrm{Var}_j` as shares of 1: how much of the outputs' squared
        change there is when each column moves by its own standard deviation (after at
        least one iteration). Columns that move together may share or swap it; zeros if
        nothing matters.
    bandwidth_ : float
        The bandwidth of the iteration kept, in the units of X.
    n_iter_ : int
        Updates behind the machine that was kept.
    classes_ : ndarray of shape (k,), or a list of them for several label columns
        The labels, sorted.
    temperature_ : float, or ndarray for several label columns
        The factor t of ``predict_proba``.
    validation_scores_ : ndarray
        Scores of the iterations made, with `validation_fraction` only.
    solver_, solver_dtype_, dtype_, device_ : str
        What was used. `solver_dtype_` is float64 where float32 did not do.
    jitter_ : float
        What had to be added to the diagonal besides the ridge; 0.0 almost always.
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


@under_its_own_name
class RFMRegressor(KernelRegressor):
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
    bandwidth : float, default=10.0
        Width of the kernel, meant for columns scaled to unit variance.
    ridge : float, default=1e-3
        Added to the diagonal of the kernel matrix. The default nearly interpolates;
        noisy targets want 0.1, 1 or more.
    n_iter : int, default=5
        Updates of the metric. 0 is kernel ridge regression in the initial metric.
    center : bool, default=True
        Fit deviations from the mean target, which is then predicted far from all
        rows. The paper's scripts do not.
    device : str, default="auto"
        Any device of torch. "auto": where X is, or the GPU if there is one and there
        are at least 2000 rows.
    max_leaf_size : int, "auto" or None, default="auto"
        Above that many rows, fit overlapping parts of at most that size, with one
        metric, and blend them. Work then grows like the number of rows. "auto": parts
        of 8000 rows above 20000 rows (40000 above 200000 on a GPU). None: never.
    validation_fraction : float in (0, 1), optional
        Keep that share of the rows apart (drawn at random, at least one), score every
        iteration on them by R squared and keep the best one (the first of equals).
        Nothing is refitted: the rows kept apart are not in the machine.
    random_state : int, RandomState or None, default=None
        For rows kept apart, samples and parts. None: other draws in each fit.
    kernel, exponent, bandwidth_rule, diagonal, solver, dtype, memory_limit, \
    time_limit_s, agop_samples, n_jobs, verbose
        As in :class:`RFMClassifier`.

    Attributes
    ----------
    dual_coef_, intercept_ : ndarray of shape (m, k), (k,)
        Coefficients of the rows for each target; the mean target, or 0.
    flat_ : bool
        Whether targets came as one column, ``(n,)``.
    X_fit_, metric_, feature_importances_ and all others
        As in :class:`RFMClassifier`, but for what classes have.

    Examples
    --------
    >>> machine = RFMRegressor().fit([[0.0], [2.0]], [10.0, 30.0])
    >>> machine.predict([[1.0]])  # as far from both
    array([20.])
    """


class _Aligned(KernelMachine):
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


@under_its_own_name
class RFAMClassifier(KernelClassifier, _Aligned):
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
    bandwidth : float, default=10.0
        Width of the kernel, meant for columns scaled to unit variance.
    ridge : float, default=1e-3
        Added to the diagonal of the kernel matrix. The default nearly interpolates;
        noisy labels want 0.1, 1 or more.
    n_iter : int, default=5
        Updates of the metric. 0 is kernel ridge regression in the initial metric.
    device : str, default="auto"
        Any device of torch. "auto": where X is, or the GPU if there is one and there
        are at least 2000 rows.
    max_leaf_size : int, "auto" or None, default="auto"
        Above that many rows, fit overlapping parts of at most that size, with one
        metric, and blend them. Work then grows like the number of rows. "auto": parts
        of 8000 rows above 20000 rows (40000 above 200000 on a GPU). None: never.
    validation_fraction : float in (0, 1), optional
        Keep that share of the rows apart, score every iteration on them by accuracy
        and keep the best one. Nothing is refitted.
    random_state : int, RandomState or None, default=None
        For rows kept apart, samples and parts. None: other draws in each fit.
    kernel, exponent, bandwidth_rule, diagonal, center, solver, dtype, \
    memory_limit, time_limit_s, agop_samples, n_jobs, verbose
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


@under_its_own_name
class RFAMRegressor(KernelRegressor, _Aligned):
    r"""Regressor whose learned metric starts aligned with the table.

    A Recursive Feature Alignment Machine: an :class:`RFMRegressor` that starts from

    .. math:: M_{\mathrm{init}} = (1 - a) \, \mathrm{Cov}(X) + a I

    scaled to trace d, instead of the identity. With a = 0 the metric stays in the span
    of the rows (the paper's proposition on the feature matrix).

    Parameters
    ----------
    identity_weight : float in [0, 1], default=0.0
        The weight a of the identity in the initial metric (the paper's alpha). 0, the
        covariance alone, is the machine of the paper's Table 2; 1 is an RFM. The
        covariance is in squared units of the columns, so scale them first.
    bandwidth : float, default=10.0
        Width of the kernel, meant for columns scaled to unit variance.
    ridge : float, default=1e-3
        Added to the diagonal of the kernel matrix. The default nearly interpolates;
        noisy targets want 0.1, 1 or more.
    n_iter : int, default=5
        Updates of the metric. 0 is kernel ridge regression in the initial metric.
    device : str, default="auto"
        Any device of torch. "auto": where X is, or the GPU if there is one and there
        are at least 2000 rows.
    max_leaf_size : int, "auto" or None, default="auto"
        Above that many rows, fit overlapping parts of at most that size, with one
        metric, and blend them. Work then grows like the number of rows. "auto": parts
        of 8000 rows above 20000 rows (40000 above 200000 on a GPU). None: never.
    validation_fraction : float in (0, 1), optional
        Keep that share of the rows apart, score every iteration on them by R squared
        and keep the best one. Nothing is refitted.
    random_state : int, RandomState or None, default=None
        For rows kept apart, samples and parts. None: other draws in each fit.
    kernel, exponent, bandwidth_rule, diagonal, center, solver, dtype, \
    memory_limit, time_limit_s, agop_samples, n_jobs, verbose
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
