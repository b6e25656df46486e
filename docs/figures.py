"""Make every picture and every number of the pages in this folder.

Run ``python docs/figures.py`` from the root of the repository. It trains the two
networks of ``digit_runs.py`` and the four of the page on GrokAlign (about six minutes
on two cores, once: finished runs are kept in ``out/``) and then takes about two
minutes, most of them for the machines of the page on tables. It writes the pictures and
``docs/images/numbers.json``, and puts the numbers into the pages, between
``<!--n:name-->`` and ``<!--/n-->``. ``python docs/figures.py tables`` makes anew what
the page on tables shows, and nothing else.
"""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch
from digit_runs import RUNS, DigitRun, DigitSettings, digits, trained
from torch import Tensor

from normalign.data import Dataset, load_digits_5000
from normalign.geometry import Slice, local_geometry, partition
from normalign.nn import mlp
from normalign.plots import plot_centroids, plot_curves, plot_partition
from normalign.regularizers import PenaltyForm
from normalign.training import Ensemble, Member, rules, stacked_geometry
from normalign_reproduction.files import write_bytes, write_json
from normalign_reproduction.provenance import provenance

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
NUMBER = re.compile(r"<!--n:([a-z_]+)-->(.*?)<!--/n-->")
REACH = 0.2


def main() -> None:
    """Draw, count, and fill in the pages: all, or that on tables."""
    start = time.perf_counter()
    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "normalign", "font.size": 9})
    path = IMAGES / "numbers.json"
    if sys.argv[1:] == ["tables"]:
        kept = json.loads(path.read_text())
        kept["numbers"] |= of_tables()
        kept["about_tables"] = provenance()
    else:
        settings = DigitSettings()
        numbers = of_networks(settings) | of_tables()
        kept = {
            "numbers": numbers, "settings": settings.key(), "about": provenance()
        }  # fmt: skip
    write_json(path, kept)
    for page in DOCS.glob("*.md"):
        fill(page, kept["numbers"])
    print(json.dumps(kept["numbers"], indent=1))
    print(f"{time.perf_counter() - start:.0f} seconds")


def of_tables() -> dict[str, str]:
    """Draw and count what is on the page on tables."""
    from table_figures import tables  # beside this file; tests do not need it

    pictures, numbers = tables(DOCS / "a-table-in-a-model-out.md")
    for name, picture in pictures.items():
        save(picture, f"tables-{name}.svg")
    return numbers


def of_networks(settings: DigitSettings) -> dict[str, str]:
    """Train or find the networks, draw and count."""
    data = digits(settings)
    folder = DOCS.parent / "out" / "figures" / "runs"
    runs = {
        name: trained(replace(settings, weight=weight), data, folder, name)
        for name, weight in RUNS.items()
    }
    numbers = curves(runs) | centroids(runs["with penalty"], data)
    numbers |= regions(runs["with penalty"], data)
    return numbers | grokking()


def fill(page: Path, numbers: dict[str, str]) -> None:
    """Put the numbers into the places that a page keeps for them."""
    text = page.read_text()
    filled = NUMBER.sub(lambda m: f"<!--n:{m[1]}-->{numbers[m[1]]}<!--/n-->", text)
    if filled != text:
        write_bytes(page, filled.encode())


def save(figure: plt.Figure, name: str, *, dpi: int = 120) -> None:
    """Write a picture on white ground and close it."""
    figure.savefig(
        IMAGES / name,
        facecolor="white",
        dpi=dpi,
        metadata={"Date": None} if name.endswith("svg") else None,
    )  # no date: the same numbers give the same file

    plt.close(figure)


def curves(runs: dict[str, DigitRun]) -> dict[str, str]:
    """Draw accuracy, alignment and rank over training."""
    panels = {
        "test_accuracy": "test accuracy",
        "normal_alignment": "normal alignment",
        "effective_rank": "effective rank",
    }
    columns = {name: run.history.columns for name, run in runs.items()}
    marks = {name: run.epoch("generalised") for name, run in runs.items()}
    save(plot_curves(columns, panels, marks=marks), "curves.svg")
    numbers = {"epochs": f"{runs['baseline'].settings.epochs}"}
    for name, run in runs.items():
        prefix, last = name.split()[0].replace("with", "penalty"), run.history.last()
        for state in ("memorised", "generalised"):
            epoch = run.epoch(state)
            numbers[f"{prefix}_{state}"] = "none" if epoch is None else f"{epoch}"
        numbers[f"{prefix}_test"] = f"{last['test_accuracy']:.1%}"
        numbers[f"{prefix}_rank"] = f"{last['effective_rank']:.2f}"
        numbers[f"{prefix}_alignment"] = f"{last['normal_alignment']:.3f}"
        numbers[f"{prefix}_robustness"] = f"{last['local_robustness']:.2f}"
    return numbers


