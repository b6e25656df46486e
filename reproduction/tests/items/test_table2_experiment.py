"""Machines on tables: protocols, what they may see, and plain transcriptions."""

import json
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import one_hot

from normalign.geometry import normal_alignment
from normalign.kernels import Laplace, initial_metric, recursions
from normalign.robustness import pgd
from normalign_reproduction.context import Context
from normalign_reproduction.items.table2 import experiment as tabular
from normalign_reproduction.items.table2.data import (
    BUNDLED,
    TABLES,
    inner_split,
    split_table,
    table_named,
)
from normalign_reproduction.items.table2.experiment import machine_result
from normalign_reproduction.spec import Run
from tests.oracles import transcription

CPU = torch.device("cpu")
SETTINGS = {
    "dataset": "iris", "rows": 150, "method": "rfam", "protocol": "leak-free",
    "identity_weight": 0.0, "ridges": [1.0, 0.01], "n_iter": 2, "bandwidth": 10.0,
    "agop_samples": 20000, "radii": [0.1, 1.0], "n_steps": 5, "step": 0.1,
    "strong_restarts": 2,
}  # fmt: skip


def run_of(seed=0, **changed):
    return Run("tabular", 1, "quick", "released", "bundled", SETTINGS | changed, seed)


def result(table, seed=0, **changed):
    return machine_result(
        run_of(seed, **changed), table, device=CPU, progress=lambda share, words: None
    )


@pytest.fixture(scope="module")
def overlapping():
    """Three classes in five dimensions that no method tells apart without error."""
    draw = torch.Generator().manual_seed(5)
    y = torch.arange(120) % 3
    x = torch.randn(120, 5, generator=draw, dtype=torch.float64)
    x[:, 0] += 1.2 * y
    x[:, 1] *= 4
    return split_table("overlapping", x, y)


def plainly_chosen(x, y, k, fit, validation, weight, ridges, n_iter):
    """Selection by the plain transcription in float64."""
    best = (-1.0, None, None)
    for ridge in ridges:
        machines = transcription.rfm(
            x[fit], one_hot(y[fit], k).double(), ridge=ridge, n_iter=n_iter,
            identity_weight=weight, exact=True,
        )  # fmt: skip
        for steps, (metric, coef) in enumerate(machines):
            outputs = transcription.outputs(
                x[validation], x[fit], coef, metric, exact=True
            )
            accuracy = float((outputs.argmax(1) == y[validation]).double().mean())
            if accuracy > best[0]:
                best = (accuracy, ridge, steps)
    return best


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_leak_free_choices_and_accuracies_are_those_of_a_plain_loop(
    overlapping, weight
):
    table, ridges = overlapping, [1.0, 0.01]
    found = result(table, identity_weight=weight, ridges=ridges)
    for fold, (train, test) in zip(found["folds"], table.folds, strict=True):
        fit, validation = inner_split(table.y, train, seed=0)
        accuracy, ridge, steps = plainly_chosen(
            table.x, table.y, 3, fit, validation, weight, ridges, 2
        )
        assert (fold["ridge"], fold["iteration"]) == (ridge, steps)
        assert fold["validation"] == pytest.approx(accuracy, abs=1e-6)
        *_, (metric, coef) = transcription.rfm(
            table.x[train], one_hot(table.y[train], 3).double(), ridge=ridge,
            n_iter=steps, identity_weight=weight, exact=True,
        )  # fmt: skip
        outputs = transcription.outputs(
            table.x[test], table.x[train], coef, metric, exact=True
        )
        expected = float((outputs.argmax(1) == table.y[test]).double().mean())
        # One test row in thirty may sit on the border between float32 and float64.
        assert fold["accuracy"] == pytest.approx(expected, abs=1.01 / len(test))


def with_other_test_answers(table, fold):
    """The table with the answers at one fold's test rows changed."""
    y = table.y.clone()
    rows = table.folds[fold][1]
    y[rows] = (y[rows] + 1) % 3
    return replace(table, y=y)


def test_leak_free_machines_do_not_see_the_answers_of_their_test_rows(overlapping):
    honest = result(overlapping)["folds"][2]
    other = result(with_other_test_answers(overlapping, 2))["folds"][2]
    for name in ("ridge", "iteration", "validation", "normal_alignment"):
        assert honest[name] == other[name]
    assert honest["accuracy"] != other["accuracy"]


def test_the_released_protocol_does_see_them(overlapping):
    honest = result(overlapping, protocol="released")["folds"][2]
    other = result(with_other_test_answers(overlapping, 2), protocol="released")
    assert honest["validation"] != other["folds"][2]["validation"]


def test_the_released_protocol_has_one_choice_for_all_folds(overlapping):
    folds = result(overlapping, protocol="released")["folds"]
    assert len({(fold["ridge"], fold["iteration"]) for fold in folds}) == 1


@pytest.mark.parametrize("protocol", ["released", "leak-free"])
def test_the_same_run_gives_the_same_numbers_within_their_bounds(overlapping, protocol):
    one, same, other = (
        result(overlapping, seed, protocol=protocol) for seed in (0, 0, 1)
    )
    assert one == same
    assert one != other
    assert json.loads(json.dumps(one)) == one
    assert 0 <= one["normal_alignment"] <= 1
    assert 0 <= one["alignment_ratio"] <= 1
    assert 1 <= one["effective_rank"] <= one["participation_rank"] + 1e-6 <= 3.001


def test_a_larger_radius_breaks_more(overlapping):
    found = result(overlapping, radii=[0.0, 0.05, 3.0], n_steps=20)
    clean, little, much = found["attacked"]
    assert clean == found["accuracy"]
    assert found["attack_success"][0] == 0
    assert clean >= little > much
    assert found["attack_success"][2] == pytest.approx(
        100 * (clean - much) / clean, abs=1e-3
    )


