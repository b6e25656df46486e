"""Each rule of Tables 2 and 3 can hold, can fail, and can say that it cannot tell."""

import numpy as np
import pytest
from scipy import stats

from normalign_reproduction.items.table2.claims import CLAIMS
from tests.items.tables_by_hand import record, twins

RULES = {claim.statement: claim for claim in CLAIMS}
SIGNED = ("RFAM is less accurate", "RFAM is more robust", "RFAM is more aligned",
          "The same without the leak")  # fmt: skip


def as_published(n=120, *, swap=False, shift=0.0, noise=1.0):
    """Tables about the paper's means: RFM 84.9, 71.6, 0.31; RFAM 83.2, 68.3, 0.38."""
    # Signs in fours cancel, so that the means are the paper's exactly.
    signs = np.resize([[1, 1], [1, -1], [-1, 1], [-1, -1]], (n, 2))
    records = []
    for i, (one, other) in enumerate(signs):
        rfm = (0.849 + 0.02 * one, 71.6 + 8 * one, 0.31 + 0.02 * one)
        rfam = (
            0.832 + 0.02 * one + 0.01 * noise * other + shift / 100,
            68.3 + 8 * one + 6 * noise * other,
            0.38 + 0.02 * one + 0.01 * other,
        )
        pair = (rfam, rfm) if swap else (rfm, rfam)
        for protocol in ("released", "leak-free"):
            records += twins(f"t{i:03}", *pair, protocol=protocol)
    return records


def test_the_papers_own_numbers_meet_every_rule():
    records = as_published()
    for claim in CLAIMS:
        found = claim.check(records)
        assert found, claim.statement
        assert all(v.holds for v in found), [v for v in found if not v.holds]
    assert len(RULES["The means of Table 2"].check(records)) == 6


@pytest.mark.parametrize("name", SIGNED)
def test_to_swap_the_methods_turns_every_verdict(name):
    found = RULES[name].check(as_published(swap=True))
    assert found
    assert all(verdict.holds is False for verdict in found)


@pytest.mark.parametrize(("shift", "holds"), [(0.6, True), (0.8, False), (-0.8, False)])
def test_a_mean_may_be_off_by_so_much(shift, holds):
    cells = {
        v.name: v
        for v in RULES["The means of Table 2"].check(as_published(shift=shift))
    }
    assert cells["RFAM, test accuracy (%)"].holds is holds
    assert cells["RFM, test accuracy (%)"].holds is True


def test_the_two_levels_are_two_cells():
    # Changes -3.3 +- s: t = 3.3 sqrt(119) / s is 2 for s = 18, p = 0.024.
    cells = RULES["RFAM is more robust"].check(as_published(noise=3.0))
    assert [v.holds for v in cells] == [True, True, False]
    assert 0.01 < float(cells[1].ours) < 0.05
    assert cells[1].ours == cells[2].ours


def test_few_tables_cannot_tell_what_their_interval_leaves_open():
    few = as_published(8, noise=3.0)
    mean, *tests = RULES["RFAM is more robust"].check(few)
    assert mean.holds is None
    assert "too few tables" in mean.why
    assert [v.holds for v in tests] == [None, None]
    # Eight tables without noise leave nothing open, so the mean is read.
    mean, *tests = RULES["RFAM is more robust"].check(as_published(8, noise=0.01))
    assert mean.holds is True
    assert [v.holds for v in tests] == [None, None]


def test_nothing_is_told_of_what_was_not_run():
    rfm_alone = [r for r in as_published(30) if r["identity_weight"] == 1.0]
    for name in SIGNED:
        assert all(v.holds is None for v in RULES[name].check(rfm_alone))
    assert len(RULES["The means of Table 2"].check(rfm_alone)) == 3
    assert RULES["The means of Table 2"].check([]) == []
    released = [r for r in as_published(30) if r["protocol"] == "released"]
    found = RULES["The same without the leak"].check(released)
    assert all(verdict.holds is None for verdict in found)


def test_the_means_are_judged_at_full_size_only():
    assert RULES["The means of Table 2"].sizes == ("full",)
    bundled = twins("a", (0.8, 70, 0.3), (0.7, 60, 0.4), data="bundled")
    assert RULES["The means of Table 2"].check(bundled) == []


def one_extreme(rfm, rfam):
    """Forty-one tables; RFM and RFAM have these alignments on the first."""
    return [
        one
        for i in range(41)
        for one in twins(
            f"t{i:02}",
            (0.8, 60.0, rfm if i == 0 else 0.4),
            (0.8, 60.0, rfam if i == 0 else 0.44 + i / 1e4),
        )
    ]


def test_the_verdict_is_of_the_raw_values_and_shows_what_the_changes_say():
    # A ratio of 100 on one table drowns the t-test of relative changes, not of values.
    records = one_extreme(0.002, 0.2)
    before, after = (
        [one.result["normal_alignment"] for one in records[start::2]]
        for start in (0, 1)
    )
    paired = stats.ttest_rel(after, before, alternative="greater").pvalue
    _, sure = RULES["RFAM is more aligned"].check(records)
    assert sure.ours == f"{paired:.2g}"
    assert sure.holds is True
    assert "paired t-test of the raw values of 41 tables" in sure.why
    assert "median +0.11 relative" in sure.why
    changes = [b / a - 1 for a, b in zip(before, after, strict=True)]
    assert f"mean change {np.mean(changes):+.2f} relative" in sure.why
    for name, test in (
        ("t-test", lambda x: stats.ttest_1samp(x, 0, alternative="greater")),
        ("Wilcoxon's test", lambda x: stats.wilcoxon(x, alternative="greater")),
    ):
        assert f"{name} of the changes: {test(changes).pvalue:.2g}" in sure.why


def test_one_table_drowns_the_paired_test_and_the_ranks_show_it():
    _, sure = RULES["RFAM is more aligned"].check(one_extreme(0.4, 400.0))
    assert sure.holds is False
    assert float(sure.why.rpartition(": ")[2]) < 1e-6  # Wilcoxon's


def test_tables_without_a_rate_are_counted_where_they_are_missed():
    records = [
        *twins("a", (0.8, 70.0, 0.3), (0.7, 60.0, 0.4)),
        *twins("b", (0.8, [None] * 3, 0.3), (0.7, [None] * 3, 0.4)),
    ]
    found = {v.name: v.why for v in RULES["The means of Table 2"].check(records)}
    assert found["RFM, test accuracy (%)"].endswith("2 tables")
    assert found["RFM, attack success rate (%)"].endswith("1 tables")


def test_the_strong_attack_is_judged_by_its_own_rates():
    records = [
        one
        for i in range(30)
        for one in (
            record(
                f"t{i}",
                1.0,
                accuracy=0.8,
                asr=40.0 + i,
                protocol=protocol,
                strong_success=[10.0, 50.0 + i % 3, 60.0],
            )
            for protocol in ("released", "leak-free")
        )
    ]
    records += [
        record(r["dataset"], 0.0, accuracy=0.8, asr=30.0, protocol=r["protocol"],
               strong_success=[10.0, 90.0, 95.0])
        for r in records
    ]  # fmt: skip
    found = RULES["The same against a strong attack"].check(records)
    assert [verdict.holds for verdict in found] == [False] * 4
    assert RULES["RFAM is more robust"].check(records)[0].holds is True
