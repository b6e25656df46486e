"""The command that computes, with tiny items in place of the paper's."""

import errno
import html
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from normalign.cli import main
from normalign_reproduction import catalogue
from normalign_reproduction.store import read_archive
from tests import tiny


@pytest.fixture(autouse=True)
def tiny_items(monkeypatch, tmp_path):
    """The tiny items, and no data but the embedded ones."""
    monkeypatch.setattr(catalogue, "NAMES", catalogue.NAMES)
    tiny.install()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NORMALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NORMALIGN_DATA", raising=False)
    yield
    catalogue.item.cache_clear()


def reproduce(*words):
    return main(["reproduce", "--jobs", "1", *words])


def stored(out="out/paper"):
    return sorted(Path(out, "results").rglob("*.json"))


def test_the_last_lines_are_a_summary_and_the_page(capsys, monkeypatch):
    assert reproduce("steady") == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "At quick size 1 of 1 claims hold, 0 fail, 0 are undecided.",
        f"report: {Path('out/paper/report.html')}",
    ]
    text = "6 runs in 3 batches on cpu, 1 at a time; expected time: 24 s\n"
    assert output.err == text
    assert Path("out/paper/report.html").is_file()
    assert len(stored()) == 6
    monkeypatch.setattr(tiny, "compute", None)
    assert reproduce("steady") == 0  # nothing is computed again
    assert capsys.readouterr() == (output.out, "")


