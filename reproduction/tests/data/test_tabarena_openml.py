import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from normalign_reproduction.data import load_tabarena, tabarena_names
from normalign_reproduction.data.openml import _elsewhere, fetch_tabarena, read_arff
from tests.data.tabarena_files import ARFF, FACTS, pd, served_openml, toy_frame

with TemporaryDirectory() as folder, _elsewhere(Path(folder)):
    openml = pytest.importorskip("openml")
pytest.importorskip("pooch")
pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def alone(monkeypatch, offline_and_empty):
    """One task, on such a machine."""
    monkeypatch.setattr(
        "normalign_reproduction.data.tabarena._tasks", lambda: {"toy": FACTS}
    )


@pytest.fixture
def server():
    with served_openml() as state:
        yield state


def fetch(server, tmp_path, **options):
    options = {"attempts": 1, "timeout": 0.5} | options
    return fetch_tabarena("toy", data_dir=tmp_path, server=server.server, **options)


def test_a_good_server_gives_the_table_once(server, tmp_path):
    folder = fetch(server, tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["toy.json", "toy.parquet"]
    table = load_tabarena("toy", data_dir=tmp_path, download=False)
    expected = toy_frame()
    pd.testing.assert_frame_equal(table.X, expected.drop(columns="bought"))
    assert table.y.tolist() == expected["bought"].tolist()
    assert table.matches_tabarena
    assert fetch(server, tmp_path) == folder
    assert server.asked == ["/api/v1/xml/data/7", "/file/toy.arff"]


def test_a_table_damaged_since_is_fetched_anew(server, tmp_path):
    folder = fetch(server, tmp_path)
    (folder / "toy.parquet").write_bytes(b"PAR1 but no more")
    fetch(server, tmp_path)
    assert len(load_tabarena("toy", data_dir=tmp_path, download=False).X) == 6


def test_loading_asks_the_server_that_openml_is_set_to(server, tmp_path, monkeypatch):
    monkeypatch.setattr(openml.config, "server", server.server)
    assert tabarena_names() == []
    assert len(load_tabarena("toy").X) == 6
    assert tabarena_names() == ["toy"]
    assert (tmp_path / "cache/tabarena/toy.parquet").is_file()


def test_nothing_is_pickled_and_openmls_own_settings_stay(
    server, tmp_path, monkeypatch
):
    import pickle

    def refuse(*_, **__):
        raise AssertionError("a pickle was touched")

    for name in ("load", "loads", "dump", "dumps"):
        monkeypatch.setattr(pickle, name, refuse)
    before = openml.config.get_config_as_dict()
    fetch(server, tmp_path)
    assert openml.config.get_config_as_dict() == before
    assert not [p for p in tmp_path.rglob("*") if p.suffix in (".pkl", ".feather")]


def test_the_home_folder_stays_as_it_was(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    code = (
        "from normalign_reproduction.data.openml import fetch_tabarena\n"
        "try:\n"
        "    fetch_tabarena('diabetes', server='http://127.0.0.1:9', attempts=1)\n"
        "except ConnectionError:\n"
        "    import openml, os\n"
        "    assert 'OPENML_CACHE_DIR' not in os.environ\n"
        "    raise SystemExit(7)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=kept | {"HOME": str(home)}, check=False
    )
    assert ended.returncode == 7
    assert list(home.rglob("*")) == []


@pytest.mark.parametrize("part", ["data", "file"])
@pytest.mark.parametrize("how", ["missing", "slow", "truncated"])
def test_a_bad_server_is_given_up_and_leaves_nothing(server, tmp_path, part, how):
    server.behaviour[part] = how
    started = time.monotonic()
    with pytest.raises(ConnectionError, match=r"^fetch: mirrors must be reachable"):
        fetch(server, tmp_path)
    # half a second of patience; ten would be the server's own
    assert time.monotonic() - started < 8
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("how", ["lying", "short"])
def test_other_bytes_than_the_stated_checksum_are_refused(server, tmp_path, how):
    server.behaviour["file"] = how
    with pytest.raises(ConnectionError, match=r"other bytes \(md5 "):
        fetch(server, tmp_path, attempts=2)
    assert len(server.asked) == 3
    assert tabarena_names(data_dir=tmp_path) == []


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"id": "8"}, "a description of toy of table 7, got one of '8'"),
        ({"md5_checksum": None}, "with a checksum, got ''"),
        ({"md5_checksum": "x" * 32}, "with a checksum"),
        ({"url": "file:///etc/passwd"}, "with the address of a file, got 'file:"),
        ({"url": None}, "one without oml:url"),
        ({"version": "first"}, "with a version, got 'first'"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(server, tmp_path, fields, match):
    server.fields.update(fields)
    with pytest.raises(ConnectionError, match=f"^fetch_tabarena: OpenML's .*{match}"):
        fetch(server, tmp_path)
    assert len(server.asked) == 1


def test_a_garbled_description_is_refused_and_not_asked_for_again(server, tmp_path):
    server.behaviour["data"] = "garbled"
    with pytest.raises(ConnectionError, match=r"a description of toy in XML, got"):
        fetch(server, tmp_path)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ("6, red, ?, yes\n", "", "6 rows of 3 inputs and a target, got 5 rows"),
        ("bought {no", "sold {no", "the target 'bought', got one without it"),
        ("{no, yes}", "{no, yes, perhaps}", None),
        ("5, red, b, no", "5, green, b, no", "an ARFF file, got one with"),
        ("5, red, b, no", "5, red", "an ARFF file, got one with"),
        ("@DATA", "", "an ARFF file, got one with"),
    ],
)
def test_another_table_than_the_tasks_is_refused(server, tmp_path, old, new, match):
    server.arff = ARFF.replace(old, new).encode()
    if match is None:  # a class without rows is none
        assert fetch(server, tmp_path)
        assert load_tabarena("toy", data_dir=tmp_path).n_classes == 2
        return
    with pytest.raises(ConnectionError, match=f"^fetch_tabarena: .*{match}"):
        fetch(server, tmp_path)
    assert tabarena_names(data_dir=tmp_path) == []


