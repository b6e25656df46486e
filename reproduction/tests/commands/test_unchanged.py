import pytest

from normalign_reproduction.commands.unchanged import (
    fingerprint,
    load_output,
    save_output,
)


@pytest.fixture
def seen(tmp_path):
    folder = tmp_path / "results"
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "a.json").write_text("1")
    return [folder, tmp_path / "report.html", tmp_path / "mnist.gz"]


def test_what_was_printed_is_recalled_as_long_as_nothing_changes(tmp_path, seen):
    path = tmp_path / "unchanged.json"
    assert load_output(path, ["table1"]) is None
    save_output(path, ["table1"], "Table 1: √\nreport", seen=seen)
    assert load_output(path, ["table1"]) == "Table 1: √\nreport"
    assert load_output(path, ["table1", "--full"]) is None


def change_a_result(tmp_path):
    (tmp_path / "results" / "tiny" / "a.json").write_text("12")


def add_a_result(tmp_path):
    (tmp_path / "results" / "b.json").write_text("2")


def remove_a_result(tmp_path):
    (tmp_path / "results" / "tiny" / "a.json").unlink()


def find_data(tmp_path):
    (tmp_path / "mnist.gz").write_text("")


def damage_the_memory(tmp_path):
    (tmp_path / "unchanged.json").write_text("{")


@pytest.mark.parametrize(
    "change",
    [change_a_result, add_a_result, remove_a_result, find_data, damage_the_memory],
)
def test_any_change_is_noticed(tmp_path, seen, change):
    path = tmp_path / "unchanged.json"
    save_output(path, [], "text", seen=seen)
    change(tmp_path)
    assert load_output(path, []) is None


def test_another_place_to_look_for_data_is_a_change(tmp_path, seen, monkeypatch):
    path = tmp_path / "unchanged.json"
    save_output(path, [], "text", seen=seen)
    monkeypatch.setenv("NORMALIGN_DATA", str(tmp_path / "elsewhere"))
    assert load_output(path, []) is None


def test_the_same_variable_elsewhere_is_a_change(tmp_path, seen, monkeypatch):
    path = tmp_path / "unchanged.json"
    monkeypatch.setenv("NORMALIGN_DATA", "data")
    monkeypatch.chdir(tmp_path)
    save_output(path, [], "text", seen=seen)
    assert load_output(path, []) == "text"
    monkeypatch.chdir(tmp_path / "results")
    assert load_output(path, []) is None


def test_text_made_of_what_has_changed_meanwhile_is_not_kept(tmp_path, seen):
    path = tmp_path / "unchanged.json"
    before = [(fingerprint([], seen), seen)]
    change_a_result(tmp_path)
    save_output(path, [], "text", seen=seen, before=before)
    assert not path.exists()
    before = [(fingerprint([], seen), seen)]
    save_output(path, [], "text", seen=seen, before=before)
    assert load_output(path, []) == "text"
