"""Results and archives: everything is read back, and no damage goes unnoticed."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import normalign_reproduction
from normalign.cli import main
from normalign_reproduction.files import read_checked, write_checked
from normalign_reproduction.spec import Record, Run
from normalign_reproduction.store import (
    Store,
    _to_columns,
    pack_archive,
    read_archive,
    unpack_archive,
    write_archive,
)
from tests import tiny

ARCHIVES = Path(normalign_reproduction.__file__).parent / "results"
MADE = {"commit": "abc", "seconds": 1.5}
RUNS = tiny.item().runs(size="quick", preset="released", digits="mnist")
RUN = RUNS[0]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


@given(settings=st.dictionaries(st.text(), JSON, max_size=4), result=JSON)
def test_any_result_of_any_settings_is_read_back(settings, result, tmp_path_factory):
    run = Run("tiny", 1, "quick", "released", "synthetic", settings, 0)
    store = Store(tmp_path_factory.mktemp("store"))
    assert not store.has(run)
    store.write(run, {"result": result}, MADE)
    turned = Run(**{**run.to_dict(), "settings": dict(reversed(settings.items()))})
    assert store.read(turned) == Record(turned, {"result": result}, MADE)


def test_records_are_those_of_finished_runs_in_the_order_given(store):
    for i in (2, 0):
        store.write(RUNS[i], {"value": i}, MADE)
    assert [record.result["value"] for record in store.records(RUNS)] == [0, 2]


def change(**parts):
    """A damage that leaves a valid checksum."""

    def write(path):
        content = {**read_checked(path), **parts}
        write_checked(path, {k: v for k, v in content.items() if v != "absent"})

    return write


DAMAGES = [
    lambda path: path.write_text(""),
    lambda path: path.write_text("null"),
    lambda path: path.write_text(json.dumps(read_checked(path))),  # no checksum
    change(result=[]),
    change(made=None),
    change(run=3),
    change(result="absent"),
    change(format=1),
    change(key="0"),
    change(run={**RUN.to_dict(), "seed": 7}),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_result_is_missing_until_it_is_written_again(store, damage):
    path = store.write(RUN, {"value": 1}, MADE)
    damage(path)
    assert store.read(RUN) is None
    store.write(RUN, {"value": 2}, MADE)
    assert store.read(RUN).result == {"value": 2}


def test_a_result_under_the_name_of_another_run_is_missing(store):
    path = store.write(RUN, {"value": 1}, MADE)
    path.rename(store.path(RUNS[1]))
    assert not store.has(RUNS[1])


def flip_bits(content):
    """Contents that differ from a file's in one bit, one for each of its bytes."""
    for position in range(len(content)):
        other = bytearray(content)
        other[position] ^= 1 << position % 8
        yield bytes(other)


def test_no_flipped_bit_and_no_cut_changes_a_result(store):
    result = {"history": {"columns": {"epoch": [0, 10], "loss": [0.5, 1e-3]}}}
    path = store.write(RUN, result, MADE)
    expected, content, n_same = store.read(RUN), path.read_bytes(), 0
    for other in flip_bits(content):
        path.write_bytes(other)
        found = store.read(RUN)
        assert found in (None, expected)
        n_same += found is not None
    assert n_same < 0.2 * len(content)  # white space
    for length in range(0, len(content) - 2, 7):
        path.write_bytes(content[:length])
        assert store.read(RUN) is None


def test_no_flipped_bit_changes_an_archive(tmp_path):
    records = [Record(run, {"value": [0.5, 2]}, MADE) for run in RUNS[:2]]
    path = write_archive(tmp_path / "a.json", records)
    expected, n_refused = read_archive(path), 0
    content = path.read_bytes()
    for other in flip_bits(content):
        path.write_bytes(other)
        try:
            assert read_archive(path) == expected
        except ValueError:
            n_refused += 1
    assert n_refused > 0.9 * len(content)


def run_of(seed, **settings):
    return Run("tabular", 1, "full", "released", "uci", {"n_iter": 4, **settings}, seed)


