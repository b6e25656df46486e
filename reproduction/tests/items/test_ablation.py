"""The ablation: its runs, what is computed of them, what is read off the records."""

import json
import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign import local_geometry
from normalign.data import MNIST_MEAN, MNIST_STD
from normalign.nn import mlp
from normalign_reproduction.context import Context
from normalign_reproduction.data.digits import digits
from normalign_reproduction.items.ablation import experiment as ablation
from normalign_reproduction.items.ablation import rows as strategies
from normalign_reproduction.items.ablation.item import ITEM as FIGURE
from normalign_reproduction.items.ablation.rows import (
    GRID,
    PRINTED,
    leads,
    select_choices,
)
from normalign_reproduction.items.hyperparameters.item import ITEM as TABLE
from normalign_reproduction.items.hyperparameters.item import QUICK_GRID
from normalign_reproduction.spec import Record, Run

CPU = torch.device("cpu")
TINY = {
    "n_train": 30, "n_test": 40, "hidden": [16, 12], "init_scale": 2.0,
    "learning_rate": 1e-2, "weight_decay": 1e-4, "batch_size": 10, "epochs": 3,
    "radius": 0.1, "attack_steps": 1, "n_attacked": 40, "n_measured": 20,
    "n_evaluated": 4,
}  # fmt: skip
BASELINE = strategies.BASELINE
OUTPUT = {"strategy": "output", "n_probes": 1, "weight": 0.1}


def tiny(variant=BASELINE, seed=0, **changed):
    settings = {**TINY, **variant, **changed}
    return Run("ablation", 1, "quick", "text", "digits_5000", settings, seed)


def computed(runs, tmp_path, name="batch"):
    return ablation.compute(runs, Context(CPU, tmp_path / name))


def record(strategy, choice, seed, *, stopped="epochs", **finals):
    """Return a run that ended with these values."""
    n, weight = choice
    run = tiny({"strategy": strategy, "n_probes": n, "weight": weight}, seed)
    values = {
        "robust_accuracy": 0.0, "test_accuracy": 0.0, "normal_alignment": 0.0,
        "effective_rank": 1.0, **finals,
    }  # fmt: skip
    # An end is the mean of the last three.
    columns = {name: [0.5, v - 0.01, v, v + 0.01] for name, v in values.items()}
    columns = {"epoch": [1, 2, 3, 4], **columns}
    return Record(run, {"history": {"columns": columns}, "stopped": stopped})


def printed(alignment, *, name="normal_alignment", baseline=0.1):
    """Return records of the printed choices, by strategy: the value of each seed."""
    return [
        record(strategy, PRINTED.get(strategy, (0, 0.0)), seed, **{name: value})
        for strategy, values in {**alignment, "baseline": baseline}.items()
        for seed, value in enumerate(values if isinstance(values, list) else [values])
    ]


# What is run


def test_the_table_has_every_choice_of_the_paper_once():
    runs = TABLE.runs(size="full", preset="text", digits="mnist", seeds=1)
    choices = [(r["strategy"], r["n_probes"], r["weight"]) for r in runs]
    assert len(choices) == len(set(choices)) == 3 * (5 + 4 + 5 + 4) + 1


def test_the_constants_of_full_runs_are_the_papers():
    """sec:empirical_comparison has the constants, tab:hyperparameters the choices."""
    runs = TABLE.runs(size="full", preset="text", digits="mnist")
    assert {run["init_scale"] for run in runs} == {2.0}
    assert {run["weight_decay"] for run in runs} == {1e-4}
    weights = {0.0001, 0.001, 0.01, 0.1, 1.0}
    considered = {
        "input": weights, "output": weights - {1.0},
        "orthogonal": weights, "nuclear": weights - {1.0},
    }  # fmt: skip
    grid = {(s, n, w) for s in considered for n in (1, 2, 4) for w in considered[s]}
    choices = {(r["strategy"], r["n_probes"], r["weight"]) for r in runs}
    assert choices - {("baseline", 0, 0.0)} == grid
    assert PRINTED == {
        "input": (1, 0.1), "output": (1, 0.01), "orthogonal": (1, 0.1),
        "nuclear": (1, 0.01),
    }  # fmt: skip


def test_a_run_starts_at_its_scale_and_decays_by_its_decay():
    data = digits("digits_5000", n_train=4, n_test=4)
    scaled, plain = (
        ablation._start(tiny(init_scale=scale), data).state_dict()
        for scale in (2.0, 1.0)
    )
    for name, values in scaled.items():
        assert torch.equal(values, 2 * plain[name]), name
    assert ablation._member(tiny(weight_decay=0.5)).optimizer.weight_decay == 0.5


