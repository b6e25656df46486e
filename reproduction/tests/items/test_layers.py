"""Profiles through the stages: rows and rules on made-up numbers."""

import pytest

from normalign_reproduction.items.layers.claims import (
    due_to_training,
    layer_rows,
    profile,
    rises_with_depth,
)
from tests.items.robust_by_hand import layered


def told(verdicts):
    return {verdict.name: verdict.holds for verdict in verdicts}


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ([0.1, 0.2, 0.3, 0.4], True),
        ([0.1, 0.3, 0.2, 0.4], True),  # a correlation of 0.8
        ([0.1, 0.4, 0.3, 0.2], False),
        ([0.4, 0.3, 0.2, 0.1], False),
        ([0.2, 0.2, 0.2, 0.2], False),
    ],
)
def test_centroid_alignment_must_rise_with_depth(values, holds):
    records = [layered("resnet18", values, test=[0.4, 0.3, 0.2, 0.1])]
    assert told(rises_with_depth(records)) == {
        "ResNet18, training images": holds,
        "ResNet18, test images": False,
    }


def test_two_stages_tell_no_trend():
    verdicts = rises_with_depth([layered("resnet18", [0.1, 0.2])])
    assert {verdict.holds for verdict in verdicts} == {None}


@pytest.mark.parametrize(
    ("after", "before", "holds"),
    [
        ([0.1, 0.2, 0.3, 0.8], [0.1, 0.2, 0.3, 0.4], True),
        ([0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.8], False),
        ([0.4, 0.3, 0.2, 0.1], [0.9, 0.3, 0.2, 0.1], False),  # it falls less
    ],
)
def test_training_must_have_raised_the_rise(after, before, holds):
    records = [layered("resnet50", after, untrained=before)]
    assert told(due_to_training(records)) == {"ResNet50": holds}


def test_without_a_control_training_cannot_be_judged():
    assert told(due_to_training([layered("resnet50", [0.1, 0.2])])) == {
        "ResNet50": None
    }


def test_rows_are_means_over_seeds_stage_by_stage():
    records = [
        layered("resnet50", [0.9, 0.8], untrained=[0.1, 0.2]),
        layered("resnet18", [0.2, 0.4], test=[0.5, 0.6]),
        layered("resnet18", [0.4, 0.4], test=[0.5, 0.6], seed=1),
    ]
    rows = layer_rows(records)
    assert [(row["network"], row["place"]) for row in rows] == [
        ("ResNet18", "layer1"), ("ResNet18", "layer2"),
        ("ResNet50", "layer1"), ("ResNet50", "layer2"),
    ]  # fmt: skip
    assert rows[0]["centroid_alignment_train"] == pytest.approx(0.3)
    assert rows[1]["centroid_alignment_test"] == pytest.approx(0.6)
    assert rows[0]["centroid_alignment_untrained"] is None
    assert rows[3]["centroid_alignment_untrained"] == pytest.approx(0.2)
    assert rows[0]["n"] == 2
    assert layer_rows(records[::-1]) == rows


def test_a_profile_holds_the_numbers_of_every_seed():
    records = [
        layered("resnet18", [0.2, None]),
        layered("resnet18", [0.4, 0.5], seed=1),
    ]
    found = profile(records, "centroid_alignment")
    assert found == {"layer1": [0.2, 0.4], "layer2": [0.5]}
    assert profile(records, "centroid_alignment", "averaged") == {}


def test_a_profile_with_a_gap_is_not_judged():
    gap = layered("resnet18", [0.1, None, 0.3, 0.4], untrained=[0.1, 0.1, 0.1, 0.1])
    assert told(rises_with_depth([gap]))["ResNet18, training images"] is None
    assert told(due_to_training([gap])) == {"ResNet18": None}
    both = layered("resnet18", [0.1, None, 0.4], untrained=[0.1, None, 0.1])
    assert told(due_to_training([both])) == {"ResNet18": None}


def test_a_network_that_diverged_has_rows_without_numbers_and_no_verdict():
    lost = layered("resnet18", [0.1, 0.2, 0.3])
    lost.result.update(places={}, places_test={}, averaged=None, untrained=None)
    rows = layer_rows([lost])
    assert [row["place"] for row in rows] == ["layer1", "layer2", "layer3"]
    assert {row["centroid_alignment_train"] for row in rows} == {None}
    assert {verdict.holds for verdict in rises_with_depth([lost])} == {None}


def test_verdicts_say_of_how_many_seeds_they_are():
    one = [layered("resnet18", [0.1, 0.2, 0.3], untrained=[0.1, 0.1, 0.1])]
    for judged in (rises_with_depth, due_to_training):
        assert {verdict.why.endswith("; one seed") for verdict in judged(one)} == {True}
