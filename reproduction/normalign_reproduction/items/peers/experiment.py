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
from types import ModuleType
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

from normalign_reproduction._errors import complaint, require
from normalign_reproduction.data import UCITable
from normalign_reproduction.items.table2.data import inner_split
from normalign_reproduction.spec import Run, cross
from normalign_reproduction.training import round_all

__all__ = [
    "PEERS", "PEER_SETTINGS", "QUICK_PEER_SETTINGS", "Peer", "PeerTask", "TablePart",
    "peer_result",
]  # fmt: skip

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
    task = PeerTask(run.settings, run.seed, device, torch.get_num_threads())
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
    return round_all(facts | means | {"seconds": seconds, "folds": folds})


def _fold(
    task: PeerTask, table: UCITable, train: Tensor, test: Tensor
) -> dict[str, Any]:
    began = time.perf_counter()
    # Gaps between classes upset some peers: theirs are those of the fold, in order.
    classes = table.y[train].unique().numpy()

    def part(rows: Tensor) -> TablePart:
        y = np.searchsorted(classes, table.y[rows].numpy())
        return TablePart(table.x[rows].numpy(), y)

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


Choice = dict[str, Any]
Predict = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class TablePart:
    """Some rows: inputs of shape (n, d), classes of shape (n,)."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class PeerTask:
    """What a peer is given beside rows: the run's settings, seed, device, threads."""

    settings: Mapping[str, Any]
    seed: int
    device: torch.device
    threads: int


@dataclass(frozen=True)
class Peer:
    """A method: how it chooses, and how it is fitted with what it chose.

    Parameters
    ----------
    choose : callable
        ``choose(task, fit, validation)`` gives a choice that JSON can hold, and its
        accuracy on the validation rows.
    fitted : callable
        ``fitted(task, part, choice)`` gives a function from inputs to classes.
    """

    choose: Callable[[PeerTask, TablePart, TablePart], tuple[Choice, float]]
    fitted: Callable[[PeerTask, TablePart, Choice], Predict]


def _accuracy(predict: Predict, part: TablePart) -> float:
    return float((predict(part.x) == part.y).mean())


def _of_grid(
    fitted: Callable[[PeerTask, TablePart, Choice], Predict], **axes: str
) -> Peer:
    """Return a peer that fits every candidate: the axes are settings of the run.

    Of equal candidates the first is chosen.
    """

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
        # Separable tables have no minimum; the last iterate is what there is.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(part.x, part.y).predict


