"""Where RFAM stands: means over common tables, ranks, paired tests, words."""

import pytest
from scipy import stats

from normalign_reproduction.items.peers.drawing import StandingPicture
from normalign_reproduction.items.peers.rows import (
    TITLES,
    finding,
    seconds_rows,
    standing,
    standing_rows,
    table_rows,
)
from normalign_reproduction.spec import Record, Run


def record(
    table, method, accuracy, *, weight=None, seed=0, protocol="leak-free", **more
):
    settings = {"dataset": table, "rows": 9, "method": method, "protocol": protocol}
    if weight is not None:
        settings["identity_weight"] = weight
    run = Run("tabular", 1, "quick", "released", "bundled", settings, seed)
    shape = {"n_rows": 9, "n_inputs": 2, "n_classes": 2}
    return Record(run, shape | {"accuracy": accuracy, "folds": []} | more)


def machines(table, rfam, rfm, *, seed=0):
    """RFAM and RFM: pairs (validation, accuracy) for each fold."""
    return [
        record(
            table, "rfam", sum(a for _, a in folds) / len(folds), weight=weight,
            seed=seed, folds=[{"validation": v, "accuracy": a} for v, a in folds],
        )
        for weight, folds in ((0.0, rfam), (1.0, rfm))
    ]  # fmt: skip


def three_tables():
    records = []
    for table, ours, theirs, svc in (
        ("a", 0.9, 0.8, 0.7), ("b", 0.6, 0.8, 0.7), ("c", 0.5, 0.5, None),
    ):  # fmt: skip
        records += machines(table, [(0.5, ours)], [(0.4, theirs)])
        records.append(record(table, "svc", svc, seconds=2.0 if svc else None))
    return records


def test_only_tables_that_all_have_enter_means_and_ranks():
    rows = {row["method"]: row for row in standing_rows(three_tables())}
    assert rows["RFAM"]["n_complete"] == 2
    assert rows["RFAM"]["accuracy"] == pytest.approx(0.75)
    assert rows["SVC"]["n_results"] == 2
    # On a: RFAM and the validated one share ranks 1 and 2; on b: ranks 3 and 4.
    assert rows["RFAM"]["rank"] == pytest.approx((1.5 + 3.5) / 2)
    assert rows["RFM"]["rank"] == pytest.approx((3 + 1) / 2)
    assert rows["SVC"]["rank"] == pytest.approx((4 + 2) / 2)


def test_pairs_are_counted_on_all_tables_that_the_two_share():
    row = next(r for r in standing_rows(three_tables()) if r["method"] == "RFM")
    assert (row["n_pairs"], row["wins"], row["ties"], row["losses"]) == (3, 1, 1, 1)
    assert row["difference"] == pytest.approx((0.1 - 0.2 + 0.0) / 3)
    assert row["median"] == pytest.approx(0.0)


def test_the_validated_weight_is_chosen_in_each_fold_by_its_own_validation_rows():
    # Fold 1 prefers RFAM, fold 2 RFM, fold 3 neither: then RFM.
    rfam = [(0.9, 0.1), (0.2, 0.2), (0.5, 0.3)]
    rfm = [(0.8, 0.7), (0.3, 0.8), (0.5, 0.9)]
    found = standing(machines("a", rfam, rfm)).accuracies
    assert found["validated"]["a"] == pytest.approx((0.1 + 0.8 + 0.9) / 3)
    alone = standing(machines("a", rfam, rfm)[:1]).accuracies
    assert list(alone) == ["rfam"]


def test_other_protocols_and_weights_between_take_no_part():
    records = [
        record("a", "rfam", 0.5, weight=0.1),
        record("a", "rfam", 0.9, weight=0.0, protocol="released"),
    ]
    assert standing(records).accuracies == {}
    assert standing_rows(records) == []
    assert "no table" in finding(records)


def test_seeds_are_averaged_first():
    records = [record("a", "svc", 0.2), record("a", "svc", 0.4, seed=1)]
    assert standing(records).accuracies["svc"]["a"] == pytest.approx(0.3)


def test_the_order_of_records_does_not_matter():
    records = three_tables()
    for rows in (standing_rows, table_rows, seconds_rows):
        assert rows(records[::-1]) == rows(records)
    assert finding(records[::-1]) == finding(records)


