"""Other methods on the same tables and folds as RFM and RFAM."""

from __future__ import annotations

import copy
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.svm import SVC
from torch import Tensor

from normalign_reproduction.data import UCITable
from normalign_reproduction.items.table2.data import inner_split
from normalign_reproduction.spec import Run, cross
from normalign_reproduction.training import round_all

__all__ = ["PEERS", "PEER_SETTINGS", "QUICK_PEER_SETTINGS", "peer_result"]

# What each peer selects from. `widths` are multiples of 1 / (d Var x).
PEER_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "most_frequent": {},
    "logistic_regression": {"costs": [0.01, 0.1, 1.0, 10.0], "max_iter": 300},
    "svc": {
        "costs": [0.1, 1.0, 10.0, 100.0],
        "widths": [0.1, 1.0, 10.0],
        "max_rows": 10_000,
    },
    "random_forest": {"n_trees": 300, "max_features": ["sqrt", 0.3]},
    "hist_gradient_boosting": {
        "learning_rate": 0.1,
        "max_rounds": 200,
        "patience": 20,
        "leaves": [5, 20],
    },
    "catboost": {
        "max_rounds": 300,
        "patience": 30,
        "many_classes": 20,
        "borders_of_many": 32,
    },
    "xrfm": {"ridges": [1e-3], "n_iter": 5},
}
QUICK_PEER_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "svc": {"costs": [1.0, 10.0], "widths": [0.1, 1.0], "max_rows": 10_000},
    "random_forest": {"n_trees": 50, "max_features": ["sqrt"]},
    "hist_gradient_boosting": {
        "learning_rate": 0.3,
        "max_rounds": 20,
        "patience": 5,
        "leaves": [10],
    },
}


def peer_result(
    run: Run,
    table: UCITable,
    *,
    device: torch.device,
    progress: Callable[[float, str], None],
) -> dict[str, Any]:
    """Return the leak-free accuracy of a peer on the folds of a table.

    Parameters
    ----------
    run : Run
        Its ``method`` is the peer; its other settings are what the peer selects from.
        With ``max_rows``, tables with more training rows are skipped.
    table : UCITable
    device : torch.device
        For xRFM; the others use the CPU.
    progress : callable
        ``progress(share, words)``.

    Returns
    -------
    dict
        ``n_rows``, ``n_inputs``, ``n_classes``, ``accuracy`` and ``validation`` (means
        over the folds), ``seconds`` (their sum) and ``folds``, each with ``accuracy``,
        ``validation``, ``chosen``, ``n_train`` and ``seconds``. Of a skipped table
        ``accuracy`` and ``validation`` are ``None``, and ``skipped`` is the reason.
    """
    method = run["method"]
    if method not in PEERS:
        known = ", ".join(PEERS)
        raise ValueError(f"peer_result: method must be one of {known}, got {method!r}.")
    if run["protocol"] != "leak-free":
        raise ValueError(
            f"peer_result: protocol must be 'leak-free', got {run['protocol']!r}."
        )
    n, d = table.x.shape
    facts = {"n_rows": n, "n_inputs": d, "n_classes": table.n_classes}
    limit = run.settings.get("max_rows")
    if limit is not None and max(len(train) for train, _ in table.folds) > limit:
        empty = dict.fromkeys(["accuracy", "validation", "seconds"])
        reason = f"more than {limit} training rows"
        return facts | empty | {"folds": [], "skipped": reason}
    task = PeerTask(run.settings, run.seed, device, torch.get_num_threads())
    folds = []
    for i, (train, test) in enumerate(table.folds):
        progress(i / len(table.folds), method.replace("_", " "))
        folds.append(_fold(PEERS[method], task, table, train, test))
    sums = {
        "accuracy": statistics.fmean(fold["accuracy"] for fold in folds),
        "validation": statistics.fmean(fold["validation"] for fold in folds),
        "seconds": sum(fold["seconds"] for fold in folds),
    }
    return round_all(facts | sums | {"folds": folds})


