"""Residual networks trained robustly on pictures, and the geometry they end with."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normalign.training import accuracy
from normalign_reproduction.context import Context
from normalign_reproduction.items.capacity.geometry import (
    ANSWER,
    GEOMETRY,
    geometry_by_place,
)
from normalign_reproduction.items.capacity.images import Pictures, pictures
from normalign_reproduction.items.capacity.networks import (
    calibrated,
    network_cost,
    network_named,
)
from normalign_reproduction.robust import (
    Recipe,
    RobustTrainer,
    TrainingDiverged,
    evaluate,
)
from normalign_reproduction.spec import Run
from normalign_reproduction.training import (
    history_columns,
    log_spaced,
    round_all,
)

__all__ = ["batches", "compute", "recipe_of"]

_log = logging.getLogger(__name__)

_ACCURACIES = (
    "train_accuracy", "test_accuracy", "robust_accuracy", "nearby_accuracy",
    "validation_accuracy", "validation_robust_accuracy",
)  # fmt: skip
# Images that are looked at while a network trains, and the steps of an attack then; at
# its end it is all that are asked.
WATCHED = 200
WATCHED_STEPS = 10
# That attack is weaker than the one at the end: its accuracy has a name of its own.
ROUGH = "rough_robust_accuracy"
_AT_ONCE = 500
# Of a history: its epochs are kept anyway, the others are no results.
_UNKEPT = ("epoch", "seconds", "learning_rate")
_SPOKEN = {
    "train_accuracy": "train {:.0%}", "test_accuracy": "test {:.0%}",
    ROUGH: "robust {:.0%}", "normal_alignment": "alignment {:.3f}",
}  # fmt: skip


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return each run alone, those that take longest first."""

    def work(run: Run) -> float:
        recipe = recipe_of(run)
        passes = recipe.epochs * (recipe.n_steps + 2) * run["n_train"]
        return passes * network_cost(run["network"])

    return [[run] for run in sorted(runs, key=work, reverse=True)]


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return accuracies and geometry of the network that each run trains.

    Geometry is the mean over the first ``n_measured`` training images, not
    augmented, of the map from the input, and of the maps from the inputs of
    ``places``; with ``control``, also of the network as it was before training,
    once its normalisation has seen the training images. Accuracies under attack are
    at ``attack``; with ``nearby``, a weaker one, there is one under that, too, and
    validation images are attacked by it. All of it is there for the weights at the
    end and for their average on the way. What is not finite, of a run that
    diverged, is ``None``.
    """
    results = []
    for number, run in enumerate(batch):

        def tell(share: float, words: str, number: int = number) -> None:
            context.progress((number + share) / len(batch), words)

        results.append(_Robust(run, context, tell).result())
    return results


def recipe_of(run: Run) -> Recipe:
    """Return how a run trains: its recipe, with what a smaller size changes of it.

    The setting ``shortened`` has the changes; with ``steps`` among them, the epochs are
    as many as have about that number of steps.
    """
    changed = dict(run.settings.get("shortened", {}))
    steps = changed.pop("steps", None)
    recipe = Recipe(**{**run["recipe"], **changed})
    if steps is None:
        return recipe
    in_epoch = -(-run["n_train"] // recipe.batch_size)
    return replace(recipe, epochs=max(1, steps // in_epoch))


class _Robust:
    """One run: what it trains, on what, and how it is heard."""

    def __init__(self, run: Run, context: Context, tell: Any) -> None:
        self.run, self.context, self.tell = run, context, tell
        self.recipe = recipe_of(run)
        self.data = _to_device(
            pictures(
                run["images"], run.data, n_train=run["n_train"], n_test=run["n_test"],
                n_validation=run["n_validation"], pooled=run.settings.get("pooled", 1),
            ),
            context.device,
        )  # fmt: skip
        self.n_classes = len(self.data.y_train.unique())
        self.name = f"{run['network']}, {run['n_train']} images"
        self._last = ""  # what was last measured, in words

    def result(self) -> dict[str, Any]:
        """Train, measure, and return what is stored."""
        run, epochs, base = self.run, self.recipe.epochs, self.context.checkpoint
        base.parent.mkdir(parents=True, exist_ok=True)
        trainer = RobustTrainer(
            self._start(), self.data.x_train, self.data.y_train, self.recipe,
            seed=run.seed, device=self.context.device,
        )  # fmt: skip
        try:
            history = trainer.train(
                evaluate=_looked_at(epochs, run["n_evaluated"]).__contains__,
                measure=_Watch(run, self.recipe, self.data),
                checkpoint=base.with_name(f"{base.name}.{run.key}.safetensors"),
                checkpoint_seconds=self.context.checkpoint_seconds,
                progress=self._follow,
            )
        except TrainingDiverged as error:
            _log.warning("%s: %s", self.name, error)
            return self._lost(trainer.network)
        self.tell(0.98, f"{self.name}, measuring")
        network, averaged = trainer.network.eval(), trainer.averaged
        columns = [name for name in history.columns if name not in _UNKEPT]
        found = {
            "n_parameters": sum(p.numel() for p in network.parameters()),
            "n_classes": self.n_classes,
            **self._describe(network),
            "averaged": None if averaged is None else self._describe(averaged),
            "untrained": self._untrained_result(),
            "seconds": history.seconds,
            "history": history_columns(history, columns),
            "exact": self.data.exact,
            "origin": self.data.origin,
        }
        self.tell(1.0, f"{self.name}, done")
        return round_all(_replace_nonfinite(found))

    def _lost(self, network: nn.Module) -> dict[str, Any]:
        """Return the result of a run whose loss was lost: no number in it."""
        numbers = [*_ACCURACIES, *GEOMETRY, ANSWER]
        return {
            "n_parameters": sum(p.numel() for p in network.parameters()),
            "n_classes": self.n_classes,
            **dict.fromkeys(numbers), "places": {}, "places_test": {},
            "averaged": None, "untrained": None, "seconds": None,
            "history": {"columns": {"epoch": []}},
            "exact": self.data.exact, "origin": self.data.origin,
        }  # fmt: skip

    def _start(self) -> nn.Module:
        """Return the network of a seed before training: the same for every subset."""
        return network_named(
            self.run["network"], n_classes=self.n_classes,
            n_channels=self.data.x_train.shape[1],
            generator=torch.Generator().manual_seed(self.run.seed),
        )  # fmt: skip

    def _untrained_result(self) -> dict[str, Any] | None:
        if not self.run.settings.get("control", False):
            return None
        start = self._start().to(self.context.device)
        return self._geometry(calibrated(start, self.data.x_train))

    def _follow(self, epoch: int, row: Mapping[str, float] | None) -> None:
        """Say where training is; training is all but the last hundredths."""
        if row is not None:
            numbers = (form.format(row[name]) for name, form in _SPOKEN.items())
            self._last = f"; after {epoch}: {', '.join(numbers)}"
        words = f"{self.name}, epoch {epoch} of {self.recipe.epochs}{self._last}"
        self.tell(0.98 * epoch / max(1, self.recipe.epochs), words)

    def _describe(self, network: nn.Module) -> dict[str, Any]:
        """Return accuracies and geometry of a trained network."""
        data = self.data
        attack, nearby = self.run["attack"], self.run.settings.get("nearby")
        test = evaluate(network, data.x_test, data.y_test, **attack)
        close: Mapping[str, float | None] = {}
        if nearby is not None:
            close = evaluate(network, data.x_test, data.y_test, **nearby)
        validation: Mapping[str, float | None] = {}
        if len(data.y_validation):
            validation = evaluate(
                network, data.x_validation, data.y_validation, **(nearby or attack)
            )
        return {
            "train_accuracy": _accuracy(network, data.x_train, data.y_train),
            "test_accuracy": test["accuracy"],
            "robust_accuracy": test["robust_accuracy"],
            "nearby_accuracy": close.get("robust_accuracy"),
            "validation_accuracy": validation.get("accuracy"),
            "validation_robust_accuracy": validation.get("robust_accuracy"),
            **self._geometry(network),
        }

    def _geometry(self, network: nn.Module) -> dict[str, Any]:
        """Return the geometry at training images, and of each place at test images."""
        data, n, places = self.data, self.run["n_measured"], self.run["places"]
        train = geometry_by_place(
            network, data.x_train[:n], data.y_train[:n], places=[None, *places]
        )
        whole = train.pop(None)
        test = {}
        if places:
            test = geometry_by_place(
                network, data.x_test[:n], data.y_test[:n], places=places
            )
        return {**whole, "places": train, "places_test": test}


class _Watch:
    """What is told of a network on its way, in little time.

    The attack is short and in the precision of training.
    """

    def __init__(self, run: Run, recipe: Recipe, data: Pictures) -> None:
        self.run, self.recipe, self.data = run, recipe, data

    def describe(self) -> dict[str, Any]:
        """Return what decides the numbers, beside what the trainer knows itself."""
        return self.run.to_dict()

    def __call__(self, network: nn.Module) -> dict[str, float]:
        data, n = self.data, min(WATCHED, self.run["n_measured"])
        steps = min(WATCHED_STEPS, self.run["attack"]["n_steps"])
        found = geometry_by_place(
            network, data.x_train[:n], data.y_train[:n], places=[None]
        )
        attacked = evaluate(
            network, data.x_test[:WATCHED], data.y_test[:WATCHED],
            radius=self.run["attack"]["radius"], n_steps=steps,
            precision=self.recipe.precision,
        )  # fmt: skip
        return {
            "train_accuracy": _accuracy(network, data.x_train, data.y_train),
            "test_accuracy": _accuracy(network, data.x_test, data.y_test),
            ROUGH: attacked["robust_accuracy"],
            **found[None],
        }


def _looked_at(epochs: int, count: int) -> frozenset[int]:
    """Return about so many epochs; fewer than three are the start and the end."""
    return log_spaced(epochs, count) if count > 2 else frozenset({0, epochs})


def _accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        outputs = torch.cat([network(part) for part in x.split(_AT_ONCE)])
    return float(accuracy(outputs, y))


def _to_device(data: Pictures, device: torch.device) -> Pictures:
    tensors = {
        name: value.to(device)
        for name, value in vars(data).items()
        if isinstance(value, Tensor)
    }
    return Pictures(**tensors, exact=data.exact, origin=data.origin)


def _replace_nonfinite(value: Any) -> Any:
    """Return a result in which numbers that are not finite are ``None``."""
    if isinstance(value, dict):
        return {name: _replace_nonfinite(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
