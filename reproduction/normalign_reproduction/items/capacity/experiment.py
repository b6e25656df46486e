"""Residual networks trained against attacks, and their geometry after training."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
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
from normalign_reproduction.training import history_columns, log_spaced, round_all

__all__ = ["batches", "compute", "recipe_of"]

_log = logging.getLogger(__name__)

# During training, the images that are measured and the most steps of their attack.
N_WATCHED, WATCHED_STEPS = 200, 10
_BATCH_SIZE = 500


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return each run alone, the longest first."""

    def cost(run: Run) -> float:
        recipe = recipe_of(run)
        passes = recipe.epochs * (recipe.n_steps + 2) * run["n_train"]
        return passes * network_cost(run["network"])

    return [[run] for run in sorted(runs, key=cost, reverse=True)]


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return accuracies and geometry of the network that each run trains.

    Geometry is the mean over the first ``n_measured`` training images, not augmented,
    of the map from the input, and of those from the inputs of ``places``; with
    ``control`` also of the network before training, once its normalisation has the
    statistics of the training images. Robust accuracies are under ``attack``; with
    ``nearby``, a weaker attack, there is another one under that, which then attacks the
    validation images, too. All numbers are of the final weights and of their average.
    Numbers of a diverged run, and others that are not finite, are ``None``.
    """
    results = []
    for i, run in enumerate(batch):

        def progress(share: float, words: str, i: int = i) -> None:
            context.progress((i + share) / len(batch), words)

        results.append(_train_and_measure(run, context, progress))
    return results


def recipe_of(run: Run) -> Recipe:
    """Return the recipe of a run, with the changes of a smaller size.

    The changes are in the setting ``shortened``. If they have ``steps``, the recipe has
    as many epochs as make about that number of steps.
    """
    changes = dict(run.settings.get("shortened", {}))
    steps = changes.pop("steps", None)
    recipe = Recipe(**{**run["recipe"], **changes})
    if steps is None:
        return recipe
    steps_per_epoch = math.ceil(run["n_train"] / recipe.batch_size)
    return replace(recipe, epochs=max(1, steps // steps_per_epoch))


def _train_and_measure(
    run: Run, context: Context, progress: Callable[[float, str], None]
) -> dict[str, Any]:
    """Return the result of a run."""
    recipe, base = recipe_of(run), context.checkpoint
    data = pictures(
        run["images"],
        run.data,
        n_train=run["n_train"],
        n_test=run["n_test"],
        n_validation=run["n_validation"],
        pooled=run.settings.get("pooled", 1),
    ).to(context.device)
    n_classes = len(data.y_train.unique())
    epochs, n_evaluated = recipe.epochs, run["n_evaluated"]
    evaluated = log_spaced(epochs, n_evaluated) if n_evaluated > 2 else {epochs}
    name, measured = f"{run['network']}, {run['n_train']} images", ""

    def untrained_network() -> nn.Module:
        """Return the network of a seed, the same for every subset."""
        return network_named(
            run["network"],
            n_classes=n_classes,
            n_channels=data.x_train.shape[1],
            generator=torch.Generator().manual_seed(run.seed),
        )

    def follow(epoch: int, row: Mapping[str, float] | None) -> None:
        nonlocal measured
        if row is not None:
            measured = (
                f"; after {epoch}: train {row['train_accuracy']:.0%}, "
                f"test {row['test_accuracy']:.0%}, "
                f"robust {row['rough_robust_accuracy']:.0%}, "
                f"alignment {row['normal_alignment']:.3f}"
            )
        words = f"{name}, epoch {epoch} of {epochs}{measured}"
        progress(0.98 * epoch / epochs, words)

    base.parent.mkdir(parents=True, exist_ok=True)
    trainer = RobustTrainer(
        untrained_network(),
        data.x_train,
        data.y_train,
        recipe,
        seed=run.seed,
        device=context.device,
    )
    facts = {
        "n_parameters": sum(p.numel() for p in trainer.network.parameters()),
        "n_classes": n_classes,
        "exact": data.exact,
        "origin": data.origin,
    }
    try:
        history = trainer.train(
            evaluate=evaluated.__contains__,
            measure=_Watch(run, recipe, data),
            checkpoint=base.with_name(f"{base.name}.{run.key}.safetensors"),
            checkpoint_seconds=context.checkpoint_seconds,
            progress=follow,
        )
    except TrainingDiverged as error:
        _log.warning("%s: %s", name, error)
        numbers = dict.fromkeys([*_ACCURACIES, *GEOMETRY, ANSWER])
        rest = dict.fromkeys(["averaged", "untrained", "seconds"])
        empty = {"places": {}, "places_test": {}, "history": {"columns": {"epoch": []}}}
        return {**facts, **numbers, **rest, **empty}
    progress(0.98, f"{name}, measuring")
    averaged, untrained = trainer.averaged, None
    if run.settings.get("control", False):
        start = untrained_network().to(context.device)
        untrained = _geometry(calibrated(start, data.x_train), data, run)
    unneeded = ("epoch", "seconds", "learning_rate")
    columns = [column for column in history.columns if column not in unneeded]
    result = {
        **facts,
        **_describe(trainer.network.eval(), data, run),
        "averaged": None if averaged is None else _describe(averaged, data, run),
        "untrained": untrained,
        "seconds": history.seconds,
        "history": history_columns(history, columns),
    }
    progress(1.0, f"{name}, done")
    return round_all(_nonfinite_to_none(result))


_ACCURACIES = (
    "train_accuracy",
    "test_accuracy",
    "robust_accuracy",
    "nearby_accuracy",
    "validation_accuracy",
    "validation_robust_accuracy",
)


def _describe(network: nn.Module, data: Pictures, run: Run) -> dict[str, Any]:
    """Return accuracies and geometry of a trained network."""
    attack, nearby = run["attack"], run.settings.get("nearby")
    test = evaluate(network, data.x_test, data.y_test, **attack)
    close = validation = {}
    if nearby is not None:
        close = evaluate(network, data.x_test, data.y_test, **nearby)
    if len(data.y_validation):
        validation = evaluate(
            network, data.x_validation, data.y_validation, **(nearby or attack)
        )
    accuracies = (
        _accuracy(network, data.x_train, data.y_train),
        test["accuracy"],
        test["robust_accuracy"],
        close.get("robust_accuracy"),
        validation.get("accuracy"),
        validation.get("robust_accuracy"),
    )
    geometry = _geometry(network, data, run)
    return {**dict(zip(_ACCURACIES, accuracies, strict=True)), **geometry}


def _geometry(network: nn.Module, data: Pictures, run: Run) -> dict[str, Any]:
    """Return the geometry at training images, of places also at test images."""
    n, places, test = run["n_measured"], run["places"], {}
    train = geometry_by_place(
        network, data.x_train[:n], data.y_train[:n], places=[None, *places]
    )
    if places:
        test = geometry_by_place(
            network, data.x_test[:n], data.y_test[:n], places=places
        )
    return {**train.pop(None), "places": train, "places_test": test}


class _Watch:
    """Quick measurements during training: a short attack in the training precision."""

    def __init__(self, run: Run, recipe: Recipe, data: Pictures) -> None:
        self.run, self.recipe, self.data = run, recipe, data

    def describe(self) -> dict[str, Any]:
        """Return what decides the numbers, for the identity of a checkpoint."""
        return self.run.to_dict()

    def __call__(self, network: nn.Module) -> dict[str, float]:
        data, attack = self.data, self.run["attack"]
        n = min(N_WATCHED, self.run["n_measured"])
        geometry = geometry_by_place(
            network, data.x_train[:n], data.y_train[:n], places=[None]
        )
        rough = evaluate(
            network,
            data.x_test[:N_WATCHED],
            data.y_test[:N_WATCHED],
            radius=attack["radius"],
            n_steps=min(WATCHED_STEPS, attack["n_steps"]),
            precision=self.recipe.precision,
        )
        return {
            "train_accuracy": _accuracy(network, data.x_train, data.y_train),
            "test_accuracy": _accuracy(network, data.x_test, data.y_test),
            # Weaker than the attack at the end, so its name is another.
            "rough_robust_accuracy": rough["robust_accuracy"],
            **geometry[None],
        }


def _accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        outputs = torch.cat([network(part) for part in x.split(_BATCH_SIZE)])
    return float(accuracy(outputs, y))


def _nonfinite_to_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _nonfinite_to_none(part) for name, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
