"""Tables 2 and 3 of records with known means."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from normalign_reproduction.items.table2.rows import (
    METRICS,
    change_rows,
    changes,
    leak_rows,
    mean_rows,
    pairs,
    published_changes,
    published_means,
    scores,
    seed_p_values,
    table_rows,
)
from tests.items.tables_by_hand import record, twins

ACCURACY, ALIGNMENT, ATTACK, STRONG = METRICS


def collection(n=12, seeds=2, protocols=("released", "leak-free"), data="uci"):
    """Random tables on which nothing is particular."""
    rng = np.random.default_rng(0)
    records = []
    for i in range(n):
        for protocol in protocols:
            for seed in range(seeds):
                rfm, rfam = (
                    (rng.uniform(0.5, 1), rng.uniform(20, 90), rng.uniform(0.1, 0.9))
                    for _ in range(2)
                )
                records += twins(
                    f"t{i:02}", rfm, rfam, seed=seed, protocol=protocol, data=data
                )
    return records


def row_of(rows, **wanted):
    (found,) = [r for r in rows if all(r[k] == v for k, v in wanted.items())]
    return found


def test_a_table_counts_once_however_many_seeds_it_has():
    records = [
        record("a", 1.0, accuracy=0.8, seed=0), record("a", 1.0, accuracy=0.6, seed=1),
        record("b", 1.0, accuracy=0.9, seed=0),
    ]  # fmt: skip
    (row,) = mean_rows(records)
    # a: 70 over its two seeds, b: 90; not (80 + 60 + 90) / 3.
    assert row["accuracy"] == pytest.approx(80)
    assert (row["protocol"], row["method"], row["n_tables"]) == ("released", "RFM", 2)


def test_the_papers_numbers_stand_beside_released_runs_on_its_tables_alone():
    rows = mean_rows(collection())
    beside = {(r["protocol"], r["method"]): r.get("published_accuracy") for r in rows}
    assert beside == {
        ("released", "RFM"): 84.9, ("released", "RFAM"): 83.2,
        ("leak-free", "RFM"): None, ("leak-free", "RFAM"): None,
    }  # fmt: skip
    bundled = collection(data="bundled")
    for row in (*mean_rows(bundled), *change_rows(bundled)):
        assert not [name for name in row if name.startswith("published")]


def test_the_paper_prints_what_it_prints():
    assert published_means()["rfm"] == {
        "accuracy": 84.9, "attack_success": 71.6, "normal_alignment": 0.31,
    }  # fmt: skip
    assert published_changes()["normal_alignment"]["p"] == "<0.001"
    # Its own mean and deviation over 120 tables give its own p.
    attack = published_changes()["attack_success"]
    t = attack["mean"] / (attack["std"] / np.sqrt(120))
    assert stats.t.cdf(t, 119) == pytest.approx(attack["p"], abs=5e-4)


def test_changes_are_relative_but_for_the_attack():
    records = twins("a", (0.8, 70.0, 0.2), (0.6, 60.0, 0.3))
    found = {m.name: changes(records, m, protocol="released")["a"] for m in METRICS}
    assert found["accuracy"] == pytest.approx(-0.25)
    assert found["normal_alignment"] == pytest.approx(0.5)
    assert found["attack_success"] == pytest.approx(-10)


def test_tests_and_moments_are_those_of_the_changes():
    records = collection()
    for metric in METRICS:
        row = row_of(change_rows(records), metric=metric.title, protocol="released")
        known = list(changes(records, metric, protocol="released").values())
        assert row["mean"] == pytest.approx(np.mean(known))
        assert row["std"] == pytest.approx(np.std(known, ddof=1))
        assert row["median"] == pytest.approx(np.median(known))
        t = stats.ttest_1samp(known, 0, alternative=metric.better).pvalue
        w = stats.wilcoxon(known, alternative=metric.better).pvalue
        assert (row["p_changes"], row["p_wilcoxon"]) == pytest.approx((t, w))
        one, other = (
            [seeds_mean[metric.quantity] for seeds_mean in side]
            for side in zip(*_pairs(records).values(), strict=True)
        )
        paired = stats.ttest_rel(other, one, alternative=metric.better).pvalue
        assert row["p"] == pytest.approx(paired)
        low, high = row["mean_interval"]
        assert low < row["mean"] < high


def _pairs(records):
    return pairs(*(
        scores(records, protocol="released", identity_weight=w) for w in (1.0, 0.0)
    ))  # fmt: skip


def test_the_p_of_a_seed_is_of_its_runs_alone():
    records = collection(seeds=3)
    row = row_of(change_rows(records), metric=ATTACK.title, protocol="leak-free")
    alone = [
        row_of(
            change_rows([r for r in records if r.run.seed == seed]),
            metric=ATTACK.title, protocol="leak-free",
        )["p"]
        for seed in range(3)
    ]  # fmt: skip
    assert seed_p_values(records, ATTACK, protocol="leak-free") == pytest.approx(alone)
    assert (row["p_least"], row["p_greatest"]) == (min(alone), max(alone))
    assert row["p_least"] < row["p_greatest"]


def test_what_is_not_defined_is_left_out_and_counted():
    records = [
        *twins("a", (0.8, 70.0, 0.2), (0.6, 60.0, 0.3)),
        *twins("b", (0.8, 70.0, 0.2), (0.8, 60.0, 0.4)),
        record("c", 1.0, accuracy=0.0, asr=[None] * 3, alignment=0.0),
        record("c", 0.0, accuracy=0.5, asr=40.0, alignment=0.3),
    ]
    rows = {r["metric"]: r for r in change_rows(records)}
    for metric in METRICS:
        assert (rows[metric.title]["n"], rows[metric.title]["n_undefined"]) == (2, 1)
    assert rows[ATTACK.title]["mean"] == pytest.approx(-10)
    rfm = row_of(mean_rows(records), method="RFM")
    assert rfm["n_undefined"] == 1
    assert rfm["asr_1"] == pytest.approx(70)
    # The accuracy of 0 is a result, and counts.
    assert rfm["accuracy"] == pytest.approx(160 / 3)


def test_improved_and_equal_are_shares_of_tables():
    records = [
        *twins("a", (0.8, 70.0, 0.2), (0.8, 60.0, 0.2)),
        *twins("b", (0.8, 70.0, 0.2), (0.9, 80.0, 0.1)),
        *twins("c", (0.8, 70.0, 0.2), (0.7, 60.0, 0.2)),
        *twins("d", (0.8, 70.0, 0.2), (0.8, 70.0, 0.4)),
    ]
    rows = {r["metric"]: (r["improved"], r["equal"]) for r in change_rows(records)}
    assert rows == {
        ACCURACY.title: (0.25, 0.5), ALIGNMENT.title: (0.25, 0.5),
        ATTACK.title: (0.5, 0.25), STRONG.title: (0.5, 0.25),
    }  # fmt: skip


def test_the_leak_is_released_less_leak_free():
    records = []
    for table, gain in (("a", 0.01), ("b", 0.03)):
        for protocol, more in (("released", gain), ("leak-free", 0.0)):
            records += twins(table, (0.8 + more, 50, 0.2), (0.7 + 2 * more, 50, 0.2),
                             protocol=protocol)  # fmt: skip
    rfm, rfam = leak_rows(records)
    assert (rfm["method"], rfm["n"]) == ("RFM", 2)
    assert rfm["mean"] == pytest.approx(2)
    assert rfam["mean"] == pytest.approx(4)
    assert rfm["released"] - rfm["leak_free"] == pytest.approx(2)
    assert rfm["higher"] == 1
    assert leak_rows([r for r in records if r["protocol"] == "released"]) == []


def test_every_table_has_a_row_by_protocol_with_its_spread_over_seeds():
    records = [
        record("b", 1.0, accuracy=a, asr=60.0, seed=s) for s, a in ((0, 0.8), (1, 0.7))
    ] + twins("a", (0.5, 10.0, 0.1), (0.4, 20.0, 0.2), protocol="leak-free")
    first, second = table_rows(records)
    assert (first["table"], first["protocol"]) == ("a", "leak-free")
    assert first["rfam_asr_1"] == 20.0
    assert first["rfam_asr_1_std"] is None
    assert second["rfm_accuracy"] == pytest.approx(75)
    assert second["rfm_accuracy_std"] == pytest.approx(np.sqrt(50))
    assert second["n_seeds"] == 2
    assert "rfam_accuracy" not in second


# Each example makes all rows anew; ten orders of 32 records are enough.
@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_of_records_does_not_matter(random_order):
    records = collection(n=4)
    mixed = random_order.sample(records, len(records))
    for rows in (mean_rows, change_rows, leak_rows, table_rows):
        assert rows(mixed) == rows(records)


def test_pairs_take_the_seeds_that_both_have():
    records = [
        record("a", 1.0, accuracy=0.8, seed=0), record("a", 1.0, accuracy=0.2, seed=1),
        record("a", 0.0, accuracy=0.6, seed=0), record("b", 1.0, accuracy=0.9),
    ]  # fmt: skip
    assert changes(records, ACCURACY, protocol="released") == pytest.approx(
        {"a": -0.25}
    )


def test_without_records_there_are_no_rows():
    for rows in (mean_rows, change_rows, leak_rows, table_rows):
        assert rows([]) == []


def test_runs_of_other_methods_take_no_part():
    records = collection(n=3)
    peer = random.Random(0).choice(records)
    settings = {**peer.run.settings, "method": "svc", "identity_weight": 1.0}
    other = type(peer)(
        type(peer.run)("tabular", 1, "full", "released", "uci", settings, 9), {}
    )
    assert mean_rows([*records, other]) == mean_rows(records)


def test_means_that_differ_by_the_rounding_of_results_are_equal():
    # 1/3, 1/3, 2/3 and 4/9 three times, as results are kept: with six digits.
    thirds = [0.333333, 0.333333, 0.666667]
    records = [
        record("a", weight, accuracy=share, seed=seed, protocol=protocol)
        for weight, shares in ((1.0, thirds), (0.0, [0.444444] * 3))
        for seed, share in enumerate(shares)
        for protocol in ("released",)
    ]
    assert changes(records, ACCURACY, protocol="released") == {"a": 0.0}
    # One row in a hundred thousand is no rounding.
    other = [
        record("a", 1.0, accuracy=0.80000), record("a", 0.0, accuracy=0.80001),
    ]  # fmt: skip
    assert changes(other, ACCURACY, protocol="released")["a"] == pytest.approx(1.25e-5)
    leak = [
        record("a", 1.0, accuracy=share, seed=seed, protocol=protocol)
        for protocol, shares in (("released", thirds), ("leak-free", [0.444444] * 3))
        for seed, share in enumerate(shares)
    ]
    (row,) = leak_rows(leak)
    assert (row["mean"], row["higher"]) == (0.0, 0.0)
