"""A transformer that learns to add modulo p, and the centroids of its map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from normalign.data import Dataset, modular_addition
from normalign.nn import Transformer
from normalign.training import (
    Ensemble,
    Member,
    Stack,
    measures,
    rules,
    stacked_centroid_alignment,
)
from normalign_reproduction.context import Context
from normalign_reproduction.spec import Run
from normalign_reproduction.training import (
    group_alike,
    history_columns,
    log_spaced,
    train_ensembles,
)

__all__ = ["batches", "compute", "exact_cross_entropy"]

COLUMNS = (
    "train_loss", "train_accuracy", "test_loss", "test_accuracy",
    "centroid_alignment", "centroid_magnitude", "answer_alignment", "token_alignment",
)  # fmt: skip


def exact_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross-entropy, in float64 whatever the logits are.

    Late in training losses lie below what float32 resolves, and its rounding gives
    spikes.

    Examples
    --------
    >>> exact_cross_entropy(torch.zeros(1, 4), torch.tensor([2])).dtype
    torch.float64
    """
    return cross_entropy(output.double(), target)


def batches(runs: Sequence[Run], device: torch.device) -> list[list[Run]]:
    """Return all seeds together on CUDA, each one alone on a CPU: it fills a core."""
    return group_alike(runs, any_seed=device.type == "cuda")


def compute(batch: Sequence[Run], context: Context) -> list[dict[str, Any]]:
    """Return the curves of each run: accuracies, and alignment of the centroids.

    The map is from the embedded tokens, positions included, to the logits at the last;
    alignment is the mean over the first ``n_measured`` training pairs, and beside the
    centroids' there is that of the right answer's row. ``token_alignment`` is the
    authors' measure: the signed cosine of the centroid and the token embeddings
    without positions, over all training pairs.
    """
    first, n = batch[0], batch[0]["n_measured"]
    data = [_pairs(run) for run in batch]
    rule = rules.AdamW(
        first["learning_rate"], beta1=first["beta1"], beta2=first["beta2"],
        weight_decay=first["weight_decay"],
    )  # fmt: skip
    evaluated = log_spaced(first["steps"], first["n_evaluated"])
    ensemble = Ensemble(
        [_start(run) for run in batch], data,
        [Member(run.seed, rule) for run in batch],
        loss=exact_cross_entropy, epochs=first["steps"],
        evaluate=evaluated.__contains__,
        measure=measures(
            stacked_centroid_alignment(
                [d.x_train[:n] for d in data], [d.y_train[:n] for d in data],
                at="blocks",
            ),
            _TokenAlignment([d.x_train for d in data]),
        ),
        device=context.device,
    )  # fmt: skip
    (trained,) = train_ensembles([ensemble], context, names=["modular-addition"])
    return [
        {"history": history_columns(one.history, COLUMNS), "stopped": one.stopped}
        for one in trained
    ]


class _TokenAlignment:
    """The authors' measure; a class, so that a checkpoint can identify it."""

    def __init__(self, x: Sequence[Tensor]) -> None:
        # At an embedding the map begins at its output, before positions are added.
        self.alignment = stacked_centroid_alignment(x, at="embed")

    def __call__(self, stack: Stack) -> dict[str, Tensor]:
        return {"token_alignment": self.alignment(stack)["centroid_alignment"]}


def _pairs(run: Run) -> Dataset:
    return modular_addition(
        modulus=run["modulus"], train_fraction=run["train_fraction"],
        encoding="tokens", seed=run.seed,
    )  # fmt: skip


def _start(run: Run) -> Transformer:
    # The equals sign has a logit too, as in the reference's pipeline.
    size = run["modulus"] + 1
    return Transformer(
        size, size, width=run["width"], n_heads=run["n_heads"], hidden=run["hidden"],
        generator=torch.Generator().manual_seed(run.seed),
    )  # fmt: skip