def _svc(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    """A support vector machine whose width is a multiple of 1 / (d Var x)."""
    spread = float(part.x.var()) or 1.0
    width = choice["width"] / (part.x.shape[1] * spread)
    model = SVC(C=choice["cost"], gamma=width, cache_size=500)
    return model.fit(part.x, part.y).predict


def _random_forest(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    model = RandomForestClassifier(
        task.settings["n_trees"], max_features=choice["max_features"],
        random_state=task.seed, n_jobs=task.threads,
    )  # fmt: skip
    return model.fit(part.x, part.y).predict


# --- boosting: the number of rounds is where the validation rows' log loss is least ---


def _boost(task: PeerTask, n_rounds: int, leaf: int) -> HistGradientBoostingClassifier:
    return HistGradientBoostingClassifier(
        learning_rate=task.settings["learning_rate"], max_iter=n_rounds,
        min_samples_leaf=leaf, early_stopping=False,  # type: ignore[arg-type]
        warm_start=True,
        random_state=task.seed,
    )  # fmt: skip


def _rounds_of_boosting(
    task: PeerTask, fit: TablePart, validation: TablePart, leaf: int
) -> tuple[Choice, float, float]:
    """Return the choice for a leaf size, its loss and its accuracy."""
    patience, most = task.settings["patience"], task.settings["max_rounds"]
    model = _boost(task, 0, leaf)
    losses: list[float] = []
    hits: list[float] = []
    while len(losses) < most and len(losses) - np.argmin(losses or [0.0]) <= patience:
        model.set_params(max_iter=min(len(losses) + patience, most))
        model.fit(fit.x, fit.y)
        stages = list(model.staged_predict_proba(validation.x))[len(losses) :]
        labels = model.classes_
        losses += [log_loss(validation.y, stage, labels=labels) for stage in stages]
        hits += [float((stage.argmax(1) == validation.y).mean()) for stage in stages]
    best = int(np.argmin(losses))
    return {"leaf": leaf, "n_rounds": best + 1}, losses[best], hits[best]


def _choose_boosting(
    task: PeerTask, fit: TablePart, validation: TablePart
) -> tuple[Choice, float]:
    found = [
        _rounds_of_boosting(task, fit, validation, leaf)
        for leaf in task.settings["leaves"]
    ]
    choice, _, accuracy = min(found, key=lambda one: one[1])
    return choice, accuracy


def _hist_gradient_boosting(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    model = _boost(task, choice["n_rounds"], choice["leaf"])
    return model.fit(part.x, part.y).predict


def _catboost(task: PeerTask, part: TablePart, **options: Any) -> Any:
    if part.y.max() >= task.settings["many_classes"]:
        # A round costs classes times borders: minutes for a hundred classes.
        options["border_count"] = task.settings["borders_of_many"]
    return _package("catboost").CatBoostClassifier(
        random_seed=task.seed, thread_count=task.threads, verbose=False,
        allow_writing_files=False, **options,
    )  # fmt: skip


def _choose_catboost(
    task: PeerTask, fit: TablePart, validation: TablePart
) -> tuple[Choice, float]:
    model = _catboost(
        task, fit, iterations=task.settings["max_rounds"],
        early_stopping_rounds=task.settings["patience"], use_best_model=True,
    )  # fmt: skip
    model.fit(fit.x, fit.y, eval_set=(validation.x, validation.y))
    # Its own rate depends on the most rounds, so a refit with fewer must be told it.
    choice = {"n_rounds": int(model.tree_count_), "rate": float(model.learning_rate_)}
    return choice, _accuracy(_flat(model.predict), validation)


def _fitted_catboost(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    rounds, rate = max(choice["n_rounds"], 1), choice["rate"]
    model = _catboost(task, part, iterations=rounds, learning_rate=rate)
    return _flat(model.fit(part.x, part.y).predict)


def _flat(predict: Callable[[np.ndarray], Any]) -> Predict:
    """Without the axis of length one that some answers have."""
    return lambda x: np.asarray(predict(x)).reshape(-1).astype(np.int64)


# --- xRFM, at its own settings --------------------------------------------------------


def _xrfm(
    task: PeerTask, part: TablePart, validation: TablePart, **changes: Any
) -> Any:
    """Return xRFM's own settings, but for some of those of a leaf's fit, fitted."""
    machine = _package("xrfm").xRFM
    with _own_randomness(task):
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
    """Let it choose the iteration by its Brier score on the validation rows."""
    found = []
    for ridge in task.settings["ridges"]:
        n_iter = task.settings["n_iter"]
        model = _xrfm(task, fit, validation, reg=ridge, iters=n_iter)
        best = max(leaf.best_iter or 0 for leaf in _leaves(model.trees[0]))
        accuracy = _accuracy(_flat(model.predict), validation)
        found.append(({"ridge": ridge, "iteration": int(best)}, accuracy))
    return max(found, key=lambda one: one[1])


def _fitted_xrfm(task: PeerTask, part: TablePart, choice: Choice) -> Predict:
    # It wants validation rows in any case; without a choice to make it only scores.
    some = TablePart(part.x[:1], part.y[:1])
    changes = {"reg": choice["ridge"], "iters": choice["iteration"]}
    return _flat(_xrfm(task, part, some, return_best_params=False, **changes).predict)


@contextmanager
def _own_randomness(task: PeerTask) -> Iterator[None]:
    """Leave the global generators, which xRFM seeds, as they were."""
    devices = [task.device] if task.device.type == "cuda" else []
    plain, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(legacy)  # noqa: NPY002


def _package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        text = complaint(
            "peers", "method", "one whose package is installed", repr(name),
            'Install it: pip install "normalign-reproduction[peers]".',
        )  # fmt: skip
        raise ModuleNotFoundError(text) from error


PEERS: Mapping[str, Peer] = {
    "most_frequent": _of_grid(_most_frequent),
    "logistic_regression": _of_grid(_logistic_regression, cost="costs"),
    "svc": _of_grid(_svc, cost="costs", width="widths"),
    "random_forest": _of_grid(_random_forest, max_features="max_features"),
    "hist_gradient_boosting": Peer(_choose_boosting, _hist_gradient_boosting),
    "catboost": Peer(_choose_catboost, _fitted_catboost),
    "xrfm": Peer(_choose_xrfm, _fitted_xrfm),
}
