"""The modular-addition transformer: what its figure trains, measures and claims."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from normalign_reproduction.context import Context
from normalign_reproduction.items.transformer import experiment as transformer
from normalign_reproduction.items.transformer.claims import (
    between,
    generalisation_epoch,
    memorisation_epoch,
    rank_correlation,
)
from normalign_reproduction.items.transformer.item import ITEM, alignment_rows
from normalign_reproduction.spec import Record, Run

CPU = torch.device("cpu")
SMALL = {
    "modulus": 5, "train_fraction": 0.6, "width": 8, "n_heads": 2, "hidden": 12,
    "steps": 6, "n_evaluated": 5, "n_measured": 7,
}  # fmt: skip


def small_run(seed=0, **changed):
    settings = {**ITEM.settings["text"], **SMALL, **changed}
    return Run("transformer", 1, "quick", "text", "synthetic", settings, seed)


def computed(tmp_path, *runs):
    return transformer.compute(runs, Context(CPU, tmp_path / "state"))


def record(train, test, alignment=None, tokens=None, seed=0):
    columns = {
        "epoch": [0, *(2**i for i in range(len(train) - 1))],
        "train_accuracy": train, "test_accuracy": test,
        "centroid_alignment": alignment or [0.0] * len(train),
        "centroid_magnitude": [abs(a) for a in alignment or [0.0] * len(train)],
        "answer_alignment": test,
        "token_alignment": tokens or [0.0] * len(train),
    }  # fmt: skip
    return Record(small_run(seed), {"history": {"columns": columns}})


TRAIN = [0, 0.5, 1, 1, 1, 1, 1]
TEST = [0, 0.0, 0.1, 0.2, 0.4, 0.7, 1]
RISING = [0, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_run_is_torchs_adamw_on_the_whole_training_set(tmp_path):
    """The last row against a plain loop, from the same start."""
    run = small_run(seed=2)
    (result,) = computed(tmp_path, run)
    data, network = transformer._pairs(run), transformer._start(run)
    network = copy.deepcopy(network)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=1.0
    )
    for _ in range(run["steps"]):
        optimizer.zero_grad()
        cross_entropy(network(data.x_train).double(), data.y_train).backward()
        optimizer.step()
    columns = result["history"]["columns"]
    loss = cross_entropy(network(data.x_train), data.y_train).detach()
    # float32 steps, and numbers stored with six digits
    assert columns["train_loss"][-1] == pytest.approx(float(loss), rel=1e-4)
    x = (network.embed(data.x_train[:7]) + network.pos).detach().requires_grad_()
    logits = network.unembed(network.blocks(x)[:, -1])
    answers = logits.gather(1, data.y_train[:7, None])
    for name, part in (("centroid_alignment", logits), ("answer_alignment", answers)):
        (pulled,) = torch.autograd.grad(part.sum(), x, retain_graph=True)
        wanted = torch.cosine_similarity(pulled.flatten(1), x.flatten(1)).mean()
        assert columns[name][-1] == pytest.approx(float(wanted.detach()), abs=1e-4)
    # The authors' measure: tokens without positions, over all training pairs.
    tokens = network.embed(data.x_train).detach().requires_grad_()
    logits = network.unembed(network.blocks(tokens + network.pos)[:, -1])
    (pulled,) = torch.autograd.grad(logits.sum(), tokens)
    wanted = torch.cosine_similarity(pulled.flatten(1), tokens.flatten(1)).mean()
    found = columns["token_alignment"][-1]
    assert found == pytest.approx(float(wanted.detach()), abs=1e-4)
    assert abs(found - columns["centroid_alignment"][-1]) > 1e-3


def test_the_equals_sign_has_a_logit_too():
    run = small_run()
    x = transformer._pairs(run).x_train
    assert transformer._start(run)(x).shape == (15, 6)


def test_the_loss_is_summed_in_float64():
    output, target = torch.tensor([[30.0, 0.0]]), torch.tensor([0])
    exact = transformer.exact_cross_entropy(output, target)
    # float32 gives log(1 + 1e-13) as 0; to first order it is exp(-30)
    assert float(exact) == pytest.approx(float(torch.tensor(-30.0).double().exp()))
    assert float(cross_entropy(output, target)) == 0


def test_a_batch_is_computed_twice_alike(tmp_path):
    runs = [small_run(seed) for seed in (0, 1)]
    assert computed(tmp_path / "a", *runs) == computed(tmp_path / "b", *runs)


def test_seeds_are_together_on_cuda_and_alone_on_a_cpu():
    runs = ITEM.runs(size="full", preset="text", digits="mnist")
    assert transformer.batches(runs, torch.device("cuda")) == [runs]
    assert transformer.batches(runs, CPU) == [[run] for run in runs]


def test_the_full_size_is_the_papers():
    run = ITEM.runs(size="full", preset="released", digits="mnist")[0]
    paper = {
        "modulus": 113, "train_fraction": 0.3, "width": 128, "n_heads": 4,
        "hidden": 512, "learning_rate": 1e-3, "weight_decay": 1.0, "beta1": 0.9,
        "beta2": 0.98,
    }  # fmt: skip
    assert {name: run[name] for name in paper} == paper


def test_events_are_the_first_rows_above_the_criterion():
    made = record(TRAIN, TEST)
    assert memorisation_epoch(made) == 2
    assert generalisation_epoch(made) == 32
    assert between(made) == [2, 3, 4, 5, 6]
    never = record([0, 0.5], [0, 0.1])
    assert (memorisation_epoch(never), generalisation_epoch(never), between(never)) == (
        None,
        None,
        [],
    )


def test_the_correlation_is_by_ranks_and_between_the_events_only():
    assert rank_correlation(
        record(TRAIN, TEST, [9, 9, 0.1, 0.2, 0.3, 0.4, 8]),
        "centroid_alignment", "test_accuracy",
    ) == pytest.approx(1)  # fmt: skip


def holds(claim, *records):
    return [verdict.holds for verdict in ITEM.claims[claim].check(records)]


def test_late_generalisation_is_judged_seed_by_seed():
    early = record([0, 1, 1], [0, 1, 1], seed=1)
    never = record([0, 1, 1], [0, 0.5, 0.9], seed=2)
    fell = record([*TRAIN, 1], [*TEST, 0.5], seed=3)
    assert holds(0, fell, never, record(TRAIN, TEST), early) == [
        True, False, False, False,
    ]  # fmt: skip


def test_a_rise_counts_from_memorisation_on():
    assert holds(1, record(TRAIN, TEST, RISING)) == [True]
    before = [-0.9, -0.9, 0.3, 0.3, 0.3, 0.3, 0.3]
    assert holds(1, record(TRAIN, TEST, before)) == [False]
    assert holds(1, record([0, 0.5], [0, 0.1])) == [None]


def test_correlation_is_judged_by_its_mean_over_seeds():
    falling = record(TRAIN, TEST, RISING[::-1], seed=1)
    rising = record(TRAIN, TEST, RISING)
    assert holds(2, rising) == [True]
    assert holds(2, falling, rising) == [False]
    assert holds(2, record(TRAIN, TEST)) == [None]


def test_the_authors_measure_is_judged_by_the_same_rules():
    rising = record(TRAIN, TEST, RISING[::-1], RISING)
    assert holds(1, rising) == holds(2, rising) == [False]
    assert holds(3, rising) == holds(4, rising) == [True]
    falling = record(TRAIN, TEST, RISING, RISING[::-1])
    assert holds(3, falling) == holds(4, falling) == [False]


def test_the_measures_stand_side_by_side():
    tokens = [0.0, 0.0, 0.1, -0.2, 0.0, 0.3, 0.5]
    never = record([0, 0.5], [0, 0.1])
    rows = alignment_rows([record(TRAIN, TEST, RISING, tokens), never])
    assert [row["n"] for row in rows] == [1] * 5
    assert [row["centroid_alignment"] for row in rows[:4]] == [0.1, 0.1, 0.5, 0.5]
    assert [row["token_alignment"] for row in rows[:4]] == [0.1, -0.2, 0.5, 0.5]
    # ranks 3, 1, 2, 4, 5 against 1 to 5
    assert rows[4]["token_alignment"] == pytest.approx(0.7)
    assert alignment_rows([never]) == []


def test_the_figure_has_accuracies_centroids_and_answers_from_left_to_right():
    drawing = ITEM.figures[0].draw([record(TRAIN, TEST, RISING)])
    assert [len(axis.lines) for axis in drawing.axes] == [2, 2, 1]
    assert all(axis.get_xscale() == "log" for axis in drawing.axes)


@pytest.mark.full
def test_at_quick_size_it_generalises_late_and_its_answers_align(tmp_path):
    (run,) = ITEM.runs(size="quick", preset="text", digits="mnist", seeds=1)
    (result,) = computed(tmp_path, run)
    for claim in ITEM.claims:
        if "quick" in claim.sizes:
            (verdict,) = claim.check([Record(run, result)])
            assert verdict.holds, verdict.why
