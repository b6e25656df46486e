"""Table 1: GrokAlign accelerates grokking.

Claim: of four ways to train, GrokAlign reaches the grokked state in the fewest epochs,
on all five tasks. Command: ``normalign reproduce table1``; with ``--full`` all tasks at
the paper's size, ten seeds, and two methods beyond the paper: 200 runs take about 115 s
on one H200. Every constant is in ``tasks.py``.
"""

from normalign_reproduction.items.table1.claims import CLAIMS
from normalign_reproduction.items.table1.experiment import EXTRA, METHODS, constants
from normalign_reproduction.items.table1.rows import (
    TASK_TITLES,
    cost_rows,
    table_rows,
)
from normalign_reproduction.spec import Column, Item, Size, Table, cross

# At quick size XOR has a narrower layer, and the digit networks are narrower and start
# smaller, with fewer numbers behind the comma; parity and modular addition are whole.
QUICK = {
    "xor": {"width": 768, "epochs": 300},
    "parity": {"epochs": 3000},
    "mnist_ce": {"width": 100, "init_scale": 6.0, "dtype": "float32", "epochs": 1000},
    "mnist_se": {"width": 100, "init_scale": 3.5, "dtype": "float32", "epochs": 1000},
    "modular": {"dtype": "float32", "epochs": 300},
}

ITEM = Item(
    name="table1",
    reference="Table 1",
    title="GrokAlign accelerates grokking",
    shows="GrokAlign reaches the grokked state in fewer epochs than the baseline, "
    "Grokfast and OrthoGrad, on all five tasks.",
    experiment="acceleration",
    variants=cross(task=TASK_TITLES, method=METHODS + EXTRA),
    settings={"released": {}, "text": {}},
    constants=constants,
    sizes={
        "quick": Size(
            seeds=2,
            seconds={"cpu": 195.0},
            variants=[
                {**one, "resized": QUICK[one["task"]]}
                for one in cross(task=TASK_TITLES, method=METHODS)
            ],
        ),
        "full": Size(seeds=10, seconds={"cuda": 170.0}),
    },
    needs_digits=lambda settings: settings["task"].startswith("mnist"),
    tables=[
        Table(
            "table1", "Epochs until the grokked state, over the seeds that reach it",
            table_rows,
            [
                Column("task", "Task"),
                Column("method", "Method"),
                Column("share", "Grokked", "{:.0%}", "published_share"),
                Column("n_seeds", "Seeds", "{}"),
                Column("epochs", "Epochs", "{:.0f}", "published_epochs",
                       "epochs_interval"),
                Column("speedup", "Speed-up", "{:.2f}", "published_speedup"),
                Column("p_paired", "p, paired", "{:.1e}"),
                Column("p_welch", "p, Welch", "{:.1e}", "published_p"),
            ],
            note="A method that loses its slow seeds gains by that: read the epochs "
            "with the share. The paper speaks of a paired test; its own summary takes "
            "Welch's.",
        ),
        Table(
            "table1-cost", "Epochs are not seconds", cost_rows,
            [
                Column("task", "Task"),
                Column("method", "Method"),
                Column("share", "Grokked", "{:.0%}"),
                Column("weight", "Weight", "{:g}"),
                Column("pace", "Milliseconds per epoch", "{:.3g}"),
                Column("relative", "Of the baseline's", "{:.2f}"),
                Column("speedup", "Speed-up in epochs", "{:.2f}"),
                Column("faster", "Speed-up in seconds", "{:.2f}"),
            ],
            note="All seeds of a method in lockstep, after warm-up, no evaluations.",
            repeatable=False,
        ),
    ],
    claims=CLAIMS,
    departures=(
        "XOR is trained in the span of its first weights and inputs, which changes no "
        "number but by rounding",
        "seconds are those of all seeds in lockstep",
    ),
)  # fmt: skip