def test_the_printed_choices_are_in_the_grids():
    for grid in (GRID, QUICK_GRID):
        named = [tuple(v.values()) for v in strategies.variants(grid)]
        assert {(s, *choice) for s, choice in PRINTED.items()} <= set(named)


@pytest.mark.parametrize("size", ["quick", "full"])
def test_the_figure_is_drawn_from_runs_of_the_table(size):
    figure, table = (
        {run.key for run in item.runs(size=size, preset="text", digits="mnist")}
        for item in (FIGURE, TABLE)
    )
    assert figure < table
    assert len(figure) == 5 * FIGURE.sizes[size].seeds


def test_presets_do_not_differ():
    one, other = (
        [r.key for r in FIGURE.runs(size="full", preset=p, digits="mnist")]
        for p in ("text", "released")
    )
    assert one == other


def test_a_batch_on_the_cpu_is_what_shares_its_kernels():
    runs = TABLE.runs(size="full", preset="text", digits="mnist")
    groups = ablation.batches(runs, CPU)
    kinds = [{(r["strategy"], r["n_probes"]) for r in group} for group in groups]
    assert all(len(kind) == 1 for kind in kinds)
    assert len(groups) == 4 * 3 + 1
    assert sorted(r.key for g in groups for r in g) == sorted(r.key for r in runs)


def test_batches_stay_as_they_are_when_others_are_finished():
    runs = TABLE.runs(size="quick", preset="text", digits="mnist")
    groups = ablation.batches(runs, CPU)
    rest = [run for group in groups[1:] for run in group]
    assert ablation.batches(rest, CPU) == groups[1:]


def test_on_cuda_everything_of_one_size_is_one_batch():
    quick, full = (
        TABLE.runs(size=size, preset="text", digits="mnist") for size in TABLE.sizes
    )
    groups = ablation.batches([*quick, *full], torch.device("cuda"))
    assert groups == [quick, full]


# What is computed


def test_results_are_small_and_plain(tmp_path):
    (result,) = computed([tiny(OUTPUT)], tmp_path)
    columns = result["history"]["columns"]
    assert columns["epoch"] == [0, 1, 2, 3]
    assert {*ablation.COLUMNS, "epoch"} == set(columns)
    assert result["stopped"] == "epochs"
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_all_strategies_begin_with_the_network_of_the_seed(tmp_path):
    variants = [{"strategy": s, "n_probes": 1, "weight": 0.1} for s in GRID]
    runs = [tiny(v, seed=3) for v in (*variants, BASELINE)]
    results = computed(runs, tmp_path)
    data = digits("digits_5000", n_train=30, n_test=40)
    network = mlp(
        [784, 16, 12, 10], init_scale=2.0, generator=torch.Generator().manual_seed(3)
    )
    geometry = local_geometry(network.double(), data.x_train[:20].double()).mean()
    for result in results:
        columns = result["history"]["columns"]
        for name in ("normal_alignment", "effective_rank", "jacobian_norm"):
            # float32 networks, stored with six digits
            assert columns[name][0] == pytest.approx(geometry[name], rel=1e-4)


def test_the_attack_moves_pixels_by_the_radius_and_keeps_images_legal(tmp_path):
    radius = 0.02
    (result,) = computed([tiny(seed=1, radius=radius, learning_rate=0.0)], tmp_path)
    data = digits("digits_5000", n_train=30, n_test=40)
    network = mlp(
        [784, 16, 12, 10], init_scale=2.0, generator=torch.Generator().manual_seed(1)
    )
    x, y = data.x_test, data.y_test
    pixels = (x * MNIST_STD + MNIST_MEAN).clamp(0, 1).requires_grad_()

    def logits(pixels):
        return network((pixels - MNIST_MEAN) / MNIST_STD)

    # One step of PGD, longer than the radius, ends at the corner of the cube.
    torch.nn.functional.cross_entropy(logits(pixels), y).backward()
    attacked = (pixels.detach() + radius * pixels.grad.sign()).clamp(0, 1)
    right = (network(x).argmax(1) == y) & (logits(attacked).argmax(1) == y)
    reported = result["history"]["columns"]["robust_accuracy"][0]
    # The way to pixels and back rounds: at most one image may stand on a boundary.
    assert abs(reported - right.double().mean().item()) <= 1 / 40 + 1e-6


