"""RFM and RFAM on TabArena's tasks: random searches and their errors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata

from normalign.estimators import (
    RFAMClassifierCV,
    RFAMRegressorCV,
    make_tabular_pipeline,
)
from normalign_reproduction.context import Context, RunCache
from normalign_reproduction.items.tabarena.tasks import (
    BUNDLED,
    TASKS,
    TabArenaTask,
    task_named,
)
from normalign_reproduction.items.table2.data import inner_split
from normalign_reproduction.spec import Run
from normalign_reproduction.training import group_alike

__all__ = [
    "Division", "auc_error", "batches", "compute", "divide", "error_of", "log_loss",
    "rmse",
]  # fmt: skip

_SMALL = 2000  # rows to fit that a GPU is not asked for


@dataclass(frozen=True)
class Division:
    """The rows of a task, each in one part: to fit, to validate and to test on."""

    fit: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    @property
    def development(self) -> np.ndarray:
        """The rows to fit and to validate on."""
        return np.concatenate([self.fit, self.validation])


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return all identity weights of one division together, large tables first."""
    rows = {facts.name: facts.rows for facts in (*TASKS, *BUNDLED)}
    groups = group_alike(runs, but_for=("identity_weight",), any_seed=False)
    return sorted(groups, key=lambda group: -rows.get(group[0]["task"], 0))


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return the validation and the test error of each run.

    Ridge and iteration are those with the least error on the validation rows, after
    fits to the fit rows; that machine, fitted to both, is tested. Columns are imputed,
    scaled and encoded as in the development part, once for all runs. A run that is
    done is kept, and not done again.
    """
    kept = RunCache(context)
    prepared = cache(partial(_Prepared, batch[0]))
    results = []
    for number, run in enumerate(batch):

        def follow(share: float, run: Run = run, number: int = number) -> None:
            words = f"{run['task']}, identity weight {run['identity_weight']:g}"
            context.progress((number + share) / len(batch), words)

        done = kept.get(run)
        if done is None:
            rows = prepared()
            # A small one stays on the processor: launches take longer than arithmetic.
            device = str(context.device) if rows.n_fit > _SMALL else "cpu"
            done = kept.put(run, _result(run, rows, device, follow))
        follow(1.0)
        results.append(done)
    return results


def divide(
    task: TabArenaTask,
    *,
    seeds: Sequence[int],
    test_share: float,
    validation_share: float,
) -> Division:
    """Return the rows of a task in three parts, classes in equal shares.

    Of a class with few rows some stay to fit on, so no machine meets a class that it
    was not shown.

    Parameters
    ----------
    seeds : pair of int
        Of the test rows, and of the validation rows among the others.
    test_share, validation_share : float
        Of all rows; of the rows that are not tested on.
    """
    n = len(task.answers)
    strata = task.answers if task.n_classes else np.zeros(n, dtype=int)
    classes, every = torch.as_tensor(strata), torch.arange(n)
    development, test = inner_split(classes, every, seed=seeds[0], share=test_share)
    fit, validation = inner_split(
        classes, development, seed=seeds[1], share=validation_share
    )
    return Division(fit.numpy(), validation.numpy(), test.numpy())


def _seeds(run: Run) -> list[int]:
    """Return the seeds of a run's division and of its machines."""
    state = np.random.SeedSequence([run.seed, run["repeat"]]).generate_state(3)
    return [int(seed) for seed in state]