RECORDS = st.lists(
    st.builds(
        lambda seed, weight, result, made: Record(
            run_of(seed, weight=weight), {"value": result}, made
        ),
        st.integers(0, 3),
        st.sampled_from([0, 1]),
        JSON,
        st.fixed_dictionaries(
            {"commit": st.sampled_from(["x", "y"])},
            optional={"batch": st.sampled_from("pq"), "seconds": st.integers(0, 2)},
        ),
    ),
    max_size=6,
)


@given(RECORDS)
def test_an_archive_gives_everything_back(records):
    entries = unpack_archive(pack_archive(records))
    assert [entry["key"] for entry in entries] == [r.run.key for r in records]
    assert [entry["run"] for entry in entries] == [r.run.to_dict() for r in records]
    assert [entry["result"] for entry in entries] == [r.result for r in records]
    assert [entry["made"] for entry in entries] == [r.made for r in records]


def test_an_archive_contains_shared_values_once():
    made = [{"commit": "x", "batch": b, "seconds": s} for b, s in ("p1", "p1", "q2")]
    records = [
        Record(run_of(i, weight=i), {"folds": [{"a": 1}, {"a": i}]}, one)
        for i, one in enumerate(made)
    ]
    packed = pack_archive(records)
    assert packed["run"]["settings"] == {"n_iter": 4}
    assert packed["made"] == {"commit": "x"}
    assert packed["batches"] == {b: {"batch": b, "seconds": s} for b, s in ("p1", "q2")}
    second = packed["records"][1]
    assert second["run"] == {"settings": {"weight": 1}, "seed": 1}
    assert second["batch"] == "p"
    assert second["result"] == {"folds": {"by column": {"a": [1, 1]}}}
    for value in ([{"a": 1}], [{"a": 1}, {"b": 1}], [{}, {}], [1, {"a": 1}]):
        assert _to_columns(value) == value


def test_the_order_of_records_does_not_change_an_archive(tmp_path):
    records = [Record(run, {"value": i}, MADE) for i, run in enumerate(RUNS)]
    one = write_archive(tmp_path / "one.json", records, item="steady")
    two = write_archive(tmp_path / "two.json", records[::-1], item="steady")
    assert one.read_bytes() == two.read_bytes()
    assert sorted(read_archive(one), key=lambda r: r.result["value"]) == records
    assert json.loads(one.read_text())["item"] == "steady"


def test_a_store_reads_archives_after_its_own_results(tmp_path):
    records = [Record(run, {"value": 1}, MADE) for run in RUNS[:3]]
    write_archive(tmp_path / "kept" / "a.json", records)
    (tmp_path / "kept" / "folder.json").mkdir()
    store = Store(tmp_path / "own", archives=[tmp_path / "kept"])
    store.write(RUNS[0], {"value": 2}, MADE)
    store.write(RUNS[1], {"value": 2}, MADE).write_text("{")  # damaged
    assert [record.result["value"] for record in store.records(RUNS)] == [2, 1, 1]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"records": [], "format": 9},
        {"format": 3},
        {"format": 3, "records": [5]},
        {"format": 3, "made": {}, "records": [{"key": "a"}]},
        {"format": 3, "made": [], "records": [{"key": "a", "run": {}, "result": {}}]},
        {
            "format": 3,
            "made": {},
            "records": [{"key": "a", "run": {"x": 1}, "result": {}, "made": {}}],
        },
        {
            "format": 3,
            "made": {},
            "records": [{"key": "a", "run": RUN.to_dict(), "result": {}, "made": {}}],
        },
    ],
)
def test_a_file_that_is_no_archive_is_refused_by_name(tmp_path, content):
    path = write_checked(tmp_path / "a.json", content)
    with pytest.raises(ValueError, match=r"a\.json must be an archive of results"):
        read_archive(path)


def test_verify_counts_results_and_refuses_a_damaged_archive(tmp_path, capsys):
    records = [Record(run, {"value": [0.5, 2]}, MADE) for run in RUNS[:2]]
    path = write_archive(tmp_path / "a.json", records, item="steady")
    assert main(["verify", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 2 results\n"
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.7"))
    assert main(["verify", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"{path} is damaged: its checksum does not match its content.\n"
    )


def test_the_archives_of_this_repository_are_undamaged():
    files = sorted(ARCHIVES.glob("*.json"))
    assert len(files) >= 17
    assert all(read_archive(file) for file in files)
