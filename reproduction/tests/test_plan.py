import json
from dataclasses import replace

import pytest
import torch

from normalign_reproduction.plan import (
    checkpoints,
    forget,
    make_plan,
    open_batches,
    remember,
)
from normalign_reproduction.store import Store
from tests import tiny

MADE = {"device_kind": "cpu", "seconds": 4.0, "n_runs": 2}
WORDS = {"size": "quick", "preset": "released", "digits": "mnist", "device": "cpu"}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


@pytest.fixture
def plan(store, tmp_path):
    """What is planned for the steady item, or for others, with the words changed."""

    def of(*items, **changes):
        words = {**WORDS, "store": store, "work": tmp_path / "work", **changes}
        return make_plan(items or [tiny.item()], **words)

    return of


def runs_of(item, **changes):
    words = {name: WORDS[name] for name in ("size", "preset", "digits")}
    return item.runs(**{**words, **changes})


def keys(batches):
    return [[run.key for run in batch.runs] for batch in batches]


def test_all_is_missing_at_first_in_the_experiments_batches(plan):
    whole = plan()
    groups = tiny.batches(runs_of(tiny.item()), torch.device("cpu"))
    assert keys(whole.batches) == [[run.key for run in group] for group in groups]
    assert whole.missing == 6
    assert whole.seconds == 12.0  # as the item says


def test_what_is_stored_is_not_planned_again(plan, store):
    runs = runs_of(tiny.item())
    for run in runs[:2]:
        store.write(run, {"value": 0.0}, MADE)
    rest = plan()
    assert keys(rest.batches) == [[r.key for r in runs[2:4]], [r.key for r in runs[4:]]]
    assert rest.parts[0].finished == 2
    # four runs of 4.0 / 2 seconds each, one after the other or two at a time
    assert rest.seconds == pytest.approx(8.0)
    assert plan(jobs=2).seconds == pytest.approx(4.0)


def test_batches_do_not_depend_on_what_else_is_finished(plan, store, monkeypatch):
    """Pairs from the front: the runs left over would pair up otherwise."""

    def pairs(runs, device):
        return [list(runs[i : i + 2]) for i in range(0, len(runs), 2)]

    monkeypatch.setattr(tiny, "batches", pairs)
    item = tiny.item(groups=5, sizes={"quick": tiny.Size(1, {"steps": 1})})
    before = keys(plan(item).batches)
    runs = runs_of(item)
    store.write(runs[0], {}, {})
    store.write(runs[1], {}, {})
    assert keys(plan(item).batches) == before[1:]
    store.write(runs[2], {}, {})
    assert sorted(keys(plan(item).batches)) == sorted([[runs[3].key], [runs[4].key]])


def test_more_seeds_cost_the_new_ones_alone(plan, store):
    for run in runs_of(tiny.item()):
        store.write(run, {}, MADE)
    assert plan().batches == []
    assert plan(seeds=3).missing == 3
    assert all(run.seed == 2 for b in plan(seeds=3).batches for run in b.runs)


def test_the_expected_time_grows_with_the_seeds(plan):
    assert plan(seeds=1).seconds == pytest.approx(6.0)  # 12 for the size's two
    assert plan(seeds=10).seconds == pytest.approx(60.0)


def test_a_begun_batch_is_formed_again_as_it_was(plan, store, tmp_path):
    first = plan().batches[0]
    remember(first, tmp_path / "work")
    store.write(first.runs[0], {}, MADE)  # killed between two results
    again = plan().batches
    (resumed,) = [batch for batch in again if batch.begun]
    assert resumed.key == first.key
    assert resumed.runs == first.runs
    assert resumed.missing == 1
    assert sum(batch.missing for batch in again) == 5
    assert len(again) == 3


def test_a_begun_batch_that_is_wanted_in_part_is_left_alone(plan, tmp_path):
    work = tmp_path / "work"
    remember(plan(seeds=4).batches[0], work)
    assert not any(batch.begun for batch in plan().batches)
    assert len(open_batches(work)) == 1
    assert sum(batch.begun for batch in plan(seeds=4).batches) == 1


def test_a_batch_begun_on_another_kind_of_device_is_left_alone(plan, tmp_path):
    remember(plan().batches[0], tmp_path / "work")
    assert not any(b.begun for b in plan(device="cuda", size="full").batches)
    here, there = plan().batches[0], replace(plan().batches[0], device="cuda")
    assert here.key != there.key


def test_two_items_that_share_runs_have_them_computed_once(plan):
    one, other = tiny.item(), tiny.item("other", groups=4)
    whole = plan(one, other)
    planned_runs = [key for batch in keys(whole.batches) for key in batch]
    assert len(planned_runs) == len(set(planned_runs)) == 8
    assert [len(part.batches) for part in whole.parts] == [3, 1]
    assert [batch.item for batch in whole.batches] == ["steady"] * 3 + ["other"]


@pytest.mark.parametrize(
    "changes", [{"size": "full"}, {"preset": "text"}, {"digits": "digits_5000"}]
)
def test_runs_of_another_size_preset_or_data_are_missing(plan, store, changes):
    item = tiny.item(
        needs_digits=True,
        settings={
            "released": {"mode": "none", "pause": 0.0},
            "text": {"mode": "none", "pause": 0.0},  # not even the numbers differ
        },
    )
    for run in runs_of(item):
        store.write(run, {}, MADE)
    assert plan(item).batches == []
    other = plan(item, **changes)
    assert other.parts[0].finished == 0
    assert other.missing == len(other.parts[0].runs)


def test_a_damaged_description_is_passed_over(plan, tmp_path):
    work = tmp_path / "work"
    path = remember(plan().batches[0], work)
    path.write_text(path.read_text()[:-20])
    (work / "0123456789ab.json").write_text(json.dumps({"runs": []}))
    (work / "0123456789ab.state.json").write_text("{}")
    assert open_batches(work) == []
    assert plan().missing == 6


def test_forgetting_a_batch_leaves_the_others_files(plan, tmp_path):
    work = tmp_path / "work"
    one, other = plan().batches[:2]
    for batch in (one, other):
        remember(batch, work)
        (work / f"{batch.key}.xor.safetensors").write_text("")
        (work / f".{batch.key}.xor.safetensors.tmp").write_text("")
        (work / f"{batch.key}.progress").write_text("{}")
    assert [path.name for path in checkpoints(one, work)] == [
        f"{one.key}.xor.safetensors"
    ]
    forget(one, work)
    assert all(other.key in path.name for path in work.iterdir())
    assert len(list(work.iterdir())) == 4


def test_nothing_is_known_of_the_time_of_an_item_that_says_nothing(plan):
    silent = tiny.item("silent", sizes={"quick": tiny.Size(1, {"steps": 1})})
    assert plan(silent).seconds is None
    assert plan().seconds is not None
