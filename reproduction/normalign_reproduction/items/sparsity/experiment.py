"""Fully connected networks on augmented digits: how density undoes alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from normalign.data import MNIST_MEAN, MNIST_STD, Dataset
from normalign.nn import mlp
from normalign.regularizers import PenaltyForm
from normalign.training import Augmented, Ensemble, Member, rules, stacked_geometry
from normalign_reproduction.context import Context
from normalign_reproduction.data.digits import digits
from normalign_reproduction.spec import Run
from normalign_reproduction.training import (
    group_alike,
    history_columns,
    log_spaced,
    train_ensembles,
)

__all__ = ["batches", "compute"]

COLUMNS = (
    "train_loss", "train_accuracy", "test_accuracy", "normal_alignment",
    "effective_rank", "alignment_ratio", "jacobian_norm",
)  # fmt: skip


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return everything together on CUDA, else all strengths of one seed.

    On a CPU two processes of one thread each are faster than one process of two.
    """
    on_cuda = device.type == "cuda"
    return group_alike(runs, but_for=("strength",), any_seed=on_cuda)


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return the curves of each run, over epochs and over training steps.

    Local geometry is the mean over the first ``n_measured`` training images, without
    augmentation.
    """
    first = batch[0]
    data = digits(
        first.data, n_train=first["n_train"], n_test=first["n_test"],
        normalise=first["normalise"],
    )  # fmt: skip
    evaluated = log_spaced(first["epochs"], first["n_evaluated"])
    augmented = Augmented(
        [run["strength"] for run in batch], shape=(1, 28, 28),
        max_degrees=first["max_degrees"], max_shift=first["max_shift"],
        noise=first["noise"], fill=-MNIST_MEAN / MNIST_STD if first["normalise"] else 0,
    )  # fmt: skip
    ensemble = Ensemble(
        [_start(run, data) for run in batch], data, [_member(run) for run in batch],
        loss="cross_entropy", epochs=first["epochs"], batch_size=first["batch_size"],
        evaluate=evaluated.__contains__, prepare=augmented,
        measure=stacked_geometry(data.x_train[: first["n_measured"]]),
        device=context.device,
    )  # fmt: skip
    (trained,) = train_ensembles([ensemble], context, names=["augmentation"])
    steps = -(-first["n_train"] // first["batch_size"])  # of an epoch
    results = []
    for one in trained:
        history = history_columns(one.history, COLUMNS)
        epochs = history["columns"]["epoch"]
        history["columns"]["step"] = [steps * epoch for epoch in epochs]
        results.append({"history": history, "stopped": one.stopped})
    return results


def _start(run: Run, data: Dataset) -> nn.Module:
    """Return the network of a seed: the same for every strength."""
    return mlp(
        [data.x_train.shape[1], *run["hidden"], 10],
        generator=torch.Generator().manual_seed(run.seed),
    )


def _member(run: Run) -> Member:
    return Member(
        run.seed,
        rules.AdamW(run["learning_rate"], weight_decay=run["weight_decay"]),
        weight=run["weight"],
        penalty=PenaltyForm(power=run["power"], released=run["power"] == 1),
    )
