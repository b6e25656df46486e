import html
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from normalign.cli import main
from normalign_reproduction import catalogue
from normalign_reproduction.store import read_archive
from tests import tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def tiny_items(monkeypatch, tmp_path):
    """The tiny items in place of the paper's, and no data but the embedded ones."""
    monkeypatch.setattr(catalogue, "NAMES", catalogue.NAMES)
    tiny.install()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NORMALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NORMALIGN_DATA", raising=False)
    yield
    catalogue.item.cache_clear()


def reproduce(*words):
    return main(["reproduce", "--jobs", "1", *words])


def test_the_findings_go_to_stdout_and_progress_to_stderr(capsys):
    assert reproduce("steady") == 0
    said = capsys.readouterr()
    assert "The mean is 0." in said.out
    assert "quick size" in said.out
    assert f"report: {Path('out/paper/report.html')}" in said.out
    assert "6 runs in 3 batches on cpu, 1 at a time" in said.err
    assert Path("out/paper/report.html").is_file()
    assert len(list(Path("out/paper/results").rglob("*.json"))) == 6


def test_a_second_time_prints_the_same_and_computes_nothing(capsys, monkeypatch):
    reproduce("steady")
    first = capsys.readouterr().out
    monkeypatch.setattr(tiny, "compute", None)
    assert reproduce("steady") == 0
    second = capsys.readouterr()
    assert second.out == first
    assert second.err == ""
    Path("out/paper/unchanged.json").unlink()  # the long way round
    assert reproduce("steady") == 0
    assert capsys.readouterr().out == first


def test_finished_work_is_reported_without_torch(tmp_path):
    reproduce("steady")
    code = (
        "import sys; from tests import tiny; tiny.install()\n"
        "from normalign.cli import main\n"
        "code = main(['reproduce', '--jobs', '1', 'steady'])\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)"
    )
    paths = str(ROOT)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "The mean is" in done.stdout
    assert time.monotonic() - start < 3  # it takes 0.2 s; importing torch alone is 2


def test_a_dry_run_prints_the_plan_and_does_nothing(capsys):
    assert reproduce("steady", "slow", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "12 runs to do; expected time: 24 s" in out
    assert "0 of 6" in out
    assert not Path("out").exists()


def test_more_seeds_and_other_sizes_are_further_runs(capsys):
    reproduce("steady")
    capsys.readouterr()
    assert reproduce("steady", "--seeds", "3") == 0
    assert "3 runs in 3 batches" in capsys.readouterr().err
    assert reproduce("steady", "--full", "--dry-run") == 0
    assert "9 runs to do" in capsys.readouterr().out


def test_a_failed_batch_is_told_at_the_end_and_exits_1(capsys):
    assert reproduce("failing", "steady") == 1
    said = capsys.readouterr()
    assert "1 of 6 batches failed" in said.err
    assert "failing, 2 runs: ValueError: the fifth step" in said.err
    assert "The mean is" in said.out  # of the other item
    assert reproduce("failing") == 1  # not remembered as done
    assert "1 of 1 batches failed" in capsys.readouterr().err


def test_batches_that_fail_alike_are_told_once(capsys):
    assert reproduce("alike") == 1
    said = capsys.readouterr().err
    assert "5 of 5 batches failed" in said
    assert said.count("alike, 10 runs: ValueError: no step is right") == 1
    assert said.count(".error\n") == 3
    assert "    and 2 more\n" in said


def test_a_full_disk_is_told_in_a_line_and_exits_1(capsys):
    assert reproduce("filling") == 1
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith("normalign reproduce: --out must be on a disk with space")
    assert "No space left on device" in line
    assert "repeat the command" in line


def test_a_disk_that_is_full_when_the_report_is_written_is_told_too(
    capsys, monkeypatch
):
    import errno

    def full(*args, **words):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("normalign_reproduction.report.files.write_report", full)
    assert reproduce("steady") == 1
    assert "--out must be on a disk with space left" in capsys.readouterr().err
    monkeypatch.undo()


def test_archives_hold_the_results_and_are_read_instead_of_computing(
    capsys, monkeypatch
):
    words = ("steady", "--archive", "results/paper", "--commit", "f" * 40)
    assert reproduce(*words) == 0
    records = read_archive(Path("results/paper/steady-quick-released.json"))
    assert len(records) == 6
    assert {record.made["commit"] for record in records} == {"f" * 40}
    first = capsys.readouterr().out
    monkeypatch.setattr(tiny, "compute", None)
    assert reproduce("steady", "--out", "elsewhere", "--results", "results/paper") == 0
    second = capsys.readouterr().out
    assert second.replace("elsewhere", str(Path("out/paper"))) == first
    head = json.loads(Path("results/paper/steady-quick-released.json").read_text())
    assert (head["item"], head["size"]) == ("steady", "quick")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["table9"], "must be one of steady"),
        (["--jobs", "0"], "--jobs must be 'auto' or a number from 1 on, got '0'"),
        (["--jobs", "many"], "--jobs must be 'auto' or a number from 1 on"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--out", "file"], "--out must be a folder, got the file file"),
        (["--results", "gone"], "--results must be a folder or file that exists"),
        (["--backend", "mpi"], "invalid choice"),
        (["--checkpoint-seconds", "soon"], "invalid float"),
        (["--checkpoint-seconds", "nan"], "must be a finite number above 0, got nan"),
        (["--checkpoint-seconds", "inf"], "must be a finite number above 0, got inf"),
        (["--checkpoint-seconds", "-1"], "must be a finite number above 0, got -1.0"),
        (["--out", "file/x"], "--out must be a folder that can be written to, got"),
        (["--archive", "file"], "--archive must be a folder that can be written to"),
        (["--out", "odd"], "--out must be one in which figures is a folder, got odd"),
    ],
)
def test_a_wrong_word_gets_one_line_and_exit_2(capsys, words, match):
    Path("file").write_text("")
    Path("odd").mkdir()
    Path("odd/figures").write_text("")
    assert main(["reproduce", *words]) == 2
    err = capsys.readouterr().err
    assert match in err
    assert len(err.splitlines()) == 1