def test_without_an_attack_robust_accuracy_is_accuracy(tmp_path):
    (result,) = computed([tiny(radius=0.0)], tmp_path)
    columns = result["history"]["columns"]
    assert columns["robust_accuracy"] == columns["test_accuracy"]
    assert max(columns["train_accuracy"]) > 0.3  # it learns: chance is 0.1


def test_a_large_weight_makes_every_strategys_jacobians_smaller(tmp_path):
    variants = [{"strategy": s, "n_probes": 2, "weight": 1.0} for s in GRID]
    runs = [tiny(v, epochs=20) for v in (BASELINE, *variants)]
    free, *bound = computed(runs, tmp_path)

    def norm(result):
        return result["history"]["columns"]["jacobian_norm"][-1]

    assert all(norm(result) < norm(free) / 2 for result in bound)


def test_members_are_penalised_by_what_the_appendix_defines():
    for strategy, (n, weight) in product(GRID, [(1, 0.1), (4, 1e-4)]):
        run = tiny({"strategy": strategy, "n_probes": n, "weight": weight}, seed=5)
        member = ablation._member(run)
        form = member.penalty
        assert (form.estimator, form.n_probes) == (strategy, n)
        assert (form.power, form.offset, form.probe) == (2, False, "normal")
        assert (member.weight, member.seed) == (weight, 5)
        assert member.optimizer.weight_decay == 1e-4
    assert ablation._member(tiny()).weight == 0


def test_an_unknown_strategy_is_refused(tmp_path):
    with pytest.raises(ValueError, match="ablation: strategy must be one of"):
        computed(
            [tiny({"strategy": "dropout", "n_probes": 1, "weight": 1.0})], tmp_path
        )


def test_a_batch_goes_on_from_its_checkpoint_to_the_same_numbers(tmp_path):
    runs = [tiny(OUTPUT, seed=s) for s in range(2)]
    told = []

    def interrupt(share, words):
        told.append(share)
        if len(told) == 3:
            raise RuntimeError(words)

    kept = tmp_path / "killed"
    with pytest.raises(RuntimeError, match="output-1, epoch"):
        ablation.compute(runs, Context(CPU, kept, 0.0, interrupt))
    again = ablation.compute(runs, Context(CPU, kept))
    assert again == computed(runs, tmp_path, "undisturbed")


# What is read off the records


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=6),
    st.randoms(use_true_random=False),
)
def test_nothing_in_the_grid_is_more_robust_than_what_is_selected(scores, random):
    choices = [(1 + i, 0.1) for i in range(len(scores))]
    records = [
        record("input", choice, 0, robust_accuracy=robust, normal_alignment=aligned)
        for choice, (robust, aligned) in zip(choices, scores, strict=True)
    ]
    random.shuffle(records)
    mine = select_choices(records)["input"]
    assert scores[choices.index(mine)] == max(scores)


def test_a_run_that_diverged_is_not_selected():
    records = [
        record("output", (1, 0.1), 0, robust_accuracy=0.9, stopped="diverged"),
        record("output", (1, 0.01), 0, robust_accuracy=0.2),
        record("baseline", (0, 0.0), 0, robust_accuracy=0.8),
    ]
    assert select_choices(records) == {"output": (1, 0.01)}
    row = strategies.rows(records)[1]
    assert (row["weight"], row["robust_accuracy"], row["ours"]) == (0.1, None, "")


def test_the_selection_is_by_means_over_seeds():
    records = [
        record("input", (1, 0.1), 0, robust_accuracy=0.9),
        record("input", (1, 0.1), 1, robust_accuracy=0.1),
        record("input", (1, 1.0), 0, robust_accuracy=0.6),
        record("input", (1, 1.0), 1, robust_accuracy=0.6),
    ]
    assert select_choices(records) == {"input": (1, 1.0)}


@given(st.randoms(use_true_random=False))
def test_the_tables_rows_do_not_depend_on_the_order_of_records(random):
    made = [
        record(v["strategy"], (v["n_probes"], v["weight"]), seed,
               robust_accuracy=0.1 * seed, normal_alignment=v["weight"])
        for v in strategies.variants(QUICK_GRID)
        for seed in range(2)
    ]  # fmt: skip
    shuffled = random.sample(made, len(made))
    assert strategies.rows(shuffled) == strategies.rows(made)


