"""The tasks of the TabArena experiment: those of the benchmark, or bundled ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from normalign_reproduction.data import METRICS, load_tabarena, tabarena_facts

__all__ = ["BUNDLED", "LACKING", "TASKS", "TabArenaTask", "TaskFacts", "task_named"]


class TaskFacts(NamedTuple):
    """What is known of a task before its table is read."""

    name: str
    rows: int
    inputs: int
    kind: str


@dataclass(frozen=True)
class TabArenaTask:
    """A table with its target and metric.

    Parameters
    ----------
    table : DataFrame or array of shape (n, d)
        Numbers, texts and missing values.
    answers : array of shape (n,)
        Classes from 0, or numbers.
    n_classes : int or None
        ``None`` for regression.
    metric : {"roc_auc", "log_loss", "rmse"}
    categorical : sequence
        Columns of numbers that are codes.
    partial : bool
        Whether rows or classes of the benchmark's table are missing.
    """

    table: Any
    answers: np.ndarray
    n_classes: int | None
    metric: str
    categorical: Sequence[Any] = ()
    partial: bool = False


# Tasks of TabArena that the stored results lack.
LACKING = (
    "Bioresponse",
    "Is-this-a-good-customer",
    "QSAR-TID-11",
    "hazelnut-spread-contaminant-detection",
    "kddcup09_appetency",
    "superconductivity",
    "taiwanese_bankruptcy_prediction",
)
# Rows of the tables that the stored results were computed from a part of.
HELD_ROWS = {"APSFailure": 10001, "NATICUSdroid": 5787, "SDSS17": 34283}

TASKS = tuple(
    TaskFacts(name, HELD_ROWS.get(name, task.n_rows), task.n_inputs, task.problem_type)
    for name, task in tabarena_facts().items()
    if name not in LACKING
)
# Tables of scikit-learn, and two generated ones.
BUNDLED = (
    TaskFacts("breast-cancer", 569, 30, "binary"),
    TaskFacts("wine", 178, 13, "multiclass"),
    TaskFacts("digits-500", 500, 64, "multiclass"),
    TaskFacts("diabetes-progression", 442, 10, "regression"),
    TaskFacts("orders", 400, 6, "binary"),
    TaskFacts("prices", 400, 6, "regression"),
)


@lru_cache(maxsize=2)
def task_named(name: str, data: str) -> TabArenaTask:
    """Return a task; the last two are cached.

    Parameters
    ----------
    name : str
    data : {"tabarena", "bundled"}
    """
    if data == "tabarena":
        found = load_tabarena(name)
        table, answers, categorical = found.X, found.y, found.categorical
        metric, partial = found.metric, not found.matches_tabarena
    elif data == "bundled":
        kinds = {facts.name: facts.kind for facts in BUNDLED}
        if name not in kinds:
            raise ValueError(
                f"task_named: name must be one of {', '.join(kinds)}, got {name!r}."
            )
        table, answers, categorical = _LOADERS[name]()
        metric, partial = METRICS[kinds[name]], False
    else:
        raise ValueError(
            f"task_named: data must be 'tabarena' or 'bundled', got {data!r}."
        )
    answers, n_classes = np.asarray(answers), None
    if metric == "rmse":
        answers = answers.astype(np.float64)
    else:
        classes, answers = np.unique(answers, return_inverse=True)
        n_classes = len(classes)
    return TabArenaTask(table, answers, n_classes, metric, categorical, partial)


def _load_sklearn(loader: str, rows: int | None = None) -> tuple[Any, Any, Any]:
    from sklearn import datasets

    x, y = getattr(datasets, loader)(return_X_y=True)
    return x[:rows], y[:rows], ()


def _mixed_table(seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Return a table of numbers, texts, codes and gaps, and a signal in it.

    The signal is in a product of two numbers, the text, and the code; one number is a
    noisy copy of another, and one column is noise.
    """
    random, n = np.random.default_rng(seed), 400
    size, weight, idle = random.normal(size=(3, n))
    copy = size + 0.3 * random.normal(size=n)
    colour = random.choice(["red", "green", "blue", "grey"], size=n)
    code = random.integers(3, size=n)
    signal = size * weight + np.where(colour == "red", 1.5, 0.0) + (code == 2)
    table = np.array([size, weight, copy, idle, colour, code], dtype=object).T
    table[:, :4] = table[:, :4].astype(float)
    gaps = random.random((n, 6)) < 0.05
    table[gaps] = None
    return table, signal, random


def _orders() -> tuple[Any, Any, Any]:
    table, signal, random = _mixed_table(0)
    chance = 1 / (1 + np.exp(-2 * (signal - np.median(signal))))
    return table, random.random(len(chance)) < chance, (5,)


def _prices() -> tuple[Any, Any, Any]:
    table, signal, random = _mixed_table(1)
    return table, 100 + 20 * signal + 10 * random.normal(size=len(signal)), (5,)


_LOADERS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "breast-cancer": partial(_load_sklearn, "load_breast_cancer"),
    "wine": partial(_load_sklearn, "load_wine"),
    "digits-500": partial(_load_sklearn, "load_digits", rows=500),
    "diabetes-progression": partial(_load_sklearn, "load_diabetes"),
    "orders": _orders,
    "prices": _prices,
}