class _Prepared:
    """The rows of a division as machines take them."""

    def __init__(self, run: Run) -> None:
        self.task = task_named(run["task"], run.data)
        division = divide(
            self.task, seeds=_seeds(run)[:2], test_share=run["test_share"],
            validation_share=run["validation_share"],
        )  # fmt: skip
        categorical, most = self.task.categorical, run["max_categories"]
        pipeline = make_tabular_pipeline(
            RFAMRegressorCV(), categorical=categorical, max_categories=most
        )
        columns, known = pipeline[:-1], division.development
        self.x = columns.fit_transform(_take(self.task.table, known))
        self.x_test = columns.transform(_take(self.task.table, division.test))
        self.y, self.y_test = self.task.answers[known], self.task.answers[division.test]
        self.n_fit, self.n_validation = len(division.fit), len(division.validation)

    @property
    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the rows to fit and to validate on are among those of development."""
        every = np.arange(self.n_fit + self.n_validation)
        return every[: self.n_fit], every[self.n_fit :]


def _take(table: Any, rows: np.ndarray) -> Any:
    return table.iloc[rows] if hasattr(table, "iloc") else table[rows]


def _result(
    run: Run, rows: _Prepared, device: str, follow: Callable[[float], None]
) -> dict[str, Any]:
    """Choose ridge and iteration for a run's identity weight, and test the choice."""
    task, started, scored = rows.task, time.perf_counter(), 0
    n_candidates = len(run["ridges"]) * (run["n_iter"] + 1)

    def score(machine: Any, x: np.ndarray, y: np.ndarray) -> float:
        nonlocal scored
        scored += 1
        follow(scored / (n_candidates + 1))  # the last is the fit to all rows
        return -error_of(machine, x, y, metric=task.metric, n_classes=task.n_classes)

    kind = RFAMRegressorCV if task.n_classes is None else RFAMClassifierCV
    machine = kind(
        ridges=run["ridges"], identity_weights=[run["identity_weight"]],
        n_iter=run["n_iter"], bandwidth=run["bandwidth"], cv=[rows.split],
        scoring=score, agop_samples=run["agop_samples"], device=device,
        random_state=_seeds(run)[2],
    ).fit(rows.x, rows.y)  # fmt: skip
    test_error = error_of(
        machine, rows.x_test, rows.y_test, metric=task.metric, n_classes=task.n_classes
    )
    found: Any = machine.cv_results_
    along = 0.0 - found["mean_test_score"][found["param_ridge"] == machine.ridge_]
    return {
        "validation_error": 0.0 - machine.best_score_,
        "test_error": test_error,
        "metric": task.metric,
        "ridge": machine.ridge_,
        "iteration": machine.best_params_["n_iter"],
        "validation_by_iteration": [
            float(error) if math.isfinite(error) else None for error in along
        ],
        "n_fit": rows.n_fit,
        "n_validation": rows.n_validation,
        "n_test": len(rows.y_test),
        "n_inputs": rows.x.shape[1],
        "solver": machine.solver_,
        "dtype": machine.solver_dtype_,
        "partial": task.partial,
        "seconds": round(time.perf_counter() - started, 3),
    }


def auc_error(scores: np.ndarray, truth: np.ndarray) -> float:
    r"""Return one less the area under the ROC curve.

    .. math:: 1 - P(s_+ > s_-) - \tfrac12 P(s_+ = s_-)

    over pairs of a row of class 1 and a row of class 0. NaN where there is no pair.

    Parameters
    ----------
    scores : array of shape (n,)
        Higher for what looks like class 1.
    truth : array of shape (n,)
        Classes 0 and 1.

    Examples
    --------
    >>> auc_error(np.array([1.0, 2.0, 3.0]), np.array([0, 1, 0]))
    0.5
    """
    positive = truth == 1
    n, m = int(positive.sum()), int((~positive).sum())
    if not n * m:
        return float("nan")
    above = rankdata(scores)[positive].sum() - n * (n + 1) / 2
    return float(1 - above / (n * m))


def log_loss(chances: np.ndarray, truth: np.ndarray) -> float:
    r"""Return the mean of :math:`-\log p_{i, y_i}`.

    Chances are kept within the precision of their numbers from 0, so a sure mistake
    costs 36, not infinity.

    Parameters
    ----------
    chances : array of shape (n, k)
    truth : array of shape (n,)
        Classes 0 to k - 1.

    Examples
    --------
    >>> round(log_loss(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 0])), 3)
    0.347
    """
    chances = np.asarray(chances, dtype=np.float64)
    right = chances[np.arange(len(truth)), truth] / chances.sum(axis=1)
    return float(-np.log(np.clip(right, np.finfo(np.float64).eps, 1.0)).mean())


def rmse(found: np.ndarray, truth: np.ndarray) -> float:
    """Return the root of the mean squared error.

    Examples
    --------
    >>> rmse(np.array([1.0, 5.0]), np.array([0.0, -2.0]))
    5.0
    """
    return float(np.sqrt(np.mean((np.asarray(found, dtype=np.float64) - truth) ** 2)))


def error_of(
    machine: Any,
    x: np.ndarray,
    truth: np.ndarray,
    *,
    metric: str,
    n_classes: int | None,
) -> float:
    """Return the error of a fitted machine on some rows.

    A class that the machine was not shown has no chance with it.

    Parameters
    ----------
    machine : estimator
    x : array of shape (n, d)
    truth : array of shape (n,)
    metric : {"roc_auc", "log_loss", "rmse"}
    n_classes : int, optional
        Of the task; the machine may know fewer.
    """
    if metric == "rmse":
        return rmse(machine.predict(x), truth)
    if metric == "roc_auc":
        return auc_error(machine.decision_function(x), truth)
    chances = np.zeros((len(x), n_classes or 0))
    chances[:, np.asarray(machine.classes_, dtype=int)] = machine.predict_proba(x)
    return log_loss(chances, truth)
