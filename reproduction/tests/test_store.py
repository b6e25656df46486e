import json
import logging
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
    read_archive,
    write_archive,
)
from tests import tiny

ARCHIVES = Path(normalign_reproduction.__file__).parent / "results"
MADE = {"commit": "abc", "seconds": 1.5}


def runs(**changes):
    words = {"size": "quick", "preset": "released", "digits": "mnist"}
    return tiny.item().runs(**{**words, **changes})


def test_what_is_written_is_found_again(tmp_path):
    store, run = Store(tmp_path), runs()[0]
    assert store.read(run) is None
    assert not store.has(run)
    store.write(run, {"value": 0.25, "curve": [1, None]}, MADE)
    record = Store(tmp_path).read(run)
    assert record == Record(run, {"value": 0.25, "curve": [1, None]}, MADE)
    assert store.records(runs()) == [record]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"format": 1, "key": "0"}', '{"format": 2}', "null"],
)
def test_a_damaged_file_is_set_aside_and_its_run_is_missing(tmp_path, caplog, content):
    store, run = Store(tmp_path), runs()[0]
    path = store.write(run, {}, MADE)
    path.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert store.read(run) is None
    assert "was renamed to" in caplog.text
    assert path.with_suffix(".damaged").read_text() == content
    assert not path.exists()
    store.write(run, {"value": 1}, MADE)
    assert store.has(run)
    assert path.with_suffix(".damaged").exists()


@pytest.mark.parametrize(
    "change", [{"result": []}, {"made": None}, {"run": 3}, {"result": "absent"}]
)
def test_a_result_that_lacks_a_part_is_damaged(tmp_path, change):
    store, run = Store(tmp_path), runs()[0]
    path = store.write(run, {"value": 1}, MADE)
    content = {**json.loads(path.read_text()), **change}
    content = {name: part for name, part in content.items() if part != "absent"}
    path.write_text(json.dumps(content))
    assert store.read(run) is None
    assert path.with_suffix(".damaged").exists()


def test_what_was_set_aside_is_not_overwritten_the_next_time(tmp_path):
    store, run = Store(tmp_path), runs()[0]
    path = store.path(run)
    path.parent.mkdir(parents=True)
    for content in ("first", "second", "third"):
        path.write_text(content)
        assert store.read(run) is None
    kept = {file.read_text() for file in path.parent.glob("*.damaged")}
    assert kept == {"first", "second", "third"}


def test_an_archive_answers_for_a_damaged_file(tmp_path):
    run = runs()[0]
    archive = write_archive(tmp_path / "a.json", [Record(run, {"value": 2}, MADE)])
    store = Store(tmp_path / "own", archives=[archive])
    store.write(run, {"value": 1}, MADE).write_text("{")
    record = store.read(run)
    assert record is not None
    assert record.result == {"value": 2}


def test_a_file_cut_at_any_place_is_never_read_as_a_result(tmp_path):
    store, run = Store(tmp_path), runs()[0]
    path = store.write(run, {"value": 1}, MADE)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 7):
        path.write_bytes(whole[:length])
        assert store.read(run) is None


def test_a_result_that_json_cannot_hold_leaves_nothing(tmp_path):
    store, run = Store(tmp_path), runs()[0]
    with pytest.raises(ValueError, match="JSON"):
        store.write(run, {"value": float("nan")}, MADE)
    assert not store.has(run)
    assert not list(tmp_path.rglob("*.json"))


def test_an_archive_gives_back_the_records_in_any_order(tmp_path):
    records = [
        Record(run, {"value": i}, {**MADE, "seconds": float(i), "threads": 2})
        for i, run in enumerate(runs())
    ]
    one = write_archive(tmp_path / "one.json", records, item="steady")
    two = write_archive(tmp_path / "two.json", records[::-1], item="steady")
    assert one.read_bytes() == two.read_bytes()
    assert sorted(read_archive(one), key=lambda r: r.result["value"]) == records
    head = json.loads(one.read_text())
    assert head["item"] == "steady"
    assert head["made"] == {"commit": "abc", "threads": 2}


def test_a_store_reads_archives_below_its_own_results(tmp_path):
    first, second = runs()[:2]
    kept = [Record(first, {"value": 1}, MADE), Record(second, {"value": 2}, MADE)]
    write_archive(tmp_path / "kept" / "a.json", kept)
    store = Store(tmp_path / "own", archives=[tmp_path / "kept"])
    store.write(first, {"value": 10}, MADE)
    assert [record.result["value"] for record in store.records(runs())] == [10, 2]


@pytest.mark.parametrize(
    ("content", "match"),
    [({}, "an archive of results"), ({"records": [], "format": 9}, "of format 3")],
)
def test_a_file_that_is_no_archive_is_refused(tmp_path, content, match):
    path = write_checked(tmp_path / "a.json", content)
    with pytest.raises(ValueError, match=match):
        read_archive(path)


def flip_bits(content):
    """Texts that differ from a file's in one bit, one for each of its bytes."""
    for position in range(len(content)):
        other = bytearray(content)
        other[position] ^= 1 << position % 8
        yield bytes(other)


