"""The peers of RFAM on tables: what each may choose, and how each is fitted.

A peer sees the rows to fit and the rows to validate on, both of one training fold, and
answers with a *choice*; with that it is fitted to the whole fold. Classes are numbers
0, ..., m - 1, all of them among the rows to fit, m at least two.
"""

from __future__ import annotations

import copy
import random
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

from normalign_reproduction._errors import complaint
from normalign_reproduction.spec import crossed

__all__ = ["PEERS", "Part", "Peer", "Task"]

Choice = dict[str, Any]
Predict = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Part:
    """Some rows: inputs of shape (n, d), classes of shape (n,)."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Task:
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

    choose: Callable[[Task, Part, Part], tuple[Choice, float]]
    fitted: Callable[[Task, Part, Choice], Predict]


def _accuracy(predict: Predict, part: Part) -> float:
    return float((predict(part.x) == part.y).mean())


def _of_grid(fitted: Callable[[Task, Part, Choice], Predict], **axes: str) -> Peer:
    """Return a peer that fits every candidate: the axes are settings of the run.

    Of equal candidates the first is chosen.
    """

    def choose(task: Task, fit: Part, validation: Part) -> tuple[Choice, float]:
        grid = crossed(**{name: task.settings[axis] for name, axis in axes.items()})
        scores = [_accuracy(fitted(task, fit, one), validation) for one in grid]
        best = int(np.argmax(scores))
        return grid[best], scores[best]

    return Peer(choose, fitted)


def _most_frequent(task: Task, part: Part, choice: Choice) -> Predict:
    return _flat(DummyClassifier(strategy="most_frequent").fit(part.x, part.y).predict)


def _logistic_regression(task: Task, part: Part, choice: Choice) -> Predict:
    model = LogisticRegression(C=choice["cost"], max_iter=task.settings["max_iter"])
    with warnings.catch_warnings():
        # Separable tables have no minimum; the last iterate is what there is.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(part.x, part.y).predict


def _svc(task: Task, part: Part, choice: Choice) -> Predict:
    """A support vector machine whose width is a multiple of 1 / (d Var x)."""
    spread = float(part.x.var()) or 1.0
    width = choice["width"] / (part.x.shape[1] * spread)
    model = SVC(C=choice["cost"], gamma=width, cache_size=500)
    return model.fit(part.x, part.y).predict


def _random_forest(task: Task, part: Part, choice: Choice) -> Predict:
    model = RandomForestClassifier(
        task.settings["n_trees"], max_features=choice["max_features"],
        random_state=task.seed, n_jobs=task.threads,
    )  # fmt: skip
    return model.fit(part.x, part.y).predict


# --- boosting: the number of rounds is where the validation rows' log loss is least ---


def _boosted(task: Task, n_rounds: int, leaf: int) -> HistGradientBoostingClassifier:
    return HistGradientBoostingClassifier(
        learning_rate=task.settings["learning_rate"], max_iter=n_rounds,
        min_samples_leaf=leaf, early_stopping=False,  # type: ignore[arg-type]
        warm_start=True,
        random_state=task.seed,
    )  # fmt: skip


def _rounds_of_boosting(
    task: Task, fit: Part, validation: Part, leaf: int
) -> tuple[Choice, float, float]:
    """Return the choice for a leaf size, its loss and its accuracy."""
    patience, most = task.settings["patience"], task.settings["max_rounds"]
    model = _boosted(task, 0, leaf)
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


def _choose_boosting(task: Task, fit: Part, validation: Part) -> tuple[Choice, float]:
    found = [
        _rounds_of_boosting(task, fit, validation, leaf)
        for leaf in task.settings["leaves"]
    ]
    choice, _, accuracy = min(found, key=lambda one: one[1])
    return choice, accuracy


def _hist_gradient_boosting(task: Task, part: Part, choice: Choice) -> Predict:
    model = _boosted(task, choice["n_rounds"], choice["leaf"])
    return model.fit(part.x, part.y).predict


def _catboost(task: Task, part: Part, **options: Any) -> Any:
    if part.y.max() >= task.settings["many_classes"]:
        # A round costs classes times borders: minutes for a hundred classes.
        options["border_count"] = task.settings["borders_of_many"]
    return _package("catboost").CatBoostClassifier(
        random_seed=task.seed, thread_count=task.threads, verbose=False,
        allow_writing_files=False, **options,
    )  # fmt: skip


def _choose_catboost(task: Task, fit: Part, validation: Part) -> tuple[Choice, float]:
    model = _catboost(
        task, fit, iterations=task.settings["max_rounds"],
        early_stopping_rounds=task.settings["patience"], use_best_model=True,
    )  # fmt: skip
    model.fit(fit.x, fit.y, eval_set=(validation.x, validation.y))
    # Its own rate depends on the most rounds, so a refit with fewer must be told it.
    choice = {"n_rounds": int(model.tree_count_), "rate": float(model.learning_rate_)}
    return choice, _accuracy(_flat(model.predict), validation)


def _fitted_catboost(task: Task, part: Part, choice: Choice) -> Predict:
    rounds, rate = max(choice["n_rounds"], 1), choice["rate"]
    model = _catboost(task, part, iterations=rounds, learning_rate=rate)
    return _flat(model.fit(part.x, part.y).predict)


def _flat(predict: Callable[[np.ndarray], Any]) -> Predict:
    """Without the axis of length one that some answers have."""
    return lambda x: np.asarray(predict(x)).reshape(-1).astype(np.int64)


# --- xRFM, at its own settings --------------------------------------------------------


def _xrfm(task: Task, part: Part, validation: Part, **changes: Any) -> Any:
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


def _choose_xrfm(task: Task, fit: Part, validation: Part) -> tuple[Choice, float]:
    """Let it choose the iteration by its Brier score on the validation rows."""
    found = []
    for ridge in task.settings["ridges"]:
        n_iter = task.settings["n_iter"]
        model = _xrfm(task, fit, validation, reg=ridge, iters=n_iter)
        best = max(leaf.best_iter or 0 for leaf in _leaves(model.trees[0]))
        accuracy = _accuracy(_flat(model.predict), validation)
        found.append(({"ridge": ridge, "iteration": int(best)}, accuracy))
    return max(found, key=lambda one: one[1])


def _fitted_xrfm(task: Task, part: Part, choice: Choice) -> Predict:
    # It wants validation rows in any case; without a choice to make it only scores.
    some = Part(part.x[:1], part.y[:1])
    changes = {"reg": choice["ridge"], "iters": choice["iteration"]}
    return _flat(_xrfm(task, part, some, return_best_params=False, **changes).predict)


@contextmanager
def _own_randomness(task: Task) -> Iterator[None]:
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
