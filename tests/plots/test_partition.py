"""What is drawn for a partition; how it looks is judged by eye."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normalign.geometry import Slice, partition

pytest.importorskip("matplotlib")
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.collections import LineCollection, PolyCollection

from normalign.plots._partition import plot_partition


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def found():
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    x = torch.zeros(4, dtype=torch.float64)
    return partition(model, Slice.around(x, radius=2.0, generator=generator))


def of_kind(ax, kind) -> list:
    return [item for item in ax.collections if isinstance(item, kind)]


@pytest.mark.parametrize("color", ["region", "slope_norm"])
def test_every_region_is_one_filled_polygon(found, color):
    ax = plot_partition(found, color=color)
    (filled,) = of_kind(ax, PolyCollection)
    assert len(filled.get_paths()) == len(found)


def test_classes_fill_the_plane_with_the_class_cells(found):
    ax = plot_partition(found, color="class")
    (filled,) = of_kind(ax, PolyCollection)
    assert len(filled.get_paths()) == len(found.class_cells())
    shown = {text.get_text() for text in ax.get_legend().get_texts()}
    assert shown == {str(i) for i in found.class_cells().label.unique().tolist()}


def test_level_sets_and_boundaries_are_drawn_when_asked_for(found):
    bare = plot_partition(found, level_sets=False, boundaries=False)
    assert not of_kind(bare, LineCollection)
    lines = of_kind(plot_partition(found, boundaries=False), LineCollection)
    assert [len(item.get_segments()) for item in lines] == [len(found.level_sets)]
    edges = of_kind(plot_partition(found, level_sets=False), LineCollection)
    counts = {len(item.get_segments()) for item in edges}
    assert counts == {len(found.decision_boundaries())}


def test_values_and_colours_may_be_given_per_region(found):
    values = found.areas
    (filled,) = of_kind(plot_partition(found, color=values), PolyCollection)
    assert filled.get_array().tolist() == values.tolist()
    rgb = torch.rand(len(found), 3, generator=torch.Generator().manual_seed(0))
    (filled,) = of_kind(plot_partition(found, color=rgb), PolyCollection)
    torch.testing.assert_close(
        torch.as_tensor(filled.get_facecolor()[:, :3]).float(), rgb
    )


def test_inputs_are_projected_on_the_plane(found):
    place = torch.tensor([[0.25, -0.5]], dtype=torch.float64)
    for points in (place, found.slice_.embed(place)):
        ax = plot_partition(found, points=points)
        dots = ax.collections[-1].get_offsets()
        torch.testing.assert_close(torch.as_tensor(dots.data), place)


def test_a_model_is_cut_first_and_drawn_on_the_given_axes():
    _, ax = pyplot.subplots()
    assert plot_partition(nn.ReLU(), bounds=(-2, 2, -1, 3), ax=ax) is ax
    assert ax.get_xlim() == (-2, 2)
    assert ax.get_ylim() == (-1, 3)


def test_a_network_with_one_output_is_labelled_by_its_sign():
    model = nn.Sequential(nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0]]))
    ax = plot_partition(model, color="class")
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["positive", "negative"]


@pytest.mark.parametrize("color", ["hue", torch.zeros(2)])
def test_an_unknown_colour_is_refused(found, color):
    with pytest.raises(ValueError, match="plot_partition: color must be"):
        plot_partition(found, color=color)
