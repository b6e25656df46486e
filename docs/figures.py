"""Make every picture and every number of the pages in this folder.

Run ``python docs/figures.py`` from the root of the repository. It trains the two
networks of the tour and the four of the page on GrokAlign (about six minutes on two
cores, once: finished runs are kept in ``out/``) and then takes about two minutes, most
of them for the machines of the page on tables. It writes the pictures and
``docs/images/numbers.json``, and puts the numbers into the pages, between
``<!--n:name-->`` and ``<!--/n-->``.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import RepeatedStratifiedKFold
from torch import Tensor

from normalign.data import load_digits_5000
from normalign.data.dataset import Dataset
from normalign.estimators import RFAMClassifierCV, as_torch, make_tabular_pipeline
from normalign.geometry import Slice, local_geometry, partition
from normalign.kernels import estimate_memory
from normalign.nn import mlp
from normalign.paper.store import provenance, write_bytes, write_json
from normalign.paper.tour_runs import RUNS, TourRun, TourSettings, digits, trained
from normalign.plots import plot_centroids, plot_curves, plot_partition
from normalign.plots.curves import COLOURS
from normalign.regularizers import PenaltyForm
from normalign.training import Ensemble, Member, rules, stacked_geometry

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
NUMBER = re.compile(r"<!--n:([a-z_]+)-->(.*?)<!--/n-->")
REACH = 0.2


def main() -> None:
    """Train or find the networks, draw, count, and fill in the pages."""
    start = time.perf_counter()
    mpl.use("agg")
    mpl.rcParams.update({"svg.hashsalt": "normalign", "font.size": 9})
    settings = TourSettings()
    data = digits(settings)
    folder = DOCS.parent / "out" / "tour" / "runs"
    runs = {
        name: trained(replace(settings, weight=weight), data, folder, name)
        for name, weight in RUNS.items()
    }
    numbers = curves(runs) | centroids(runs["with penalty"], data)
    numbers |= regions(runs["with penalty"], data)
    numbers |= grokking()
    numbers |= tables()
    write_json(
        IMAGES / "numbers.json",
        {"numbers": numbers, "settings": settings.key(), "about": provenance()},
    )
    for page in DOCS.glob("*.md"):
        fill(page, numbers)
    print(json.dumps(numbers, indent=1))
    print(f"{time.perf_counter() - start:.0f} seconds")


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


def curves(runs: dict[str, TourRun]) -> dict[str, str]:
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


def centroids(run: TourRun, data: Dataset) -> dict[str, str]:
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


def regions(run: TourRun, data: Dataset) -> dict[str, str]:
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


# --- the page on tables -----------------------------------------------------------

RADII = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
SHOWN_RADIUS = 0.3
STARTS = {"RFM": 1.0, "RFAM": 0.0}  # the identity's weight in the first metric


def tables() -> dict[str, str]:
    """Run the page on tables, compare machines over splits, draw what came out."""
    page = executed(DOCS / "a-table-in-a-model-out.md")
    diabetes = page["table"], page["speed"], ("sex",)
    frame, benign = load_breast_cancer(return_X_y=True, as_frame=True)
    cancer = frame, np.where(benign, "benign", "malignant"), ()
    found = {
        "diabetes": compared(*diabetes, page["held"]),
        "cancer": compared(*cancer, page["held"]),
    }
    plain = {
        "logistic": LogisticRegression(max_iter=1000),
        "forest": RandomForestClassifier(random_state=0),
    }
    shares = {name: probabilities(*diabetes, model) for name, model in plain.items()}
    shares["RFAM"] = found["diabetes"]["RFAM"]["probabilities"]
    figure, axes = plt.subplots(2, 2, figsize=(7.2, 5.2), layout="constrained")
    draw_importances(axes[0, 0], page["importances"])
    for axis, name in ((axes[0, 1], "diabetes"), (axes[1, 0], "cancer")):
        draw_attack(axis, found[name], name)
    draw_calibration(axes[1, 1], shares, diabetes[1])
    save(figure, "tables.svg")
    return told_by(page) | told_of(found) | told_beside(shares, diabetes[1])


def executed(page: Path) -> dict[str, Any]:
    """The names that the code of a page leaves behind; what it prints is dropped."""
    names: dict[str, Any] = {"__name__": page.stem}
    text = page.read_text()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
            exec(compile(block, str(page), "exec"), names)
    return names


def splits(table: Any, labels: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    """Five folds, twice."""
    folds = RepeatedStratifiedKFold(n_splits=5, n_repeats=2, random_state=0)
    return list(folds.split(table, labels))


def compared(
    table: Any, labels: np.ndarray, categorical: tuple[str, ...], held: Callable
) -> dict[str, dict[str, np.ndarray]]:
    """RFM and RFAM, each tuned inside the training part, on the rows held out."""
    found = {}
    for name, weight in STARTS.items():
        machine = RFAMClassifierCV(identity_weights=(weight,), random_state=0)
        model = make_tabular_pipeline(machine, categorical=categorical)
        columns: dict[str, list] = {"held": [], "alignment": [], "robustness": []}
        answers = np.zeros((2, len(labels)))
        for number, (train, test) in enumerate(splits(table, labels)):
            model.fit(table.iloc[train], labels[train])
            answers[number // 5, test] = model.predict_proba(table.iloc[test])[:, 0]
            x, fitted = model[:-1].transform(table.iloc[test]), model["machine"]
            codes = torch.tensor(np.searchsorted(fitted.classes_, labels[test]))
            geometry = local_geometry(as_torch(fitted), torch.tensor(x), codes)
            columns["held"].append([held(fitted, x, labels[test], r) for r in RADII])
            columns["alignment"].append(float(geometry.normal_alignment.mean()))
            columns["robustness"].append(float(geometry.local_robustness.median()))
        found[name] = {key: np.array(column) for key, column in columns.items()}
        found[name]["probabilities"] = answers
    return found


def probabilities(
    table: Any, labels: np.ndarray, categorical: tuple[str, ...], estimator: Any
) -> np.ndarray:
    """Probabilities of the first class for every row, held out, in both rounds."""
    model = make_tabular_pipeline(estimator, categorical=categorical)
    answers = np.zeros((2, len(labels)))
    for number, (train, test) in enumerate(splits(table, labels)):
        model.fit(table.iloc[train], labels[train])
        answers[number // 5, test] = model.predict_proba(table.iloc[test])[:, 0]
    return answers


def draw_importances(axis: Axes, importances: Any) -> None:
    """Bars, the indicators of a category added up."""
    columns = importances.index.str.split("__").str[1].str.split("_").str[0]
    shares = importances.groupby(columns).sum().sort_values()
    axis.barh(shares.index, shares, color=COLOURS[1])
    axis.set_title("diabetes: importances", fontsize="medium")
    axis.spines[["top", "right"]].set_visible(False)


def draw_attack(axis: Axes, found: dict[str, Any], name: str) -> None:
    """Accuracy over the radius of the attack, with the range of the splits' mean."""
    for colour, (method, columns) in zip(COLOURS, found.items(), strict=False):
        mean = columns["held"].mean(0)
        error = columns["held"].std(0, ddof=1) / len(columns["held"]) ** 0.5
        axis.plot(RADII, mean, color=colour, label=method, linewidth=1.6)
        axis.fill_between(
            RADII, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0
        )
    axis.set_title(f"{name}: right under attack", fontsize="medium")
    axis.set(xlabel="radius, standard deviations", ylim=(0, 1))
    axis.legend(fontsize="small", frameon=False)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def draw_calibration(
    axis: Axes, shares: dict[str, np.ndarray], labels: np.ndarray
) -> None:
    """What was predicted in eight groups of equal size, and what came true."""
    axis.plot([0, 1], [0, 1], color=COLOURS[4], linewidth=0.8)
    for colour, name in ((COLOURS[1], "RFAM"), (COLOURS[2], "logistic")):
        predicted = shares[name].ravel()
        truth = np.tile(labels == np.unique(labels)[0], 2)
        groups = np.array_split(np.argsort(predicted), 8)
        axis.plot(
            [predicted[group].mean() for group in groups],
            [truth[group].mean() for group in groups],
            color=colour, label=name, marker="o", markersize=4, linewidth=1.6,
        )  # fmt: skip
    axis.set_title("diabetes: probabilities", fontsize="medium")
    axis.set(xlabel="predicted", ylabel="came true")
    axis.legend(fontsize="small", frameon=False)
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def told_by(page: dict[str, Any]) -> dict[str, str]:
    """What the code of the page itself found."""
    machine, best = page["machine"], page["best"]
    x_test, y_test = page["X_test"], page["y_test"]
    plain = page["na"].RFAMClassifier()
    untuned = make_tabular_pipeline(plain, categorical=["sex"])
    ranked = [name.split("__")[1] for name in page["importances"].index[::-1]]
    return {
        "table_default": f"{untuned.fit(page['X'], page['y']).score(x_test, y_test):.0%}",
        "table_rows": f"{len(y_test)}",
        "table_tuned": f"{page['tuned'].score(x_test, y_test):.0%}",
        "table_ridge": f"{machine.ridge_:g}",
        "table_updates": f"{machine.n_iter_}",
        "table_weight": f"{machine.identity_weight_:g}",
        "table_cv_score": f"{machine.best_score_:.1%}",
        "table_weights_apart": f"{100 * (best.max() - best.min()):.1f}",
        "table_fold_spread": f"{100 * page['results']['std_test_score'].median():.1f}",
        "table_first": ranked[0],
        "table_second": ranked[1],
        "table_two_shares": f"{page['importances'].iloc[-2:].sum():.0%}",
        "table_quarter": f"{page['geometry'].local_robustness.quantile(0.25):.2f}",
        "memory_small": f"{estimate_memory(16_000, 10, 2) / 1e9:.1f}",
        "memory_large": f"{estimate_memory(150_000, 10, 2) / 1e9:.0f}",
    }


