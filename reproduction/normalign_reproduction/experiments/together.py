"""Which runs are one batch, and its ensembles trained: kept, resumed, and heard."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from normalign.training import Ensemble, Trained, train_together
from normalign_reproduction.context import Context
from normalign_reproduction.spec import Run

__all__ = ["alike", "trained_together"]


def alike(
    runs: Sequence[Run], *, but_for: Collection[str] = (), any_seed: bool = True
) -> list[list[Run]]:
    """Return the runs in groups that agree in everything but some settings.

    Parameters
    ----------
    but_for : collection of str
        The settings in which the runs of a group may differ.
    any_seed : bool
        Whether they may differ in their seeds.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        common = {n: v for n, v in run.settings.items() if n not in but_for}
        seed = None if any_seed else run.seed
        others = {**run.to_dict(), "settings": common, "seed": seed}
        groups.setdefault(repr(sorted(others.items())), []).append(run)
    return list(groups.values())


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
