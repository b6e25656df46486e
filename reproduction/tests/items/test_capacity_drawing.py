"""Pictures of robustly trained networks: what is drawn, from made-up numbers."""

import math

import pytest

from normalign_reproduction.items.capacity.drawing import by_images, by_stage
from tests.items.robust_by_hand import layered, record


def drawn(axis):
    return [tuple(map(float, line.get_ydata())) for line in axis.get_lines()]


def test_alignment_is_drawn_by_images_for_both_weights():
    records = [
        record("wrn10-1", n_train=n, seed=seed, normal_alignment=value,
               averaged={"normal_alignment": 0.9}, test_accuracy=0.5)
        for n, value in ((300, 0.2), (100, 0.4))
        for seed in (0, 1)
    ]  # fmt: skip
    figure = by_images(records)
    alignment, rank, accuracy = figure.axes
    assert drawn(alignment) == [(0.4, 0.2), (0.9, 0.9)]
    assert drawn(rank) == [(2.0, 2.0), (2.0, 2.0)]
    assert drawn(accuracy) == [(50.0, 50.0), (30.0, 30.0)]
    assert [tick.get_text() for tick in alignment.get_xticklabels()] == ["100", "300"]
    assert alignment.get_xscale() == "log"
    (legend,) = figure.legends
    assert "WideResNet-10-1" in [text.get_text() for text in legend.get_texts()]


def test_a_network_without_numbers_leaves_the_others_drawn():
    figure = by_images([record("wrn10-1", normal_alignment=None), record("wrn10-2")])
    assert (0.5,) in drawn(figure.axes[0])


def test_stages_are_drawn_trained_tested_and_untrained():
    records = [
        layered("resnet18", [0.1, 0.2], test=[0.3, 0.4], untrained=[0.5, 0.6]),
        layered("resnet50", [0.7, 0.8]),
    ]
    centroid, *_ = by_stage(records).axes
    assert drawn(centroid) == [
        (0.1, 0.2), (0.3, 0.4), (0.5, 0.6), (0.7, 0.8), (0.7, 0.8), (),
    ]  # fmt: skip
    labels = [tick.get_text() for tick in centroid.get_xticklabels()]
    assert labels == ["layer1", "layer2"]


@pytest.mark.parametrize("draw", [by_images, by_stage])
def test_nothing_cannot_be_drawn(draw):
    with pytest.raises(ValueError, match="records must be non-empty"):
        draw([])


def test_a_line_is_broken_where_a_network_lacks_a_size():
    records = [record("wrn10-1", n_train=n) for n in (100, 300, 1000)]
    records += [record("wrn10-2", n_train=n) for n in (300, 1000, 3000)]
    records[1].result["normal_alignment"] = None
    alignment = by_images(records).axes[0]
    narrow, _, wide, _ = alignment.get_lines()
    assert list(narrow.get_xdata()) == [100, 300, 1000]
    assert [math.isnan(y) for y in narrow.get_ydata()] == [False, True, False]
    assert list(wide.get_xdata()) == [300, 1000, 3000]