def test_a_device_that_is_not_there_is_refused(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert reproduce("steady", "--device", "cuda") == 2
    assert "--device must be a device of this machine" in capsys.readouterr().err


def test_the_list_counts_what_is_finished(capsys):
    reproduce("steady", "--seeds", "1")
    capsys.readouterr()
    assert main(["list"]) == 0
    (row,) = [
        line for line in capsys.readouterr().out.splitlines() if "Table steady" in line
    ]
    assert "3 of 6" in row
    assert "0 of 9" in row
    assert "12 s cpu" in row
    assert "3 s cuda" in row


def install(monkeypatch, name, **changes):
    """Change a tiny item."""
    home = sys.modules[f"normalign_reproduction.items.{name}.item"]
    monkeypatch.setattr(home, "ITEM", replace(home.ITEM, **changes))
    catalogue.item.cache_clear()


def test_the_list_counts_the_digits_of_which_more_is_finished(capsys, monkeypatch):
    install(monkeypatch, "steady", needs_digits=True)
    for digits in ("mnist", "digits_5000"):  # neither is here, nor needed to list
        assert reproduce("steady", "--digits", digits, "--out", digits) == 0
        capsys.readouterr()
        main(["list", "--out", digits])
        assert "6 of 6" in capsys.readouterr().out


def test_the_lists_time_grows_with_the_seeds(capsys):
    main(["list", "--seeds", "10"])
    out = capsys.readouterr().out
    assert "60 s cpu" in out  # 12 s for two
    assert "12 s cpu" not in out


def test_a_copied_folder_does_not_answer_for_its_original(capsys):
    assert reproduce("steady", "--out", "a") == 0
    shutil.copytree("a", "b")
    shutil.rmtree("b/results")
    Path("b/report.html").unlink()
    capsys.readouterr()
    assert reproduce("steady", "--out", "b") == 0
    assert f"report: {Path('b/report.html')}" in capsys.readouterr().out
    assert Path("b/report.html").is_file()
    assert len(list(Path("b/results").rglob("*.json"))) == 6


def test_archives_of_another_folder_are_used_only_where_they_are_named(
    capsys, tmp_path
):
    out = str(tmp_path / "out")
    reproduce("steady", "--archive", "kept", "--out", out)
    shutil.rmtree(tmp_path / "out")
    assert reproduce("steady", "--out", out, "--results", "kept") == 0
    capsys.readouterr()
    assert reproduce("steady", "--out", out) == 0
    assert "6 runs in 3 batches" in capsys.readouterr().err


def test_what_changes_while_the_report_is_written_is_seen_the_next_time(
    capsys, monkeypatch
):
    from normalign_reproduction.report import files as report

    real = report.write_report

    def write_report(*args, **words):
        path = real(*args, **words)
        one = next(Path("out/paper/results").rglob("*.json"))
        content = json.loads(one.read_text())
        content["result"]["value"] = 1000.0
        one.write_text(json.dumps(content))
        return path

    monkeypatch.setattr(report, "write_report", write_report)
    first = reproduce("steady")
    monkeypatch.setattr(report, "write_report", real)
    reported = Path("out/paper/report.html").read_text()
    assert reproduce("steady") == first == 0
    assert Path("out/paper/report.html").read_text() != reported


def test_an_archive_is_not_replaced_by_one_with_fewer_runs(capsys, monkeypatch):
    words = ("steady", "--archive", "kept")
    assert reproduce(*words) == 0
    path = Path("kept/steady-quick-released.json")
    before = path.read_bytes()
    monkeypatch.setattr(tiny, "compute", None)  # refused before anything is computed
    capsys.readouterr()
    assert reproduce(*words, "--seeds", "1", "--out", "new") == 2
    err = capsys.readouterr().err
    assert f"{path}, which has 3 runs that are not asked for here" in err
    assert len(err.splitlines()) == 1
    assert path.read_bytes() == before
    monkeypatch.undo()


def test_an_archive_may_grow():
    assert reproduce("steady", "--archive", "kept", "--seeds", "1") == 0
    assert reproduce("steady", "--archive", "kept") == 0
    assert len(read_archive(Path("kept/steady-quick-released.json"))) == 6


def test_the_command_in_the_report_asks_for_the_same_again():
    reproduce("steady", "--seeds", "1", "--digits", "digits_5000", "--out", "my out")
    page = html.unescape(Path("my out/report.html").read_text())
    words = "steady --seeds 1 --digits digits_5000 --out 'my out'"
    assert f"normalign reproduce {words}" in page


def test_compare_with_nothing_stored_is_a_usage_error(capsys):
    assert main(["compare", "steady", "--seeds", "1", "--out", "none"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("normalign compare: the results must be there")
    assert "`normalign reproduce steady --seeds 1 --out none` makes them" in said.err
    reproduce("steady", "--seeds", "1", "--out", "none")
    assert main(["compare", "steady", "--out", "none"]) == 0
