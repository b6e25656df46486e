import json
import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction.context import Context, RunCache
from normalign_reproduction.plan import Batch, checkpoints, forget
from normalign_reproduction.spec import Run


def run_of(seed=0, **settings):
    return Run("tabular", 1, "quick", "text", "bundled", {"method": "svc"} | settings,
               seed)  # fmt: skip


@pytest.fixture
def context(tmp_path):
    return Context(torch.device("cpu"), tmp_path / "0123456789ab")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


@given(result=st.dictionaries(st.text(), JSON))
def test_what_is_put_is_got_in_another_process(tmp_path_factory, result):
    place = tmp_path_factory.mktemp("work") / "batch"
    put = RunCache(Context(torch.device("cpu"), place)).put(run_of(), result)
    assert put == result
    assert RunCache(Context(torch.device("cpu"), place)).get(run_of()) == result


def test_a_run_is_found_by_all_its_settings(context):
    kept = RunCache(context)
    kept.put(run_of(0), {"accuracy": 0.25})
    assert kept.get(run_of(1)) is None
    assert kept.get(run_of(0, rows=5)) is None
    assert kept.get(run_of(0)) == {"accuracy": 0.25}


def test_what_a_run_returns_is_what_a_resumed_one_returns(context):
    """A tuple and a number as a key come back as JSON has them, at once."""
    kept = RunCache(context)
    assert kept.put(run_of(), {"pair": (1, 2), "by": {3: "x"}}) == kept.get(run_of())


@pytest.mark.parametrize("cut", [0, 1, 40, -3])
def test_a_damaged_file_costs_its_run_and_a_word(context, caplog, cut):
    kept = RunCache(context)
    for seed in (0, 1):
        kept.put(run_of(seed), {"accuracy": 0.5})
    (path,) = context.checkpoint.parent.glob(f"*{run_of(0).key}*")
    path.write_bytes(path.read_bytes()[:cut])
    with caplog.at_level(logging.WARNING):
        assert kept.get(run_of(0)) is None
    assert "damaged" in caplog.text
    assert kept.get(run_of(1)) == {"accuracy": 0.5}
    kept.put(run_of(0), {"accuracy": 0.75})
    assert kept.get(run_of(0)) == {"accuracy": 0.75}


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe", b"[]", b"7", b"{}", b'{"run": 1, "result": {}}'],
    ids=["no text", "a list", "a number", "empty", "another run"],
)
def test_what_is_no_result_is_none(context, content):
    kept = RunCache(context)
    kept.put(run_of(), {})
    (path,) = context.checkpoint.parent.iterdir()
    path.write_bytes(content)
    assert kept.get(run_of()) is None


def test_a_result_that_is_no_mapping_is_none(context):
    kept = RunCache(context)
    kept.put(run_of(), {})
    (path,) = context.checkpoint.parent.iterdir()
    path.write_text(json.dumps({"run": run_of().to_dict(), "result": [1]}))
    assert kept.get(run_of()) is None


def test_a_number_that_json_lacks_is_refused_and_leaves_no_file(context):
    with pytest.raises(ValueError, match="not JSON compliant"):
        RunCache(context).put(run_of(), {"accuracy": float("nan")})
    assert not list(context.checkpoint.parent.iterdir())


def test_the_runner_sees_and_removes_the_files(tmp_path):
    batch = Batch((run_of(),), "cpu", 1)
    RunCache(Context(torch.device("cpu"), tmp_path / batch.key)).put(run_of(), {})
    assert len(checkpoints(batch, tmp_path)) == 1
    forget(batch, tmp_path)
    assert not list(tmp_path.iterdir())
