"""Experiments by name, and the cache of finished runs of a batch."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction.context import Context, RunCache, experiment_named
from normalign_reproduction.items.table1 import experiment
from normalign_reproduction.spec import Run
from normalign_reproduction.worker import remove_files
from tests import tiny

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def run_of(seed=0, **settings):
    settings = {"method": "svc"} | settings
    return Run("tabular", 1, "quick", "text", "bundled", settings, seed)


def cache_in(folder: Path) -> RunCache:
    return RunCache(Context(torch.device("cpu"), folder / "0123456789ab"))


def test_an_experiment_has_the_name_in_its_keys_or_that_of_a_module():
    assert experiment_named("acceleration") is experiment
    assert experiment_named(tiny.NAME) is tiny
    with pytest.raises(ModuleNotFoundError):
        experiment_named("alchemy")


def test_progress_without_a_callback_is_ignored():
    assert Context(torch.device("cpu"), Path("work/0")).progress(0.5, "half") is None


@given(result=st.dictionaries(st.text(), JSON))
def test_a_cached_result_is_read_in_another_process(tmp_path_factory, result):
    folder = tmp_path_factory.mktemp("work")
    assert cache_in(folder).put(run_of(), result) == result
    assert cache_in(folder).get(run_of()) == result


def test_a_run_is_found_by_all_its_settings(tmp_path):
    cache = cache_in(tmp_path)
    cache.put(run_of(0), {"accuracy": 0.25})
    assert cache.get(run_of(1)) is None
    assert cache.get(run_of(0, rows=5)) is None
    assert cache.get(run_of(0)) == {"accuracy": 0.25}


def test_a_resumed_run_returns_the_same_types(tmp_path):
    """A tuple and a number as a key become what JSON has, at once."""
    cache = cache_in(tmp_path)
    assert cache.put(run_of(), {"pair": (1, 2), "by": {3: "x"}}) == cache.get(run_of())


@pytest.mark.parametrize("cut", [0, 1, 40, -3])
def test_a_damaged_file_costs_its_run(tmp_path, cut):
    cache = cache_in(tmp_path)
    for seed in (0, 1):
        cache.put(run_of(seed), {"accuracy": 0.5})
    (path,) = tmp_path.glob(f"*{run_of(0).key}*")
    path.write_bytes(path.read_bytes()[:cut])
    assert cache.get(run_of(0)) is None
    assert cache.get(run_of(1)) == {"accuracy": 0.5}
    cache.put(run_of(0), {"accuracy": 0.75})
    assert cache.get(run_of(0)) == {"accuracy": 0.75}


def test_files_of_another_run_or_batch_are_left_alone(tmp_path):
    cache = cache_in(tmp_path)
    cache.put(run_of(0), {})
    (path,) = tmp_path.iterdir()
    path.rename(cache._path(run_of(1)))
    assert cache.get(run_of(1)) is None
    (tmp_path / "other.progress").write_text("")
    remove_files("0123456789ab", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other.progress"]
