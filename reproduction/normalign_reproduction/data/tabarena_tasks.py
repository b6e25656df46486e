"""The 51 tasks of TabArena v0.1: what each one is, before any data are at hand."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["METRICS", "TabArenaFacts", "tabarena_facts"]

# TabArena's measure of each kind of task; "roc_auc" enters its tables as 1 - AUC.
METRICS = {"binary": "roc_auc", "multiclass": "log_loss", "regression": "rmse"}


@dataclass(frozen=True)
class TabArenaFacts:
    """One task of TabArena as its curators describe it.

    Parameters
    ----------
    name : str
        As on OpenML, such as ``"credit-g"``.
    openml_dataset_id, openml_task_id : int
        Under which OpenML keeps the table, and the task with its folds.
    target : str
        The column to predict.
    problem_type : {"binary", "multiclass", "regression"}
        The kind of task.
    n_rows, n_inputs : int
        Shape of the table without the target.
    n_classes : int or None
        ``None`` for regression.
    licence : str
        Terms of use.
    """

    name: str
    openml_dataset_id: int
    openml_task_id: int
    target: str
    problem_type: str
    n_rows: int
    n_inputs: int
    n_classes: int | None
    licence: str

    @property
    def metric(self) -> str:
        """``"roc_auc"``, ``"log_loss"`` or ``"rmse"``, by the kind of task."""
        return METRICS[self.problem_type]


def tabarena_facts() -> dict[str, TabArenaFacts]:
    """Return the 51 tasks of TabArena v0.1 by name.

    References
    ----------
    [1] Erickson et al., TabArena: a living benchmark for machine learning on tabular
    data, 2025 (arXiv 2506.16791)

    Examples
    --------
    >>> task = tabarena_facts()["credit-g"]
    >>> task.n_rows, task.n_inputs, task.metric
    (1000, 20, 'roc_auc')
    """
    return dict(_tasks())


@cache
def _tasks() -> dict[str, TabArenaFacts]:
    text = (
        files("normalign_reproduction.data").joinpath("tabarena.csv").read_text("utf-8")
    )
    return {row["name"]: _facts(row) for row in csv.DictReader(text.splitlines())}


def _facts(row: dict[str, str]) -> TabArenaFacts:
    return TabArenaFacts(
        name=row["name"],
        openml_dataset_id=int(row["openml_dataset_id"]),
        openml_task_id=int(row["openml_task_id"]),
        target=row["target"],
        problem_type=row["problem_type"],
        n_rows=int(row["n_rows"]),
        n_inputs=int(row["n_inputs"]),
        n_classes=int(row["n_classes"]) if row["n_classes"] else None,
        licence=row["licence"],
    )
