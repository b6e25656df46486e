"""Few images: choices, differences, verdicts and words with known answers."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from normalign_reproduction.items.small_cifar.claims import CLAIMS
from normalign_reproduction.items.small_cifar.drawing import by_images
from normalign_reproduction.items.small_cifar.item import ITEM
from normalign_reproduction.items.small_cifar.rows import (
    CHOICES,
    CONTROL,
    METHODS,
    TUNED,
    arms,
    cost_rows,
    difference,
    difference_rows,
    grid_rows,
    method_rows,
    pooled_mean,
    ratio,
    seconds,
    validation_choice,
)
from normalign_reproduction.spec import Record
from tests.items.images_by_hand import DECAY, record, study

ALIGNMENT, ACCURACY, NEARBY, ROBUST, PGD, TIME = CLAIMS


def weights(records, by, size=100):
    taken = validation_choice(records, by)[size]["grokalign"]
    return {seed: one["recipe"]["penalty_weight"] for seed, one in taken.items()}


def answers(claim, records):
    return [verdict.holds for verdict in claim.check(records)]


def test_the_control_is_the_decay_that_grokalign_has():
    (control,) = arms(study())[100][CONTROL].values()
    assert control[0]["recipe"] == {
        "objective": "plain", "weight_decay": DECAY, "penalty_weight": 0.0,
    }  # fmt: skip
    assert sorted(arms(study())[100]["decay"]) == [DECAY, 5e-3]


def test_each_seed_chooses_for_itself_by_what_it_is_told():
    grid = [
        record("grokalign", weight=w, seed=seed, validation=v, validation_robust=r)
        for seed, rows in enumerate(
            [[(1e-3, 0.6, 0.0), (1e-1, 0.5, 0.2)], [(1e-3, 0.5, 0.2), (1e-1, 0.6, 0.1)]]
        )
        for w, v, r in rows
    ]
    assert weights(grid, "accuracy") == {0: 1e-3, 1: 1e-1}
    assert weights(grid, "robust accuracy") == {0: 1e-1, 1: 1e-3}


def test_of_equals_the_other_score_decides_and_then_the_smaller_strength():
    grid = [
        record("grokalign", weight=w, validation=v, validation_robust=0.0)
        for w, v in ((1e-1, 0.5), (1e-2, 0.6), (1e-3, 0.6))
    ]
    assert weights(grid, "robust accuracy") == {0: 1e-3}


def test_a_seed_without_the_whole_grid_has_no_choice():
    grid = [
        record("grokalign", weight=w, seed=seed, n_train=size)
        for size in (100, 300)
        for seed in (0, 1)
        for w in (1e-3, 1e-1)
    ]
    left = [r for r in grid if not (r["n_train"] == 100 and r.run.seed == 1
            and r["recipe"]["penalty_weight"] == 1e-1)]  # fmt: skip
    taken = validation_choice(left, "accuracy")
    assert set(taken[100]["grokalign"]) == {0}
    assert set(taken[300]["grokalign"]) == {0, 1}
    alone = [
        r for r in grid if r["n_train"] == 300 or r["recipe"]["penalty_weight"] < 1e-2
    ]
    assert 100 not in validation_choice(alone, "accuracy")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_no_choice_sees_a_test_image(seed):
    draw = random.Random(seed)
    grid = [
        record("grokalign", weight=w, seed=s, validation=draw.random(),
               validation_robust=draw.random())
        for s in (0, 1) for w in (1e-3, 1e-2, 1e-1)
    ]  # fmt: skip
    other = [
        Record(r.run, {**r.result, "test_accuracy": draw.random(),
                       "robust_accuracy": draw.random()})
        for r in grid
    ]  # fmt: skip
    for by in CHOICES:
        assert weights(grid, by) == weights(other, by)


def contrast(groups):
    """The mean of cell means by least squares, and its Student interval."""
    sizes = list(groups)
    values = np.array([v for size in sizes for v in groups[size]])
    design = np.array([[float(size == s) for s in sizes] for size in sizes
                       for _ in groups[size]])  # fmt: skip
    means, *_ = np.linalg.lstsq(design, values, rcond=None)
    rest = values - design @ means
    freedom = len(values) - len(sizes)
    share = np.full(len(sizes), 1 / len(sizes))
    variance = (
        rest @ rest / freedom * (share @ np.linalg.inv(design.T @ design) @ share)
    )
    far = stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    return share @ means, (share @ means - far, share @ means + far)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(1, 9), st.lists(st.floats(-9, 9), min_size=1,
       max_size=4), min_size=1, max_size=4))  # fmt: skip
def test_the_pooled_interval_is_that_of_least_squares_on_cell_means(groups):
    found = pooled_mean(groups)
    if all(len(values) == 1 for values in groups.values()):
        assert found.interval is None
        return
    middle, ends = contrast(groups)
    # float64 and squares of numbers up to 18
    assert found.mean == pytest.approx(middle, abs=1e-10)
    assert found.interval == pytest.approx(ends, abs=1e-6)


def test_the_pooled_interval_covers_the_mean_as_often_as_it_says():
    draw, effects = random.Random(0), {100: 0.0, 300: 5.0, 1000: -2.0, 3000: 9.0}
    inside, n = 0, 1000
    for _ in range(n):
        groups = {s: [e + draw.gauss(0, 1) for _ in "12"] for s, e in effects.items()}
        low, high = pooled_mean(groups).interval
        inside += low <= 3.0 <= high
    # 95 %, within four standard deviations of a thousand draws
    assert abs(inside / n - 0.95) < 4 * math.sqrt(0.95 * 0.05 / n)


def test_unequal_noise_costs_the_pooled_interval_some_coverage_and_no_more():
    draw, scales, inside, n = random.Random(1), (4.0, 2.0, 1.0, 0.5), 0, 1000
    for _ in range(n):
        groups = {s: [draw.gauss(0, s) for _ in "12"] for s in scales}
        low, high = pooled_mean(groups).interval
        inside += low <= 0 <= high
    # "about 90 %" of the docstring, within four standard deviations
    assert abs(inside / n - 0.9) < 4 * math.sqrt(0.9 * 0.1 / n)


def test_a_difference_is_of_the_same_size_and_seed():
    records = study(grokalign={0.01: {"clean": 0.6, "alignment": 0.5}})
    found = difference(records, "grokalign", CONTROL, "test_accuracy", by="accuracy")
    assert (found.mean, found.n_pairs) == (pytest.approx(10.0), 4)
    assert found.sizes[300][0] == pytest.approx(10.0)
    lonely = [r for r in records if r.run.seed == 0 or r["method"] != "grokalign"]
    found = difference(lonely, "grokalign", CONTROL, "test_accuracy", by="accuracy")
    assert (found.n_pairs, found.interval) == (2, None)


def test_tables_do_not_depend_on_the_order_of_records():
    records = study(grokalign={w: {"clean": 0.5 + w} for w in (0.01, 0.1)}, noise=0.01)
    mixed = random.Random(0).sample(records, len(records))
    for table in ITEM.tables:
        assert table.rows(records) == table.rows(mixed)
        assert table.rows([]) == []
    names = {column.name for table in ITEM.tables[:2] for column in table.columns}
    assert names <= set(method_rows("accuracy")(records)[0])
    assert {column.name for column in ITEM.tables[2].columns} <= set(
        difference_rows(records)[0]
    )


def test_the_tables_show_what_was_chosen_and_all_that_could_be():
    records = study(grokalign={w: {"clean": 0.5 + w} for w in (0.01, 0.1)})
    rows = [r for r in method_rows("accuracy")(records) if r["n_train"] == 100]
    assert [row["method"] for row in rows] == list(METHODS.values())
    assert [row["strength"] for row in rows] == ["", "", "0.0005", "0.1", ""]
    assert rows[3]["test_accuracy"] == pytest.approx(60.0)
    assert grid_rows(records)[0]["validation_accuracy"] == pytest.approx(50.0)
    two = [record("baseline", seed=seed, clean=c) for seed, c in ((0, 0.6), (1, 0.4))]
    (row,) = method_rows("accuracy")(two)
    assert row["test_accuracy_seeds"] == pytest.approx((40.0, 60.0))
    robust = [r for r in method_rows("robust accuracy")(records) if r["n_train"] == 100]
    assert [row["method"] for row in robust] == [METHODS["decay"], METHODS["grokalign"]]
    assert [r["strength"] for r in grid_rows(records) if r["n_train"] == 300] == [
        5e-4, 5e-3, 0.01, 0.1,
    ]  # fmt: skip


def test_costs_are_of_one_training_and_of_the_whole_grid():
    records = study(grokalign={w: {"seconds": 20.0} for w in (0.01, 0.1, 1.0)})
    (row,) = [
        r for r in cost_rows(records)
        if r["n_train"] == 100 and r["method"] == METHODS["grokalign"]
    ]  # fmt: skip
    assert (row["seconds"], row["relative"], row["with_tuning"]) == (20, 2, 6)
    assert seconds(records, tuning=True)[100]["grokalign"] == {0: 60.0, 1: 60.0}
    assert math.exp(ratio(records, "grokalign", "pgd").mean) == pytest.approx(0.2)


def test_a_run_that_diverged_is_never_chosen_and_has_no_time():
    ended = study(grokalign={w: {"clean": 0.5 + w} for w in (0.01, 0.1)})
    lost = [
        Record(r.run, dict.fromkeys(r.result))
        if r["recipe"]["penalty_weight"] == 0.1 else r
        for r in ended
    ]  # fmt: skip
    assert weights(lost, "accuracy") == {0: 0.01, 1: 0.01}
    timed = [Record(r.run, {**r.result, "seconds": 99.0}) for r in lost]
    assert seconds(timed, tuning=True)[100]["grokalign"] == {0: 99.0, 1: 99.0}
    assert seconds(lost, tuning=True)[100]["grokalign"] == {0: 20.0, 1: 20.0}
    assert all(table.rows(lost) for table in ITEM.tables)
    gone = [Record(r.run, dict.fromkeys(r.result)) for r in ended]
    assert {v.holds for claim in CLAIMS for v in claim.check(gone)} == {None}
    assert by_images(gone)


@pytest.mark.parametrize(("kind", "seeds"), [("cuda", {0}), ("cpu", {0, 1})])
def test_a_run_that_shared_a_gpu_has_no_time(kind, seeds):
    records = [
        Record(r.run, r.result, {"device_kind": kind, "at_a_time": 1 + 3 * r.run.seed})
        for r in study()
    ]
    assert set(seconds(records, tuning=False)[100]["pgd"]) == seeds


def test_of_a_grid_of_which_one_run_shared_a_gpu_the_sum_is_not_known():
    def made(r):
        second = r.run.seed == 1 and r["recipe"]["penalty_weight"] == 0.1
        return {"device_kind": "cuda", "at_a_time": 2 if second else 1}

    grid = {w: {"seconds": 20.0} for w in (0.01, 0.1, 1.0)}
    records = [Record(r.run, r.result, made(r)) for r in study(grokalign=grid)]
    assert seconds(records, tuning=True)[100]["grokalign"] == {0: 60.0}
    assert seconds(records, tuning=False)[100]["grokalign"] == {0: 20.0, 1: 20.0}
    rows = {r["method"]: r for r in cost_rows(records) if r["n_train"] == 100}
    row = rows["GrokAlign, tuned"]
    assert (row["n"], row["relative"], row["with_tuning"]) == (2, 2, 6)


@pytest.mark.parametrize(
    ("gain", "noise", "expected"),
    [(0.05, 0.001, True), (-0.05, 0.001, False), (0.0, 0.001, False),
     (0.0, 0.0, False), (0.02, 0.1, None)],
    ids=["more", "less", "the same but for a bit", "the very same", "noise"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("claim", "name", "base"),
    [
        (ALIGNMENT, "alignment", 0.2),
        (ACCURACY, "clean", 0.5),
        (NEARBY, "nearby", 0.3),
        (ROBUST, "robust", 0.1),
    ],
    ids=["alignment", "accuracy", "nearby", "robust"],
)
def test_a_rise_must_be_surer_than_the_seeds(claim, name, base, gain, noise, expected):
    records = study(grokalign={0.01: {name: base + gain}}, noise=noise)
    assert answers(claim, records) == [expected, expected]


@pytest.mark.parametrize(
    ("robust", "noise", "expected"),
    [(0.30, 0.0, True), (0.4, 0.001, True), (0.28, 0.0, False), (0.3, 0.1, None)],
)
def test_to_reach_pgd_training_is_not_to_be_a_point_behind(robust, noise, expected):
    records = study(grokalign={0.01: {"robust": robust}}, noise=noise)
    assert answers(PGD, records) == [expected, expected]


def test_five_weights_of_a_fifth_of_the_time_each_are_not_cheaper():
    grid = {10.0**-k: {"seconds": 25.0} for k in range(5)}
    assert answers(TIME, study(grokalign=grid)) == [True, False]
    slow = {10.0**-k: {"seconds": 125.0} for k in range(5)}
    assert answers(TIME, study(grokalign=slow)) == [False, False]
    uneven = [
        Record(r.run, {**r.result, "seconds": 20.0 * 9**r.run.seed})
        if r["method"] == "grokalign" else r
        for r in study()
    ]  # fmt: skip
    assert answers(TIME, uneven)[0] is None  # a fifth with one seed, twice with another


def test_one_seed_tells_nothing():
    records = study(seeds=(0,), grokalign={0.01: {"clean": 0.9, "robust": 0.9}})
    for claim in CLAIMS:
        assert set(answers(claim, records)) == {None}


@pytest.mark.parametrize("lacking", ["pgd", "grokalign", "decay"])
def test_without_a_method_no_rule_is_read(lacking):
    records = [r for r in study() if r["method"] != lacking]
    judged = [v for claim in CLAIMS for v in claim.check(records)]
    asked = {"pgd": (PGD, TIME), "grokalign": CLAIMS,
             "decay": (ALIGNMENT, ACCURACY, NEARBY, ROBUST)}[lacking]  # fmt: skip
    assert all(None in answers(claim, records) for claim in asked)
    assert all(v.holds is not None or v.why for v in judged)


def test_the_picture_has_a_line_for_each_method_and_choice():
    figure = by_images(study(grokalign={w: {"clean": 0.5 + w} for w in (0.01, 0.1)}))
    assert len(figure.axes) == 4
    for axis in figure.axes:
        assert len(axis.lines) == len(METHODS) + 2  # both tuned once more
        assert [*axis.lines[0].get_xdata()] == [100, 300]
    with pytest.raises(ValueError, match="records must be non-empty"):
        by_images([])


@pytest.mark.parametrize("size", ["quick", "full"])
def test_every_run_takes_the_same_steps_and_differs_in_its_method_alone(size):
    runs = ITEM.runs(size=size, preset="text", digits="mnist")
    totals, others = set(), set()
    for run in runs:
        recipe = dict(run["recipe"])
        per_epoch = -(-run["n_train"] // recipe["batch_size"])
        totals.add(recipe.pop("epochs") * per_epoch)
        for name in ("objective", "weight_decay", "penalty_weight"):
            recipe.pop(name)
        others.add(repr(sorted(recipe.items())))
    assert len(totals) == len(others) == 1
    names = {run["method"] for run in runs}
    assert names == set(METHODS) - {CONTROL}
    if size == "full":  # at the quick size, one decay saves time
        grids = {
            name: {r["recipe"][TUNED[name]] for r in runs if r["method"] == name}
            for name in TUNED
        }
        assert len({len(grid) for grid in grids.values()}) == 1
    decays = {r["recipe"]["weight_decay"] for r in runs if r["method"] == "grokalign"}
    assert decays == {r["recipe"]["weight_decay"] for r in runs if r["method"] == "pgd"}
    assert decays <= {
        r["recipe"]["weight_decay"] for r in runs if r["method"] == "decay"
    }


def test_training_images_are_no_validation_images():
    # Validation begins after the first 400 of each of the ten classes.
    assert max(variant["n_train"] for variant in ITEM.variants) <= 10 * 400
