"""The picture of few images: accuracies and alignment against how many there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normalign_reproduction._errors import require
from normalign_reproduction.items.small_cifar.rows import (
    CHOICES,
    METHODS,
    QUANTITIES,
    TUNED,
    Quantity,
    validation_choice,
)
from normalign_reproduction.report.panels import COLOURS, STYLES, bands, spread
from normalign_reproduction.spec import Record, Records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["by_images"]

_PANELS = {
    "test_accuracy": "Test accuracy (%)",
    "nearby_accuracy": "Robust accuracy at 2/255 (%)",
    "robust_accuracy": "Robust accuracy at 8/255 (%)",
    "normal_alignment": "Normal alignment",
}
_COLOURED = {"baseline": 4, "control": 1, "decay": 2, "grokalign": 0, "pgd": 3}


def by_images(records: Records) -> Figure:
    """Draw accuracy, robust accuracies and alignment, a line for each method.

    Bands reach over the seeds. Solid lines are tuned by validation accuracy, dashed
    ones by validation robust accuracy, drawn where that is another choice to make.

    Raises
    ------
    ValueError
        If there are no records.
    """
    from matplotlib import rcParams
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    require(len(records) > 0, "by_images", "records", "non-empty", list(records))
    figure = Figure(figsize=(3.5 * len(_PANELS), 3.2), layout="constrained")
    axes = figure.subplots(1, len(_PANELS))
    colours = {method: COLOURS[_COLOURED[method]] for method in METHODS}
    handles = [
        Line2D([], [], color=colours[method], label=title)
        for method, title in METHODS.items()
    ]
    for style, (by, taken) in zip(STYLES, _chosen_runs(records).items(), strict=False):
        for name, axis in zip(_PANELS, axes, strict=True):
            for method, by_size in taken.items():
                _line(axis, by_size, QUANTITIES[name], colours[method], style)
        ink = rcParams["text.color"]
        handles.append(
            Line2D([], [], color=ink, linestyle=style, label=f"tuned by {by}")
        )
    sizes = sorted({record["n_train"] for record in records})
    for (_, title), axis in zip(_PANELS.items(), axes, strict=True):
        axis.set_xscale("log")
        axis.set_xticks(sizes)
        axis.set_xticklabels([f"{size}" for size in sizes])
        axis.minorticks_off()
        axis.set_xlabel("Training images")
        axis.set_ylabel(title)
        axis.grid(alpha=0.16, linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles=handles, loc="outside lower center", ncols=4, frameon=False,
        fontsize="small",
    )  # fmt: skip
    return figure


def _chosen_runs(records: Records) -> dict[str, dict[str, dict[int, list[Record]]]]:
    """Return the chosen runs by what chose them, method and number of images."""
    found: dict[str, dict[str, dict[int, list[Record]]]] = {}
    for by in CHOICES:
        lines = found.setdefault(by, {})
        for size, by_method in validation_choice(records, by).items():
            for method, by_seed in by_method.items():
                if method in TUNED or by == next(iter(CHOICES)):
                    lines.setdefault(method, {})[size] = list(by_seed.values())
    return found


def _line(
    axis: Axes,
    by_size: dict[int, list[Record]],
    quantity: Quantity,
    colour: str,
    style: str,
) -> None:
    ends = {size: spread([*map(quantity.of, group)]) for size, group in by_size.items()}
    curve = bands([(float(size), end) for size, end in sorted(ends.items()) if end])
    axis.plot(
        curve.x, curve.mean, color=colour, linestyle=style, linewidth=1.6, marker="o",
        markersize=4,
    )  # fmt: skip
    if curve.n > 1:
        axis.fill_between(
            curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0
        )
