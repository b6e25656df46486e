"""Pictures of the regions on which a network is affine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from normalign._errors import require, require_kind
from normalign.geometry._partition import Partition, Slice, partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_partition"]

_COLORS = ("region", "slope_norm", "class")


def plot_partition(
    model_or_partition: nn.Module | Partition,
    slice_: Slice | None = None,
    *,
    bounds: Sequence[float] | Tensor = (-1.0, 1.0, -1.0, 1.0),
    color: str | Tensor = "region",
    level_sets: bool = True,
    boundaries: bool = True,
    points: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the regions on which a network is affine in a plane of its inputs.

    Regions are filled polygons, the lines along which units switch are drawn darker
    the earlier their layer, and the decision boundary is drawn in bold. Everything is
    exact; nothing is sampled on a grid.

    Parameters
    ----------
    model_or_partition : torch.nn.Module or Partition
        A model is cut first, see :func:`normalign.geometry.partition`.
    slice_, bounds
        Of the partition, if a model is given.
    color : {"region", "slope_norm", "class"} or Tensor of shape (regions,) or
            (regions, 3)
        A tint for each region, the Frobenius norm of the region's slope, the
        largest output (exact: regions are cut where it changes), values for a
        colour scale, or red, green and blue in [0, 1].
    level_sets, boundaries : bool
        Whether to draw the lines where units switch, and where the two largest outputs
        tie.
    points : Tensor of shape (m, 2) or (m, *shape of the input), optional
        Drawn as dots: coordinates in the plane, or inputs, which are projected on it.
    ax : matplotlib Axes, optional
        A new figure by default.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If the colour is none of these, or has not one row per region.

    Examples
    --------
    >>> ax = plot_partition(nn.ReLU(), color="slope_norm")
    >>> len(ax.collections[0].get_paths())  # the four quadrants
    4
    """
    from matplotlib import pyplot
    from matplotlib.collections import PolyCollection

    drawn = model_or_partition
    if not isinstance(drawn, Partition):
        drawn = partition(drawn, slice_, bounds=bounds)
    _require_color(color, drawn)
    if ax is None:
        _, ax = pyplot.subplots(figsize=(6, 6), layout="constrained")
    polygons = drawn.polygons
    if isinstance(color, str) and color == "class":
        polygons = drawn.class_cells().polygons
    filled = PolyCollection(
        [corners.cpu().numpy() for corners in polygons],
        # A hairline of the same colour hides the gaps that antialiasing leaves.
        edgecolors="face",
        linewidths=0.2,
        zorder=1,
    )
    ax.add_collection(filled)
    _fill(filled, drawn, color, ax)
    if level_sets:
        _draw_level_sets(drawn, ax)
    if boundaries:
        _draw_boundaries(drawn, ax)
    if points is not None:
        _draw_points(drawn, points, ax)
    _frame(drawn, ax)
    return ax


def _require_color(color: str | Tensor, drawn: Partition) -> None:
    rule = f"one of {', '.join(_COLORS)}, or a tensor"
    if isinstance(color, Tensor):
        n = len(drawn)
        fits = color.shape == (n,) or color.shape == (n, 3)
        rule = f"of shape ({n},) or ({n}, 3), one row per region"
        require(fits, "plot_partition", "color", rule, color)
    else:
        require_kind(isinstance(color, str), "plot_partition", "color", rule, color)
        require(color in _COLORS, "plot_partition", "color", rule, color)


def _fill(filled, drawn: Partition, color: str | Tensor, ax: Axes) -> None:
    """Colour the polygons, and say what the colours mean."""
    if isinstance(color, Tensor):
        values = color.detach().cpu().double().numpy()
        if values.ndim == 2:
            filled.set_facecolor(values)
        else:
            _scale(filled, values, "viridis", "value", ax)
    elif color == "slope_norm":
        values = drawn.slope.flatten(1).norm(dim=1).cpu().numpy()
        _scale(filled, values, "viridis", "norm of the slope", ax)
    elif color == "class":
        _fill_classes(filled, drawn, ax)
    else:
        filled.set_facecolor(_tints(len(drawn)))


