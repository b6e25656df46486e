"""The left panel of the figure of data sparsity (fig. data_sparsity).

Claim: the more a subset of MNIST is augmented, the less a network aligns to it.

Command: ``normalign reproduce sparsity``; two cores, half a minute. With ``--full`` on
one H200, a few minutes.

The paper's: 2000 images; a ReLU network of 4 layers, 256 wide; batches of 100; AdamW,
rate 0.001, decay 0.0001; GrokAlign of strength 0.0001; at augmentation g rotations up
to 30 g degrees, shifts up to 0.2 g of the width, Gaussian noise of deviation 0.3 g; g
from 0.1 to 1.

Ours, where the paper is silent: 4 layers are three hidden ones and the output; pixels
lie in [0, 1], which is what noise of 0.3 suggests, and noise is not cut off; the first
images of the set, moved anew at each step by bilinear interpolation on black ground;
the penalty (the squared norm, of the moved images) by its standard estimate; 10^5
steps; alignment on the first 200 training images as they are, not augmented.

Quick: 100 images in batches of 25, layers 128 wide, 1600 steps, four strengths, two
seeds: so few images are sparse soon enough for alignment to turn upwards again where
they are hardly augmented. It is far from settled there.
"""

from __future__ import annotations

import statistics

from scipy import stats

from normalign_reproduction.report.panels import Panel, Panels
from normalign_reproduction.spec import (
    Cell,
    Claim,
    Figure,
    Item,
    Records,
    Size,
    cross,
)
from normalign_reproduction.statistics import final, group_by

__all__ = ["ITEM"]

LEAST_FALL, MOST_CORRELATION = 0.2, -0.75


def ends(records: Records) -> dict[float, float]:
    """Return the mean final alignment of each strength, from weak to strong."""
    return {
        strength: statistics.fmean(final(one, "normal_alignment") for one in group)
        for (strength,), group in sorted(group_by(records, "strength").items())
    }


def falls(records: Records) -> list[Cell]:
    """Return whether alignment falls over all strengths, and by how much."""
    found = ends(records)
    if len(found) < 3:
        return [Cell("all strengths", "falls", "too few strengths", None)]
    strengths, values = list(found), list(found.values())
    even = min(values) == max(values)  # no order at all
    ranks = (stats.rankdata(each).tolist() for each in (strengths, values))
    rank = 0.0 if even else statistics.correlation(*ranks)
    fall = 1 - values[-1] / values[0]
    why = f"a rank correlation of {rank:.2f}, at most {MOST_CORRELATION:g}; "
    why += f"a fall by {100 * fall:.0f} %, at least {100 * LEAST_FALL:.0f} %"
    holds = rank <= MOST_CORRELATION and fall >= LEAST_FALL
    ours = f"{values[0]:.3g} to {values[-1]:.3g}"
    return [Cell("all strengths", "falls", ours, holds, why)]


ITEM = Item(
    name="sparsity",
    reference="Figure 1, left",
    title="Augmentation makes data dense, and alignment goes",
    shows="As the amount of data augmentation grows, normal alignment decreases.",
    experiment="sparsity",
    variants=cross(strength=[0.1, 0.2, 0.3, 0.5, 0.75, 1.0]),
    settings={
        "text": {
            "n_train": 2000, "n_test": 1000, "hidden": [256, 256, 256],
            "batch_size": 100, "learning_rate": 1e-3, "weight_decay": 1e-4,
            "weight": 1e-4, "power": 2, "max_degrees": 30.0, "max_shift": 0.2,
            "noise": 0.3, "normalise": False, "epochs": 5000, "n_evaluated": 60,
            "n_measured": 200,
        }
    },
    sizes={
        "quick": Size(
            2,
            {"n_train": 100, "n_test": 200, "hidden": [128, 128, 128],
             "batch_size": 25, "epochs": 400, "n_evaluated": 30, "n_measured": 50},
            variants=cross(strength=[0.1, 0.2, 0.5, 1.0]),
            seconds={"cpu": 14.0},
        ),
        "full": Size(3, seconds={"cuda": 120.0}),
    },
    departures=(
        "three hidden layers and the output are the paper's 4 layers",
        "pixels in [0, 1]; noise is not cut off",
        "10^5 steps; the paper gives no number",
        "alignment at the first 200 training images, not augmented",
    ),
    figures=[
        Figure(
            "alignment",
            Panels(
                panels=[
                    Panel("step", "normal_alignment", "Training step",
                          "Normal alignment"),
                ],
                by="strength", legend_title="augmentation",
            ),
            "Normal alignment to the training images, not augmented, while a network "
            "trains on images that are, with different strengths.",
        )
    ],
    claims=[
        Claim(
            "Alignment decreases with augmentation",
            f"Spearman's rank correlation of strength and mean final alignment is "
            f"{MOST_CORRELATION:g} or less, and the strongest augmentation ends "
            f"{100 * LEAST_FALL:.0f} % or more below the weakest.",
            falls,
        )
    ],
    needs_digits=True,
)  # fmt: skip
