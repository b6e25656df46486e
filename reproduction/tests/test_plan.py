"""Which runs are missing, in which batches, and how long they take."""

import pytest
import torch

from normalign_reproduction.plan import expected_seconds, make_plan
from normalign_reproduction.store import Store
from tests import tiny

MADE = {"device_kind": "cpu", "seconds": 4.0, "n_runs": 2}
WORDS = {"size": "quick", "preset": "released", "digits": "mnist"}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


@pytest.fixture
def plan(store):
    """The plan of the steady item, or of others, with some words changed."""

    def make(*items, **changes):
        words = {**WORDS, "device": "cpu", "store": store, **changes}
        return make_plan(items or [tiny.item()], **words)

    return make


def runs_of(item, **changes):
    return item.runs(**{**WORDS, **changes})


def keys(plans):
    return [[r.key for r in batch.runs] for part in plans for batch in part.batches]


def test_missing_runs_are_planned_in_the_experiments_batches(plan, store):
    runs = runs_of(tiny.item())
    groups = tiny.batches(runs, torch.device("cpu"))
    assert keys(plan()) == [[run.key for run in group] for group in groups]
    for run in groups[0]:
        store.write(run, {"value": 0.0}, MADE)
    (part,) = plan()
    assert keys([part]) == [[run.key for run in group] for group in groups[1:]]
    assert part.n_finished == 2


def test_more_seeds_cost_only_the_new_ones(plan, store):
    for run in runs_of(tiny.item()):
        store.write(run, {}, MADE)
    assert keys(plan()) == []
    (part,) = plan(seeds=3)
    assert [[run.seed for run in batch.runs] for batch in part.batches] == [[2]] * 3


def test_a_batch_is_named_by_its_runs_and_its_device(plan):
    here, there = plan()[0].batches, plan(device="cuda")[0].batches
    assert len({batch.key for batch in (*here, *there)}) == 6
    assert here[0].key == plan()[0].batches[0].key


def test_runs_that_two_items_share_are_computed_once(plan):
    plans = plan(tiny.item(), tiny.item("other", groups=4))
    planned = [key for batch in keys(plans) for key in batch]
    assert len(planned) == len(set(planned)) == 8
    assert [len(part.batches) for part in plans] == [3, 1]
    assert [b.item for part in plans for b in part.batches] == ["steady"] * 3 + [
        "other"
    ]


@pytest.mark.parametrize(
    "changes", [{"size": "full"}, {"preset": "text"}, {"digits": "digits_5000"}]
)
def test_runs_of_another_size_preset_or_data_are_missing(plan, store, changes):
    settings = {"mode": "none", "pause": 0.0}  # even the numbers are the same
    item = tiny.item(
        needs_digits=True, settings={"released": settings, "text": settings}
    )
    for run in runs_of(item):
        store.write(run, {}, MADE)
    assert keys(plan(item)) == []
    (other,) = plan(item, **changes)
    assert other.n_finished == 0
    assert sum(len(batch.runs) for batch in other.batches) == len(other.runs)


def test_the_expected_time_is_the_declared_one_or_that_of_stored_runs(plan, store):
    # 12 s for 6 runs with two processes, so 4 s for each run in one
    (part,) = plan()
    assert expected_seconds(part.batches, 2) == pytest.approx(12.0)
    assert expected_seconds(part.batches, 1) == pytest.approx(24.0)
    assert expected_seconds(part.batches, 9) == pytest.approx(8.0)  # the longest batch
    assert expected_seconds(plan(seeds=10)[0].batches, 2) == pytest.approx(60.0)
    for run in runs_of(tiny.item())[:2]:
        store.write(run, {}, MADE)  # 2 s each
    assert expected_seconds(plan()[0].batches, 2) == pytest.approx(4.0)
    assert expected_seconds([], 2) == 0.0


def test_the_time_of_an_item_without_a_declared_one_is_unknown(plan):
    item = tiny.item("silent", sizes={"quick": tiny.Size(1, {"steps": 1})})
    batches = [batch for part in plan(tiny.item(), item) for batch in part.batches]
    assert expected_seconds(batches, 1) is None
