"""Tables 2 and 3: RFAM against RFM on the UCI tables, as released and without a leak.

Claim: RFAM (identity weight 0) is less accurate than RFM (identity weight 1), but more
robust and more aligned. Command: ``normalign reproduce table2``; two cores, some 5 s
on seven bundled tables; with ``--full`` the 120 UCI tables of up to 100000 rows, by
both protocols, three seeds (one for tables of more than 10000 rows), on one H200, for
which the collection must be here.

Ridge, iterations, bandwidth, gradients and attack are the released ones: five ridges by
five iterations chosen by accuracy, at most 20000 gradients, PGD of 20 steps of a tenth
of the radius. A table's numbers are averaged over seeds first, then over tables, each
of which counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from normalign_reproduction.items.table2.claims import CLAIMS
from normalign_reproduction.items.table2.data import BUNDLED, TABLES, TableFacts
from normalign_reproduction.items.table2.drawing import against
from normalign_reproduction.items.table2.rows import (
    METHODS,
    PROTOCOLS,
    change_rows,
    leak_rows,
    mean_rows,
    table_rows,
)
from normalign_reproduction.spec import Column, Figure, Item, Size, Table, cross

__all__ = ["ITEM", "QUICK_RFAM_SETTINGS", "RFAM_SETTINGS", "rfam_variants"]

# The constants of every run of method "rfam" at full size, as released.
RFAM_SETTINGS = {
    "ridges": [10.0, 1.0, 0.1, 0.01, 0.001], "n_iter": 4, "bandwidth": 10.0,
    "agop_samples": 20000, "radii": [0.1, 1.0, 2.0], "n_steps": 20, "step": 0.1,
    "strong_restarts": 2,
}  # fmt: skip
# At quick size fewer ridges and iterations are tried.
QUICK_RFAM_SETTINGS = {**RFAM_SETTINGS, "ridges": [1.0, 0.1, 0.01], "n_iter": 2}


def rfam_variants(
    tables: Iterable[TableFacts], protocols: Iterable[str], weights: Iterable[float]
) -> list[dict[str, Any]]:
    """Return the variants of method "rfam" on some tables, for identity weights."""
    grid = cross(table=tables, protocol=protocols, identity_weight=weights)
    return [
        {
            "dataset": one["table"].name, "rows": one["table"].rows, "method": "rfam",
            "protocol": one["protocol"], "identity_weight": one["identity_weight"],
        }
        for one in grid
    ]  # fmt: skip


def seeds_of(variant: Mapping[str, Any]) -> int:
    """Return how many seeds a table has: one, where a run takes as long as many."""
    return 3 if variant["rows"] <= 10_000 else 1


def _both(name: str, title: str, form: str) -> list[Column]:
    """Return the columns of a quantity for both methods, each with its spread."""
    return [
        column
        for method, said in (("rfm", "RFM"), ("rfam", "RFAM"))
        for column in (
            Column(f"{method}_{name}", f"{title}, {said}", form),
            Column(f"{method}_{name}_std", "± over seeds", form),
        )
    ]


_INTERVALS = "Brackets: 95 % percentile bootstrap over tables, 10000 resamples, seed 0."

ITEM = Item(
    name="table2",
    reference="Tables 2 and 3",
    title="RFAM against RFM on tables",
    shows="RFAM is less accurate than RFM, but more robust and more aligned; all of "
    "it significant at the 1 % level.",
    experiment="tabular",
    variants=rfam_variants(TABLES, PROTOCOLS, METHODS.values()),
    settings={"released": RFAM_SETTINGS},
    sizes={
        "quick": Size(
            seeds=2,
            settings=QUICK_RFAM_SETTINGS,
            variants=rfam_variants(BUNDLED, PROTOCOLS, METHODS.values()),
            seconds={"cpu": 5.0},
            data="bundled",
        ),
        "full": Size(
            seeds=3, seconds={"cuda": 900.0}, data="uci", seeds_of=seeds_of
        ),
    },
    tables=[
        Table(
            "table2", "Table 2: means over tables", mean_rows,
            [
                Column("protocol", "Protocol"),
                Column("method", "Method"),
                Column("n_tables", "Tables", "{:d}"),
                Column("accuracy", "Test accuracy (%)", "{:.1f}", "published_accuracy",
                       "accuracy_interval"),
                Column("asr_1", "Attack success (%), radius 1", "{:.1f}",
                       "published_asr_1", "asr_1_interval"),
                Column("normal_alignment", "Normal alignment", "{:.2f}",
                       "published_normal_alignment", "normal_alignment_interval"),
                Column("n_undefined", "Tables without a right row", "{:d}"),
            ],
            note="Each table's mean over seeds first, then the mean over tables. "
            f"{_INTERVALS} They say how much another draw of tables would matter; the "
            "methods share their tables, so compare them in Table 3, not by these. "
            "Attack success is not defined where no row is right, and is left out "
            "there. The paper's numbers are of the UCI tables, and stand beside these "
            "alone.",
        ),
        Table(
            "table2-more", "Other radii, a strong attack, ranks", mean_rows,
            [
                Column("protocol", "Protocol"),
                Column("method", "Method"),
                Column("asr_0.1", "Attack success (%), radius 0.1", "{:.1f}",
                       interval="asr_0.1_interval"),
                Column("asr_2", "Attack success (%), radius 2", "{:.1f}",
                       interval="asr_2_interval"),
                Column("strong_1", "Strong attack (%), radius 1", "{:.1f}",
                       interval="strong_1_interval"),
                Column("strong_0.1", "Strong attack (%), radius 0.1", "{:.1f}",
                       interval="strong_0.1_interval"),
                Column("effective_rank", "Effective rank", "{:.2f}",
                       interval="effective_rank_interval"),
                Column("participation_rank", "Participation rank", "{:.2f}",
                       interval="participation_rank_interval"),
                Column("alignment_ratio", "Alignment ratio", "{:.2f}",
                       interval="alignment_ratio_interval"),
            ],
            note="Means and brackets as in Table 2. The strong attack raises the "
            "margin instead of the squared error, from two starts, and counts the "
            "worst point; a still stronger one may break more. The scripts of the "
            "paper call the participation rank effective rank.",
        ),
        Table(
            "table2-changes", "Table 3: changes from RFM to RFAM", change_rows,
            [
                Column("metric", "Metric"),
                Column("unit", "Change"),
                Column("protocol", "Protocol"),
                Column("n", "Tables", "{:d}"),
                Column("mean", "Mean", "{:+.3f}", "published_mean", "mean_interval"),
                Column("std", "Standard deviation", "{:.3f}", "published_std"),
                Column("median", "Median", "{:+.3f}", interval="median_interval"),
                Column("improved", "Improved", "{:.0%}"),
                Column("equal", "Equal", "{:.0%}"),
                Column("p", "p, paired t-test", "{:.2g}", "published_p"),
                Column("p_least", "least p of a seed", "{:.2g}"),
                Column("p_greatest", "greatest p of a seed", "{:.2g}"),
                Column("p_changes", "p, t-test of changes", "{:.2g}"),
                Column("p_wilcoxon", "p, Wilcoxon", "{:.2g}"),
                Column("n_undefined", "Left out", "{:d}"),
            ],
            note="Of each table's means over seeds; the p of a seed is that of its "
            "runs alone, and only the first seed has tables of more than 10000 rows. "
            "Tests are one-sided, for more accuracy, more alignment and less attack "
            "success. The paired t-test is of the raw values of both methods, as in "
            "the paper's evaluation; the t-test of changes and Wilcoxon's are of the "
            f"changes in the table. {_INTERVALS} A mean of relative changes may depend "
            "on one table where RFM's number is small: read the median and Wilcoxon's "
            "test too. Left out: relative to a zero, or without a right row.",
        ),
        Table(
            "table2-leak", "Accuracy by protocol: released less leak-free",
            leak_rows,
            [
                Column("method", "Method"),
                Column("n", "Tables", "{:d}"),
                Column("released", "Released (%)", "{:.2f}"),
                Column("leak_free", "Leak-free (%)", "{:.2f}"),
                Column("mean", "Mean difference (points)", "{:+.2f}",
                       interval="mean_interval"),
                Column("median", "Median", "{:+.2f}", interval="median_interval"),
                Column("higher", "Released higher", "{:.0%}"),
                Column("p", "p, t-test", "{:.2g}"),
                Column("p_wilcoxon", "p, Wilcoxon", "{:.2g}"),
            ],
            note="As released, metric and ridge were chosen with rows of the test "
            "folds. That is not all of the difference: as released a half of all rows "
            "chooses and the metric is of the other half; leak-free a quarter of each "
            "training fold chooses and the metric is learned anew on all of it. By "
            "both the inputs come standardised over all rows. Tests are one-sided. "
            f"{_INTERVALS}",
        ),
        Table(
            "table2-tables", "Every table", table_rows,
            [
                Column("table", "Table"),
                Column("protocol", "Protocol"),
                Column("n_rows", "Rows", "{:d}"),
                Column("n_inputs", "Inputs", "{:d}"),
                Column("n_classes", "Classes", "{:d}"),
                Column("n_seeds", "Seeds", "{:d}"),
                *_both("accuracy", "Accuracy (%)", "{:.1f}"),
                *_both("asr_1", "Attack success (%)", "{:.1f}"),
                *_both("strong_1", "Strong attack (%)", "{:.1f}"),
                *_both("normal_alignment", "Alignment", "{:.2f}"),
            ],
            note="Means over seeds, with their standard deviation; attack success at "
            "radius 1.",
        ),
    ],
    figures=[
        Figure(
            "against", against,
            "RFAM against RFM, a point for each table: test accuracy, attack success "
            "rate at radius 1, normal alignment. Means over seeds; above the diagonal "
            "RFAM has the larger number.",
            numbers=False,
        )
    ],
    claims=CLAIMS,
    departures=(
        "three seeds, one for the seven tables of more than 10000 rows, where the "
        "released experiment sets none and has one run",
        "a second protocol, leak-free, and a second attack, a strong one, beside the "
        "released ones",
        "float64 where a system is too ill-conditioned for float32",
    ),
)  # fmt: skip
