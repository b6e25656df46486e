"""Gaussian kernel logistic regression on blobs, watched while it aligns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.func import functional_call

from normalign.data import Dataset, gaussian_blobs
from normalign.nn import GaussianKernelLogistic
from normalign.training import Ensemble, Member, rules, stacked_geometry
from normalign_reproduction._errors import require
from normalign_reproduction.context import Context
from normalign_reproduction.spec import Run
from normalign_reproduction.training import (
    group_alike,
    history_columns,
    log_spaced,
    train_ensembles,
)

__all__ = ["CoupledDecay", "batches", "compute"]

COLUMNS = (
    "train_loss", "train_accuracy", "test_accuracy", "normal_alignment",
    "effective_rank", "alignment_ratio", "jacobian_norm",
)  # fmt: skip
DECAYS = ("coupled", "decoupled")


class _Decayed(torch.autograd.Function):
    """The identity, whose gradients have the weight decay added to them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(decay: float, *parameters: Tensor) -> tuple[Tensor, ...]:
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.decay, *parameters = inputs
        ctx.save_for_backward(*parameters)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(grads, ctx.saved_tensors, strict=True)
        return None, *(grad + ctx.decay * parameter for grad, parameter in pairs)


class CoupledDecay(nn.Module):
    r"""A network whose every gradient has its weight decay in it, as Adam takes it.

    .. math:: \hat g = g + \text{decay}\,\theta

    Stepped by ``AdamW`` without a decay of its own it goes the way of
    ``torch.optim.Adam(weight_decay=decay)``, once for each backward pass. The outputs
    and their derivatives in the inputs are those of the network.

    Parameters
    ----------
    network : torch.nn.Module
    decay : float

    Examples
    --------
    >>> network = CoupledDecay(nn.Linear(1, 1, bias=False), decay=0.5)
    >>> _ = nn.init.constant_(network.network.weight, 4.0)
    >>> network(torch.ones(1, 1)).sum().backward()
    >>> network.network.weight.grad
    tensor([[3.]])
    """

    def __init__(self, network: nn.Module, *, decay: float) -> None:
        super().__init__()
        self.network, self.decay = network, decay

    def forward(self, x: Tensor) -> Tensor:
        """Return what the network returns."""
        names, parameters = zip(*self.network.named_parameters(), strict=True)
        # All in one go: each call costs more than these small networks' own steps.
        decayed = _Decayed.apply(self.decay, *parameters)
        named = dict(zip(names, decayed, strict=True))
        return functional_call(self.network, named, (x,))


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return all seeds of one number of classes together: the outputs are as many."""
    return group_alike(runs)


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return the curves of each run: accuracy, alignment and effective rank.

    Local geometry is the mean over the first ``n_measured`` training points.
    """
    first = batch[0]
    data = [_blobs(run) for run in batch]
    networks = [_start(run, blobs) for run, blobs in zip(batch, data, strict=True)]
    known = first["decay_kind"] in DECAYS
    rule = " or ".join(map(repr, DECAYS))
    require(known, "kernel_logistic", "decay_kind", rule, repr(first["decay_kind"]))
    decay = first["weight_decay"]
    if first["decay_kind"] == "coupled":
        networks = [CoupledDecay(network, decay=decay) for network in networks]
        decay = 0.0
    rule = rules.AdamW(first["learning_rate"], weight_decay=decay)
    points = [blobs.x_train[: first["n_measured"]] for blobs in data]
    evaluated = log_spaced(first["epochs"], first["n_evaluated"])
    ensemble = Ensemble(
        networks, data, [Member(run.seed, rule) for run in batch],
        loss="cross_entropy", epochs=first["epochs"], evaluate=evaluated.__contains__,
        measure=stacked_geometry(points), device=context.device,
    )  # fmt: skip
    name = f"classes-{first['n_classes']}"
    (trained,) = train_ensembles([ensemble], context, names=[name])
    return [
        {"history": history_columns(one.history, COLUMNS), "stopped": one.stopped}
        for one in trained
    ]


def _blobs(run: Run) -> Dataset:
    return gaussian_blobs(
        n_samples=run["n_samples"], n_inputs=run["n_inputs"],
        n_classes=run["n_classes"], std=run["std"], box=run["box"],
        train_fraction=run["train_fraction"], seed=run.seed,
    )  # fmt: skip


def _start(run: Run, blobs: Dataset) -> nn.Module:
    """Return a model whose centers are the means of clusters of its training points."""
    clusters = KMeans(run["n_centers"], n_init="auto", random_state=run.seed)
    centers = clusters.fit(blobs.x_train.numpy()).cluster_centers_
    return GaussianKernelLogistic(
        run["n_inputs"], run["n_classes"], run["n_centers"], run["gamma"],
        centers=torch.as_tensor(centers, dtype=blobs.x_train.dtype),
        generator=torch.Generator().manual_seed(run.seed),
    )  # fmt: skip