def told_of(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """RFM beside RFAM on both tables."""
    numbers = {}
    place = RADII.index(SHOWN_RADIUS)
    for table, methods in found.items():
        for method, columns in methods.items():
            prefix = f"{table}_{method.lower()}"
            numbers[f"{prefix}_accuracy"] = f"{columns['held'][:, 0].mean():.1%}"
            numbers[f"{prefix}_held"] = f"{columns['held'][:, place].mean():.1%}"
            numbers[f"{prefix}_alignment"] = f"{columns['alignment'].mean():.2f}"
            numbers[f"{prefix}_robustness"] = f"{columns['robustness'].mean():.2g}"
        more = 100 * (methods["RFAM"]["held"] - methods["RFM"]["held"])[:, place]
        error = more.std(ddof=1) / len(more) ** 0.5
        numbers[f"{table}_gain"] = f"{more.mean():+.1f} ± {error:.1f} points"
    return numbers


def told_beside(shares: dict[str, np.ndarray], labels: np.ndarray) -> dict[str, str]:
    """Accuracy and log loss of other models on the same splits."""
    first = labels == np.unique(labels)[0]
    numbers = {}
    for name, answers in shares.items():
        prefix = "table" if name == "RFAM" else f"table_{name}"
        loss = np.mean([log_loss(first, answer) for answer in answers])
        numbers[f"{prefix}_loss"] = f"{loss:.3f}"
        if name != "RFAM":
            numbers[prefix] = f"{((answers > 0.5) == first).mean():.1%}"
    return numbers


def one_of_each(data: Dataset) -> Tensor:
    """Return the first training image of each digit."""
    places = [int((data.y_train == digit).nonzero()[0]) for digit in range(10)]
    return data.x_train[torch.tensor(places)]


if __name__ == "__main__":
    main()