def test_the_strong_attack_is_not_weaker_than_the_released_one(overlapping):
    found = result(overlapping, n_steps=20)
    for weak, strong in zip(
        found["attack_success"], found["strong_success"], strict=True
    ):
        assert strong >= weak - 1e-6


def test_an_unknown_protocol_is_refused(overlapping):
    with pytest.raises(ValueError, match="'released' or 'leak-free', got 'honest'"):
        result(overlapping, protocol="honest")


def test_a_batch_is_one_method_on_one_table_and_large_tables_come_first():
    small, large = {"dataset": "iris"}, {"dataset": "wine", "rows": 178}
    runs = [
        run_of(), run_of(1), run_of(**large), run_of(method="svc"),
        run_of(identity_weight=1.0, **small),
    ]  # fmt: skip
    found = tabular.batches(runs, CPU)
    assert found[0] == [runs[2]]
    assert sorted(map(len, found)) == [1, 1, 3]


def test_a_batch_resumes_with_the_run_it_was_killed_in(tmp_path, monkeypatch):
    runs = [run_of(0), run_of(1), run_of(2)]
    context = Context(CPU, tmp_path / "batch")
    asked = []

    def once(run, table, **more):
        asked.append(run.seed)
        if run.seed == 1 and asked.count(1) == 1:
            raise KeyboardInterrupt
        return {"accuracy": run.seed / 2}

    monkeypatch.setattr(tabular, "machine_result", once)
    with pytest.raises(KeyboardInterrupt):
        tabular.compute(runs, context)
    found = tabular.compute(runs, context)
    assert asked == [0, 1, 1, 2]
    assert [one["accuracy"] for one in found] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("facts", BUNDLED, ids=lambda facts: facts.name)
def test_bundled_tables_have_their_facts(facts):
    table = table_named(facts.name, "bundled")
    assert (len(table.x), table.x.shape[1], table.n_classes) == facts[1:]
    torch.testing.assert_close(table.x.mean(0), torch.zeros(facts.inputs).double())
    assert len(table.folds) == 4
    for pair in (table.split, *table.folds):
        assert sorted(torch.cat(pair).tolist()) == list(range(facts.rows))


def chosen_as_released(table, ridges, seed):
    """Selection on the split in halves, gradients at rows drawn with replacement."""
    x, targets = table.x.float(), one_hot(table.y, 3).float()
    half, other = table.split
    draws, best = torch.Generator().manual_seed(seed), (-1.0, None, None)
    for ridge in ridges:
        for one in recursions(
            x[half], targets[half], kernel=Laplace(10.0), ridge=ridge, n_iter=2,
            metric=initial_metric(x[half], identity_weight=0.0), resampled=True,
            generator=draws,
        ):  # fmt: skip
            right = one.machine(x[other]).argmax(1) == table.y[other]
            if float(right.double().mean()) > best[0]:
                best = float(right.double().mean()), ridge, one.machine.metric
    return best


def test_released_numbers_are_those_of_the_machine_and_attacks_that_it_names(
    overlapping,
):
    table, seed = overlapping, 3
    found = result(
        table, seed, protocol="released", n_steps=2, radii=[2.0], step=0.1,
        strong_restarts=3,
    )  # fmt: skip
    x, targets = table.x.float(), one_hot(table.y, 3).float()
    validation, ridge, metric = chosen_as_released(table, [1.0, 0.01], seed)
    turned_right = 0
    for fold, (train, test) in zip(found["folds"], table.folds, strict=True):
        assert fold["ridge"] == ridge
        assert fold["validation"] == pytest.approx(validation, abs=1e-6)
        (one,) = recursions(
            x[train], targets[train], kernel=Laplace(10.0), ridge=ridge,
            metric=metric, n_iter=0,
        )  # fmt: skip
        given = one.machine, x[test], table.y[test]
        weak = pgd(
            *given, radii=2.0, n_steps=2, step_size=0.1, loss="squared_error",
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        strong = pgd(
            *given, radii=2.0, n_steps=2, loss="margin", start="center", keep="best",
            n_restarts=3, generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        ended_right = float((~weak.reached).double().mean())
        turned_right += int((~weak.reached & ~weak.clean).sum())
        alignment = normal_alignment(one.machine.jacobian(x[train]), x[train]).mean()
        for name, expected in (
            ("accuracy", weak.accuracy), ("attacked", [ended_right]),
            ("strongly_attacked", strong.robust_accuracy.tolist()),
            ("normal_alignment", float(alignment)),
        ):  # fmt: skip
            # Results have six digits.
            assert fold[name] == pytest.approx(expected, abs=1e-6)
    # As released, a row that is wrong may end up right, and then counts as right.
    assert turned_right > 0


def test_the_facts_are_of_the_tables_that_the_experiment_used():
    assert len(TABLES) == 120
    assert max(facts.rows for facts in TABLES) <= 100_000
    assert {"iris", "hill-valley", "connect-4"} <= {facts.name for facts in TABLES}


@pytest.mark.data
def test_the_facts_are_those_of_the_files():
    for facts in TABLES:
        if facts.rows < 5000:
            table = table_named(facts.name, "uci")
            assert (len(table.x), table.x.shape[1], table.n_classes) == facts[1:]


@pytest.mark.data
@pytest.mark.parametrize("protocol", ["released", "leak-free"])
def test_a_table_of_the_collection_is_learned(protocol):
    found = result(
        table_named("seeds", "uci"), protocol=protocol, identity_weight=1.0,
        ridges=[10.0, 1.0, 0.1, 0.01, 0.001], n_iter=4,
    )  # fmt: skip
    assert found["accuracy"] > 0.9
