import pickle
import threading
import time
from dataclasses import replace

import pytest

from normalign_reproduction.data import _openml, load_tabarena, tabarena_names
from normalign_reproduction.data._openml import fetch_tabarena, read_arff
from tests.data.tabarena_files import ARFF, FACTS, pd, served_openml, toy_frame

pytest.importorskip("arff")
pytest.importorskip("pooch")
pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def alone(monkeypatch, offline_and_empty):
    """The toy table is the only task."""
    monkeypatch.setattr(
        "normalign_reproduction.data._tabarena._facts", lambda: {"toy": FACTS}
    )


@pytest.fixture
def server():
    with served_openml() as state:
        yield state


def use(address, monkeypatch):
    """Let this be the server that is asked by default."""
    source = replace(_openml.TABARENA, mirrors=(address,))
    monkeypatch.setattr(_openml, "TABARENA", source)


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


def test_a_damaged_table_is_fetched_again(server, tmp_path):
    folder = fetch(server, tmp_path)
    (folder / "toy.parquet").write_bytes(b"PAR1 but no more")
    fetch(server, tmp_path)
    assert len(load_tabarena("toy", data_dir=tmp_path, download=False).X) == 6


def test_loading_downloads_into_the_cache_and_pickles_nothing(
    server, tmp_path, monkeypatch
):
    def refuse(*_, **__):
        raise AssertionError("a pickle was touched")

    for name in ("load", "loads", "dump", "dumps"):
        monkeypatch.setattr(pickle, name, refuse)
    use(server.server, monkeypatch)
    assert tabarena_names() == []
    assert len(load_tabarena("toy").X) == 6
    assert tabarena_names() == ["toy"]
    assert (tmp_path / "cache/tabarena/toy.parquet").is_file()


def test_without_a_network_loading_says_what_is_missing_and_why(tmp_path, monkeypatch):
    use("http://127.0.0.1:9/api/v1/xml", monkeypatch)  # nothing listens there
    with pytest.raises(FileNotFoundError, match="OpenML did not send it") as caught:
        load_tabarena("toy", data_dir=tmp_path)
    assert "127.0.0.1" in str(caught.value)
    assert "normalign data fetch tabarena --task toy" in str(caught.value)


@pytest.mark.parametrize("part", ["data", "file"])
@pytest.mark.parametrize("how", ["missing", "slow", "truncated"])
def test_a_bad_server_is_given_up_and_leaves_nothing(server, tmp_path, part, how):
    server.behaviour[part] = how
    started = time.monotonic()
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1"):
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
    ("fields", "message"),
    [
        ({"id": "8"}, "a description of toy of table 7, got one of '8'"),
        ({"md5_checksum": None}, "with a checksum, got ''"),
        ({"md5_checksum": "x" * 32}, "with a checksum"),
        ({"url": "file:///etc/passwd"}, "with the address of a file, got 'file:"),
        ({"url": None}, "with the address of a file, got ''"),
        ("garbled", "a description of toy in XML, got"),
    ],
)
def test_a_bad_description_is_refused_and_not_asked_for_again(
    server, tmp_path, fields, message
):
    if fields == "garbled":
        server.behaviour["data"] = fields
    else:
        server.fields.update(fields)
    with pytest.raises(ConnectionError, match=f"^fetch_tabarena: OpenML's .*{message}"):
        fetch(server, tmp_path)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("6, red, ?, yes\n", "", "6 rows of 3 inputs and a target, got 5 rows"),
        ("bought {no", "sold {no", "the target 'bought', got none"),
        ("5, red, b, no", "5, green, b, no", "must be an ARFF file"),
        ("5, red, b, no", "5, red", "must be an ARFF file"),
        ("@DATA", "", "must be an ARFF file"),
    ],
)
def test_another_table_than_the_tasks_is_refused(server, tmp_path, old, new, message):
    server.arff = ARFF.replace(old, new).encode()
    with pytest.raises(ConnectionError, match=f"^fetch_tabarena: .*{message}"):
        fetch(server, tmp_path)
    assert tabarena_names(data_dir=tmp_path) == []


def test_a_class_without_rows_does_not_count(server, tmp_path):
    server.arff = ARFF.replace("{no, yes}", "{no, yes, perhaps}").encode()
    fetch(server, tmp_path)
    assert load_tabarena("toy", data_dir=tmp_path).y.nunique() == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attempts": 0}, "attempts must be positive"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"name": "toys"}, "name must be one of the 1 tasks"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=f"^fetch_tabarena: {message}"):
        fetch_tabarena(**{"name": "toy", "data_dir": tmp_path} | arguments)


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


@pytest.mark.parametrize("rows", [0, 6])
def test_an_arff_file_has_numbers_and_categories(tmp_path, rows):
    path = tmp_path / "toy.arff"
    path.write_text("\n".join(ARFF.splitlines()[: 6 + rows]) + "\n")
    frame = read_arff(path)
    assert len(frame) == rows
    assert [dtype.name for dtype in frame.dtypes] == ["float64", *["category"] * 3]
    if rows:
        pd.testing.assert_frame_equal(frame, toy_frame())