def test_without_a_network_loading_says_what_is_missing_and_why(tmp_path, monkeypatch):
    # port 9 of the loopback: nothing listens there
    monkeypatch.setattr(openml.config, "server", "http://127.0.0.1:9/api/v1/xml")
    with pytest.raises(FileNotFoundError, match="OpenML did not send it") as caught:
        load_tabarena("toy", data_dir=tmp_path)
    assert "127.0.0.1" in str(caught.value)
    assert "normalign data fetch tabarena --task toy" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"timeout": 0}, "timeout must be positive"),
    ],
)
def test_bad_arguments_get_a_house_error(tmp_path, arguments, match):
    with pytest.raises(ValueError, match=f"^fetch_tabarena: {match}"):
        fetch_tabarena("toy", data_dir=tmp_path, **arguments)
    with pytest.raises(ValueError, match=r"^fetch_tabarena: name must be one of the 1"):
        fetch_tabarena("toys", data_dir=tmp_path)


def test_two_fetches_at_once_leave_one_whole_table(server, tmp_path):
    threads = [
        threading.Thread(target=fetch, args=(server, tmp_path), kwargs={"timeout": 5})
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(load_tabarena("toy", data_dir=tmp_path, download=False).X) == 6


@pytest.mark.parametrize("rows", [0, 2, 3, 6])
def test_an_arff_file_is_the_same_read_in_parts(tmp_path, monkeypatch, rows):
    path = tmp_path / "toy.arff"
    path.write_text("\n".join(ARFF.splitlines()[: 6 + rows]) + "\n")
    whole = read_arff(path)
    assert len(whole) == rows
    monkeypatch.setattr("normalign_reproduction.data.openml._ROWS_AT_ONCE", 3)
    pd.testing.assert_frame_equal(read_arff(path), whole)
    if rows == 6:
        pd.testing.assert_frame_equal(whole, toy_frame())
