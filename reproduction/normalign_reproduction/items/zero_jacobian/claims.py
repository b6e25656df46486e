"""What the figure of Jacobians equal to zero claims, and what our runs say to it."""

from __future__ import annotations

import math
import statistics

from normalign_reproduction.claims import start_and_end
from normalign_reproduction.spec import Cell, Record, Records
from normalign_reproduction.statistics import column, group_by

__all__ = ["degrades", "grows", "settles", "vanishes"]

# Weights that the paper's text calls small and large; 10 is neither.
SMALL, LARGE = (0, 1), (100, 1000)
LEAST_GROWTH, MOST_LEFT, MOST_ACCURACY, MOST_DRIFT = 1.1, 0.1, 0.5, 0.1


def gammas(records: Records) -> dict[float, list[Record]]:
    """Return the runs of each weight, from small to large."""
    return {g: group for (g,), group in sorted(group_by(records, "gamma").items())}


def grows(records: Records) -> list[Cell]:
    """Return for each small weight whether the Jacobians grow."""
    verdicts = []
    for gamma, group in gammas(records).items():
        if gamma in SMALL:
            start, end = start_and_end(group, "jacobian_norm")
            why = f"{end / start:.3g} times its start, at least {LEAST_GROWTH:g}"
            holds, ours = end >= LEAST_GROWTH * start, f"{start:.3g} to {end:.3g}"
            verdicts.append(Cell(f"gamma = {gamma:g}", "rises", ours, holds, why))
    return verdicts


def vanishes(records: Records) -> list[Cell]:
    """Return for each large weight whether the Jacobians go to zero."""
    verdicts = []
    for gamma, group in gammas(records).items():
        if gamma in LARGE:
            start, end = start_and_end(group, "jacobian_norm")
            why = f"{end / start:.2g} of its start left, at most {MOST_LEFT:g}"
            holds, ours = end <= MOST_LEFT * start, f"{start:.3g} to {end:.3g}"
            verdicts.append(Cell(f"gamma = {gamma:g}", "zero", ours, holds, why))
    return verdicts


def degrades(records: Records) -> list[Cell]:
    """Return for each large weight whether accuracy is a fraction of that without."""
    groups, verdicts = gammas(records), []
    if 0 not in groups:
        return []
    for name in ("test_accuracy", "robust_accuracy"):
        _, free = start_and_end(groups[0], name)
        for gamma in (g for g in groups if g in LARGE):
            _, end = start_and_end(groups[gamma], name)
            cell = f"{name.replace('_', ' ')}, gamma = {gamma:g}"
            why = f"{100 * end:.0f} % beside {100 * free:.0f} % at gamma = 0, "
            why += f"at most {MOST_ACCURACY:g} of it"
            holds, ours = end <= MOST_ACCURACY * free, f"{100 * end:.0f} %"
            verdicts.append(Cell(cell, "degrades", ours, holds, why))
    return verdicts


def settles(records: Records) -> list[Cell]:
    """Return for each weight whether the offset hardly moves any more at the end."""
    verdicts = []
    for gamma, group in gammas(records).items():
        drift = statistics.fmean(_drift(record) for record in group)
        _, end = start_and_end(group, "offset_norm")
        why = f"a change by {100 * drift:.0f} % in the last fifth, "
        why += f"at most {100 * MOST_DRIFT:.0f} %"
        holds = math.isfinite(end) and drift <= MOST_DRIFT
        verdicts.append(Cell(f"gamma = {gamma:g}", "bounded", f"{end:.3g}", holds, why))
    return verdicts


def _drift(record: Record) -> float:
    """Return the relative range of the offset over the last fifth of training."""
    epochs, offset = column(record, "epoch"), column(record, "offset_norm")
    since = next(i for i, epoch in enumerate(epochs) if epoch >= 0.8 * epochs[-1])
    last = offset[since:]
    return (max(last) - min(last)) / offset[-1]
