import dataclasses

from normalign_reproduction.claims import command, verdict_word, verdicts
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
