"""The figure of Appendix A: a normal-aligned network for any sample (construction).

Claim: one hidden layer, as wide as the sample, can be normal-aligned to it; the denser
the sample, the larger the weights that takes.

Command: ``normalign reproduce construction``; about two seconds at either size, most of
them for loading.

The paper's: 5 and 10 points on the unit circle, width 5 and 10, output 1, viridis.
Ours, where the paper is silent: the points are uniform and the 10 hold the 5, ten
seeds (the first is drawn), colours on a logarithmic scale. Alignment and rank are
measured with three outputs and random targets, since with one output every rank is one.
"""

from __future__ import annotations

import statistics
from itertools import pairwise

from normalign_reproduction.items.construction.drawing import ConstructionFigure
from normalign_reproduction.spec import (
    Cell,
    Claim,
    Figure,
    Item,
    Records,
    Size,
    cross,
)
from normalign_reproduction.statistics import group_by

__all__ = ["ITEM"]

# What float64 loses where two points are close.
NEAR = 1e-9


def alignment_verdicts(records: Records) -> list[Cell]:
    """Say for each number of points whether all are aligned and of rank one."""
    verdicts = []
    for (n,), group in sorted(group_by(records, "n_points").items()):
        least = min(v for r in group for v in r.result["normal_alignment"])
        most = max(v for r in group for v in r.result["effective_rank"])
        error = max(r.result["output_error"] for r in group)
        holds = least >= 1 - NEAR and most <= 1 + NEAR and error <= NEAR
        why = f"least alignment {least:.10g}, greatest rank {most:.10g}, output off by "
        why += f"{error:.1g} or less, in {len(group)} samples"
        verdicts.append(Cell(f"{n} points", "aligned", f"{least:.8g}", holds, why))
    return verdicts


def medians(records: Records) -> dict[int, float]:
    """Return the median norm over all points and samples, by the number of points."""
    return {
        n: statistics.median(v for r in group for v in r.result["norms"])
        for (n,), group in sorted(group_by(records, "n_points").items())
    }


def denser(records: Records) -> list[Cell]:
    """Say whether each larger sample needs larger weights, by a factor of two."""
    return [
        Cell(
            f"{few} to {many} points", "grows", f"{low:.3g} to {high:.3g}",
            high >= 2 * low, f"{high / low:.3g} times as large, at least 2 times",
        )
        for (few, low), (many, high) in pairwise(medians(records).items())
    ]  # fmt: skip


ITEM = Item(
    name="construction",
    reference="Figure 3",
    title="A normal-aligned network for any sample",
    shows=(
        "One hidden layer can be normal-aligned to any training set; the denser the "
        "set, the larger its weights."
    ),
    experiment="construction",
    variants=cross(n_points=[5, 10]),
    settings={"text": {"n_outputs": 3}},
    sizes={
        size: Size(10, seconds={"cpu": 2.0, "cuda": 2.0}) for size in ("quick", "full")
    },
    departures=(
        "points uniform on the circle, ten draws of them; three outputs",
        "colours by the logarithm of the norm",
    ),
    figures=[
        Figure(
            "level_sets",
            ConstructionFigure(by="n_points"),
            "Training points on a circle, the level sets of the neurons of a network "
            "that is normal-aligned to them, and the norm of the last layer that "
            "output 1 takes.",
        )
    ],
    claims=[
        Claim(
            "The network is normal-aligned to its sample",
            "At every point alignment and effective rank are one, and the output is "
            f"what was asked for, within {NEAR:g}.",
            alignment_verdicts,
        ),
        Claim(
            "Density costs weight norm",
            "The median norm is at least twice as large for 10 points as for 5.",
            denser,
        ),
    ],
)