def test_a_dry_run_prints_the_plan_and_does_nothing(capsys):
    assert reproduce("steady", "slow", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "0 of 6" in out
    assert out.endswith(
        "12 runs in 6 batches on cpu, 1 at a time; expected time: 48 s\n"
    )
    assert not Path("out").exists()


def test_more_seeds_other_sizes_and_variants_are_further_runs(capsys):
    reproduce("steady", "--only", "group<1")
    for words, n_runs in ((), 4), (("--seeds", "3"), 3), (("--full",), 9):
        capsys.readouterr()
        reproduce("steady", *words)
        assert f"{n_runs} runs in " in capsys.readouterr().err


def test_failed_batches_are_listed_at_the_end(capsys):
    assert reproduce("failing", "steady") == 1
    output = capsys.readouterr()
    assert (
        "1 of 6 batches failed:\n  failing, 2 runs: ValueError: the fifth step\n"
        in (output.err)
    )
    assert output.out.endswith("report.html\n")
    assert reproduce("alike") == 1
    err = capsys.readouterr().err
    assert "5 of 5 batches failed" in err
    assert err.count("alike, 10 runs: ValueError: no step is right") == 1
    paths = [Path(line.strip()) for line in err.splitlines() if ".error" in line]
    assert len(paths) == 3
    assert all("no step is right" in path.read_text() for path in paths)
    assert "    and 2 more\n" in err


@pytest.mark.parametrize("place", ["experiment", "report"])
def test_a_full_disk_is_reported_in_one_line(capsys, monkeypatch, place):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    name = "normalign_reproduction.report.files.write_report"
    with monkeypatch.context() as patch:
        if place == "report":
            patch.setattr(name, full)
        assert reproduce("filling" if place == "experiment" else "steady") == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("normalign reproduce: no space is left for")
    assert line.endswith("free some space and repeat the command.")


def test_archives_are_read_instead_of_computing(capsys, monkeypatch):
    words = ("steady", "--archive", "results/paper", "--commit", "f" * 40)
    assert reproduce(*words) == 0
    path = Path("results/paper/steady-quick-released.json")
    assert {one.made["commit"] for one in read_archive(path)} == {"f" * 40}
    about = json.loads(path.read_text())
    assert (about["item"], about["size"]) == ("steady", "quick")
    first = capsys.readouterr().out
    monkeypatch.setattr(tiny, "compute", None)
    assert reproduce("steady", "--out", "elsewhere") == 0
    assert capsys.readouterr().out.replace("elsewhere", "out/paper") == first


def test_an_archive_grows_and_is_not_replaced_by_one_with_fewer_runs(
    capsys, monkeypatch
):
    words, path = (
        ("steady", "--archive", "kept"),
        Path("kept/steady-quick-released.json"),
    )
    assert reproduce(*words, "--seeds", "1") == 0
    assert reproduce(*words) == 0
    before = path.read_bytes()
    assert len(read_archive(path)) == 6
    monkeypatch.setattr(tiny, "compute", None)  # refused before anything is computed
    capsys.readouterr()
    assert reproduce(*words, "--seeds", "1", "--out", "new") == 2
    assert f"--archive would remove 3 runs from {path}" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_the_command_in_the_report_asks_for_the_same_again():
    reproduce("steady", "--seeds", "1", "--digits", "digits_5000", "--out", "my out")
    page = html.unescape(Path("my out/report.html").read_text())
    words = "steady --seeds 1 --digits digits_5000 --out 'my out'"
    assert f"normalign reproduce {words}" in page


def test_the_list_counts_finished_runs_and_scales_times(capsys):
    reproduce("steady", "--seeds", "1")
    capsys.readouterr()
    assert main(["list"]) == 0
    row = capsys.readouterr().out.splitlines()[2]
    assert " ".join(row.split()) == "steady Table steady 3 of 6 12 s 0 of 9 3 s"
    main(["list", "--seeds", "10"])
    row = capsys.readouterr().out.splitlines()[2]
    assert "3 of 30" in row
    assert "60 s" in row


@pytest.mark.parametrize("digits", ["mnist", "digits_5000"])
def test_the_list_counts_the_digits_with_more_finished_runs(
    capsys, monkeypatch, digits
):
    module = sys.modules["normalign_reproduction.items.steady.item"]
    monkeypatch.setattr(module, "ITEM", replace(module.ITEM, needs_digits=True))
    catalogue.item.cache_clear()
    assert reproduce("steady", "--digits", digits) == 0
    main(["list"])
    assert "6 of 6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("reproduce steddy", "slow, training, got 'steddy'. Did you mean 'steady'?"),
        ("show steddy", "Did you mean 'steady'?"),
        ("reproduce --jobs 0", "--jobs: must be a whole number from 1, got '0'"),
        ("reproduce --jobs many", "--jobs: must be a whole number from 1, got 'many'"),
        ("reproduce --seeds 0", "--seeds: must be a whole number from 1, got '0'"),
        ("list --seeds -1", "--seeds: must be a whole number from 1, got '-1'"),
        ("reproduce --backend mpi", "invalid choice: 'mpi'"),
        ("reproduce --device gpu", "invalid choice: 'gpu'"),
        ("reproduce --preset text2", "invalid choice: 'text2'"),
        ("reproduce --checkpoint-seconds soon", "must be a number above 0, got 'soon'"),
        ("reproduce --checkpoint-seconds nan", "must be a number above 0, got 'nan'"),
        ("reproduce --checkpoint-seconds -1", "must be a number above 0, got '-1'"),
        ("reproduce --out file", "--out must be a folder, got the file file"),
        ("reproduce --out file/x", "cannot make the folder file/x/results (Not a dir"),
        ("reproduce --out odd", "cannot make the folder odd/figures (File exists)"),
        ("reproduce --archive file", "cannot make the folder file (File exists)"),
        ("reproduce --results gone", "--results must be an existing folder or file"),
        ("reproduce steady --device cuda", "--device cuda needs a GPU, found none"),
        ("reproduce steady --only group=3", "group must be one of 0, 1, 2, got '3'"),
        ("reproduce steady --only grup=1", "a setting of steady (group), got 'grup'"),
        ("reproduce steady --only group", "--only must be NAME=VALUE[,VALUE]"),
        ("reproduce steady --only group>9", "must leave some variants of steady"),
        ("compare steady --out no", "To compute some: `normalign reproduce steady --o"),
        ("report --out none", "normalign report: no run is stored in none/results"),
        ("report steady --format pdf", "unrecognized arguments: --format pdf"),
        ("show --format csv", "--format csv must have exactly one NAME, got none"),
        ("show steady alike --format svg", "must have exactly one NAME, got 2"),
        ("verify none.json", "FILE must be a file, got none.json"),
        ("verify file", "file is damaged: it has no checksum"),
        ("verify", "the following arguments are required: FILE"),
    ],
)
def test_a_wrong_command_gets_two_sentences_and_exit_code_2(
    capsys, monkeypatch, words, message
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    Path("file").write_text("{}")
    Path("odd").mkdir()
    Path("odd/figures").write_text("")
    assert main(words.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert message in line
    assert line.count(". ") + line.count("? ") <= 1
