"""Eight items that look like the paper's, with results made by formula: no training."""

import math
import random

from normalign_reproduction.report.panels import Panel, Panels, PointsPanel
from normalign_reproduction.spec import (
    Cell,
    Claim,
    Column,
    Figure,
    Item,
    Size,
    Table,
    cross,
)  # fmt: skip
from normalign_reproduction.statistics import final, group_by, interval, mean
from normalign_reproduction.store import Store

EPOCHS = [0, *sorted({round(10 ** (i / 14)) for i in range(57)})]
MADE = {
    "commit": "3faf748b2308dfa38bca5249e10aeb7f846b746e",
    "versions": {"python": "3.11.9", "normalign": "0.1.0", "torch": "2.13.0"},
    "device": "two cores of a CPU", "threads": 1, "seconds": 12.5, "n_runs": 5,
}  # fmt: skip
METHODS = ("baseline", "grokfast", "orthograd", "grokalign")


def history(run, rng):
    """Curves that rise or fall about a middle that the settings shift."""
    first = list(run.settings.values())[-1]
    shift = (len(first) if isinstance(first, str) else math.log10(1 + first)) / 2
    slope = [1 / (1 + math.exp(4 + shift - 1.4 * math.log(e + 1))) for e in EPOCHS]
    noisy = [value + rng.gauss(0, 0.015) for value in slope]
    return {
        "columns": {
            "epoch": EPOCHS,
            "test_accuracy": [0.1 + 0.85 * value for value in noisy],
            "robust_accuracy": [0.1 + 0.5 * value for value in noisy],
            "normal_alignment": [0.2 + 0.7 * value for value in noisy],
            "effective_rank": [1 + 6 * (1 - value) for value in slope],
            "jacobian_norm": [math.exp(-3 * value) for value in noisy],
        }
    }


def result(run):
    rng = random.Random(repr((run.experiment, run.settings, run.seed)))
    return {"history": history(run, rng), "epochs": 100 + rng.randrange(40)}


def store_of(items, folder, *, size="quick", preset="released", skip=0):
    """A store with the results of some items, less the last runs of each."""
    store = Store(folder)
    for item in items:
        runs = item.runs(size=size, preset=preset, digits="digits_5000")
        for run in runs[: len(runs) - skip]:
            store.write(run, result(run), dict(MADE))
    return store


def by_last(records):
    return list(records[0].run.settings)[-1]


def rises(name="alignment rises"):
    def check(records):
        return [
            Cell(
                f"{by}", "rises", f"{ends:.3f}", ends > 0.5,
                f"mean {ends:.3f} at the end, more than 0.5 wanted",
            )
            for by, ends in (
                (values[0], mean([final(r, "normal_alignment") for r in group]))
                for values, group in group_by(records, by_last(records)).items()
            )
        ]  # fmt: skip

    return Claim(name, "the mean alignment at the end is more than 0.5", check)


def never(name="seconds are the paper's"):
    def check(records):
        verdict = Cell("all", "45 s", "12 s", None, "the hardware is another one")
        return [verdict]

    return Claim(name, "the same seconds, on the same hardware", check)


def wrong(name="the rank ends at 0.5"):
    def check(records):
        rank = mean([final(r, "effective_rank") for r in records])
        return [Cell("all", "0.5", f"{rank:.2f}", rank < 0.5, f"rank {rank:.2f}")]

    return Claim(name, "the mean rank at the end is less than 0.5", check)


def rows(records):
    made = []
    for (task, method), group in group_by(records, "task", "method").items():
        epochs = [record.result["epochs"] for record in group]
        made.append(
            {
                "task": task, "method": method, "share": 1.0, "epochs": mean(epochs),
                "interval": interval(epochs), "published": 123.0,
                "p": None if method == "baseline" else 0.0123, "n": len(group),
            }
        )  # fmt: skip
    return made


TABLE = Table(
    "table1", "Epochs to grokking", rows,
    [
        Column("task", "Task"), Column("method", "Method"),
        Column("share", "Grokked", "{:.0%}"),
        Column("epochs", "Epochs", "{:.0f}", "published", "interval"),
        Column("p", "p", "{:.2g}"), Column("n", "Seeds", "{:d}"),
    ],
    note="Means over the seeds that grokked, with Student's 95 % interval.",
)  # fmt: skip


