"""All items by name, and subsets of their variants."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction import catalogue
from normalign_reproduction.catalogue import Condition, narrow
from normalign_reproduction.context import experiment_named
from normalign_reproduction.spec import Item, Size, cross

ITEM = Item(
    name="toy",
    reference="Table 0",
    title="",
    shows="",
    experiment="toy",
    variants=cross(rows=[10, 200, 3000], method=["svc", "rfam"], rates=[[1]]),
    settings={"text": {}},
    sizes={
        "quick": Size(1, variants=cross(rows=[10], method=["svc", "tree"])),
        "full": Size(2),
    },
    departures=("as it is",),
)


def select(*texts, size="full"):
    (item,) = narrow([ITEM], [Condition.parse(text) for text in texts])
    runs = item.runs(size=size, preset="text", digits="mnist", seeds=1)
    return [(run["rows"], run["method"]) for run in runs]


@pytest.fixture(scope="module")
def items() -> list[Item]:
    return catalogue.items()


def test_items_have_the_names_of_the_command_line(items):
    assert tuple(item.name for item in items) == catalogue.NAMES


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_an_item_has_runs_an_experiment_and_text(name):
    item = catalogue.item(name)
    experiment = experiment_named(item.experiment)
    assert callable(experiment.batches)
    assert callable(experiment.compute)
    assert set(item.sizes) == {"quick", "full"}
    assert item.tables or item.figures
    for text in (item.reference, item.title, item.shows):
        assert text.strip()
    for part in (*item.tables, *item.figures):
        assert re.fullmatch(r"[a-z0-9_-]+", part.name)


@pytest.mark.parametrize("size", ["quick", "full"])
@pytest.mark.parametrize("name", catalogue.NAMES)
def test_runs_are_grouped_in_pairs_alone(name, size):
    """Without some batches the others stay the same, so checkpoints are found."""
    item = catalogue.item(name)
    for preset in item.presets():
        runs = item.runs(size=size, preset=preset, digits="mnist")
        keys = [run.key for run in runs]
        assert len(set(keys)) == len(keys) > 0
        for device in map(torch.device, ("cpu", "cuda")):
            batches = experiment_named(item.experiment).batches(runs, device)
            groups = {tuple(run.key for run in batch) for batch in batches}
            assert sorted(key for group in groups for key in group) == sorted(keys)
            finished = {run.key for batch in batches[1::2] for run in batch}
            rest = [run for run in runs if run.key not in finished]
            again = experiment_named(item.experiment).batches(rest, device)
            assert {tuple(run.key for run in batch) for batch in again} <= groups


def test_no_two_runs_of_different_sizes_share_a_key(items):
    keys = {
        size: {
            run.key
            for item in items
            for preset in item.presets()
            for run in item.runs(size=size, preset=preset, digits="mnist")
        }
        for size in ("quick", "full")
    }
    assert not keys["quick"] & keys["full"]


def test_all_conditions_must_hold():
    assert select("rows<=200", "method=rfam") == [(10, "rfam"), (200, "rfam")]
    assert select("rows>10", "method!=rfam") == [(200, "svc"), (3000, "svc")]
    assert select("rows=10,3000", "method = svc") == [(10, "svc"), (3000, "svc")]
    assert select("rows<200", "method=svc", size="quick") == [(10, "svc")]
    assert narrow([ITEM], []) == [ITEM]


def test_a_part_has_the_keys_of_the_whole_and_says_what_it_is():
    (item,) = narrow([ITEM], [Condition.parse("method=svc")])
    assert item.departures == ("only the variants with method=svc", "as it is")
    whole, part = (
        {run.key for run in one.runs(size="full", preset="text", digits="mnist")}
        for one in (ITEM, item)
    )
    assert part < whole


def test_a_size_without_variants_is_removed():
    (item,) = narrow([ITEM], [Condition.parse("rows=3000")])
    assert list(item.sizes) == ["full"]


@given(value=st.floats(-1e6, 1e6), limit=st.floats(-1e6, 1e6))
def test_limits_are_those_of_numbers(value, limit):
    settings = {"a": value}
    assert Condition.parse(f"a<={limit!r}").holds(settings) is (value <= limit)
    assert Condition.parse(f"a>{limit!r}").holds(settings) is (value > limit)
    assert Condition.parse(f"a={limit!r}").holds(settings) is (value == limit)
    assert not Condition.parse(f"a<={limit!r}").holds({"a": "text"})
    assert not Condition.parse(f"b={limit!r}").holds(settings)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["rows"], "--only must be NAME=VALUE"),
        (["=3"], "--only must be NAME=VALUE"),
        ([""], "--only must be NAME=VALUE"),
        (["rows<=many"], "--only must have a number after <=, got 'rows<=many'"),
        (["rows<1,2"], "--only must have a number after <"),
        (["columns=3"], r"a setting of toy \(rows, method\), got 'columns'"),
        (["rates=1"], r"a setting of toy \(rows, method\), got 'rates'"),
        (["method=svm"], "method must be one of svc, rfam, tree, got 'svm'. Did you"),
        (["method!=rfm"], "got 'rfm'. Did you mean 'rfam'?"),
        (["rows=11"], "rows must be one of 10, 200, 3000, got '11'"),
        (["rows>5000"], "must leave some variants of toy, got 'rows>5000'"),
        (["rows=3000", "method=tree"], "got 'rows=3000 and method=tree'"),
    ],
)
def test_a_condition_that_selects_nothing_is_refused(texts, message):
    with pytest.raises(ValueError, match=message):
        select(*texts)