def test_a_row_says_what_the_paper_printed_and_what_we_select():
    records = [
        record("nuclear", (1, 0.01), 0, robust_accuracy=0.25),
        record("nuclear", (4, 0.1), 0, robust_accuracy=0.5, effective_rank=2.0),
    ]
    first, second = strategies.rows(records)
    assert (first["paper"], first["ours"]) == ("bold", "")
    assert (second["paper"], second["ours"]) == ("", "selected")
    assert (second["robust_accuracy"], second["effective_rank"]) == (0.5, 2.0)
    assert {column.name for column in TABLE.tables[0].columns} <= set(second)


def verdicts(records, *, tolerant, name="alignment"):
    found = leads(lambda records: PRINTED, tolerant=tolerant)(records)
    return next(v for v in found if name in v.name)


def test_output_probes_lead_only_if_nothing_is_above_them():
    ahead = printed({"output": 0.5, "input": 0.4, "nuclear": 0.3})
    behind = printed({"output": 0.4, "input": 0.5, "nuclear": 0.3})
    level = printed({"output": 0.5, "input": 0.5})
    beaten = printed({"output": 0.5, "input": 0.4}, baseline=0.6)
    assert verdicts(ahead, tolerant=False).holds is True
    for records in (behind, level, beaten):
        assert verdicts(records, tolerant=False).holds is False
    assert "R by input probes highest" in verdicts(behind, tolerant=False).ours


def test_one_standard_error_is_that_of_the_differences_seed_by_seed():
    # Differences 0.3 and -0.1: mean 0.1, standard error 0.2. And 0.1 twice: error 0.
    near = printed({"output": [0.4, 0.5], "input": [0.7, 0.4]})
    far = printed({"output": [0.25, 0.75], "input": [0.375, 0.875]})
    alone = printed({"output": 0.4, "input": 0.5})
    assert verdicts(near, tolerant=True).holds is True
    assert verdicts(near, tolerant=False).holds is False
    assert verdicts(far, tolerant=True).holds is False
    assert verdicts(alone, tolerant=True).holds is None


def test_a_lead_without_output_probes_cannot_be_told():
    lost = [
        *printed({"input": 0.5}),
        record("output", (1, 0.01), 0, stopped="diverged"),
    ]
    assert verdicts(lost, tolerant=False).holds is None


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("normal_alignment", {"output": 0.16, "nuclear": 0.14}, [True, False]),
        ("robust_accuracy", {"output": 0.16, "nuclear": 0.14}, [True, False]),
        ("effective_rank", {"output": 0.11, "nuclear": 0.09}, [False, True]),
    ],
)
def test_each_regularizer_is_compared_with_the_baseline(name, values, expected):
    (claim,) = (
        c for c in FIGURE.claims
        if c.check(printed(values, name=name))[0].name.endswith(
            f", {name.replace('_', ' ')}")
    )  # fmt: skip
    found = claim.check(printed(values, name=name))
    assert [verdict.holds for verdict in found] == expected


def test_a_regularizer_that_diverged_has_no_verdict():
    records = [
        record("output", PRINTED["output"], 0, stopped="diverged"),
        record("baseline", (0, 0.0), 0),
    ]
    assert FIGURE.claims[0].check(records)[0].holds is None


def test_the_paper_is_agreed_with_where_the_same_choice_is_best():
    records = [
        record("input", (1, 0.1), 0, robust_accuracy=0.5),
        record("input", (2, 0.1), 0, robust_accuracy=0.4),
        record("output", (1, 0.01), 0, robust_accuracy=0.4),
        record("output", (1, 0.1), 0, robust_accuracy=0.5),
    ]
    found = {v.name: v for v in strategies.printed_is_selected(records)}
    assert found["R by input probes"].holds is True
    assert found["R by output probes"].holds is False
    assert found["R by output probes"].ours == "1 probe, weight 0.1"
    assert found["R perp"].holds is None


def test_the_figure_has_three_panels_with_a_line_for_each_strategy():
    values = {strategy: 0.2 for strategy in PRINTED}
    drawing = FIGURE.figures[0].draw(printed(values))
    assert [axis.get_ylabel() for axis in drawing.axes] == [
        "Robust Accuracy", "Normal Alignment", "Effective Rank",
    ]  # fmt: skip
    for axis in drawing.axes:
        assert axis.get_xscale() == "log"
        assert len(axis.get_lines()) == 5


def test_the_end_of_a_run_that_did_not_finish_is_unknown():
    broken = record("output", (1, 0.1), 0, robust_accuracy=0.5, stopped="diverged")
    assert math.isnan(strategies.end(broken, "robust_accuracy"))