def many(lead, *, n=30):
    records = []
    for i in range(n):
        base = 0.5 + i / 100
        records += machines(f"t{i:02}", [(0.5, base)], [(0.4, base - 0.001)])
        records.append(record(f"t{i:02}", "svc", base - lead * (1 + i / 50)))
    return records


@pytest.mark.parametrize(("lead", "place"), [(0.05, 1), (-0.05, 2)])
def test_the_finding_has_the_place_of_rfam(lead, place):
    assert f"RFAM is number {place} of 4 methods" in finding(many(lead))


def test_what_is_likely_alone_is_not_sure_among_many():
    # Six leads of six have p = 2 / 2^6 < 0.05, and twice that after Holm.
    records = []
    for i in range(6):
        records += machines(f"t{i}", [(0.5, 0.9)], [(0.4, 0.8)])[:1]
        lead = (0.01 + i / 100) * (-1 if i == 5 else 1)
        records.append(record(f"t{i}", "svc", 0.9 - 0.01 - i / 100))
        records.append(record(f"t{i}", "random_forest", 0.9 - lead))
    plain, corrected = standing(records).tests["svc"]
    assert (plain, corrected) == pytest.approx((2 / 2**6, 4 / 2**6))
    assert plain < 0.05 < corrected
    row = next(r for r in standing_rows(records) if r["method"] == "SVC")
    assert (row["p"], row["p_holm"]) == (plain, corrected)


def test_friedmans_test_is_scipys_and_needs_three_methods():
    found = standing(many(0.05))
    columns = [[of[t] for t in found.complete] for of in found.accuracies.values()]
    assert found.friedman_p == pytest.approx(stats.friedmanchisquare(*columns).pvalue)
    assert standing([record("a", "svc", 0.5)]).friedman_p is None


def test_rows_of_tables_have_every_method_and_a_dash_for_what_is_skipped():
    rows = {row["table"]: row for row in table_rows(three_tables())}
    assert list(rows) == ["a", "b", "c"]
    assert rows["c"]["svc"] is None
    assert rows["a"]["svc"] == 0.7
    assert rows["a"]["n_rows"] == 9
    assert set(rows["a"]) - {"table", "n_rows", "n_inputs", "n_classes"} <= set(TITLES)


def test_seconds_are_of_the_runs_that_have_them():
    (row,) = seconds_rows(three_tables())
    assert (row["method"], row["n_tables"], row["total"]) == ("SVC", 2, 4.0)
    assert row["slowest"] == "b"  # the last of equal ones
    (twice,) = seconds_rows(
        [record("a", "svc", 0.5, seconds=s, seed=s) for s in (1, 3)]
    )
    assert twice["total"] == 2.0  # of a seed
    strange = seconds_rows(
        [record("a", method, 0.5, seconds=1) for method in ("nearest", "svc")]
    )
    assert [row["method"] for row in strange] == ["SVC", "nearest"]


def test_the_picture_has_a_line_for_each_method_and_refuses_nothing_to_draw():
    pytest.importorskip("matplotlib")
    left, right = StandingPicture()(many(0.5)).axes
    assert [text.get_text() for text in left.get_yticklabels()] == [
        "RFM", TITLES["validated"], "SVC",
    ]  # fmt: skip
    assert len(right.get_yticklabels()) == 4
    low, high = left.get_xlim()
    points = [x for line in left.lines for x in line.get_xdata()]
    assert low <= min(points) <= max(points) <= high
    # Differences of 0 and 100: their quartiles are beyond the edge, a half is not.
    far = machines("a", [(0.5, 1.0)], [(0.5, 0.0)]) + machines(
        "b", [(0.5, 0.5)], [(0.5, 0.5)]
    )
    (box, _) = StandingPicture()(far).axes[0].patches
    assert (box.get_x(), box.get_width()) == pytest.approx((20.0, 0.0))


def test_without_rfam_there_are_ranks_alone():
    two = [record("a", "svc", 0.5), record("a", "random_forest", 0.6)]
    for records in (two, two[:1]):
        left, right = StandingPicture()(records).axes
        assert not left.axison
        assert right.get_xlabel().startswith("Mean rank")
