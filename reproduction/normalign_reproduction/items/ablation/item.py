"""fig:grokalign_ablation: robust accuracy, alignment and rank under five regularizers.

Claim      GrokAlign by output probes is the most effective strategy for inducing
           normal alignment and robustness; regularizers lower the effective rank
Command    normalign reproduce ablation --full
Hardware   one H200, half a minute; quick on two cores, about 15 s

The runs are those of tab:hyperparameters whose choice the paper set in bold (one probe
each; weights 0.1, 0.01, 0.1, 0.01), and of the baseline; they are computed once. Which
constants are the paper's and which are ours is said there. The paper prints no numbers
of this figure: the claims are its caption's and its text's.
"""

from __future__ import annotations

from normalign_reproduction.items.ablation.rows import (
    LABELS,
    PRINTED,
    beyond_baseline,
    leads,
    variants,
)
from normalign_reproduction.items.hyperparameters.item import (
    DEPARTURES,
    QUICK,
    SETTINGS,
    VERSION,
)
from normalign_reproduction.report.panels import Panel, Panels
from normalign_reproduction.spec import Claim, Figure, Item, Size

__all__ = ["ITEM"]


def _panel(column: str, name: str) -> Panel:
    return Panel(x="epoch", y=column, xlabel="Epochs", ylabel=name, log_x=True)


ITEM = Item(
    name="ablation",
    reference="Figure 7",
    title="Regularization strategies compared on MNIST",
    shows="GrokAlign is the most effective strategy for inducing normal alignment.",
    experiment="ablation",
    variants=variants(PRINTED),
    settings={"text": SETTINGS},
    sizes={
        "quick": Size(2, QUICK, seconds={"cpu": 13.0}),
        "full": Size(3, seconds={"cuda": 30.0}),
    },
    departures=DEPARTURES,
    version=VERSION,
    figures=[
        Figure(
            "ablation",
            Panels(
                panels=[
                    _panel("robust_accuracy", "Robust Accuracy"),
                    _panel("normal_alignment", "Normal Alignment"),
                    _panel("effective_rank", "Effective Rank"),
                ],
                by="strategy", labels=LABELS, legend="below", legend_title="",
            ),
            "The strategies of tab:hyperparameters with the choices printed in bold, "
            "and a baseline without regularization.",
        )
    ],
    claims=[
        Claim(
            "every regularizer aligns",
            "Mean final alignment above 1.5 times the baseline's.",
            beyond_baseline("normal_alignment", factor=1.5),
        ),
        Claim(
            "every regularizer makes robust",
            "Mean final robust accuracy above the baseline's by 5 points.",
            beyond_baseline("robust_accuracy", points=0.05),
        ),
        Claim(
            "every regularizer lowers the rank",
            "Mean final effective rank below the baseline's.",
            beyond_baseline("effective_rank"),
        ),
        Claim(
            "output probes come first",
            "Each strategy with its printed choice: at the end output probes have the "
            "highest mean over seeds.",
            leads(lambda records: PRINTED, tolerant=False), sizes=["full"],
        ),
        Claim(
            "none is clearly ahead of output probes",
            "As before, but the best of the others may be ahead by one standard error "
            "of the differences, seed by seed.",
            leads(lambda records: PRINTED, tolerant=True), sizes=["full"],
        ),
    ],
    needs_digits=True,
)  # fmt: skip
