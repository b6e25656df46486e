import argparse
import csv
import dataclasses
import io

import pytest

from normalign_reproduction import catalogue
from normalign_reproduction.claims import command, verdict_word, verdicts
from normalign_reproduction.commands import compare
from normalign_reproduction.report.outcome import outcome
from normalign_reproduction.spec import Cell, Claim
from tests.fakes import fake_items, never, rises, store_of, wrong

ITEMS = {item.name: item for item in fake_items()}


def item_with(*claims, name="kernel_logistic"):
    return dataclasses.replace(ITEMS[name], claims=list(claims))


def judged(item, tmp_path, *, skip=0, preset="released"):
    store = store_of([item], tmp_path, skip=skip)
    found = outcome(item, size="quick", preset=preset, store=store)
    return found, verdicts(item, found.records, size="quick", preset=preset)


def run(monkeypatch, *words, items):
    by_name = {item.name: item for item in items}
    monkeypatch.setattr(catalogue, "NAMES", tuple(by_name))
    monkeypatch.setattr(catalogue, "item", by_name.__getitem__)
    parser = argparse.ArgumentParser()
    compare.add_to(parser.add_subparsers())
    arguments = parser.parse_args(["compare", *words])
    return arguments.run(arguments)


def test_each_cell_of_each_claim_has_a_verdict(tmp_path):
    _, made = judged(item_with(rises(), wrong(), never()), tmp_path)
    assert [claim.statement for claim, _ in made] == ["alignment rises"] * 3 + [
        "the rank ends at 0.5", "seconds are the paper's",
    ]  # fmt: skip
    assert [verdict.holds for _, verdict in made] == [True] * 3 + [False, None]


def test_with_missing_runs_nothing_can_be_told_and_the_command_is_named(tmp_path):
    found, made = judged(item_with(rises(), wrong()), tmp_path, skip=2)
    assert [verdict.holds for _, verdict in made] == [None, None]
    why = "4 of 6 runs are there; normalign reproduce kernel_logistic makes the others"
    assert {verdict.why for _, verdict in made} == {why}
    assert (found.complete, found.finding) == (False, "")


def test_a_claim_speaks_only_at_its_sizes_and_presets(tmp_path):
    def check(records):
        return [Cell("all", "", "", True)]

    only_full = Claim("full", "any", check, sizes=("full",))
    only_text = Claim("text", "any", check, presets=("text",))
    both = Claim("both", "any", check)
    _, made = judged(item_with(only_full, only_text, both, name="table1"), tmp_path)
    assert [claim.statement for claim, _ in made] == ["both"]


def test_an_item_with_one_preset_is_judged_by_that_one(tmp_path):
    def check(records):
        return [Cell("all", "", "", True)]

    released = Claim("released", "any", check, presets=("released",))
    _, made = judged(item_with(released), tmp_path, preset="text")
    assert [claim.statement for claim, _ in made] == ["released"]


def test_the_command_names_what_is_not_usual():
    table1, other = ITEMS["table1"], ITEMS["ablation"]
    asked = command(table1, size="full", preset="text", seeds=3)
    assert asked == "normalign reproduce table1 --full --preset text --seeds 3"
    assert command(other, size="quick", preset="text") == "normalign reproduce ablation"


def test_verdicts_in_words():
    assert [verdict_word(v) for v in (True, False, None)] == [
        "holds", "does not", "cannot tell",
    ]  # fmt: skip


def test_the_command_fails_only_if_a_verdict_does(tmp_path, monkeypatch, capsys):
    good, bad = item_with(rises(), never()), item_with(wrong(), name="ablation")
    store_of([good, bad], tmp_path / "results")
    out = ("--out", str(tmp_path))
    assert run(monkeypatch, "kernel_logistic", *out, items=[good, bad]) == 0
    told = capsys.readouterr()
    assert "3 hold, 0 do not, 1 cannot be told" in told.err
    assert "quick size, released preset, synthetic data, 2 seeds" in told.out
    assert run(monkeypatch, *out, items=[good, bad]) == 1
    assert "does not" in capsys.readouterr().out


def test_missing_runs_are_told_and_are_no_failure(tmp_path, monkeypatch, capsys):
    item = item_with(wrong())
    store_of([item], tmp_path / "results", skip=5)
    code = run(monkeypatch, "--out", str(tmp_path), items=[item])
    told = capsys.readouterr().out
    assert code == 0
    assert "cannot tell" in told
    assert "1 of 6 runs are there" in " ".join(told.split())


@pytest.mark.parametrize("form", ["md", "csv"])
def test_other_formats_have_a_row_for_each_cell(tmp_path, monkeypatch, capsys, form):
    items = [item_with(rises()), item_with(wrong(), name="ablation")]
    store_of(items, tmp_path / "results")
    run(monkeypatch, "--out", str(tmp_path), "--format", form, items=items)
    text = capsys.readouterr().out
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["verdict"] for row in rows] == ["holds"] * 3 + ["does not"]
        assert {row["size"] for row in rows} == {"quick"}
        assert {row["preset"] for row in rows} == {"released"}
        assert [row["data"] for row in rows] == ["synthetic data"] * 3 + [
            "5000 embedded digits"
        ]
    else:
        assert text.count("| holds |") == 3
        assert text.count("| does not |") == 1
        assert text.count("quick size") == 2
