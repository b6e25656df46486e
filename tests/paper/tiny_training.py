"""A real training run of seconds, for tests that kill it and let it go on."""

from __future__ import annotations

import torch

from normalign.data import xor_clusters
from normalign.nn import mlp
from normalign.paper.experiments.together import trained_together
from normalign.training import Ensemble, Member, rules

NAME = "tests.paper.tiny_training"


def batches(runs, device):
    return [list(runs)]


def compute(batch, context):
    task = xor_clusters(n_train=64, n_test=64, n_inputs=20)
    epochs = batch[0]["steps"]
    networks = [
        mlp([20, 32, 1], generator=torch.Generator().manual_seed(run.seed))
        for run in batch
    ]
    members = [
        Member(run.seed, rules.AdamW(1e-3), weight=0.01 * run["group"]) for run in batch
    ]
    ensemble = Ensemble(
        networks, task, members, loss="squared_error", epochs=epochs, batch_size=16,
        evaluate=lambda epoch: epoch % 2 == 0, device=context.device,
    )  # fmt: skip
    (trained,) = trained_together([ensemble], context, names=["xor"])
    return [{"history": run.history.to_dict()["columns"]} for run in trained]
