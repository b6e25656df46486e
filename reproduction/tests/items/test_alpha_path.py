"""Along the identity weight: means, frontiers and choices with known answers."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normalign_reproduction.items.alpha_path.rows import (
    chosen_weights,
    common_scores,
    finding,
    frontier_rows,
    path_rows,
    quartile_tables,
    validated_rows,
)
from tests.items.tables_by_hand import RADII, fold, record


def at(table, weight, **more):
    return record(table, weight, protocol="leak-free", **more)


def row_of(rows, **wanted):
    (found,) = [r for r in rows if all(r[k] == v for k, v in wanted.items())]
    return found


def by_hand(n=4):
    """Robustness is free at 0.5 and dear at 0, on every table alike but for level."""
    return [
        at(f"t{i}", weight, accuracy=a - 0.01 * i, asr=s + i, seed=seed)
        for i in range(n)
        for seed in (0, 1)
        for weight, a, s in ((1.0, 0.9, 60.0), (0.5, 0.9, 50.0), (0.0, 0.8, 40.0))
    ]


def test_the_path_is_the_mean_over_tables_of_each_weight():
    rows = path_rows(by_hand())
    assert [row["weight"] for row in rows] == [0.0, 0.5, 1.0]
    # Levels 0, -1, -2, -3 points of accuracy: 1.5 below the first table's.
    assert [row["accuracy"] for row in rows] == pytest.approx([78.5, 88.5, 88.5])
    assert [row["asr_1"] for row in rows] == pytest.approx([41.5, 51.5, 61.5])
    assert rows[0]["asr_0.1"] == pytest.approx(41.5 / 2)
    assert rows[0]["accuracy_change"] == pytest.approx(-10)
    assert rows[0]["accuracy_change_interval"] == pytest.approx((-10, -10))
    assert "accuracy_change" not in rows[2]


def test_a_table_without_all_weights_is_left_out():
    records = [*by_hand(2), at("alone", 1.0, accuracy=0.1), at("t0", 1.0, accuracy=0.1,
               seed=7)]  # fmt: skip
    assert list(common_scores(records)[1.0]) == ["t0", "t1"]
    assert list(common_scores(records)[1.0]["t0"]) == [0, 1]
    assert path_rows(records) == path_rows(by_hand(2))


def test_other_protocols_take_no_part():
    records = by_hand()
    other = [record("t0", 1.0, accuracy=0.1), record("t9", 0.0, accuracy=0.1)]
    assert path_rows([*records, *other]) == path_rows(records)
    assert frontier_rows([*records, *other]) == frontier_rows(records)


def test_free_is_as_accurate_and_less_attacked():
    rows = frontier_rows(by_hand())
    half, any_ = row_of(rows, weight="0.5"), row_of(rows, weight="any below 1")
    assert half == {
        "weight": "0.5", "n_tables": 4, "as_accurate": 4, "free": 4, "clear": 4,
        "dearer": 0,
    }  # fmt: skip
    zero = row_of(rows, weight="0")
    assert (zero["as_accurate"], zero["free"]) == (0, 0)
    assert any_["free"] == 4


def test_to_swap_the_ends_makes_it_dear():
    swapped = [
        at("a", weight, accuracy=0.9, asr=s) for weight, s in ((1.0, 40.0), (0.5, 60.0))
    ]
    row = row_of(frontier_rows(swapped), weight="0.5")
    assert (row["as_accurate"], row["free"], row["dearer"]) == (1, 0, 1)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_to_exchange_two_weights_exchanges_free_and_dearer(seed):
    draw = random.Random(seed)

    def records(ends):
        draw.seed(seed)
        for table in "abcdef":
            for weight in ends:
                folds = [fold(draw.uniform(0.7, 0.9), [0.5, 0.4, 0.3]) for _ in "1234"]
                yield at(table, weight, accuracy=0.8, asr=draw.uniform(40, 60),
                         folds=folds)  # fmt: skip

    one, other = (frontier_rows(list(records(w)))[0] for w in ((0.5, 1.0), (1.0, 0.5)))
    assert (one["free"], one["dearer"]) == (other["dearer"], other["free"])


def test_a_weight_that_is_less_accurate_and_more_often_broken_is_dearer():
    rows = frontier_rows(
        [
            at("a", w, accuracy=a, asr=s)
            for w, a, s in ((1.0, 0.9, 40.0), (0.5, 0.7, 60.0))
        ]
    )
    row = row_of(rows, weight="0.5")
    assert (row["as_accurate"], row["free"], row["dearer"]) == (0, 0, 1)


@pytest.mark.parametrize(("loss", "as_accurate"), [(0.009, 1), (0.011, 0)])
def test_as_accurate_is_within_one_standard_error(loss, as_accurate):
    # Differences -loss +- d in two folds each: s = d sqrt(4/3), over sqrt(4).
    d = 0.01 * 3**0.5
    shifts = (d, d, -d, -d)
    folds = [fold(0.8 - loss + shift, [0.4, 0.3, 0.2]) for shift in shifts]
    records = [
        at("a", 1.0, accuracy=0.8, asr=60.0),
        at("a", 0.5, accuracy=0.8 - loss, asr=50.0, folds=folds),
    ]
    row = row_of(frontier_rows(records), weight="0.5")
    assert row["as_accurate"] == row["free"] == as_accurate


def test_what_costs_accuracy_is_never_clear():
    rows = [
        at("a", w, accuracy=a, asr=s)
        for w, a, s in ((1.0, 0.9, 60.0), (0.5, 0.7, 20.0))
    ]
    row = row_of(frontier_rows(rows), weight="0.5")
    assert (row["as_accurate"], row["free"], row["clear"]) == (0, 0, 0)


def test_clear_is_beyond_the_error_of_the_rate():
    # Rates of 50 +- 20 in four folds: an error of 20 / sqrt(3), about 11.5.
    folds = [fold(0.8, [0.8, 0.8 * (1 - r), 0.0]) for r in (0.3, 0.3, 0.7, 0.7)]
    found = {}
    for base in (55.0, 65.0):
        records = [
            at("a", 1.0, accuracy=0.8, asr=base),
            at("a", 0.5, accuracy=0.8, asr=50.0, folds=folds),
        ]
        row = row_of(frontier_rows(records), weight="0.5")
        found[base] = row["free"], row["clear"]
    assert found == {55.0: (1, 0), 65.0: (1, 1)}


def test_what_has_no_rate_is_left_out_and_counted():
    records = by_hand(2)
    records += [
        at("zero", weight, accuracy=a, asr=[None] * 3 if a == 0 else 50.0)
        for weight, a in ((1.0, 0.5), (0.5, 0.0), (0.0, 0.5))
    ]
    rows = path_rows(records)
    assert {row["n_undefined"] for row in rows} == {1}
    assert rows[2]["asr_1"] == pytest.approx(60.5)
    assert rows[2]["accuracy"] == pytest.approx((90 + 89 + 50) / 3)
    assert frontier_rows(records)[0]["n_tables"] == 2


def choices(**validation):
    """One table of weights w0, w5, w1 with validation scores and known outcomes."""
    weights = {"w0": (0.0, 0.7, 40.0), "w5": (0.5, 0.8, 50.0), "w1": (1.0, 0.9, 60.0)}
    return [
        at("a", weight, accuracy=a, asr=s, validation=validation[name])
        for name, (weight, a, s) in weights.items()
    ]


@pytest.mark.parametrize(
    ("scores", "largest", "smallest"),
    [
        ({"w0": 0.9, "w5": 0.8, "w1": 0.7}, 0.0, 0.0),
        ({"w0": 0.8, "w5": 0.8, "w1": 0.8}, 1.0, 0.0),
        ({"w0": 0.8, "w5": 0.8, "w1": 0.7}, 0.5, 0.0),
        ({"w0": 0.7, "w5": 0.8, "w1": 0.8}, 1.0, 0.5),
    ],
)
def test_ties_go_to_the_largest_or_to_the_smallest(scores, largest, smallest):
    records = choices(**scores)
    assert chosen_weights(records, rule="the largest") == {"a": {0: largest}}
    assert chosen_weights(records, rule="the smallest") == {"a": {0: smallest}}


def test_a_rule_that_is_none_is_refused():
    with pytest.raises(
        ValueError, match="rule must be 'the largest' or 'the smallest'"
    ):
        chosen_weights([], rule="the nearest")


def test_a_validated_weight_is_compared_with_weight_one_in_pairs():
    rows = validated_rows(choices(w0=0.6, w5=0.9, w1=0.7))
    validated = row_of(
        rows, choice="validated over all folds; of equal ones the largest"
    )
    assert validated["accuracy"] == pytest.approx(80)
    assert validated["accuracy_plain"] == pytest.approx(90)
    assert validated["accuracy_change"] == pytest.approx(-10)
    assert validated["asr_1_change"] == pytest.approx(-10)
    assert (validated["below"], validated["weights"]) == (1.0, "0: 0, 0.5: 1, 1: 0")
    best = row_of(rows, choice="best on the test rows, not to be had")
    assert (best["below"], best["accuracy_change"]) == (0.0, 0.0)


def test_folds_choose_for_themselves():
    def machine(weight, accuracies, validations):
        folds = [
            fold(a, [a, a / 2, 0.0], v)
            for a, v in zip(accuracies, validations, strict=True)
        ]
        mean = sum(accuracies) / 4
        return at("a", weight, accuracy=mean, asr=[0.0, 50.0, 100.0], folds=folds,
                  validation=sum(validations) / 4)  # fmt: skip

    records = [
        machine(1.0, [0.8, 0.8, 0.8, 0.8], [0.9, 0.9, 0.5, 0.5]),
        machine(0.5, [0.6, 0.6, 0.6, 0.6], [0.5, 0.5, 0.6, 0.5]),
    ]
    rows = validated_rows(records)
    whole = row_of(rows, choice="validated over all folds; of equal ones the largest")
    large = row_of(rows, choice="validated in each fold; of equal ones the largest")
    small = row_of(rows, choice="validated in each fold; of equal ones the smallest")
    assert whole["accuracy"] == pytest.approx(80)
    assert large["accuracy"] == pytest.approx((80 + 80 + 60 + 80) / 4)
    assert small["accuracy"] == pytest.approx((80 + 80 + 60 + 60) / 4)
    assert large["weights"] == "0.5: 1, 1: 3"
    assert large["asr_1"] == pytest.approx(50)


def test_a_choice_within_folds_of_one_weight_is_that_run():
    records = [
        at("a", w, accuracy=a, asr=s, validation=v)
        for w, a, s, v in ((1.0, 0.9, 61.0, 0.5), (0.0, 0.7, 42.0, 0.9))
    ]
    row = validated_rows(records)[0]
    assert row["choice"].startswith("validated in each fold")
    assert row["accuracy"] == pytest.approx(70)
    assert row["asr_1"] == pytest.approx(42)
    assert row["asr_0.1"] == pytest.approx(21)


def test_the_finding_has_the_share_below_one_and_both_changes():
    records = [
        at(f"t{i}", w, accuracy=a, asr=s + i, validation=v)
        for i in range(6)
        for w, a, s, v in ((1.0, 0.8, 60.0, 0.5), (0.0, 0.7, 40.0, 0.9))
    ]
    text = finding(records)
    assert text.startswith("On 6 tables a validated weight is below 1 in 100%")
    assert "accuracy by -10.00 points" in text
    assert "attack success by -20.00 points" in text
    assert finding([]) == "No table has weight 1 and another."


def test_quartiles_go_from_the_largest_fall_to_the_largest_rise():
    records = [
        at(f"t{i}", weight, accuracy=0.8, asr=50.0 + (i - 4 if weight == 0 else 0))
        for i in range(9)
        for weight in (0.0, 1.0)
    ]
    assert quartile_tables(records) == ["t0", "t2", "t4", "t6", "t8"]
    assert quartile_tables(records[:4]) == ["t0", "t1"]
    assert quartile_tables([]) == []


@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_records_does_not_matter(random_order):
    records = by_hand()
    mixed = random_order.sample(records, len(records))
    for rows in (path_rows, frontier_rows, validated_rows):
        assert rows(mixed) == rows(records)
    assert finding(mixed) == finding(records)


def test_without_weight_one_nothing_is_compared():
    records = [r for r in by_hand() if r["identity_weight"] != 1.0]
    assert frontier_rows(records) == validated_rows(records) == []
    assert [row["weight"] for row in path_rows(records)] == [0.0, 0.5]


def test_radii_are_those_of_the_rates():
    (row,) = path_rows([at("a", 1.0, accuracy=0.8, asr=[10.0, 20.0, 30.0])])
    assert RADII == [0.1, 1.0, 2.0]
    assert [row[f"asr_{r}"] for r in ("0.1", "1", "2")] == [10.0, 20.0, 30.0]
