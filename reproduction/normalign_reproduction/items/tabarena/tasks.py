"""The tasks of the TabArena experiment: those of the benchmark, or bundled ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from normalign_reproduction._errors import require
from normalign_reproduction.data import METRICS, load_tabarena, tabarena_facts

__all__ = [
    "BUNDLED", "HELD_ROWS", "LACKING", "TASKS", "TabArenaTask", "TaskFacts",
    "task_named",
]  # fmt: skip


class TaskFacts(NamedTuple):
    """What is known of a task before its table is read."""

    name: str
    rows: int
    inputs: int
    kind: str


@dataclass(frozen=True)
class TabArenaTask:
    """A table with its answers, and how they are scored.

    Parameters
    ----------
    table : DataFrame or array of shape (n, d)
        Numbers, texts and missing values as they come.
    answers : array of shape (n,)
        Classes counted from 0, or numbers.
    n_classes : int or None
        ``None`` for numbers.
    metric : {"roc_auc", "log_loss", "rmse"}
    categorical : sequence
        Columns of numbers that are codes.
    partial : bool
        Whether it is other than the benchmark's: rows or classes are lacking.
    """

    table: Any
    answers: np.ndarray
    n_classes: int | None
    metric: str
    categorical: Sequence[Any] = ()
    partial: bool = False


# Tasks of TabArena that the stored results are without.
LACKING = (
    "Bioresponse",
    "Is-this-a-good-customer",
    "QSAR-TID-11",
    "hazelnut-spread-contaminant-detection",
    "kddcup09_appetency",
    "superconductivity",
    "taiwanese_bankruptcy_prediction",
)
# Rows of tables that were at hand in part when they were made.
HELD_ROWS = {"APSFailure": 10001, "NATICUSdroid": 5787, "SDSS17": 34283}

TASKS = tuple(
    TaskFacts(
        facts.name, HELD_ROWS.get(facts.name, facts.n_rows), facts.n_inputs,
        facts.problem_type,
    )
    for facts in tabarena_facts().values()
    if facts.name not in LACKING
)  # fmt: skip
# What comes with scikit-learn, and two tables made on the spot.
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
    """Return a task; the last ones asked for are kept.

    Parameters
    ----------
    name : str
    data : {"tabarena", "bundled"}

    Raises
    ------
    FileNotFoundError
        If the benchmark's table is not here.
    """
    known = data in ("tabarena", "bundled")
    require(known, "task_named", "data", "'tabarena' or 'bundled'", repr(data))
    if data == "tabarena":
        found = load_tabarena(name)
        return _encode(
            found.X, found.y, found.metric, tuple(found.categorical),
            partial=not found.matches_tabarena,
        )  # fmt: skip
    rule = f"one of {', '.join(_MADE)}"
    require(name in _MADE, "task_named", "name", rule, repr(name))
    table, answers, categorical = _MADE[name]()
    kind = next(facts.kind for facts in BUNDLED if facts.name == name)
    return _encode(table, answers, METRICS[kind], categorical)


def _encode(
    table: Any,
    answers: Any,
    metric: str,
    categorical: Sequence[Any],
    *,
    partial: bool = False,
) -> TabArenaTask:
    """Count classes from 0; numbers become float64."""
    answers = np.asarray(answers)
    if metric == "rmse":
        numbers = answers.astype(np.float64)
        return TabArenaTask(table, numbers, None, metric, categorical, partial)
    classes, codes = np.unique(answers, return_inverse=True)
    return TabArenaTask(table, codes, len(classes), metric, categorical, partial)


def _bundled_task(loader: str, *, rows: int | None = None) -> Callable[[], Any]:
    def load() -> tuple[np.ndarray, np.ndarray, tuple[()]]:
        from sklearn import datasets

        x, y = getattr(datasets, loader)(return_X_y=True)
        return x[:rows], y[:rows], ()

    return load


def _mixed_table(seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Return a table of numbers, texts, codes and holes, and what answers follow.

    The answer follows a product of two numbers, the text, and the code; one number is
    a noisy copy of another, and one column says nothing.
    """
    random, n = np.random.default_rng(seed), 400
    size, weight, idle = random.normal(size=(3, n))
    copy = size + 0.3 * random.normal(size=n)
    colour = random.choice(["red", "green", "blue", "grey"], size=n)
    code = random.integers(3, size=n)
    signal = size * weight + np.where(colour == "red", 1.5, 0.0) + (code == 2)
    table = np.array([size, weight, copy, idle, colour, code], dtype=object).T
    table[:, :4] = table[:, :4].astype(float)
    holes = random.random((n, 6)) < 0.05
    table[holes] = None
    return table, signal, random


def _orders() -> tuple[np.ndarray, np.ndarray, tuple[int]]:
    table, signal, random = _mixed_table(0)
    chance = 1 / (1 + np.exp(-2 * (signal - np.median(signal))))
    return table, random.random(len(chance)) < chance, (5,)


def _prices() -> tuple[np.ndarray, np.ndarray, tuple[int]]:
    table, signal, random = _mixed_table(1)
    return table, 100 + 20 * signal + 10 * random.normal(size=len(signal)), (5,)


_MADE: dict[str, Callable[[], Any]] = {
    "breast-cancer": _bundled_task("load_breast_cancer"),
    "wine": _bundled_task("load_wine"),
    "digits-500": _bundled_task("load_digits", rows=500),
    "diabetes-progression": _bundled_task("load_diabetes"),
    "orders": _orders,
    "prices": _prices,
}