def curves(by, labels=None, **more):
    panels = [
        Panel(x="epoch", y="test_accuracy", xlabel="Epochs", ylabel="Test accuracy"),
        Panel(x="epoch", y="normal_alignment", xlabel="Epochs",
              ylabel="Normal alignment"),
        Panel(x="epoch", y="effective_rank", xlabel="Epochs", ylabel="Effective rank"),
    ]  # fmt: skip
    return Panels(panels=panels, by=by, labels=labels, **more)


def scatter(records):
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(8, 3), layout="constrained")
    for axis in canvas.subplots(1, 2):
        axis.scatter([0, 1, 0], [1, 0, 0], c=[0.1, 0.5, 0.9])
    return canvas


def sized(seeds=3, **settings):
    return {
        "quick": Size(2, {"epochs": 300, **settings}, seconds={"cpu": 20.0}),
        "full": Size(seeds, seconds={"cuda": 30.0}),
    }


def figure_item(name, reference, title, variants, draw, *, claims=(), **more):
    return Item(
        name, reference, title,
        shows=f"{title}: as training goes on, the model's Jacobians align with the "
        "data and their rank falls towards one.",
        experiment=name, variants=variants,
        settings={"released": {"epochs": 10000, "width": 256}}, sizes=sized(),
        finding=lambda records: "The alignment ends at "
        f"{mean([final(r, 'normal_alignment') for r in records]):.2f} on average over "
        f"{len(records)} runs; the rank falls in all of them.",
        figures=[Figure(name, draw, f"{title}. Means over seeds.")],
        claims=claims or [rises()], **more,
    )  # fmt: skip


def fake_items():
    """Return eight items: two tables, four figures of curves, points, a drawing."""
    gammas = cross(gamma=[0, 1, 10, 100, 1000])
    points = [
        PointsPanel(
            x="gamma", zero_at=0.1, scale=100, xlabel="γ", ylabel="Accuracy (%)",
            ys={"test_accuracy": "Clean", "robust_accuracy": "Robust"},
        ),
        Panel(x="epoch", y="jacobian_norm", ylabel="Jacobian norm", log_y=True),
    ]  # fmt: skip
    both = Panel(
        x="epoch", ylabel="Accuracy",
        y={"test_accuracy": "Test", "robust_accuracy": "Robust"},
    )  # fmt: skip
    tasks = ["XOR", "Sparse parity", "MNIST CE", "MNIST SE", "Modular addition"]
    table1 = Item(
        "table1", "Table 1", "Epochs to grokking on five tasks",
        shows="GrokAlign groks sooner than the baseline, Grokfast and OrthoGrad on "
        "most of the tasks.",
        experiment="acceleration", variants=cross(task=tasks, method=METHODS),
        settings={"released": {"budget": 9000}, "text": {"budget": 9999}},
        sizes=sized(10), finding=lambda records: "GrokAlign groks first in 4 of 5.",
        tables=[TABLE], claims=[rises("GrokAlign is first"), never()],
        needs_digits=True,
    )  # fmt: skip
    hyper = Item(
        "hyperparameters", "Table 3", "Which penalty, how many probes",
        shows="One probe each is enough.", experiment="ablation",
        variants=cross(task=["R by input", "R by output"], method=METHODS),
        settings={"released": {}}, sizes=sized(),
        finding=lambda records: "One probe each is enough in 3 of 4.",
        tables=[TABLE], claims=[wrong()],
    )  # fmt: skip
    return [
        figure_item(
            "sparsity", "Figure 2, left", "Alignment falls with augmentation",
            cross(strength=[0.1, 0.2, 0.3, 0.5, 0.75, 1.0]), curves("strength"),
            needs_digits=True,
        ),
        figure_item(
            "transformer", "Figure 3", "A transformer that learns modular addition",
            cross(p=[113]), Panels(panels=[both, curves(None).panels[1]]),
        ),
        table1,
        figure_item(
            "construction", "Figure 5", "Networks aligned by construction",
            cross(points=[5, 10]), scatter,
        ),
        figure_item(
            "kernel_logistic", "Figure 6", "Gaussian kernel logistic regression",
            cross(classes=[6, 8, 10]), curves("classes"), claims=[rises(), wrong()],
        ),
        figure_item(
            "zero_jacobian", "Figure 7", "Models with Jacobians equal to zero",
            gammas, Panels(panels=points, by="gamma", legend=1), needs_digits=True,
        ),
        hyper,
        figure_item(
            "ablation", "Figure 8", "Which gradient penalty",
            cross(strategy=list(METHODS)),
            curves("strategy", {"grokalign": "GrokAlign", "baseline": "Baseline"}),
            needs_digits=True,
        ),
    ]  # fmt: skip
