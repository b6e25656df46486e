import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from torch import nn

from normalign.geometry import LayerProfile, LocalGeometry, layer_profile
from normalign.nn import mlp
from normalign.plots._profile import plot_profile

mpl.use("agg")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def profile(places, n=8, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return LayerProfile(
        {
            place: LocalGeometry(
                *(torch.rand(n, generator=draw) for _ in range(7)),
            )
            for place in places
        }
    )


def test_means_are_drawn_with_the_middle_half_around_them():
    drawn = profile(["input", "layer1"])
    figure = plot_profile(drawn)
    measures = ("centroid_alignment", "normal_alignment", "effective_rank")
    for axis, measure in zip(figure.axes, measures, strict=True):
        values = [getattr(geometry, measure).double() for geometry in drawn.values()]
        (line,) = (line for line in axis.lines if len(line.get_xdata()) == 2)
        assert line.get_ydata().tolist() == [float(v.mean()) for v in values]
        heights = axis.collections[0].get_paths()[0].vertices[:, 1].tolist()
        for v in values:
            for q in (0.25, 0.75):
                assert float(v.quantile(q)) in heights


def overlapping(axis):
    figure = axis.figure
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    # Turned labels overlap as boxes and not as text: compare their right ends, a line
    # of text apart from each other.
    ends = [t.get_window_extent(renderer).x1 for t in axis.get_xticklabels()]
    tall = axis.get_xticklabels()[0].get_fontsize() * figure.dpi / 72
    return any(b - a < tall for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_names_do_not_meet(count):
    places = ["input", *(f"features.{3 * i}" for i in range(1, 20))][:count]
    figure = plot_profile(profile(places))
    assert not any(overlapping(axis) for axis in figure.axes)


def test_short_names_lie_flat_and_do_not_meet():
    figure = plot_profile(profile(["input", *(f"layer{i}" for i in (1, 2, 3, 4))]))
    figure.canvas.draw()
    for axis in figure.axes:
        boxes = [label.get_window_extent() for label in axis.get_xticklabels()]
        assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_one_place_is_a_dot_with_a_bar():
    figure = plot_profile(profile(["input"]))
    assert all(len(axis.collections) == 1 for axis in figure.axes)
    assert figure.axes[0].get_ylim()[0] == 0


def test_alignments_share_a_scale_that_holds_what_is_negative():
    drawn = profile(["input", "2"])
    drawn["2"].centroid_alignment.neg_()
    low = [axis.get_ylim()[0] for axis in plot_profile(drawn).axes[:2]]
    assert low[0] == low[1] < 0


def test_several_networks_are_told_apart_by_colour_and_mark():
    both = {"small": profile(["input", "a"]), "large": profile(["input", "b"], seed=1)}
    figure = plot_profile(both)
    assert [t.get_text() for t in figure.axes[0].get_legend().get_texts()] == [
        "small", "large",
    ]  # fmt: skip
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["input", "a", "b"]
    lines = [line for line in figure.axes[2].lines if line.get_label() in both]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 2
    assert len({line.get_marker() for line in lines}) == 2


def test_a_measured_profile_can_be_drawn_on_a_figure_of_ones_own():
    figure = plt.figure(figsize=(9, 3))
    found = layer_profile(mlp([5, 4, 3]), torch.randn(4, 5))
    assert plot_profile(found, figure=figure) is figure
    assert len(figure.axes) == 3


@pytest.mark.parametrize(
    "empty", [LayerProfile({}), layer_profile(nn.Linear(3, 2), torch.zeros(0, 3))]
)
def test_nothing_to_draw_is_said(empty):
    with pytest.raises(ValueError, match=r"^plot_profile: profile must be of at least"):
        plot_profile(empty)
