import math

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from normalign.plots._curves import plot_curves

mpl.use("agg")

RUNS = {
    "one": {"epoch": [0, 1, 10, 100], "loss": [4.0, 3.0, 2.0, 1.0], "rank": [5] * 4},
    "two": {
        "epoch": [0, 1, 10, 100],
        "loss": [4.0, math.nan, 1.0, 0.5],
        "rank": [1] * 4,
    },
}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_every_panel_has_a_curve_for_every_run():
    figure = plot_curves(RUNS, {"loss": "Loss", "rank": "Rank"})
    assert [axis.get_title() for axis in figure.axes] == ["Loss", "Rank"]
    for axis in figure.axes:
        assert axis.get_xscale() == "log"
        assert [line.get_label() for line in axis.lines] == ["one", "two"]


def test_the_untrained_model_has_no_place_on_the_axis():
    (axis,) = plot_curves(RUNS, ["loss"]).axes
    assert list(axis.lines[0].get_xdata()) == [1, 10, 100]
    assert list(axis.lines[0].get_ydata()) == [3.0, 2.0, 1.0]


def test_a_mark_is_drawn_where_there_is_one():
    (axis,) = plot_curves(RUNS, ["loss"], marks={"one": 10, "two": None}).axes
    vertical = [line for line in axis.lines if list(line.get_xdata()) == [10, 10]]
    assert len(vertical) == 1
    assert len(axis.lines) == 3


def test_limits_and_a_given_figure_are_respected():
    figure = plt.figure()
    assert plot_curves(RUNS, ["rank"], limits={"rank": (0, 7)}, figure=figure) is figure
    assert figure.axes[0].get_ylim() == (0, 7)


@pytest.mark.parametrize(
    ("runs", "panels", "words"),
    [
        ({}, ["loss"], "runs must be non-empty"),
        (RUNS, [], "panels must be non-empty"),
        (RUNS, ["accuracy"], "columns with 'accuracy' in each, got 'one' with epoch"),
    ],
)
def test_wrong_arguments_are_named(runs, panels, words):
    with pytest.raises(ValueError, match=words):
        plot_curves(runs, panels)