def _fold(
    peer: Peer, task: PeerTask, table: UCITable, train: Tensor, test: Tensor
) -> dict[str, Any]:
    started = time.perf_counter()
    # Some peers fail on gaps between classes: they see the fold's classes, counted.
    classes = table.y[train].unique().numpy()

    def part(rows: Tensor) -> TablePart:
        y = np.searchsorted(classes, table.y[rows].numpy())
        return TablePart(table.x[rows].numpy(), y)

    if len(classes) > 1:
        fit, validation = inner_split(table.y, train, seed=task.seed)
        chosen, validated = peer.choose(task, part(fit), part(validation))
        predict = peer.fitted(task, part(train), chosen)
        answers = classes[predict(table.x[test].numpy())]
    else:
        chosen, validated = {}, 1.0
        answers = np.repeat(classes, len(test))
    seconds = time.perf_counter() - started
    return {
        "accuracy": float((answers == table.y[test].numpy()).mean()),
        "validation": validated,
        "chosen": chosen,
        "n_train": len(train),
        "seconds": seconds,
    }


@dataclass(frozen=True)
class TablePart:
    """Some rows: inputs of shape (n, d), classes of shape (n,)."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class PeerTask:
    """What a peer gets besides rows."""

    settings: Mapping[str, Any]
    seed: int
    device: torch.device
    threads: int


Choice = dict[str, Any]
Predict = Callable[[np.ndarray], np.ndarray]
Fit = Callable[[PeerTask, TablePart, Choice], Predict]


@dataclass(frozen=True)
class Peer:
    """A method.

    Parameters
    ----------
    choose : callable
        ``choose(task, fit, validation)`` returns a choice that JSON can hold, and its
        accuracy on the validation rows.
    fitted : callable
        ``fitted(task, part, choice)`` returns a function from inputs to classes.
    """

    choose: Callable[[PeerTask, TablePart, TablePart], tuple[Choice, float]]
    fitted: Fit


def _accuracy(predict: Predict, part: TablePart) -> float:
    return float((predict(part.x) == part.y).mean())


def _flat(predict: Callable[[np.ndarray], Any]) -> Predict:
    """Remove the axis of length one that some predictions have."""
    return lambda x: np.asarray(predict(x)).reshape(-1).astype(np.int64)


# --- peers that fit every candidate of a grid ---


def _grid_peer(fitted: Fit, **axes: str) -> Peer:
    """Return a peer that selects from a grid, the first of equal candidates."""

    def choose(
        task: PeerTask, fit: TablePart, validation: TablePart
    ) -> tuple[Choice, float]:
        grid = cross(**{name: task.settings[axis] for name, axis in axes.items()})
        scores = [_accuracy(fitted(task, fit, one), validation) for one in grid]
        best = int(np.argmax(scores))
        return grid[best], scores[best]

    return Peer(choose, fitted)


def _most_frequent(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    return _flat(DummyClassifier(strategy="most_frequent").fit(part.x, part.y).predict)


def _logistic_regression(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    model = LogisticRegression(C=choice["cost"], max_iter=task.settings["max_iter"])
    with warnings.catch_warnings():
        # Separable tables have no minimum; the last iterate is used.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(part.x, part.y).predict


def _svc(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    spread = float(part.x.var()) or 1.0
    gamma = choice["width"] / (part.x.shape[1] * spread)
    model = SVC(C=choice["cost"], gamma=gamma, cache_size=500)
    return model.fit(part.x, part.y).predict


def _random_forest(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    model = RandomForestClassifier(
        task.settings["n_trees"],
        max_features=choice["max_features"],
        random_state=task.seed,
        n_jobs=task.threads,
    )
    return model.fit(part.x, part.y).predict


# --- boosting: the number of rounds has the least log loss on validation rows ---


def _boosting(
    task: PeerTask, n_rounds: int, leaf: int
) -> HistGradientBoostingClassifier:
    return HistGradientBoostingClassifier(
        learning_rate=task.settings["learning_rate"],
        max_iter=n_rounds,
        min_samples_leaf=leaf,
        early_stopping=False,  # type: ignore[arg-type]
        warm_start=True,
        random_state=task.seed,
    )


def _choose_boosting(
    task: PeerTask, fit: TablePart, validation: TablePart
) -> tuple[Choice, float]:
    patience, most = task.settings["patience"], task.settings["max_rounds"]
    found = []
    for leaf in task.settings["leaves"]:
        model = _boosting(task, 0, leaf)
        losses, hits = [], []
        while len(losses) < most and (
            len(losses) - np.argmin(losses or [0.0]) <= patience
        ):
            model.set_params(max_iter=min(len(losses) + patience, most))
            model.fit(fit.x, fit.y)
            stages = list(model.staged_predict_proba(validation.x))[len(losses) :]
            for stage in stages:
                losses.append(log_loss(validation.y, stage, labels=model.classes_))
                hits.append(float((stage.argmax(1) == validation.y).mean()))
        best = int(np.argmin(losses))
        choice = {"leaf": leaf, "n_rounds": best + 1}
        found.append((losses[best], choice, hits[best]))
    _, choice, accuracy = min(found, key=lambda one: one[0])
    return choice, accuracy


def _hist_gradient_boosting(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    model = _boosting(task, choice["n_rounds"], choice["leaf"])
    return model.fit(part.x, part.y).predict


def _catboost(task: PeerTask, part: TablePart, **options: Any) -> Any:
    if part.y.max() >= task.settings["many_classes"]:
        # A round costs classes times borders: minutes for a hundred classes.
        options["border_count"] = task.settings["borders_of_many"]
    return _package("catboost").CatBoostClassifier(
        random_seed=task.seed,
        thread_count=task.threads,
        verbose=False,
        allow_writing_files=False,
        **options,
    )


def _choose_catboost(
    task: PeerTask, fit: TablePart, validation: TablePart
) -> tuple[Choice, float]:
    model = _catboost(
        task,
        fit,
        iterations=task.settings["max_rounds"],
        early_stopping_rounds=task.settings["patience"],
        use_best_model=True,
    )
    model.fit(fit.x, fit.y, eval_set=(validation.x, validation.y))
    # The default rate depends on the most rounds, so a shorter refit needs it.
    choice = {"n_rounds": int(model.tree_count_), "rate": float(model.learning_rate_)}
    return choice, _accuracy(_flat(model.predict), validation)


def _fitted_catboost(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    rounds, rate = max(choice["n_rounds"], 1), choice["rate"]
    model = _catboost(task, part, iterations=rounds, learning_rate=rate)
    return _flat(model.fit(part.x, part.y).predict)


# --- xRFM, with its default settings ---


def _xrfm(
    task: PeerTask, part: TablePart, validation: TablePart, **changes: Any
) -> Any:
    """Return a fitted xRFM with some changes to the settings of a leaf's fit."""
    machine = _package("xrfm").xRFM
    with _restored_generators(task.device):
        model = machine(device=task.device, random_state=task.seed, verbose=False)
        model.rfm_params = copy.deepcopy(model.rfm_params)
        model.rfm_params["fit"].update(changes)
        return model.fit(part.x, part.y, validation.x, validation.y)


