"""Conditions that leave a part of an item."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction.catalogue import Condition, narrow
from normalign_reproduction.spec import Item, Size, cross

ITEM = Item(
    name="toy", reference="Table 0", title="", shows="", experiment="toy",
    variants=cross(rows=[10, 200, 3000], method=["svc", "rfam"]),
    settings={"text": {}},
    sizes={
        "quick": Size(1, variants=cross(rows=[10], method=["svc"])),
        "full": Size(2),
    },
    finding=lambda records: "", departures=("as it is",),
)  # fmt: skip


def left(*texts, size="full"):
    item = narrow(ITEM, [Condition.read(text) for text in texts])
    runs = item.runs(size=size, preset="text", digits="mnist", seeds=1)
    return [(run["rows"], run["method"]) for run in runs]


def test_all_conditions_must_hold():
    assert left("rows<=200", "method=rfam") == [(10, "rfam"), (200, "rfam")]
    assert left("rows>10", "method!=rfam") == [(200, "svc"), (3000, "svc")]
    assert left("rows=10,3000", "method = svc") == [(10, "svc"), (3000, "svc")]


def test_a_sizes_own_variants_are_narrowed_too():
    assert left("rows<200", size="quick") == [(10, "svc")]


def test_without_conditions_an_item_is_itself():
    assert narrow(ITEM, []) is ITEM


def test_a_part_says_that_it_is_one():
    item = narrow(ITEM, [Condition.read("rows<=200")])
    assert item.departures == ("only the variants with rows<=200", "as it is")


def test_runs_of_a_part_have_the_keys_of_the_whole():
    whole = ITEM.runs(size="full", preset="text", digits="mnist")
    item = narrow(ITEM, [Condition.read("method=svc")])
    part = item.runs(size="full", preset="text", digits="mnist")
    assert {run.key for run in part} < {run.key for run in whole}


@given(value=st.floats(-1e6, 1e6), limit=st.floats(-1e6, 1e6))
def test_orders_are_those_of_numbers(value, limit):
    settings = {"a": value}
    assert Condition.read(f"a<={limit!r}").holds(settings) is (value <= limit)
    assert Condition.read(f"a>{limit!r}").holds(settings) is (value > limit)
    assert Condition.read(f"a={limit!r}").holds(settings) is (value == limit)


@pytest.mark.parametrize("text", ["rows", "=3", "rows<=many", "rows<1,2", ""])
def test_another_form_is_refused(text):
    with pytest.raises(ValueError, match="--only must be"):
        Condition.read(text)


def test_a_setting_that_nothing_differs_in_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match="one of rows, method"):
        left("columns=3")


def test_a_condition_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="some variants of toy"):
        left("rows>5000")


def test_an_order_does_not_hold_of_a_text():
    assert not Condition.read("method<=3").holds({"method": "svc"})
    assert not Condition.read("rows=3").holds({})


def test_a_size_of_which_nothing_is_left_is_refused_as_one():
    assert left("rows=3000", "method=svc") == [(3000, "svc")]
    with pytest.raises(ValueError, match="size must be one of full, got 'quick'"):
        left("rows=3000", "method=svc", size="quick")
