"""Between RFM and RFAM: accuracy and robustness along the identity weight.

Beyond the paper, which has the two ends alone. The question: is there a weight between
them that makes a machine more robust and costs no accuracy, and do validation rows find
it?

Command: ``normalign reproduce alpha_path``; two cores, some 12 s on seven bundled
tables; with ``--full`` the UCI tables of up to 2000 rows, leak-free, six weights, three
seeds, on one H200. The ends, weights 0 and 1, are the runs of ``table2``.
"""

from __future__ import annotations

from normalign_reproduction.items.alpha_path.rows import (
    PROTOCOL,
    RADII,
    finding,
    frontier_rows,
    path_rows,
    validated_rows,
)
from normalign_reproduction.items.table2.data import BUNDLED, TABLES
from normalign_reproduction.items.table2.drawing import frontier
from normalign_reproduction.items.table2.item import (
    QUICK_RFAM_SETTINGS,
    RFAM_SETTINGS,
    rfam_variants,
)
from normalign_reproduction.spec import Column, Figure, Item, Size, Table

__all__ = ["ITEM"]

WEIGHTS = (0.0, 0.001, 0.01, 0.1, 0.5, 1.0)
MOST_ROWS = 2000

_INTERVALS = "Brackets: 95 % percentile bootstrap over tables, 10000 resamples, seed 0."
_SMALL = [table for table in TABLES if table.rows <= MOST_ROWS]

ITEM = Item(
    name="alpha_path",
    reference="Beyond the paper",
    title="Along the identity weight: what robustness costs",
    shows="Nothing: it has identity weights 0 and 1 on these tables, and none between.",
    experiment="tabular",
    variants=rfam_variants(_SMALL, [PROTOCOL], WEIGHTS),
    settings={"released": RFAM_SETTINGS},
    sizes={
        "quick": Size(
            seeds=2,
            settings=QUICK_RFAM_SETTINGS,
            variants=rfam_variants(BUNDLED, [PROTOCOL], WEIGHTS),
            seconds={"cpu": 12.0},
            data="bundled",
        ),
        "full": Size(seeds=3, seconds={"cuda": 300.0}, data="uci"),
    },
    finding=finding,
    tables=[
        Table(
            "path", "Means over tables, by identity weight", path_rows,
            [
                Column("weight", "Identity weight", "{:g}"),
                Column("n_tables", "Tables", "{:d}"),
                Column("accuracy", "Test accuracy (%)", "{:.2f}",
                       interval="accuracy_interval"),
                Column("accuracy_change", "Change from weight 1", "{:+.2f}",
                       interval="accuracy_change_interval"),
                *(
                    Column(f"asr_{radius}", f"Attack success (%), radius {radius}",
                           "{:.1f}", interval=f"asr_{radius}_interval")
                    for radius in RADII
                ),
                Column("asr_1_change", "Change from weight 1, radius 1", "{:+.1f}",
                       interval="asr_1_change_interval"),
                Column("strong_1", "Strong attack (%), radius 1", "{:.1f}",
                       interval="strong_1_interval"),
                Column("strong_1_change", "Change from weight 1, strong attack",
                       "{:+.1f}", interval="strong_1_change_interval"),
                Column("normal_alignment", "Normal alignment", "{:.3f}",
                       interval="normal_alignment_interval"),
                Column("n_undefined", "Left out of attacks", "{:d}"),
            ],
            note="Each table's mean over seeds first, then the mean over tables; "
            f"changes are in pairs. {_INTERVALS}",
        ),
        Table(
            "frontier", "Tables where a weight below 1 gives robustness for nothing",
            frontier_rows,
            [
                Column("weight", "Identity weight"),
                Column("n_tables", "Tables", "{:d}"),
                Column("as_accurate", "As accurate as weight 1", "{:d}"),
                Column("free", "and lower attack success", "{:d}"),
                Column("clear", "lower by more than its error", "{:d}"),
                Column("dearer", "the other way around", "{:d}"),
            ],
            note="As accurate: within one standard error of the difference, over the "
            "folds of all seeds; folds overlap, so that error is on the small side. "
            "Attack success at radius 1. The other way around: weight 1 is as accurate "
            "and has the lower attack success, which would be as frequent as the free "
            "ones if weights did nothing. Read the last row so, too: it is the best of "
            "five.",
        ),
        Table(
            "validated", "What a validated weight gives", validated_rows,
            [
                Column("choice", "Weight"),
                Column("n_tables", "Tables", "{:d}"),
                Column("accuracy", "Test accuracy (%)", "{:.2f}"),
                Column("accuracy_plain", "of weight 1", "{:.2f}"),
                Column("accuracy_change", "Change (points)", "{:+.2f}",
                       interval="accuracy_change_interval"),
                *(
                    Column(f"asr_{radius}_change",
                           f"Change of attack success, radius {radius}", "{:+.2f}",
                           interval=f"asr_{radius}_change_interval")
                    for radius in RADII
                ),
                Column("asr_1", "Attack success (%), radius 1", "{:.1f}"),
                Column("asr_1_plain", "of weight 1", "{:.1f}"),
                Column("below", "Weight below 1", "{:.0%}"),
                Column("weights", "How often each"),
                Column("n_left_out", "Left out", "{:d}"),
            ],
            note="Chosen by the accuracy on validation rows: for each fold by itself, "
            "or for each table and seed by the mean over folds. Validation rows of a "
            "fold may be test rows of another, so that only the first is wholly free "
            "of a leak. Left out: tables without a validation score. "
            f"{_INTERVALS}",
        ),
    ],
    figures=[
        Figure(
            "frontier", frontier,
            "Test accuracy against attack success along the identity weight, from 0 "
            "(rings) to 1 (full points), leak-free. Left: means over tables. Right: "
            "the tables at the least, the greatest and the quartiles of the change of "
            "attack success from weight 1 to weight 0.",
            numbers=False,
        )
    ],
    departures=(
        "all of it: the paper has no such path",
        f"of the UCI tables, those of up to {MOST_ROWS} rows",
    ),
)  # fmt: skip
