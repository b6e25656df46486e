"""Where RFAM stands among other methods on tables (beyond the paper, which has none).

Every method chooses and fits inside the training folds of the collection, on the same
validation rows, and is tested on the same test rows: RFAM and RFM as in Table 2 by the
leak-free protocol, an RBF support vector machine, a random forest, histogram gradient
boosting, CatBoost, xRFM as it comes, and two anchors, logistic regression and the most
frequent class.

Command: ``normalign reproduce peers``; two cores, about 12 s (quick: the bundled
tables, three peers with small grids). With ``--full`` all 120 tables: about an hour on
two cores for those of up to 10000 rows (``--only "rows<=10000"``). CatBoost and xRFM
need the extra ``peers``. All but xRFM compute on the CPU whatever the device, so on a
GPU machine it pays to run them apart, in parallel: ``--only "method!=xrfm" --device cpu
--jobs 16``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normalign_reproduction.items.peers.drawing import StandingPicture
from normalign_reproduction.items.peers.experiment import (
    PEER_SETTINGS,
    QUICK_PEER_SETTINGS,
)
from normalign_reproduction.items.peers.rows import (
    TITLES,
    finding,
    seconds_rows,
    standing_rows,
    table_rows,
)
from normalign_reproduction.items.table2.data import BUNDLED, TABLES, TableFacts
from normalign_reproduction.items.table2.item import (
    QUICK_RFAM_SETTINGS,
    RFAM_SETTINGS,
    rfam_variants,
)
from normalign_reproduction.spec import Column, Figure, Item, Size, Table

__all__ = ["ITEM"]


def variants(
    tables: Sequence[TableFacts],
    machines: Mapping[str, Any],
    peers: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return all methods on all tables; those of RFAM and RFM are Table 2's own."""
    found = [
        {**one, **machines} for one in rfam_variants(tables, ["leak-free"], [0.0, 1.0])
    ]
    for name, settings in peers.items():
        common = {"method": name, "protocol": "leak-free", **settings}
        found += [{"dataset": one.name, "rows": one.rows, **common} for one in tables]
    return found


ITEM = Item(
    name="peers",
    reference="Beyond the paper",
    title="Where RFAM stands among other methods on tables",
    shows="The paper compares RFAM with RFM alone; here are their peers, on the same "
    "folds and without a leak.",
    experiment="tabular",
    variants=variants(TABLES, RFAM_SETTINGS, PEER_SETTINGS),
    settings={"released": {}},
    sizes={
        "quick": Size(
            seeds=1,
            variants=variants(BUNDLED, QUICK_RFAM_SETTINGS, QUICK_PEER_SETTINGS),
            seconds={"cpu": 12.0},
            data="bundled",
        ),
        "full": Size(seeds=1, data="uci"),
    },
    tables=[
        Table(
            "peers", "Accuracy, leak-free, on the same folds", standing_rows,
            [
                Column("method", "Method"),
                Column("accuracy", "Mean accuracy", "{:.1%}"),
                Column("rank", "Mean rank", "{:.2f}"),
                Column("n_complete", "Tables", "{}"),
                Column("n_pairs", "Tables with RFAM", "{}"),
                Column("wins", "RFAM wins", "{}"),
                Column("ties", "ties", "{}"),
                Column("losses", "loses", "{}"),
                Column("difference", "RFAM's lead, mean", "{:+.2%}"),
                Column("median", "RFAM's lead, median", "{:+.2%}"),
                Column("p", "p, Wilcoxon", "{:.2g}"),
                Column("p_holm", "p, after Holm", "{:.2g}"),
            ],
            note="Mean accuracy and rank are over the tables on which all methods have "
            "a result, as many as the column Tables says; wins, leads and tests over "
            "all tables that RFAM and the method share. The support vector machine has "
            "no result where a training fold has more than 10000 rows. RFM, RFAM and "
            "the validated one are near kin: they crowd each other's ranks. xRFM is at "
            "its own settings, where RFAM chooses its ridge; boosting has 200 rounds "
            "at most, CatBoost 300, and 32 borders where there are more than 20 "
            "classes.",
        ),
        Table(
            "peers-tables", "Accuracy table by table", table_rows,
            [
                Column("table", "Table"),
                Column("n_rows", "Rows", "{}"),
                Column("n_inputs", "Inputs", "{}"),
                Column("n_classes", "Classes", "{}"),
                *(Column(name, title, "{:.1%}") for name, title in TITLES.items()),
            ],
            note="Means over the four folds. A dash is a method that was not run or "
            "skipped the table.",
        ),
        Table(
            "peers-seconds", "What the peers take", seconds_rows,
            [
                Column("method", "Method"),
                Column("n_tables", "Tables", "{}"),
                Column("total", "Seconds, all tables", "{:.3g}"),
                Column("median", "Median table", "{:.2g}"),
                Column("longest", "Slowest table", "{:.2g}"),
                Column("slowest", "which is"),
            ],
            note="Choosing, fitting and answering, four folds, on whatever cores and "
            "device the runs had.",
            repeatable=False,
        ),
    ],
    figures=[
        Figure(
            "standing",
            StandingPicture(),
            "Left: RFAM's accuracy less each method's, a point for each table that "
            "both have, the box from quartile to quartile; what is beyond 20 points is "
            "drawn at the edge. Right: mean ranks, 1 is the best; methods closer than "
            "the bar cannot be told apart (Nemenyi, 5 %).",
            numbers=False,
        )
    ],
    finding=finding,
    departures=(
        "beyond the paper: it has no other methods than RFM",
        "validation rows are a stratified quarter of each training fold",
    ),
)  # fmt: skip