def test_no_flipped_bit_changes_a_result(tmp_path):
    store, run = Store(tmp_path / "s"), runs()[0]
    result = {"history": {"columns": {"epoch": [0, 10], "loss": [0.5, 1e-3]}}}
    path = store.write(run, result, MADE)
    expected, content, same = store.read(run), path.read_bytes(), 0
    for other in flip_bits(content):
        path.write_bytes(other)
        found = store.read(run)
        assert found in (None, expected)
        same += found is not None
        path.with_suffix(".damaged").unlink(missing_ok=True)
    assert same < 0.2 * len(content)  # white space


def test_no_flipped_bit_changes_an_archive(tmp_path):
    records = [Record(run, {"value": [0.5, 2]}, MADE) for run in runs()[:2]]
    path = write_archive(tmp_path / "a.json", records)
    expected, refused = read_archive(path), 0
    for other in flip_bits(path.read_bytes()):
        path.write_bytes(other)
        try:
            assert read_archive(path) == expected
        except ValueError:
            refused += 1
    assert refused > 0.9 * len(path.read_bytes())


def test_verify_counts_results_and_refuses_a_damaged_archive(tmp_path, capsys):
    records = [Record(run, {"value": [0.5, 2]}, MADE) for run in runs()[:2]]
    path = write_archive(tmp_path / "a.json", records, item="steady")
    assert main(["verify", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 2 results\n"
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.7"))
    assert main(["verify", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"read_archive: path must be an archive of results, got {path} (its checksum "
        "does not match its content). If it is an archive, restore it from a copy.\n"
    )


def test_verify_refuses_what_is_no_file(tmp_path, capsys):
    for path in (tmp_path, tmp_path / "none.json"):
        assert main(["verify", str(path)]) == 2
        assert capsys.readouterr().err == (
            "normalign verify: FILE must be an archive of results, "
            f"got {path}, which is no file.\n"
        )


def test_the_archives_of_this_repository_are_whole():
    files = sorted(ARCHIVES.glob("*.json"))
    assert len(files) >= 17
    assert all(read_archive(file) for file in files)


def test_a_result_without_a_checksum_is_set_aside(tmp_path):
    store, run = Store(tmp_path), runs()[0]
    path = store.write(run, {"value": 1}, MADE)
    path.write_text(json.dumps(read_checked(path)))
    assert store.read(run) is None
    assert path.with_suffix(".damaged").exists()


def test_a_result_of_another_run_is_set_aside(tmp_path):
    store, run = Store(tmp_path), runs()[0]
    path = store.write(run, {"value": 1}, MADE)
    content = read_checked(path)
    write_checked(path, {**content, "run": {**content["run"], "seed": 7}})
    assert store.read(run) is None
    assert path.with_suffix(".damaged").exists()


DEEP = 100_000 * "[" + 100_000 * "]"


@pytest.mark.parametrize(
    "text", [DEEP, f'{{"a": {DEEP}}}', '{"format": 2, "x": 1e999, "sha256": "0"}']
)
def test_text_that_json_can_hardly_hold_is_damage(tmp_path, text):
    store, run = Store(tmp_path), runs()[0]
    path = store.write(run, {"value": 1}, MADE)
    path.write_text(text)
    assert store.read(run) is None
    path.write_text(text)
    with pytest.raises(ValueError, match="an archive of results"):
        read_archive(path)


def test_a_file_that_is_stored_anew_meanwhile_is_not_set_aside(tmp_path, monkeypatch):
    store, run = Store(tmp_path), runs()[0]
    path = store.write(run, {"value": 1}, MADE)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    replace = Path.replace

    def late(self, target):
        self.write_bytes(whole)  # by another process
        monkeypatch.setattr(Path, "replace", replace)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", late)
    assert store.read(run).result == {"value": 1}
    assert path.read_bytes() == whole
    assert not list(tmp_path.rglob("*.damaged"))


@pytest.mark.parametrize(
    "content",
    [
        b'{"format": 1, "made": {}, "records": [{"key": "a"}]}',
        b'{"format": 1, "made": {}, "records": [5]}',
        b'{"format": 1, "made": {}, "records": {}}',
        b'{"format": 1, "made": [], "records": []}',
        b'{"format": 1, "records": []}', b'{"format": 1, "made": {}, "rec',
        b"\xad\xff", b"[]", b"5",
        b'{"format": 1, "made": {}, "records": '
        b'[{"key": "a", "run": {"x": 1}, "result": {}, "made": {}}]}',
    ],
)  # fmt: skip
def test_a_damaged_archive_is_refused_by_name(tmp_path, content):
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    rule = r"read_archive: path must be an archive of results, got .*damaged\.json"
    with pytest.raises(ValueError, match=rule):
        read_archive(path)


def test_a_folder_that_is_named_like_an_archive_is_passed_over(tmp_path):
    (tmp_path / "kept" / "d.json").mkdir(parents=True)
    assert not Store(tmp_path / "own", archives=[tmp_path / "kept"]).has(runs()[0])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False,
                                                          allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(settings=st.dictionaries(st.text(), JSON, max_size=4), result=JSON)
def test_any_result_of_any_settings_comes_back(settings, result, tmp_path_factory):
    run = Run("tiny", 1, "quick", "released", "synthetic", settings, 0)
    store = Store(tmp_path_factory.mktemp("store"))
    store.write(run, {"result": result}, {})
    record = store.read(run)
    assert record is not None
    assert record.result == {"result": result}
    turned = Run(**{**run.to_dict(), "settings": dict(reversed(settings.items()))})
    assert store.has(turned)