def _leaves(node: Mapping[str, Any]) -> list[Any]:
    if node["type"] == "leaf":
        return [node["model"]]
    return _leaves(node["left"]) + _leaves(node["right"])


def _choose_xrfm(
    task: PeerTask, fit: TablePart, validation: TablePart
) -> tuple[Choice, float]:
    """Choose a ridge; xRFM itself chooses the iteration, by its Brier score."""
    found = []
    for ridge in task.settings["ridges"]:
        n_iter = task.settings["n_iter"]
        model = _xrfm(task, fit, validation, reg=ridge, iters=n_iter)
        best = max(leaf.best_iter or 0 for leaf in _leaves(model.trees[0]))
        accuracy = _accuracy(_flat(model.predict), validation)
        found.append(({"ridge": ridge, "iteration": int(best)}, accuracy))
    return max(found, key=lambda one: one[1])


def _fitted_xrfm(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    # It requires validation rows; with return_best_params=False they change nothing.
    one_row = TablePart(part.x[:1], part.y[:1])
    changes = {"reg": choice["ridge"], "iters": choice["iteration"]}
    model = _xrfm(task, part, one_row, return_best_params=False, **changes)
    return _flat(model.predict)


@contextmanager
def _restored_generators(device: torch.device) -> Iterator[None]:
    """Restore the global generators, which xRFM seeds."""
    plain, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(legacy)  # noqa: NPY002


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"peers: method {name!r} needs the package {name}. Install it: pip install "
            '"normalign-reproduction[peers]".'
        ) from error


PEERS: Mapping[str, Peer] = {
    "most_frequent": _grid_peer(_most_frequent),
    "logistic_regression": _grid_peer(_logistic_regression, cost="costs"),
    "svc": _grid_peer(_svc, cost="costs", width="widths"),
    "random_forest": _grid_peer(_random_forest, max_features="max_features"),
    "hist_gradient_boosting": Peer(_choose_boosting, _hist_gradient_boosting),
    "catboost": Peer(_choose_catboost, _fitted_catboost),
    "xrfm": Peer(_choose_xrfm, _fitted_xrfm),
}
