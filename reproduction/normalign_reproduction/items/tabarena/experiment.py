"""RFM and RFAM on TabArena's tasks: selection by validation, and test errors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cache
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

__all__ = ["batches", "compute"]

_SMALL = 2000  # rows that a GPU does not pay for: launches take longer than arithmetic


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return all identity weights of one division together, large tables first."""
    rows = {facts.name: facts.rows for facts in (*TASKS, *BUNDLED)}
    groups = group_alike(runs, but_for=("identity_weight",), any_seed=False)
    return sorted(groups, key=lambda group: -rows.get(group[0]["task"], 0))


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return the validation and the test error of each run.

    Ridge and iteration are those with the least error on the validation rows after fits
    to the fit rows; that machine, fitted to both, is tested. Columns are imputed,
    scaled and encoded as in both, once for all runs. Finished runs are cached.
    """
    finished = RunCache(context)
    prepared = cache(lambda: PreparedRows(batch[0]))
    results = []
    for i, run in enumerate(batch):

        def progress(share: float, run: Run = run, i: int = i) -> None:
            words = f"{run['task']}, identity weight {run['identity_weight']:g}"
            context.progress((i + share) / len(batch), words)

        result = finished.get(run)
        if result is None:
            rows = prepared()
            device = str(context.device) if rows.n_fit > _SMALL else "cpu"
            result = finished.put(run, select_and_test(run, rows, device, progress))
        progress(1.0)
        results.append(result)
    return results


def divide(
    task: TabArenaTask,
    *,
    seeds: Sequence[int],
    test_share: float,
    validation_share: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of a task to fit, to validate and to test on, stratified.

    Of a class with few rows some stay to fit on, so machines see every class.

    Parameters
    ----------
    seeds : pair of int
        Of the test rows, and of the validation rows among the others.
    test_share, validation_share : float
        Of all rows; of the rows that are not for testing.
    """
    n = len(task.answers)
    strata = task.answers if task.n_classes else np.zeros(n, dtype=int)
    classes = torch.as_tensor(strata)
    others, test = inner_split(
        classes, torch.arange(n), seed=seeds[0], share=test_share
    )
    fit, validation = inner_split(
        classes, others, seed=seeds[1], share=validation_share
    )
    return fit.numpy(), validation.numpy(), test.numpy()


def seeds_of(run: Run) -> list[int]:
    """Return the two seeds of a run's division, and that of its machines."""
    state = np.random.SeedSequence([run.seed, run["repeat"]]).generate_state(3)
    return [int(seed) for seed in state]


class PreparedRows:
    """The encoded rows of a division: first those to fit, then those to validate on."""

    def __init__(self, run: Run) -> None:
        self.task = task_named(run["task"], run.data)
        fit, validation, test = divide(
            self.task,
            seeds=seeds_of(run)[:2],
            test_share=run["test_share"],
            validation_share=run["validation_share"],
        )
        known = np.concatenate([fit, validation])
        encoder = make_tabular_pipeline(
            RFAMRegressorCV(),
            categorical=self.task.categorical,
            max_categories=run["max_categories"],
        )[:-1]
        table, answers = self.task.table, self.task.answers
        rows_of = table.iloc if hasattr(table, "iloc") else table
        self.x, self.y = encoder.fit_transform(rows_of[known]), answers[known]
        self.x_test, self.y_test = encoder.transform(rows_of[test]), answers[test]
        self.n_fit, self.n_validation = len(fit), len(validation)

    @property
    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """The places of the rows to fit and to validate on."""
        places = np.arange(len(self.y))
        return places[: self.n_fit], places[self.n_fit :]


def select_and_test(
    run: Run, rows: PreparedRows, device: str, progress: Callable[[float], None]
) -> dict[str, Any]:
    """Select ridge and iteration for a run's identity weight, and test the choice."""
    task, started, n_scored = rows.task, time.perf_counter(), 0
    n_candidates = len(run["ridges"]) * (run["n_iter"] + 1)
    scale = {"metric": task.metric, "n_classes": task.n_classes}

    def score(machine: Any, x: np.ndarray, y: np.ndarray) -> float:
        nonlocal n_scored
        n_scored += 1
        progress(n_scored / (n_candidates + 1))  # the last one is the final fit
        return -error_of(machine, x, y, **scale)

    estimator = RFAMRegressorCV if task.n_classes is None else RFAMClassifierCV
    machine = estimator(
        ridges=run["ridges"],
        identity_weights=[run["identity_weight"]],
        n_iter=run["n_iter"],
        bandwidth=run["bandwidth"],
        cv=[rows.split],
        scoring=score,
        agop_samples=run["agop_samples"],
        device=device,
        random_state=seeds_of(run)[2],
    ).fit(rows.x, rows.y)
    test_error = error_of(machine, rows.x_test, rows.y_test, **scale)
    found: Any = machine.cv_results_
    errors = 0.0 - found["mean_test_score"][found["param_ridge"] == machine.ridge_]
    return {
        "validation_error": 0.0 - machine.best_score_,
        "test_error": test_error,
        "metric": task.metric,
        "ridge": machine.ridge_,
        "iteration": machine.best_params_["n_iter"],
        "validation_by_iteration": [
            float(error) if math.isfinite(error) else None for error in errors
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
    r"""Return one minus the area under the ROC curve.

    .. math:: 1 - P(s_+ > s_-) - \tfrac12 P(s_+ = s_-)

    over pairs of a row of class 1 and a row of class 0; NaN if there is no pair.

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
    r"""Return the mean of :math:`-\log p_{i, y_i}` over classes 0 to k - 1.

    Probabilities are at least the precision of float64, so that a certain mistake costs
    36, not infinity.

    Examples
    --------
    >>> round(log_loss(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 0])), 3)
    0.347
    """
    chances = np.asarray(chances, dtype=np.float64)
    right = chances[np.arange(len(truth)), truth] / chances.sum(axis=1)
    return float(-np.log(np.clip(right, np.finfo(np.float64).eps, 1.0)).mean())


def rmse(found: np.ndarray, truth: np.ndarray) -> float:
    """Return the root of the mean squared error."""
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

    A class that the machine has not seen has probability 0.

    Parameters
    ----------
    metric : {"roc_auc", "log_loss", "rmse"}
    n_classes : int, optional
        Of the task.
    """
    if metric == "rmse":
        return rmse(machine.predict(x), truth)
    if metric == "roc_auc":
        return auc_error(machine.decision_function(x), truth)
    chances = np.zeros((len(x), n_classes or 0))
    chances[:, np.asarray(machine.classes_, dtype=int)] = machine.predict_proba(x)
    return log_loss(chances, truth)
