"""Adversarial training under a penalty on the Jacobian: what a zero Jacobian costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from normalign.data import Dataset
from normalign.nn import mlp
from normalign.regularizers import PenaltyForm
from normalign.training import (
    Attacked,
    Ensemble,
    Member,
    measures,
    robust_accuracy,
    rules,
    stacked_geometry,
)
from normalign_reproduction.context import Context
from normalign_reproduction.data.digits import digits
from normalign_reproduction.spec import Run
from normalign_reproduction.training import (
    group_alike,
    history_columns,
    train_ensembles,
)

__all__ = ["batches", "compute"]

COLUMNS = (
    "train_loss", "train_accuracy", "test_accuracy", "robust_accuracy",
    "jacobian_norm", "offset_norm", "normal_alignment",
)  # fmt: skip


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return everything together on CUDA, else all weights of one seed.

    On a CPU two processes of one thread each are faster than one process of two.
    """
    on_cuda = device.type == "cuda"
    return group_alike(runs, but_for=("gamma",), any_seed=on_cuda)


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return the curves of each run.

    Norms are means over the first ``n_measured`` training images, without an attack;
    accuracies are shares of test images, the robust one of the first ``n_attacked``.
    """
    first = batch[0]
    data = digits(
        first.data, n_train=first["n_train"], n_test=first["n_test"], normalise=False
    )
    every = first["evaluate_every"]
    # The range of pixels: no attack leaves it.
    attack = {"radius": first["radius"], "low": 0.0, "high": 1.0}
    n = first["n_attacked"]
    ensemble = Ensemble(
        [_start(run, data) for run in batch], data, [_member(run) for run in batch],
        loss="cross_entropy", epochs=first["epochs"], batch_size=first["batch_size"],
        evaluate=lambda epoch: epoch % every == 0,
        prepare=Attacked(n_steps=first["attack_steps"], **attack),
        measure=measures(
            stacked_geometry(data.x_train[: first["n_measured"]]),
            robust_accuracy(
                data.x_test[:n], data.y_test[:n], n_steps=first["test_steps"], seed=0,
                **attack,
            ),
        ),
        device=context.device,
    )  # fmt: skip
    (trained,) = train_ensembles([ensemble], context, names=["gammas"])
    return [
        {"history": history_columns(one.history, COLUMNS), "stopped": one.stopped}
        for one in trained
    ]


def _start(run: Run, data: Dataset) -> nn.Module:
    """Return the network of a seed: the same for every weight."""
    return mlp(
        [data.x_train.shape[1], *run["hidden"], 10],
        generator=torch.Generator().manual_seed(run.seed),
    )


def _member(run: Run) -> Member:
    return Member(
        run.seed,
        rules.AdamW(run["learning_rate"], weight_decay=run["weight_decay"]),
        weight=run["gamma"],
        penalty=PenaltyForm(power=2, offset=False),
    )
