"""Each rule of Table 1 can hold and can fail."""

import pytest

from normalign_reproduction.items.table1.claims import CLAIMS
from normalign_reproduction.items.table1.rows import published_acceleration
from tests.items.test_table1_rows import record, table

RULES = {claim.statement: claim for claim in CLAIMS}


def verdicts(name, records):
    return RULES[name].check(records)


def as_published(change=None):
    """Ten seeds of every cell about the paper's own means, so far as it prints them."""
    change, records = change or {}, []
    for (name, method), cell in published_acceleration().items():
        mean = change.get((name, method), cell["epochs"])
        for seed in range(10):
            grokked = mean is not None and seed < round(10 * cell["share"])
            spread = 1 + 0.02 * (seed % 5 - 2)
            epoch = round(mean * spread) if grokked else None
            records.append(record(method, seed, epoch, name=name))
    return records


def test_the_papers_own_numbers_meet_shares_epochs_and_speedups():
    records = as_published()
    for name in (
        "GrokAlign groks first", "Share of seeds that grok", "Mean epoch",
        "Speed-up of GrokAlign",
    ):  # fmt: skip
        found = verdicts(name, records)
        assert found, name
        assert all(one.holds for one in found), [v for v in found if not v.holds]
    assert len(verdicts("Mean epoch", records)) == 20
    assert len(verdicts("Speed-up of GrokAlign", records)) == 5


@pytest.mark.parametrize(("factor", "holds"), [(1.3, True), (1.4, False), (0.7, False)])
def test_a_mean_may_be_off_by_a_third(factor, holds):
    changed = as_published({("parity", "orthograd"): 242 * factor})
    by_cell = {v.name: v for v in verdicts("Mean epoch", changed)}
    assert by_cell["Sparse parity, OrthoGrad"].holds is holds
    assert by_cell["XOR, Baseline"].holds


def test_grokking_where_the_paper_never_does_is_no_agreement():
    records = [r for r in as_published() if r["task"] == "modular"]
    records += [record("orthograd", seed + 10, 500) for seed in range(10)]
    by_cell = {v.name: v for v in verdicts("Mean epoch", records)}
    assert by_cell["Modular addition, OrthoGrad"].holds is False
    by_cell = {v.name: v for v in verdicts("Share of seeds that grok", records)}
    assert by_cell["Modular addition, OrthoGrad"].holds is False


def test_grokalign_must_be_before_all_that_grok_in_most_of_their_seeds():
    first = "GrokAlign groks first"
    assert verdicts(first, table(baseline=[9, 9], grokalign=[5, 5]))[0].holds
    assert not verdicts(first, table(baseline=[9, 9], grokalign=[9, 9]))[0].holds
    rival = table(baseline=[9] * 3, orthograd=[3, 3, None], grokalign=[5] * 3)
    assert not verdicts(first, rival)[0].holds
    lucky = table(baseline=[9] * 3, orthograd=[3, None, None], grokalign=[5] * 3)
    assert verdicts(first, lucky)[0].holds
    open_ = table(baseline=[9, 9], orthograd=[3, None], grokalign=[5, 5])
    assert verdicts(first, open_)[0].holds is None
    late = table(baseline=[9, 9], orthograd=[7, None], grokalign=[5, 5])
    assert verdicts(first, late)[0].holds
    never = table(baseline=[None, None], grokalign=[None, None])
    assert not verdicts(first, never)[0].holds
    assert verdicts(first, table(baseline=[9, 9]))[0].holds is None


def test_significance_must_be_the_papers():
    sure = table(baseline=[260, 265, 270], grokalign=[160, 166, 170])
    assert [v.holds for v in verdicts("Significance", sure)] == [True]
    unsure = table(baseline=[100, 265, 430], grokalign=[90, 166, 400])
    assert [v.holds for v in verdicts("Significance", unsure)] == [False]
    few = table(baseline=[265], grokalign=[166])
    assert [v.holds for v in verdicts("Significance", few)] == [None]
