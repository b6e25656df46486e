"""Regularizers compared on digits: one network, four penalties, many weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from normalign.data import MNIST_MEAN, MNIST_STD, Dataset
from normalign.nn import mlp
from normalign.regularizers import PenaltyForm
from normalign.training import (
    Ensemble,
    Measure,
    Member,
    measures,
    robust_accuracy,
    rules,
    stacked_geometry,
)
from normalign_reproduction._errors import require
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
    "train_accuracy", "test_accuracy", "robust_accuracy", "normal_alignment",
    "effective_rank", "jacobian_norm",
)  # fmt: skip
STRATEGIES = ("baseline", "input", "output", "orthogonal", "nuclear")
# What may differ between the networks of one ensemble.
VARIANT = ("strategy", "n_probes", "weight")


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return everything together on CUDA, else what shares its kernels.

    Those are the runs of one strategy and number of probes: all weights and seeds.
    """
    apart = VARIANT if device.type == "cuda" else ("weight",)
    return group_alike(runs, but_for=apart)


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return the curves of each run, and why its training ended.

    Local geometry is the mean over the first ``n_measured`` training images; robust
    accuracy is that of test images.
    """
    first = batch[0]
    data = digits(first.data, n_train=first["n_train"], n_test=first["n_test"])
    evaluated = log_spaced(first["epochs"], first["n_evaluated"])
    ensemble = Ensemble(
        [_start(run, data) for run in batch], data, [_member(run) for run in batch],
        loss="cross_entropy", epochs=first["epochs"], batch_size=first["batch_size"],
        evaluate=evaluated.__contains__, measure=_measure(first, data),
        device=context.device,
    )  # fmt: skip
    (trained,) = train_ensembles([ensemble], context, names=[_name(batch)])
    return [
        {"history": history_columns(one.history, COLUMNS), "stopped": one.stopped}
        for one in trained
    ]


def _name(batch: Sequence[Run]) -> str:
    """Return what the batch has in common, in a word."""
    strategies = {run["strategy"] for run in batch}
    probes = {run["n_probes"] for run in batch}
    if len(strategies) > 1:
        return "regularizers"
    (strategy,) = strategies
    return f"{strategy}-{probes.pop()}" if len(probes) == 1 else strategy


def _start(run: Run, data: Dataset) -> nn.Module:
    """Return the network of a seed: the same for every strategy."""
    return mlp(
        [data.x_train.shape[1], *run["hidden"], 10], init_scale=run["init_scale"],
        generator=torch.Generator().manual_seed(run.seed),
    )  # fmt: skip


def _member(run: Run) -> Member:
    rule = f"one of {', '.join(STRATEGIES)}"
    strategy = run["strategy"]
    require(strategy in STRATEGIES, "ablation", "strategy", rule, repr(strategy))
    optimizer = rules.AdamW(run["learning_rate"], weight_decay=run["weight_decay"])
    if strategy == "baseline":
        return Member(run.seed, optimizer)
    # The ablation's R is the squared norm alone, and its algorithms draw from N(0, I).
    form = PenaltyForm(
        estimator=strategy, power=2, offset=False, n_probes=run["n_probes"],
        probe="normal",
    )  # fmt: skip
    return Member(run.seed, optimizer, weight=run["weight"], penalty=form)


def _measure(run: Run, data: Dataset) -> Measure:
    """Return local geometry and robust accuracy, in units of normalised pixels."""
    n = run["n_attacked"]
    attack = robust_accuracy(
        data.x_test[:n], data.y_test[:n], n_steps=run["attack_steps"],
        radius=run["radius"] / MNIST_STD, low=(0 - MNIST_MEAN) / MNIST_STD,
        high=(1 - MNIST_MEAN) / MNIST_STD,
    )  # fmt: skip
    return measures(stacked_geometry(data.x_train[: run["n_measured"]]), attack)
