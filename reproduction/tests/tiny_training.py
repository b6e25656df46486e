"""A real training run of seconds, for tests that kill it and let it go on."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from normalign.data import xor_clusters
from normalign.nn import mlp
from normalign.training import Ensemble, Member, rules
from normalign_reproduction.training import train_ensembles

NAME = "tests.tiny_training"


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
        networks,
        task,
        members,
        loss="squared_error",
        epochs=epochs,
        batch_size=16,
        evaluate=lambda epoch: epoch % 2 == 0,
        device=context.device,
    )

    def slowly(share, words):
        """Take two seconds in all on any machine: time enough to be killed in."""
        time.sleep(0.015)
        context.progress(share, words)

    slow = replace(context, progress=slowly)
    (trained,) = train_ensembles([ensemble], slow, names=["xor"])
    return [{"history": run.history.to_dict()["columns"]} for run in trained]
