import re

import pytest

from normalign_reproduction import catalogue
from normalign_reproduction.context import experiment_named
from normalign_reproduction.spec import Item


@pytest.fixture(scope="module")
def items() -> list[Item]:
    return catalogue.items()


def test_items_are_called_what_the_command_line_calls_them(items):
    assert tuple(item.name for item in items) == catalogue.NAMES


def test_a_name_that_is_none_is_refused_with_all_that_are():
    with pytest.raises(ValueError, match=r"one of sparsity, .*ablation, got 'table9'"):
        catalogue.item("table9")


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_an_item_has_runs_an_experiment_and_words(name):
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
def test_the_batches_of_an_item_are_its_runs_each_once(name, size):
    import torch

    item = catalogue.item(name)
    for preset in item.presets():
        runs = item.runs(size=size, preset=preset, digits="mnist")
        keys = [run.key for run in runs]
        assert len(set(keys)) == len(keys) > 0
        for device in ("cpu", "cuda"):
            batches = experiment_named(item.experiment).batches(
                runs, torch.device(device)
            )
            batched = [run.key for batch in batches for run in batch]
            assert sorted(batched) == sorted(keys)


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
