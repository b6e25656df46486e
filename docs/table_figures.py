"""The pictures and the numbers of the page on tables, for figures.py."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import RepeatedStratifiedKFold

from normalign.estimators import RFAMClassifierCV, as_torch, make_tabular_pipeline
from normalign.geometry import local_geometry
from normalign.kernels import estimate_memory
from normalign.plots._curves import COLOURS
from normalign.robustness import pgd

RADII = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
SHOWN_RADIUS = 0.3
STARTS = {"RFM": 1.0, "RFAM": 0.0}  # the identity's weight in the first metric


def tables(path: Path) -> tuple[dict[str, Figure], dict[str, str]]:
    """Run the page on tables, compare machines over splits, draw what came out."""
    page = executed(path)
    diabetes = page["table"], page["speed"], ("sex",)
    frame, benign = load_breast_cancer(return_X_y=True, as_frame=True)
    cancer = frame, np.where(benign, "benign", "malignant"), ()
    found = {
        "diabetes": compared(*diabetes, page["strong"]),
        "cancer": compared(*cancer, page["strong"]),
    }
    plain = {
        "logistic": LogisticRegression(max_iter=1000),
        "forest": RandomForestClassifier(random_state=0),
    }
    shares = {name: probabilities(*diabetes, model) for name, model in plain.items()}
    shares["RFAM"] = found["diabetes"]["RFAM"]["probabilities"]
    pictures = {
        "importances": importances_picture(page["by_column"]),
        "attack": attack_picture(
            {
                _titled("diabetes", page["table"]): found["diabetes"],
                _titled("breast cancer", frame): found["cancer"],
            }
        ),
        "probabilities": probabilities_picture(shares, diabetes[1]),
    }
    numbers = told_by(page) | told_of(found) | told_beside(shares, diabetes[1])
    return pictures, numbers


def _titled(name: str, table: Any) -> str:
    return f"{name}, {len(table)} rows, {table.shape[1]} columns"


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
    table: Any,
    labels: np.ndarray,
    categorical: tuple[str, ...],
    attack: dict[str, Any],
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
            tried = pgd(fitted, x, labels[test], radii=RADII, **attack)
            columns["held"].append(tried.robust_accuracy.tolist())
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


def importances_picture(shares: Any) -> Figure:
    """Bars, one for each column of the table."""
    shares = shares.sort_values()
    figure, axis = plt.subplots(figsize=(7.2, 2.6), layout="constrained")
    axis.barh(shares.index, shares, color=COLOURS[1])
    axis.set(xlabel="share of the importances, indicators of a column added up")
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def attack_picture(found: dict[str, dict[str, Any]]) -> Figure:
    """Accuracy over the radius of the attack, a panel for each table."""
    figure, axes = plt.subplots(
        1, len(found), figsize=(7.2, 2.9), sharey=True, layout="constrained"
    )
    for axis, (title, methods) in zip(axes, found.items(), strict=True):
        for colour, (method, columns) in zip(COLOURS, methods.items(), strict=False):
            draw_mean(axis, columns["held"], colour, method)
        axis.set_title(title, fontsize="medium")
        axis.set(xlabel="radius (standard deviations)", ylim=(0, 1))
        tidy(axis)
    axes[0].set_ylabel("rows right under attack")
    axes[0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[-1].legend(fontsize="small", frameon=False)
    return figure


def draw_mean(axis: Axes, held: np.ndarray, colour: str, name: str) -> None:
    """The mean over splits, with one standard error to either side."""
    mean, error = held.mean(0), held.std(0, ddof=1) / len(held) ** 0.5
    line = {"color": colour, "linewidth": 1.6, "marker": "o", "markersize": 3}
    axis.plot(RADII, mean, label=name, **line)
    band = {"color": colour, "alpha": 0.2, "linewidth": 0}
    axis.fill_between(RADII, mean - error, mean + error, **band)


def probabilities_picture(shares: dict[str, np.ndarray], labels: np.ndarray) -> Figure:
    """What was predicted in eight groups of equal size, and what came true."""
    figure, axis = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
    axis.plot([0, 1], [0, 1], color=COLOURS[4], linewidth=0.8, label="as predicted")
    first = np.unique(labels)[0]
    truth = np.tile(labels == first, 2)
    drawn = (
        ("RFAM", "RFAM", COLOURS[1]),
        ("logistic", "logistic regression", COLOURS[2]),
    )
    for key, name, colour in drawn:
        predicted = shares[key].ravel()
        groups = np.array_split(np.argsort(predicted), 8)
        axis.plot(
            [predicted[group].mean() for group in groups],
            [truth[group].mean() for group in groups],
            color=colour, label=name, marker="o", markersize=4, linewidth=1.6,
        )  # fmt: skip
    axis.set(
        xlabel=f'mean probability predicted for "{first}"',
        ylabel=f'share that was "{first}"',
    )
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.legend(fontsize="small", frameon=False)
    tidy(axis)
    return figure


def tidy(axis: Axes) -> None:
    """A grid, and no frame."""
    axis.grid(alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def told_by(page: dict[str, Any]) -> dict[str, str]:
    """What the code of the page itself found."""
    machine, best = page["machine"], page["best"]
    x_test, y_test = page["X_test"], page["y_test"]
    plain = page["na"].RFAMClassifier()
    untuned = make_tabular_pipeline(plain, categorical=["sex"])
    ranked = page["by_column"].sort_values(ascending=False)
    untuned.fit(page["X"], page["y"])
    return {
        "table_default": f"{untuned.score(x_test, y_test):.0%}",
        "table_rows": f"{len(y_test)}",
        "table_tuned": f"{page['tuned'].score(x_test, y_test):.0%}",
        "table_ridge": f"{machine.ridge_:g}",
        "table_updates": f"{machine.n_iter_}",
        "table_weight": f"{machine.identity_weight_:g}",
        "table_cv_score": f"{machine.best_score_:.1%}",
        "table_weights_apart": f"{100 * (best.max() - best.min()):.1f}",
        "table_fold_spread": f"{100 * page['results']['std_test_score'].median():.1f}",
        "table_first": ranked.index[0],
        "table_second": ranked.index[1],
        "table_two_shares": f"{ranked.iloc[:2].sum():.0%}",
        "table_quarter": f"{page['geometry'].local_robustness.quantile(0.25):.2f}",
        "table_attacked": f"{page['attack'].success_rate[-1]:.0f}%",
        "table_masking": ", ".join(page["report"].failed) or "nothing",
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
