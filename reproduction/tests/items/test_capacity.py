"""Alignment by width and by the number of images: rows and rules on made-up numbers."""

import pytest

from normalign_reproduction.items.capacity.rows import (
    capacity_rows,
    falls_with_images,
    means,
    rank_correlation,
    wider_aligns_more,
)
from tests.items.robust_by_hand import record

COPY = {"exact": False, "origin": "a part of CIFAR-10"}


def told(verdicts):
    return {verdict.name: verdict.holds for verdict in verdicts}


def curves(narrow, wide, sizes=(100, 300, 1000)):
    return [
        record(network, n_train=n, normal_alignment=value)
        for network, values in (("wrn10-2", wide), ("wrn10-1", narrow))
        for n, value in zip(sizes, values, strict=True)
    ]


def test_the_wider_network_must_lead_at_every_size():
    records = curves([0.5, 0.4, 0.3], [0.6, 0.4, 0.2])
    assert told(wider_aligns_more(records)) == {
        "100 images, final weights": True,
        "300 images, final weights": False,  # a tie is no lead
        "1000 images, final weights": False,
    }


def test_averaged_weights_are_judged_by_themselves():
    records = [
        record("wrn10-1", averaged={"normal_alignment": 0.7}, normal_alignment=0.1),
        record("wrn10-2", averaged={"normal_alignment": 0.6}, normal_alignment=0.2),
    ]
    assert told(wider_aligns_more(records)) == {
        "100 images, final weights": True,
        "100 images, averaged weights": False,
    }


def test_a_network_that_diverged_cannot_be_compared():
    records = [record("wrn10-1"), record("wrn10-2", normal_alignment=None)]
    records += [record(network, n_train=300) for network in ("wrn10-1", "wrn10-2")]
    holds = told(wider_aligns_more(records))
    assert holds["100 images, final weights"] is None
    assert holds["300 images, final weights"] is False


def test_alignment_must_fall_in_rank_and_from_end_to_end():
    records = curves([0.5, 0.4, 0.3], [0.3, 0.4, 0.5])
    assert told(falls_with_images(records)) == {
        "WideResNet-10-1, final weights": True,
        "WideResNet-10-2, final weights": False,
    }
    even = curves([0.5, 0.5, 0.5], [0.5, 0.3, 0.4])
    assert set(told(falls_with_images(even)).values()) == {False}


def test_two_sizes_tell_no_trend():
    records = curves([0.5, 0.4], [0.6, 0.5], sizes=(100, 300))
    assert set(told(falls_with_images(records)).values()) == {None}


def test_rows_are_means_over_seeds_in_percent_from_narrow_to_wide():
    records = [
        record("wrn10-2", test_accuracy=0.25),
        record("wrn10-1", test_accuracy=0.5, averaged={"robust_accuracy": 0.4}),
        record("wrn10-1", test_accuracy=0.7, seed=1),
    ]
    narrow, averaged, wide, lacking = capacity_rows(records)
    assert narrow["network"] == averaged["network"] == "WideResNet-10-1"
    assert wide["network"] == lacking["network"] == "WideResNet-10-2"
    assert (narrow["weights"], averaged["weights"]) == ("final", "averaged")
    assert narrow["n"] == 2
    assert narrow["test_accuracy"] == pytest.approx(60)
    assert narrow["test_accuracy_reach"] == pytest.approx((50, 70))
    assert averaged["robust_accuracy"] == pytest.approx(40)  # one seed has it
    assert lacking["robust_accuracy"] is None
    assert wide["test_accuracy_reach"] is None
    assert capacity_rows(records[::-1]) == capacity_rows(records)


def test_means_leave_out_what_is_not_there():
    records = [record("wrn10-1", normal_alignment=None), record("wrn10-2")]
    assert means(records, "normal_alignment") == {"wrn10-2": {100: 0.5}}
    assert means(records, "normal_alignment", "averaged") == {}


def test_rank_correlation_is_spearmans():
    # One exchange of neighbours among four: 1 - 6 * 2 / (4 * 15).
    assert rank_correlation([1, 2, 3, 4], [0.1, 0.3, 0.2, 0.4]) == pytest.approx(0.8)
    assert rank_correlation([1, 2, 3], [3.0, 2.0, 1.0]) == -1


def test_a_verdict_says_of_how_many_seeds_it_is():
    records = curves([0.5, 0.4, 0.3], [0.6, 0.5, 0.4])
    for judged in (wider_aligns_more, falls_with_images):
        assert {verdict.why.endswith("; one seed") for verdict in judged(records)} == {
            True
        }
    more = [*records, *(record("wrn10-1", n_train=n, seed=1) for n in (100, 300))]
    assert wider_aligns_more(more)[0].why.endswith("; 2 seeds")