def _scale(filled, values, palette: str, label: str, ax: Axes) -> None:
    filled.set_array(values)
    filled.set_cmap(palette)
    bar = ax.figure.colorbar(filled, ax=ax, fraction=0.046, pad=0.03, label=label)
    bar.outline.set_visible(False)


def _tints(count: int):
    """Tints of one family that differ between neighbours, the same at every call."""
    from matplotlib import colormaps

    draws = torch.rand(count, generator=torch.Generator().manual_seed(0))
    return colormaps["YlGnBu"]((0.03 + 0.55 * draws).numpy())


def _fill_classes(filled, drawn: Partition, ax: Axes) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    label = drawn.class_cells().label.cpu()
    count = max(2, drawn.offset.shape[1])
    palette = colormaps["tab10" if count <= 10 else "tab20"]
    # Half way to white, so that lines and dots stand out.
    shade = torch.tensor([palette(i % palette.N)[:3] for i in range(count)])
    shade = 0.5 + 0.5 * shade
    filled.set_facecolor(shade[label].numpy())
    seen = label.unique().tolist()
    if len(seen) <= 20:
        names = [str(i) for i in range(count)]
        if drawn.offset.shape[1] == 1:
            names = ["positive", "negative"]
        handles = [Patch(color=tuple(shade[i].tolist()), label=names[i]) for i in seen]
        ax.legend(
            handles=handles,
            title="class",
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
            frameon=False,
        )


def _draw_level_sets(drawn: Partition, ax: Axes) -> None:
    from matplotlib.collections import LineCollection

    sets = drawn.level_sets
    depth = sets.layer.cpu().double() / max(1, len(drawn.layers) - 1)
    # With many regions thinner lines, or the picture turns black.
    width = min(1.1, max(0.12, 25 / max(1, len(sets)) ** 0.5))
    ink = torch.tensor([0.08, 0.10, 0.25, 1.0], dtype=torch.float64).repeat(
        len(sets), 1
    )
    ink[:, 3] = 0.95 - 0.4 * depth
    lines = LineCollection(
        list(sets.ends.cpu().numpy()),
        colors=ink.numpy(),
        linewidths=(width * (1 - 0.4 * depth)).numpy(),
        capstyle="round",
        zorder=2,
    )
    ax.add_collection(lines)


def _draw_boundaries(drawn: Partition, ax: Axes) -> None:
    from matplotlib import patheffects
    from matplotlib.collections import LineCollection

    lines = LineCollection(
        list(drawn.decision_boundaries().ends.cpu().numpy()),
        colors="#c1121f",
        linewidths=1.8,
        capstyle="round",
        zorder=3,
    )
    halo = patheffects.Stroke(linewidth=3.2, foreground="white", capstyle="round")
    lines.set_path_effects([halo])
    ax.add_collection(lines)
    # The halo of one segment would cover the end of the next: draw the red on top.
    over = LineCollection(
        lines.get_segments(),
        colors="#c1121f",
        linewidths=1.8,
        capstyle="round",
        zorder=4,
    )
    ax.add_collection(over)


def _draw_points(drawn: Partition, points: Tensor, ax: Axes) -> None:
    shape = drawn.slice_.origin.shape
    planar = points.ndim == 2 and points.shape[1] == 2
    if not planar or shape == (2,):
        rule = f"of shape (m, 2) or (m, *{tuple(shape)})"
        fits = points.shape[1:] == shape
        require(fits, "plot_partition", "points", rule, points)
        points = drawn.slice_.coordinates(points)
    place = points.detach().cpu().numpy()
    ax.scatter(
        place[:, 0], place[:, 1], s=36, c="black", edgecolors="white", linewidths=1.2,
        zorder=5,
    )  # fmt: skip


def _frame(drawn: Partition, ax: Axes) -> None:
    vertices = drawn.cells.vertices.cpu()
    low, high = vertices.amin((0, 1)).tolist(), vertices.amax((0, 1)).tolist()
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    ax.set_aspect("equal")
    plain = torch.equal(drawn.slice_.axes.cpu(), torch.eye(2))
    what = "input" if plain else "axis of the slice"
    ax.set_xlabel(f"first {what}")
    ax.set_ylabel(f"second {what}")
    for spine in ax.spines.values():
        spine.set_visible(False)