def centroids(run: DigitRun, data: Dataset) -> dict[str, str]:
    """Draw digits over their centroids, early and late, and average the cosines."""
    numbers = {}
    x, y = data.x_train[:200], data.y_train[:200]
    for state in ("memorised", "end"):
        network = run.network(state)
        figure = plt.figure(figsize=(6.4, 1.75), layout="constrained")
        save(
            plot_centroids(network, one_of_each(data), n=9, figure=figure),
            f"centroids-{state}.png",
        )
        mean = local_geometry(network, x, y).mean()
        numbers[f"cosine_{state}"] = f"{mean['centroid_alignment']:.3f}"
    return numbers


def regions(run: DigitRun, data: Dataset) -> dict[str, str]:
    """Draw the regions around a digit, early and late, and count them."""
    three = one_of_each(data)[:3]
    plane = Slice.through(*three)
    x, y = plane.coordinates(three[:1])[0].tolist()
    bounds = (x - REACH, x + REACH, y - REACH, y + REACH)
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.4), layout="constrained")
    numbers = {}
    for axis, state in zip(axes, ("memorised", "end"), strict=True):
        pieces = partition(run.network(state), plane, bounds=bounds)
        plot_partition(pieces, color="slope_norm", points=three[:1], ax=axis)
        for artist in axis.collections:
            artist.set_rasterized(True)
        title = "at memorisation" if state == "memorised" else "at the end"
        axis.set(xticks=[], yticks=[], title=title)
        numbers[f"regions_{state}"] = f"{len(pieces)}"
    save(figure, "partition.png", dpi=100)
    return numbers


# The forms of the page on GrokAlign, with the weight that was soonest on MNIST.
GROKKING = {
    "none": (PenaltyForm(), 0.0),
    "as released": (PenaltyForm(power=1, released=True), 0.01),
    "squared": (PenaltyForm(power=2), 0.1),
    "ratio": (PenaltyForm(power="ratio"), 10.0),
}
GROKKING_EPOCHS = 1000


def grokking() -> dict[str, str]:
    """Draw what GrokAlign does to a network that would generalise late."""
    digits = load_digits_5000(n_train=1024, n_test=1024, normalise=True, flatten=True)
    start = mlp(
        [784, 200, 200, 200, 10],
        init_scale=8.0,
        generator=torch.Generator().manual_seed(0),
    )
    optimizer = rules.AdamW(1e-3, beta2=0.99, weight_decay=0.01)
    ensemble = Ensemble(
        [start] * len(GROKKING),
        digits,
        [Member(0, optimizer, weight, form) for form, weight in GROKKING.values()],
        loss="cross_entropy",
        epochs=GROKKING_EPOCHS,
        batch_size=196,
        evaluate=lambda epoch: epoch in _DRAWN,
        measure=stacked_geometry(digits.x_train[:200], digits.y_train[:200]),
    )
    folder = DOCS.parent / "out" / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    trained = ensemble.train(checkpoint=folder / "grokking.safetensors")
    curves = {name: one.history for name, one in zip(GROKKING, trained, strict=True)}
    panels = {
        "test_accuracy": "test accuracy",
        "normal_alignment": "normal alignment",
        "effective_rank": "effective rank",
        "local_robustness": "local robustness",
    }
    columns = {name: history.columns for name, history in curves.items()}
    save(plot_curves(columns, panels), "grokalign.svg")
    numbers = {"grokking_epochs": f"{GROKKING_EPOCHS}"}
    for name, history in curves.items():
        prefix, last = f"grok_{name.replace('as ', '')}", history.last()
        reached = history.first(lambda row: row["test_accuracy"] > 0.8)
        numbers[f"{prefix}_epoch"] = (
            "later" if reached is None else f"{reached['epoch']}"
        )
        numbers[f"{prefix}_test"] = f"{last['test_accuracy']:.1%}"
        numbers[f"{prefix}_alignment"] = f"{last['normal_alignment']:.2f}"
        numbers[f"{prefix}_rank"] = f"{last['effective_rank']:.2f}"
        numbers[f"{prefix}_robustness"] = f"{last['local_robustness']:.2f}"
    return numbers


_DRAWN = {round(10 ** (i / 16)) for i in range(16 * 3 + 1)}


def one_of_each(data: Dataset) -> Tensor:
    """Return the first training image of each digit."""
    places = [int((data.y_train == digit).nonzero()[0]) for digit in range(10)]
    return data.x_train[torch.tensor(places)]


if __name__ == "__main__":
    main()
