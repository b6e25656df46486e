"""Other methods on the folds of a table, chosen and fitted inside the training fold.

For each of the table's folds: a stratified quarter of the training rows is held out
(:func:`~tabular_splits.inner_split`, the same rows for all
methods), the method chooses on it, is refitted to the whole training fold, and is asked
once for the test rows. Nothing of a test fold is seen before.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normalign_reproduction._errors import require
from normalign_reproduction.data import UCITable
from normalign_reproduction.experiments.tabular_peer_models import PEERS, Part, Task
from normalign_reproduction.experiments.tabular_splits import inner_split
from normalign_reproduction.experiments.timetable import all_rounded
from normalign_reproduction.spec import Run

__all__ = ["PEER_SETTINGS", "QUICK_PEER_SETTINGS", "peer_result"]

# What each peer may choose from. `widths` are multiples of 1 / (d Var x).
PEER_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "most_frequent": {},
    "logistic_regression": {"costs": [0.01, 0.1, 1.0, 10.0], "max_iter": 300},
    "svc": {
        "costs": [0.1, 1.0, 10.0, 100.0], "widths": [0.1, 1.0, 10.0],
        "max_rows": 10_000,
    },
    "random_forest": {"n_trees": 300, "max_features": ["sqrt", 0.3]},
    "hist_gradient_boosting": {
        "learning_rate": 0.1, "max_rounds": 200, "patience": 20, "leaves": [5, 20],
    },
    "catboost": {
        "max_rounds": 300, "patience": 30, "many_classes": 20, "borders_of_many": 32,
    },
    "xrfm": {"ridges": [1e-3], "n_iter": 5},
}  # fmt: skip
QUICK_PEER_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "svc": {"costs": [1.0, 10.0], "widths": [0.1, 1.0], "max_rows": 10_000},
    "random_forest": {"n_trees": 50, "max_features": ["sqrt"]},
    "hist_gradient_boosting": {
        "learning_rate": 0.3, "max_rounds": 20, "patience": 5, "leaves": [10],
    },
}  # fmt: skip


def peer_result(
    run: Run,
    table: UCITable,
    *,
    device: torch.device,
    progress: Callable[[float, str], None],
) -> dict[str, Any]:
    """Return the accuracy of a peer on the folds of a table, leak-free.

    Parameters
    ----------
    run : Run
        Its ``method`` is the peer, its other settings what that may choose from. With
        ``max_rows``, tables with more training rows are skipped.
    table : UCITable
    device : torch.device
        Where xRFM computes; the others know the CPU only.
    progress : callable
        ``progress(share, words)``.

    Returns
    -------
    dict
        ``n_rows``, ``n_inputs``, ``n_classes``, ``accuracy`` and ``validation`` (means
        over the folds), ``seconds`` (their sum) and ``folds``, each with ``accuracy``,
        ``validation``, ``chosen``, ``n_train`` and ``seconds`` of choosing, fitting
        and answering. Of a skipped table ``accuracy`` and ``validation`` are ``None``,
        and ``skipped`` says why.

    Raises
    ------
    ValueError
        If there is no such peer, or its protocol is another one.
    ModuleNotFoundError
        If the peer's package is not installed.
    """
    method, rule = run["method"], f"one of {', '.join(PEERS)}"
    require(method in PEERS, "peer_result", "method", rule, repr(method))
    honest = run["protocol"] == "leak-free"
    require(honest, "peer_result", "protocol", "'leak-free'", repr(run["protocol"]))
    n, d = table.x.shape
    facts = {"n_rows": n, "n_inputs": d, "n_classes": table.n_classes}
    limit = run.settings.get("max_rows")
    if limit is not None and max(len(train) for train, _ in table.folds) > limit:
        why = f"more than {limit} training rows"
        return facts | {
            "accuracy": None, "validation": None, "seconds": None, "folds": [],
            "skipped": why,
        }  # fmt: skip
    task = Task(run.settings, run.seed, device, torch.get_num_threads())
    folds = []
    for number, (train, test) in enumerate(table.folds):
        words = method.replace("_", " ")
        progress(number / len(table.folds), words)
        folds.append(_fold(task, table, train, test))
    means = {
        name: statistics.fmean(fold[name] for fold in folds)
        for name in ("accuracy", "validation")
    }
    seconds = sum(fold["seconds"] for fold in folds)
    return all_rounded(facts | means | {"seconds": seconds, "folds": folds})


def _fold(task: Task, table: UCITable, train: Tensor, test: Tensor) -> dict[str, Any]:
    began = time.perf_counter()
    # Gaps between classes upset some peers: theirs are those of the fold, in order.
    classes = table.y[train].unique().numpy()

    def part(rows: Tensor) -> Part:
        y = np.searchsorted(classes, table.y[rows].numpy())
        return Part(table.x[rows].numpy(), y)

    if len(classes) > 1:
        fit, validation = inner_split(table.y, train, seed=task.seed)
        peer = PEERS[task.settings["method"]]
        chosen, validated = peer.choose(task, part(fit), part(validation))
        predict = peer.fitted(task, part(train), chosen)
        answers = classes[predict(table.x[test].numpy())]
    else:
        chosen, validated = {}, 1.0
        answers = np.repeat(classes, len(test))
    seconds = time.perf_counter() - began
    accuracy = float((answers == table.y[test].numpy()).mean())
    return {
        "accuracy": accuracy, "validation": validated, "chosen": chosen,
        "n_train": len(train), "seconds": seconds,
    }  # fmt: skip
