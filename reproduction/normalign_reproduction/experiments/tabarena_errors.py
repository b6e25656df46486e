"""The errors of the TabArena experiment: one less AUC, log-loss, root mean square."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata

__all__ = ["auc_error", "error_of", "log_loss", "rmse"]


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
