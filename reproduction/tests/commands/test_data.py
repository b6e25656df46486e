import json
from dataclasses import replace
from importlib.util import find_spec

import pytest

from normalign.cli import main
from tests.data.tabarena_files import FACTS, served_openml, write_tabarena
from tests.data.uci_files import uci_members, write_tar


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("NORMALIGN_DATA", raising=False)
    monkeypatch.setenv("NORMALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "normalign_reproduction.data._tabarena._facts", lambda: {"toy": FACTS}
    )


def row(text: str, name: str) -> str:
    (line,) = (line for line in text.splitlines() if line.split()[:1] == [name])
    return line


def test_the_list_counts_the_tables_of_the_collections(capsys, tmp_path):
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert "not here" in row(out, "uci")
    assert "not here" in row(out, "tabarena")
    write_tar(tmp_path / "uci/data.tar.gz", uci_members("toy") | uci_members("abc"))
    write_tabarena(tmp_path, matches_tabarena=False)
    assert main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "2 tables, no published checksum" in row(out, "uci")
    assert "1 tables, 0 as TabArena's" in row(out, "tabarena")


def test_a_damaged_collection_does_not_stop_the_list(capsys, tmp_path):
    write_tar(tmp_path / "uci/data.tar.gz", uci_members("toy")).write_bytes(b"no")
    (write_tabarena(tmp_path) / "manifest.json").write_text("[")
    place = ["--data-dir", str(tmp_path)]
    assert main(["data", "list", *place]) == 0
    out = capsys.readouterr().out
    assert "damaged" in row(out, "uci")
    assert "damaged" in row(out, "tabarena")
    assert main(["data", "where", "uci", *place]) == 1
    assert "truncated or damaged" in capsys.readouterr().err
    assert main(["data", "where", "tabarena", *place]) == 1
    assert "manifest.json must be JSON" in capsys.readouterr().err


def test_where_prints_the_folder_and_what_is_in_it(capsys, tmp_path):
    assert main(["data", "where", "tabarena"]) == 1
    assert "normalign data fetch tabarena" in capsys.readouterr().err
    write_tabarena(tmp_path)
    assert main(["data", "where", "tabarena", "--data-dir", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path}\n"
    assert captured.err == "tabarena: 1 tables, 1 as TabArena's\n"


def test_fetching_the_uci_collection_says_what_to_do_by_hand(capsys, tmp_path):
    assert main(["data", "fetch", "uci"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no checksum" in captured.err
    assert str(tmp_path / "cache/uci/data.tar.gz") in captured.err
    assert "citius.usc.es" in captured.err


def test_doctor_reports_the_collections(capsys, tmp_path, monkeypatch):
    write_tabarena(tmp_path)
    monkeypatch.setenv("NORMALIGN_DATA", str(tmp_path))
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["data"]
    assert report["uci"] == {"folder": None, "exact": None, "tables": 0}
    assert report["tabarena"]["tables"] == report["tabarena"]["whole"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["mnist", "--task", "toy"],
            "--task must be left out for anything but a collec",
        ),
        (["tabarena", "--task", "toys"], "--task must be one of the 1 tasks"),
        (
            ["tabarena", "--mirror", "a", "--mirror", "b"],
            "--mirror must be one address",
        ),
    ],
)
def test_words_that_do_not_fit_exit_2(capsys, words, message):
    assert main(["data", "fetch", *words]) == 2
    assert f"normalign data fetch: {message}" in capsys.readouterr().err


with_downloads = pytest.mark.skipif(
    find_spec("arff") is None or find_spec("pooch") is None,
    reason="needs liac-arff and pooch",
)


def fetch_from(server, *words: str) -> int:
    words = ("--mirror", server.server, "--timeout", "1", *words)
    return main(["data", "fetch", "tabarena", *words])


@with_downloads
def test_a_task_is_fetched_from_openml_and_its_file_is_printed(capsys, tmp_path):
    with served_openml() as server:
        assert fetch_from(server, "--task", "toy") == 0
        assert fetch_from(server) == 0
        assert len(server.asked) == 2
    out = capsys.readouterr().out
    assert out == f"{tmp_path / 'cache/tabarena/toy.parquet'}\n" * 2


@with_downloads
def test_a_lying_server_exits_1_and_the_other_tasks_are_tried(
    capsys, tmp_path, monkeypatch
):
    both = {"lie": replace(FACTS, name="lie", openml_dataset_id=8), "toy": FACTS}
    monkeypatch.setattr("normalign_reproduction.data._tabarena._facts", lambda: both)
    with served_openml() as server:
        assert fetch_from(server, "--task", "lie") == 1
        assert "got one of '7'" in capsys.readouterr().err
        assert fetch_from(server) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'cache/tabarena/toy.parquet'}\n"
    assert "got one of '7'" in captured.err
    assert "1 of 2 tables failed" in captured.err


@with_downloads
def test_a_fetched_table_that_stays_hidden_is_told_of(capsys, tmp_path, monkeypatch):
    shared = write_tabarena(
        tmp_path / "shared", matches_tabarena=False, note="some rows"
    )
    monkeypatch.setenv("NORMALIGN_DATA", str(tmp_path / "shared"))
    with served_openml() as server:
        assert fetch_from(server, "--task", "toy") == 0
        told = capsys.readouterr().err
        assert f"{shared / 'toy.parquet'}, which is partial, comes before it" in told
        assert fetch_from(server, "--data-dir", str(tmp_path / "mine")) == 0
        assert "comes before it" not in capsys.readouterr().err
        (shared / "manifest.json").write_text("[")
        assert fetch_from(server, "--task", "toy") == 0
        assert "manifest.json must be JSON" in capsys.readouterr().err
