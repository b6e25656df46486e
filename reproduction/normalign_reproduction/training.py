"""What experiments that train networks share: groups, epochs to evaluate, rounding."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from normalign.training import Ensemble, History, Trained, train_together
from normalign_reproduction.context import Context
from normalign_reproduction.spec import Run

__all__ = [
    "group_alike",
    "history_columns",
    "log_spaced",
    "round_all",
    "round_digits",
    "train_ensembles",
]

# More significant digits than a figure shows, fewer than rounding errors change.
DIGITS = 6


def group_alike(
    runs: Sequence[Run], *, but_for: Collection[str] = (), any_seed: bool = True
) -> list[list[Run]]:
    """Return the runs in groups that differ in some settings only.

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
        key = {**run.to_dict(), "settings": common, "seed": seed}
        groups.setdefault(repr(sorted(key.items())), []).append(run)
    return list(groups.values())


def train_ensembles(
    ensembles: Sequence[Ensemble], context: Context, *, names: Sequence[str]
) -> list[list[Trained]]:
    """Train the ensembles of a batch, from their checkpoints if there are any.

    On Ctrl-C the checkpoints are written and a ``KeyboardInterrupt`` is raised.

    Parameters
    ----------
    names : sequence of str
        The name of each ensemble in its progress and checkpoint.
    """
    done = [[0.0] * len(ensemble.members) for ensemble in ensembles]
    n_members = sum(len(shares) for shares in done)

    def report(e: int, i: int, row: dict[str, float]) -> None:
        plan = ensembles[e].plan
        is_over = plan.until is not None and plan.until(row)
        done[e][i] = 1.0 if is_over else row["epoch"] / max(1, plan.epochs)
        words = f"{names[e]}, epoch {int(row['epoch'])}"
        context.progress(sum(map(sum, done)) / n_members, words)

    base = context.checkpoint
    base.parent.mkdir(parents=True, exist_ok=True)
    trained = train_together(
        ensembles,
        checkpoints=[base.with_name(f"{base.name}.{n}.safetensors") for n in names],
        checkpoint_seconds=context.checkpoint_seconds,
        callback=report,
    )
    if any(run.stopped == "interrupted" for runs in trained for run in runs):
        raise KeyboardInterrupt
    return trained


def log_spaced(epochs: int, count: int) -> frozenset[int]:
    """Return about ``count`` epochs, even on a logarithmic axis, with 0 and the last.

    There are fewer where the steps are smaller than one epoch.

    Examples
    --------
    >>> sorted(log_spaced(8, 5))
    [0, 1, 2, 4, 8]
    """
    steps = range(count - 1)
    return frozenset({0, *(round(epochs ** (i / (count - 2))) for i in steps)})


def round_digits(value: float) -> float:
    """Return a number with six significant digits; infinity and NaN are unchanged.

    Examples
    --------
    >>> round_digits(2 / 3), round_digits(float("inf"))
    (0.666667, inf)
    """
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value


def round_all(value: Any) -> Any:
    """Return a result whose every real number has six significant digits.

    Examples
    --------
    >>> round_all({"n": 3, "shares": [2 / 3, None]})
    {'n': 3, 'shares': [0.666667, None]}
    """
    if isinstance(value, dict):
        return {name: round_all(part) for name, part in value.items()}
    if isinstance(value, list):
        return [round_all(part) for part in value]
    return round_digits(value) if isinstance(value, float) else value


def history_columns(history: History, names: Sequence[str]) -> dict[str, Any]:
    """Return some columns of a history, and its epochs, rounded, for a result.

    Seconds are left out, since they differ when the same run is repeated.
    """
    columns = {name: [round_digits(v) for v in history[name]] for name in names}
    stored = History({"epoch": history["epoch"], **columns}).to_dict()
    return {"columns": stored["columns"]}
