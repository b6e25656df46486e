"""Ensembles of one batch, trained together: kept, resumed, and heard on the way."""

from __future__ import annotations

from collections.abc import Sequence

from normalign.paper.context import Context
from normalign.training import Ensemble, Trained, train_together

__all__ = ["trained_together"]


def trained_together(
    ensembles: Sequence[Ensemble], context: Context, *, names: Sequence[str]
) -> list[list[Trained]]:
    """Train the ensembles of a batch to their end, from their checkpoints if any.

    Parameters
    ----------
    names : sequence of str
        What each ensemble is called in the progress, and in its checkpoint's name.

    Raises
    ------
    KeyboardInterrupt
        If it was interrupted; the checkpoints are written then.
    """
    done = [[0.0] * len(ensemble.members) for ensemble in ensembles]
    total = sum(len(row) for row in done)

    def follow(e: int, i: int, row: dict[str, float]) -> None:
        plan = ensembles[e].plan
        ended = plan.until is not None and plan.until(row)
        done[e][i] = 1.0 if ended else row["epoch"] / max(1, plan.epochs)
        words = f"{names[e]}, epoch {int(row['epoch'])}"
        context.progress(sum(map(sum, done)) / total, words)

    base = context.checkpoint
    base.parent.mkdir(parents=True, exist_ok=True)
    trained = train_together(
        ensembles,
        checkpoints=[base.with_name(f"{base.name}.{n}.safetensors") for n in names],
        checkpoint_seconds=context.checkpoint_seconds,
        callback=follow,
    )
    if any(run.stopped == "interrupted" for runs in trained for run in runs):
        raise KeyboardInterrupt
    return trained
