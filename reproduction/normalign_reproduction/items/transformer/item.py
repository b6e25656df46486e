"""The figure of the modular-addition transformer (fig. ca_modadd).

Claim: a one-layer transformer that adds modulo p becomes centroid-aligned, and centroid
alignment correlates with its generalisation from the training to the test set.

Command: ``normalign reproduce transformer``; 2 seeds, about 20 s on two cores. Full:
``--full``, 5 seeds, on one H200; on a CPU it takes hours.

The paper's, which refers to the pipeline of Nanda et al.: p = 113, 30 % of all pairs to
train on, one layer, width 128, 4 heads, 512 hidden neurons, no layer normalisation,
full batch, AdamW with rate 1e-3, decay 1 and betas 0.9 and 0.98, loss in float64. As
there, the equals sign has a logit too, so that there are p + 1.

Ours: 20000 steps, where they take 50000; no warm-up, where they take one of 10 steps;
alignment over the first 512 training pairs, from all three embedded tokens with their
positions. At quick size p = 37, 60 % of the pairs, width 64, 256 neurons, rate 2e-3,
decay 2 and 1600 steps: it still learns its pairs first and the rule later.

Cross-entropy does not see the sum of the logits, whose gradient the centroid is, and
the paper's own optimum for it has centroids of length 0 (Eq. ci_ce). At quick size the
centroids' cosine stays within a tenth of zero whatever the network learns, so what the
paper says of them is judged at its own size alone. What that optimum does align, the
Jacobian's row of the right answer, is measured beside.

So is the authors' measure, which an earlier public script of theirs has: the signed
cosine of the centroid with the token embeddings without positions, over all training
pairs. It is judged by the same rules.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from normalign_reproduction.items.transformer.claims import (
    between,
    correlates_with_test,
    generalisation_epoch,
    generalises_late,
    rank_correlation,
    rises_since_memorised,
)
from normalign_reproduction.report.panels import Panel, Panels
from normalign_reproduction.spec import (
    Claim,
    Column,
    Figure,
    Item,
    Record,
    Records,
    Row,
    Size,
    Table,
)
from normalign_reproduction.statistics import column, final, interval

__all__ = ["ITEM"]

# Columns of a history: ours, its magnitude, and what the authors' script takes.
MEASURES = ("centroid_alignment", "centroid_magnitude", "token_alignment")


def _between(record: Record, name: str) -> list[float]:
    return [column(record, name)[i] for i in between(record)]


_MOMENTS: dict[str, Callable[[Record, str], float]] = {
    "at memorisation": lambda record, name: _between(record, name)[0],
    "least value from there to generalisation": lambda record, name: min(
        _between(record, name)
    ),
    "at generalisation": lambda record, name: _between(record, name)[-1],
    "at the end": final,
    "rank correlation with test accuracy in between": (
        lambda record, name: rank_correlation(record, name, "test_accuracy")
    ),
}


def alignment_rows(records: Records) -> list[Row]:
    """Return each measure of centroid alignment at the events, as means over seeds.

    Of the seeds that memorised and generalised.
    """
    late = [r for r in records if between(r) and generalisation_epoch(r) is not None]
    rows = []
    for moment, value in _MOMENTS.items():
        row: Row = {"moment": moment, "n": len(late)}
        for name in MEASURES:
            known = [v for r in late if math.isfinite(v := value(r, name))]
            row[name] = statistics.fmean(known) if known else None
            row[f"{name}_interval"] = interval(known)
        rows.append(row)
    return rows if late else []


ITEM = Item(
    name="transformer",
    reference="Figure 2",
    title="Centroids of a transformer that learns modular addition",
    shows=(
        "A one-layer transformer becomes centroid-aligned as it generalises from "
        "some pairs to all."
    ),
    experiment="transformer",
    version=2,
    variants=[{}],
    settings={
        "text": {
            "modulus": 113, "train_fraction": 0.3, "width": 128, "n_heads": 4,
            "hidden": 512, "learning_rate": 1e-3, "weight_decay": 1.0, "beta1": 0.9,
            "beta2": 0.98, "steps": 20_000, "n_evaluated": 80, "n_measured": 512,
        }
    },
    sizes={
        "quick": Size(
            2,
            {
                "modulus": 37, "train_fraction": 0.6, "width": 64, "hidden": 256,
                "learning_rate": 2e-3, "weight_decay": 2.0, "steps": 1600,
                "n_evaluated": 60, "n_measured": 128,
            },
            seconds={"cpu": 20.0},
        ),
        "full": Size(5, seconds={"cuda": 85.0, "cpu": 20_000.0}),
    },
    departures=(
        "20000 steps; Nanda et al. take 50000, the authors' script 48000",
        "no warm-up; Nanda et al. take one of 10 steps",
        "alignment at the first 512 training pairs; the authors' measure at all",
    ),
    tables=[
        Table(
            "transformer-alignment", "Centroid alignment by three measures",
            alignment_rows,
            [
                Column("moment", "Centroid alignment"),
                Column("n", "Seeds", "{:d}"),
                Column("centroid_alignment", "Ours", "{:.3f}",
                       interval="centroid_alignment_interval"),
                Column("centroid_magnitude", "Ours, magnitude", "{:.3f}",
                       interval="centroid_magnitude_interval"),
                Column("token_alignment", "Authors' measure", "{:.3f}",
                       interval="token_alignment_interval"),
            ],
            note="Ours: the mean cosine of the centroid and the embedded tokens with "
            "their positions, signed or its magnitude. The authors' script: signed, "
            "with the token embeddings without positions, over all training pairs. "
            "Means over the seeds that generalised. Brackets: Student's 95 % interval "
            "over seeds.",
        )
    ],
    figures=[
        Figure(
            "curves",
            Panels(
                panels=[
                    Panel("epoch", {"train_accuracy": "Train", "test_accuracy": "Test"},
                          "Steps", "Accuracy", ylim=(0, 1.05)),
                    Panel("epoch", {"centroid_alignment": "Ours",
                                    "token_alignment": "Authors' measure"},
                          "Steps", "Centroid alignment"),
                    Panel("epoch", "answer_alignment", "Steps", "Answer alignment",
                          "beyond the paper"),
                ]
            ),
            "Accuracy on training and held-out pairs, and the centroid alignment of "
            "the map from the embedded tokens to the logits of the last, with the "
            "embedded tokens and their positions (ours) or with the token embeddings "
            "alone (the authors' measure); beside them the alignment of the right "
            "answer's row of its Jacobian.",
        )
    ],
    claims=[
        Claim(
            "It generalises long after it has memorised",
            "Every seed passes a test accuracy of 0.99 at twice the step of its train "
            "accuracy or later, and ends there.",
            generalises_late(least_ratio=2, least_end=0.99),
        ),
        Claim(
            "It becomes centroid-aligned",
            "Mean centroid alignment rises by 0.05 or more from memorisation to the "
            "end.",
            rises_since_memorised("centroid_alignment", least=0.05),
            sizes=("full",),
        ),
        Claim(
            "Centroid alignment correlates with generalisation",
            "Spearman's correlation of its magnitude with test accuracy, over the "
            "steps evaluated between memorisation and generalisation, is 0.5 or more "
            "in the mean over seeds; a cosine that goes from -0.1 to 0 aligns nothing.",
            correlates_with_test("centroid_magnitude", least=0.5),
            sizes=("full",),
        ),
        Claim(
            "It becomes centroid-aligned, by the authors' measure",
            "As above, of the signed cosine with the token embeddings without "
            "positions, over all training pairs.",
            rises_since_memorised("token_alignment", least=0.05),
            sizes=("full",),
        ),
        Claim(
            "Centroid alignment correlates with generalisation, by the authors' "
            "measure",
            "As above, of the same signed cosine.",
            correlates_with_test("token_alignment", least=0.5),
            sizes=("full",),
        ),
        Claim(
            "The right answer's row aligns with generalisation (beyond the paper)",
            "The row's mean alignment rises by 0.05 or more from memorisation to the "
            "end.",
            rises_since_memorised("answer_alignment", least=0.05),
        ),
        Claim(
            "The row's alignment correlates with generalisation (beyond the paper)",
            "As for the centroids, of the cosine itself.",
            correlates_with_test("answer_alignment", least=0.5),
        ),
    ],
)  # fmt: skip
