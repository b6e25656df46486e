"""The commands that print stored results, in a terminal of 80 columns."""

import csv
import dataclasses
import io
from pathlib import Path

import pytest

from normalign.cli import main
from normalign_reproduction import catalogue
from normalign_reproduction.commands import _terminal
from tests.fakes import fake_items, never, rises, store_of, wrong

ITEMS = {item.name: item for item in fake_items()}
ARCHIVES = Path(__file__).parents[3] / "results/paper"


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run a command on the results of some items; return exit code and output."""
    monkeypatch.setenv("COLUMNS", "80")

    def command(*words, items, skip=0):
        by_name = {item.name: item for item in items}
        monkeypatch.setattr(catalogue, "NAMES", tuple(by_name))
        monkeypatch.setattr(catalogue, "item", by_name.__getitem__)
        store_of(items, tmp_path / "results", skip=skip)
        code = main([*words, "--out", str(tmp_path)])
        return code, capsys.readouterr().out

    return command


def item_with(*claims, name="kernel_logistic"):
    return dataclasses.replace(ITEMS[name], claims=list(claims))


GOOD, BAD = item_with(rises(), never()), item_with(wrong(), name="ablation")


def test_compare_prints_totals_and_then_failures_first(run):
    assert run("compare", items=[GOOD, BAD]) == (
        1,
        (
            "1 of 3 claims hold, 1 fail, 1 are undecided. (quick size, preset "
            "released)\n\n"
            "fails      ablation: the rank ends at 0.5\n"
            "undecided  kernel_logistic: seconds are the paper's\n"
            "holds      kernel_logistic: alignment rises\n"
        ),
    )
    assert run("compare", "kernel_logistic", items=[GOOD, BAD])[0] == 0


def test_compare_explains_each_cell_if_asked(run):
    _, out = run("compare", "--verbose", items=[GOOD, BAD])
    assert (
        "    Rule: the mean rank at the end is less than 0.5\n    all: paper 0.5"
        in (out)
    )
    assert "undecided: the hardware is another one" in out


def test_missing_runs_are_undecided_and_no_failure(run):
    code, out = run("compare", items=[BAD], skip=7)
    assert code == 0
    assert "undecided  ablation: the rank ends at 0.5\n" in out
    assert "1 of 8 runs are there; normalign reproduce ablation" in " ".join(
        out.split()
    )


@pytest.mark.parametrize("form", ["md", "csv"])
def test_other_formats_have_a_row_for_each_cell(run, form):
    items = [item_with(rises()), BAD]
    _, out = run("compare", "--format", form, items=items)
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [row["verdict"] for row in rows] == ["holds"] * 3 + ["does not"]
        assert [row["data"] for row in rows] == ["synthetic data"] * 3 + [
            "5000 embedded digits"
        ]
    else:
        assert out.count("| holds |") == 3
        assert out.count("| does not |") == 1
        assert out.count("quick size") == 2


@pytest.mark.skipif(not ARCHIVES.is_dir(), reason="needs results/paper")
@pytest.mark.parametrize(
    "words",
    [
        "list",
        "compare",
        "compare --verbose",
        *(f"show {name}" for name in catalogue.NAMES),
    ],
)
def test_output_fits_80_columns_without_truncation(
    monkeypatch, capsys, tmp_path, words
):
    monkeypatch.setenv("COLUMNS", "80")
    size = [] if words == "list" else ["--full"]
    out = ["--results", str(ARCHIVES), "--out", str(tmp_path)]
    assert main([*words.split(), *size, *out]) in (0, 1)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    if words == "list":
        assert all(f"\n{name} " in out for name in catalogue.NAMES)


def test_an_item_without_figures_says_so(run, capsys):
    table = dataclasses.replace(ITEMS["table1"], figures=[])
    assert run("show", "table1", "--format", "svg", items=[table]) == (2, "")


def test_a_table_that_is_too_wide_continues_below(monkeypatch):
    monkeypatch.setenv("COLUMNS", "44")
    text = _terminal.table(
        ["a name", "some words", "a number", "second"],
        [["a_name_that_one_types", "one two three four", "1.5 [1.25, 1.75]", "22"]],
        numeric=[False, False, True, True],
        n_names=2,
    )
    assert text.splitlines() == [
        "a name                 some words",
        "─────────────────────────────────────────",
        "a_name_that_one_types  one two three four",
        "",
        "a name                         a number",
        "───────────────────────────────────────",
        "a_name_that_one_types  1.5 [1.25, 1.75]",
        "",
        "a name                 second",
        "─────────────────────────────",
        "a_name_that_one_types      22",
    ]


def test_colors_are_for_terminals_only(monkeypatch):
    assert _terminal.color("holds", "green") == "holds"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert _terminal.color("holds", "green") == "\033[32mholds\033[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert _terminal.color("holds", "green") == "holds"
