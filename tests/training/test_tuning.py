import copy
import math
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from normalign.data import sparse_parity
from normalign.nn import mlp
from normalign.optim import Grokfast
from normalign.regularizers import GrokAlign, PenaltyForm
from normalign.training import Ensemble, Member, rules, tuning
from normalign.training.history import History
from normalign.training.tuning import (
    Candidate,
    Course,
    Halves,
    class_numbers,
    hold_out,
    late_mean,
    tune_weight,
    tuning_result,
)
from tests.cases import Recurrent, TokenModel

pytestmark = pytest.mark.usefixtures("ctrl_c", "time_limit")


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def blobs(n=40, seed=0):
    """Two overlapping clusters."""
    y = torch.arange(n) % 2
    return torch.randn(n, 3, generator=source(seed)) + y[:, None], y


def short(model=None, x=None, y=None, **changed):
    """A pilot of a few epochs, with what it warned of ignored."""
    if x is None:
        x, y = blobs()
    model = mlp([3, 8, 2], generator=source()) if model is None else model
    settings = {"weights": (0.01, 0.1), "powers": (2,), "epochs": 4, **changed}
    return tune_weight(model, x, y, **settings)


quiet = pytest.mark.filterwarnings("ignore:tune_weight")


# What it finds


def ridge_task(d=60, n=40, noise=1.0):
    """Three inputs of many decide, and n < d: (start, train, validation)."""
    slopes = torch.zeros(d, dtype=torch.float64)
    slopes[:3] = 1.0
    draw = source(1)

    def sample(m):
        x = torch.randn(m, d, generator=draw, dtype=torch.float64)
        error = torch.randn(m, generator=draw, dtype=torch.float64)
        return x, x @ slopes + noise * error

    start = mlp([d, 1], generator=draw, dtype=torch.float64)
    return start, sample(n), sample(500)


def ridge_loss(weight, start, train, validation):
    """The validation loss of the minimiser of squares + weight (|J|^2 + |b|^2)."""

    def widened(x):
        return torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)

    (x, y), (x_new, y_new) = train, validation
    rows, n = widened(x), len(x)
    begin = torch.cat([start[0].weight[0], start[0].bias]).detach()
    if weight == 0:  # where gradient descent ends: the nearest interpolation
        found = begin + torch.linalg.pinv(rows) @ (y - rows @ begin)
    else:
        eye = torch.eye(rows.shape[1], dtype=x.dtype)
        found = torch.linalg.solve(rows.T @ rows / n + weight * eye, rows.T @ y / n)
    return float((widened(x_new) @ found - y_new).square().mean())


def test_for_a_linear_model_it_finds_the_best_ridge_of_the_grid():
    task = ridge_task()
    start, train, validation = task
    weights = (0.01, 0.1, 1, 3)
    tuned = tune_weight(
        start, *train, loss="squared_error", weights=weights, powers=(2,),
        optimizer=rules.SGD(0.1), epochs=400, validation=validation, n_repeats=1,
    )  # fmt: skip
    exact = {weight: ridge_loss(weight, *task) for weight in (0, *weights)}
    assert tuned.weight == min(exact, key=exact.get)
    assert exact[tuned.weight] < 0.7 * exact[0]
    for row in tuned.table:
        # Errors shrink by 1 - 2 * 0.1 * weight an epoch: below 1e-19 at epoch 200.
        if row["weight"] >= 1:
            assert -row["score"] == pytest.approx(exact[row["weight"]], rel=1e-6)


def test_where_every_penalty_hurts_the_weight_is_0_and_it_says_so():
    start, train, validation = ridge_task(d=4, n=60, noise=0.0)
    with pytest.warns(UserWarning, match="no penalty beat weight 0"):
        tuned = tune_weight(
            start, *train, loss="squared_error", weights=(0.001, 0.1), powers=(1, 2),
            optimizer=rules.SGD(0.1), epochs=200, validation=validation,
        )  # fmt: skip
    assert tuned.weight == 0
    assert tuned.penalty().weight == 0
    assert all(row["gain"] < 0 for row in tuned.table[1:])


def test_on_unscaled_parity_it_generalises_sooner_than_the_default_and_than_none():
    # Bits of 0 and 10: derivatives are a tenth, their squares a hundredth, and so the
    # default weight a hundred times too small.
    task = sparse_parity(n_parity=2, n_noise=14, n_samples=600, train_fraction=0.25)
    x, x_new = 10 * task.x_train, 10 * task.x_test
    start = mlp([16, 64, 2], generator=source())
    optimizer = rules.AdamW(1e-3)
    tuned = tune_weight(
        start, x, task.y_train, optimizer=optimizer, epochs=300, powers=(2,),
        weights=(0.01, 0.1, 1, 10, 100),
    )  # fmt: skip
    penalties = {
        "none": (0.0, PenaltyForm()),
        "default": (GrokAlign().weight, GrokAlign().form),
        "tuned": (tuned.weight, tuned.form),
    }
    members = [Member(7, optimizer, *each) for each in penalties.values()]
    split = tuning.Halves(x, task.y_train, x_new, task.y_test)
    trained = Ensemble(
        [start] * 3, [split] * 3, members, loss="cross_entropy", epochs=600,
        until=lambda row: row["test_accuracy"] >= 0.95,
    ).train()  # fmt: skip
    epochs = {
        name: run.history.last()["epoch"]
        for name, run in zip(penalties, trained, strict=True)
    }
    # On four seeds: 180 to 240 epochs, 380 to 870 with the default, 410 to never.
    assert not tuned.at_edge
    assert trained[2].stopped == "criterion"
    assert 1.5 * epochs["tuned"] < min(epochs["default"], epochs["none"])


@quiet
def test_a_grid_end_that_diverges_is_marked_and_changes_nothing_else():
    start, train, validation = ridge_task()
    settings = {
        "loss": "squared_error", "powers": (2,), "optimizer": rules.SGD(0.1),
        "epochs": 300, "validation": validation, "n_repeats": 1,
    }  # fmt: skip
    whole = tune_weight(start, *train, weights=(0.01, 0.1, 1, 1e3), **settings)
    short = tune_weight(start, *train, weights=(0.01, 0.1, 1), **settings)
    assert [row["diverged"] for row in whole.table] == [False] * 4 + [True]
    assert whole.epochs == 300
    for ours, theirs in zip(whole.table[:4], short.table, strict=True):
        # Sums over a stack may be rounded differently beside others.
        assert ours["score"] == pytest.approx(theirs["score"], rel=1e-9)


def test_if_all_diverge_it_warns_and_returns_0():
    start, train, _ = ridge_task()
    rule = rules.SGD(1e3)
    with pytest.warns(UserWarning, match="all penalties diverged"):
        tuned = short(start, *train, loss="squared_error", optimizer=rule, epochs=150)
    assert tuned.weight == 0


def test_a_weight_at_the_edge_of_the_grid_is_warned_of():
    start, train, validation = ridge_task()
    with pytest.warns(UserWarning, match=r"0.01, is the largest .* Add 0.1 and 1"):
        tuned = tune_weight(
            start, *train, loss="squared_error", weights=(0.001, 0.01), powers=(2,),
            optimizer=rules.SGD(0.1), epochs=300, validation=validation,
        )  # fmt: skip
    assert tuned.at_edge


# What it leaves alone, and what decides


@quiet
def test_the_model_and_the_global_generator_stay_as_they_are():
    model = mlp([3, 8, 2], generator=source())
    model[1].eval()
    before = copy.deepcopy(model)
    state = torch.get_rng_state()
    short(model)
    assert torch.equal(torch.get_rng_state(), state)
    for ours, theirs in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.grad is None
    assert [m.training for m in model.modules()] == [
        m.training for m in before.modules()
    ]


@quiet
def test_every_candidate_starts_at_the_model_as_given():
    tuned = short(powers=(1, 2), n_repeats=2)
    for repeat in range(2):
        rows = [each[repeat].rows()[0] for each in tuned.histories]
        losses = {(row["train_loss"], row["test_loss"]) for row in rows}
        assert len({round(loss, 5) for pair in losses for loss in pair}) == 2


@quiet
def test_the_seed_decides_and_nothing_else():
    first, again, other = (short(seed=seed, batch_size=8) for seed in (3, 3, 4))
    # seconds are all that differs
    assert first.to_frame().equals(again.to_frame())
    assert not first.to_frame().equals(other.to_frame())


@quiet
def test_repeat_by_repeat_or_all_at_once_are_the_same_pilot(monkeypatch):
    together = short(n_repeats=3)
    monkeypatch.setattr(tuning, "_COPIES", 0)
    apart = short(n_repeats=3)
    for ours, theirs in zip(together.table, apart.table, strict=True):
        assert ours["score"] == pytest.approx(theirs["score"], rel=1e-5)  # float32


@quiet
def test_the_control_is_always_there_and_only_once():
    for weights in ((0.1, 0.2), (0.2, 0, 0.1, 0.1)):
        tuned = short(weights=weights, powers=(1, "ratio"))
        found = [(row["weight"], row["power"]) for row in tuned.table]
        penalties = [(w, p) for p in (1, "ratio") for w in (0.1, 0.2)]
        assert found == [(0.0, None), *penalties]


# When it ends


def interrupt(row):
    if row["epoch"] == 2 and row["weight"] == 0 and row["repeat"] == 0:
        signal.raise_signal(signal.SIGINT)


@quiet
@pytest.mark.parametrize(
    ("settings", "stopped"),
    [
        ({"time_limit_s": 0.2}, "time limit"),
        ({"callback": lambda row: row["epoch"] >= 3}, "callback"),
        ({"callback": interrupt}, "interrupted"),
    ],
)
def test_a_pilot_that_ends_early_compares_equally_long_runs(settings, stopped):
    tuned = short(powers=(1, 2), epochs=100_000, **settings)
    assert tuned.stopped == stopped
    assert f"ended by {stopped}" in repr(tuned)
    lengths = {each["epoch"][-1] for runs in tuned.histories for each in runs}
    assert lengths == {tuned.epochs}
    assert tuned.epochs < 100_000


def test_a_time_limit_below_one_epoch_gives_0_with_a_warning():
    with pytest.warns(UserWarning, match="ended before its first epoch"):
        assert short(time_limit_s=0.0).epochs == 0


def test_the_best_so_far_is_that_of_a_shorter_pilot():
    start, train, validation = ridge_task()
    settings = {
        "loss": "squared_error", "weights": (0.1, 1, 3), "powers": (2,),
        "optimizer": rules.SGD(0.1), "validation": validation,
    }  # fmt: skip
    tuned = tune_weight(
        start, *train, epochs=100_000, **settings,
        callback=lambda row: row["epoch"] >= 200,
    )  # fmt: skip
    assert 200 <= tuned.epochs < 300
    whole = tune_weight(start, *train, epochs=tuned.epochs, **settings)
    assert tuned.weight == whole.weight > 0


@quiet
def test_the_callback_sees_every_row_by_its_name():
    rows = []
    short(callback=rows.append, n_repeats=2)
    assert {(row["weight"], row["power"], row["repeat"]) for row in rows} == {
        (w, None if w == 0 else 2, r) for w in (0, 0.01, 0.1) for r in (0, 1)
    }
    assert {row["epoch"] for row in rows} == {0, 1, 2, 3, 4}
    assert "validation_accuracy" in rows[0]


# Data


@quiet
def test_classes_of_one_sample_are_trained_on():
    x = torch.randn(5, 3, generator=source())
    tuned = short(mlp([3, 8, 3], generator=source()), x, torch.tensor([0, 0, 1, 1, 2]))
    assert all(0 <= row["validation_accuracy"] <= 1 for row in tuned.table)


@quiet
def test_models_of_tokens_are_tuned_from_their_embedding():
    model = TokenModel()
    tokens = torch.randint(7, (12, 4), generator=source())
    form = PenaltyForm(at="embed")
    tuned = short(model, tokens, torch.arange(12) % 5, form=form)
    penalty = tuned.penalty()
    assert penalty.form.at == "embed"
    assert penalty(model, tokens)[0].shape == (12, 5)


@quiet
def test_a_loss_of_ones_own_is_used():
    def loss(output, target):
        return nn.functional.cross_entropy(output, target, label_smoothing=0.1)

    own, plain = short(loss=loss), short()
    assert own.table[0]["score"] != plain.table[0]["score"]


def test_recurrent_models_are_refused_with_what_to_do():
    x, y = torch.randn(12, 5, 6, generator=source()), torch.arange(12) % 3
    text = "^tune_weight: model must be without RNN, .* Choose the weight by hand"
    with pytest.raises(ValueError, match=text):
        short(Recurrent(nn.GRU), x, y)


def logistic(output, target):
    return nn.functional.binary_cross_entropy_with_logits(output[:, 0], target)


@quiet
@pytest.mark.parametrize("loss", [logistic, "squared_error"])
def test_zeros_and_ones_are_judged_by_accuracy(loss):
    x, y = blobs()
    model = mlp([3, 8, 1], generator=source())
    optimizer = rules.AdamW(0.05)
    tuned = short(model, x, y.float(), loss=loss, optimizer=optimizer, epochs=60)
    assert tuned.measure == "accuracy"
    # Half the targets are zeros: if they were counted as wrong, it could not be more.
    assert tuned.table[0]["train_accuracy"] > 0.8


@quiet
def test_validation_targets_that_are_no_classes_are_judged_by_loss():
    x, y = blobs()
    signs = 2.0 * y - 1
    validation = (x, signs + 0.1)
    tuned = short(
        mlp([3, 1], generator=source()), x, signs, loss="squared_error",
        validation=validation,
    )  # fmt: skip
    assert tuned.measure == "loss"


@quiet
def test_a_compiled_model_is_tuned_as_what_it_was_made_of():
    model = mlp([3, 8, 2], generator=source())
    compiled, plain = short(torch.compile(model, backend="eager")), short(model)
    assert compiled.to_frame().equals(plain.to_frame())


# The result


@quiet
def test_the_penalty_is_the_one_that_was_found():
    tuned = short(form=PenaltyForm(n_probes=2, offset=False))
    found = tuned.penalty(generator=source())
    assert (found.weight, found.form) == (tuned.weight, tuned.form)
    assert found.form.n_probes == 2
    assert found.generator is not None


@quiet
def test_the_table_is_shown_with_a_mark_at_the_choice():
    tuned = short()
    lines = repr(tuned).splitlines()
    assert lines[0].startswith(f"TunedWeight(weight={tuned.weight:g}, power=")
    marked = [line for line in lines if line.startswith("* ")]
    assert len(marked) == 1
    assert marked[0].split()[1] == f"{tuned.weight:.3g}"
    assert len(tuned.to_frame()) == len(tuned.table) == 3


# The optimizer


@quiet
@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (
            lambda p: torch.optim.SGD(p, 0.2, momentum=0.9, weight_decay=0.1),
            rules.SGD(0.2, momentum=0.9, weight_decay=0.1),
        ),
        (
            lambda p: torch.optim.AdamW(p, 0.01, (0.8, 0.99), 1e-6, 0.5),
            rules.AdamW(0.01, 0.8, 0.99, 1e-6, 0.5),
        ),
        (lambda p: torch.optim.Adam(p, 0.01), rules.AdamW(0.01, weight_decay=0.0)),
        (
            lambda p: torch.optim.SGD([{"params": [q]} for q in p], 0.2),
            rules.SGD(0.2),
        ),
    ],
)
def test_an_optimizer_of_torch_is_read_and_not_used(make, rule):
    model = mlp([3, 8, 2], generator=source())
    optimizer = make(list(model.parameters()))
    theirs, ours = short(model, optimizer=optimizer), short(model, optimizer=rule)
    assert theirs.to_frame().equals(ours.to_frame())
    assert len(optimizer.state) == 0


def with_filter(p):
    optimizer = torch.optim.SGD(p, 0.1)
    Grokfast(optimizer)
    return optimizer


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (torch.optim.RMSprop, TypeError, "optimizer must be an SGD, AdamW or Adam of"),
        (
            lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
            ValueError, "must be one without nesterov, got nesterov=True. Give the",
        ),
        (
            lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1),
            ValueError, "decoupled weight decay, got Adam, which adds",
        ),
        (
            lambda p: torch.optim.SGD([{"params": p[:2], "lr": 1}, {"params": p[2:]}]),
            ValueError, "of the same settings for all parameters",
        ),
        (lambda p: torch.optim.SGD(p[:2], 0.1), ValueError, "parameters of the model"),
        (with_filter, ValueError, "without step hooks"),
    ],
)  # fmt: skip
def test_optimizers_that_an_ensemble_does_not_have_are_refused(make, error, text):
    model = mlp([3, 8, 2])
    with pytest.raises(error, match=f"tune_weight: .*{text}"):
        short(model, optimizer=make(list(model.parameters())))


# What it refuses


def frozen():
    model = mlp([3, 8, 2])
    model[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (
            nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)),
            r"Dropout '1' in training mode. Call .eval\(\) on .* weight by hand.$",
        ),
        (
            nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)),
            r"BatchNorm1d '1' in training mode. Call .eval\(\) on .* weight by hand.$",
        ),
        (frozen(), "a frozen '0.weight'"),
    ],
)
def test_what_the_engine_refuses_is_refused_in_this_name(model, text):
    with pytest.raises(ValueError, match=f"^tune_weight: model must be .*{text}"):
        short(model)


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"weights": ()}, ValueError, "weights must be non-empty"),
        ({"weights": (0.1, -1)}, ValueError, "weights must be at least 0 and finite"),
        ({"weights": 0.1}, TypeError, "weights must be a sequence"),
        ({"weights": ("1",)}, TypeError, "weights must be a number"),
        ({"powers": (3,)}, ValueError, "power must be one of 1, 2, 'ratio', got 3"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"n_repeats": 1.5}, TypeError, "n_repeats must be an integer"),
        ({"validation_fraction": 1}, ValueError, "fraction must be between 0 and 1"),
        ({"validation": 3}, TypeError, r"validation must be a pair \(x, y\)"),
        ({"validation": blobs()[::-1]}, ValueError, r"as x, of shape \(m, 3\)"),
        ({"loss": "huber"}, ValueError, "loss must be 'cross_entropy' or"),
        ({"form": "output"}, TypeError, "form must be a PenaltyForm"),
        ({"model": lambda x: x}, TypeError, "model must be a module"),
        ({"seed": 2**64}, ValueError, r"seed must be below 2\*\*64"),
        ({"callback": 3}, TypeError, "callback must be a function, got 3"),
        ({"time_limit_s": "1"}, TypeError, "time_limit_s must be a number"),
    ],
)
def test_illegal_arguments_are_refused(changed, error, text):
    with pytest.raises(error, match=f"^tune_weight: .*{text}"):
        short(**changed)


@pytest.mark.parametrize(
    ("x", "y", "error", "text"),
    [
        (torch.ones(4, 3), torch.ones(3), ValueError, r"y must be as long as x \(4"),
        (torch.ones(4, 3), [0, 1, 0, 1], TypeError, "y must be a tensor"),
        (torch.ones(4, 3).long(), torch.zeros(4), TypeError, "x must be a floating"),
        (torch.ones(4, 3), torch.rand(4), ValueError, "y must be class numbers"),
        (torch.ones(4, 3), torch.arange(4) // 2 * 3, ValueError, "numbers from 0 to 1"),
        (torch.ones(2, 3), torch.arange(2), ValueError, r"Give validation=\(x, y\)"),
    ],
)
def test_data_that_do_not_fit_are_refused(x, y, error, text):
    with pytest.raises(error, match=f"^tune_weight: .*{text}"):
        short(mlp([3, 8, 2]), x, y)


EPOCHS = [0, 1, 2, 3, 4]


def history(loss, accuracy=0.5, *, train_loss=0.0, epochs=EPOCHS):
    """A curve that is flat from epoch 1 on."""
    later = len(epochs) - 1
    return History(
        {
            "epoch": list(epochs),
            "train_loss": [1.0] + [train_loss] * later,
            "train_accuracy": [0.5] + [1.0] * later,
            "test_loss": [3.0] + [loss] * later,
            "test_accuracy": [0.5] + [accuracy] * later,
        }
    )


def course(weight, *histories):
    return Course(Candidate(weight, PenaltyForm()), list(histories))


def judged(*courses, n_held=100, chance=0.5):
    return tuning_result(
        courses, n_held=n_held, chance=chance, stopped="epochs", seconds=0.0
    )


def test_of_equally_accurate_candidates_the_lowest_loss_wins():
    tuned = judged(
        course(0, history(0.9, 0.90), history(0.8, 0.90)),
        course(0.1, history(0.5, 0.91), history(0.4, 0.91)),
        course(1, history(0.4, 0.90), history(0.3, 0.90)),  # within one standard error
        course(10, history(0.6, 0.92), history(0.5, 0.92)),
    )
    assert tuned.weight == 1
    assert tuned.table[2]["gain"] == pytest.approx(0.5)
    assert not tuned.at_edge
    assert tuned.remarks == []


def test_a_low_loss_does_not_make_up_for_a_low_accuracy():
    tuned = judged(
        course(0, history(2.0, 0.9), history(2.0, 0.9)),
        course(0.1, history(1.5, 0.9), history(1.4, 0.9)),
        course(1, history(0.6, 0.6), history(0.6, 0.6)),  # merely less sure
        course(10, history(0.7, 0.5), history(0.7, 0.5)),
    )
    assert tuned.weight == 0.1


def test_accuracy_beyond_the_standard_error_beats_a_better_loss():
    tuned = judged(
        course(0, history(0.5, 0.7), history(0.5, 0.7)),
        course(0.1, history(0.6, 0.9), history(0.6, 0.9)),
        course(1, history(0.7, 0.7), history(0.7, 0.7)),
    )
    assert tuned.weight == 0.1


def test_a_gain_smaller_than_its_spread_is_none():
    tuned = judged(
        course(0, history(0.5, 0.9), history(0.5, 0.9)),
        course(0.1, history(0.1, 0.9), history(0.8, 0.9)),  # -0.4 and +0.3
        course(1, history(0.6, 0.9), history(0.6, 0.9)),
    )
    assert tuned.weight == 0
    assert "no penalty beat weight 0" in tuned.remarks[0]
    assert "weight 0.1 with power 2, lowered the loss by 0.05" in tuned.remarks[0]


def test_a_penalty_that_only_hurts_has_raised_the_loss():
    tuned = judged(
        course(0, history(0.5, 0.9), history(0.5, 0.9)),
        course(0.1, history(0.6, 0.9), history(0.7, 0.9)),
    )
    assert tuned.weight == 0
    assert "with power 2, raised the loss by 0.15" in tuned.remarks[0]


@pytest.mark.parametrize(
    "form", [PenaltyForm(power=1, released=True), PenaltyForm(std=0.1, n_probes=3)]
)
def test_the_penalty_has_the_whole_form(form):
    found = [
        Course(Candidate(weight, form), [history(loss, 0.9)])
        for weight, loss in ((0.0, 0.5), (0.1, 0.1))
    ]
    tuned = judged(*found)
    penalty = tuned.penalty()
    assert (penalty.form, penalty.weight) == (form, 0.1)
    assert tuned.penalty(weight=3.0).weight == 3.0


def test_gains_are_compared_within_a_repeat():
    # The repeats differ by far more than the candidates, and always in one direction.
    tuned = judged(
        course(0, history(0.5), history(2.5)),
        course(0.1, history(0.4), history(2.3)),
        course(1, history(0.6), history(2.6)),
        chance=None,
    )
    assert tuned.table[1]["spread"] > 10 * tuned.table[1]["gain_spread"]
    assert tuned.weight == 0.1
    assert tuned.at_edge  # 0.1 is the smallest


def test_nothing_is_chosen_where_nothing_predicts_better_than_chance():
    tuned = judged(
        course(0, history(9.0, 0.49)),
        course(0.1, history(0.7, 0.52)),
        course(1, history(0.7, 0.50)),
    )
    assert tuned.weight == 0
    assert "better than chance" in tuned.remarks[0]


def test_diverged_candidates_are_last_and_never_chosen():
    tuned = judged(
        course(0, history(0.5), history(0.5)),
        course(0.1, history(0.4), history(0.4)),
        course(1, history(0.1), history(0.1, train_loss=math.inf)),
        course(10, history(math.nan), history(0.1)),
        chance=None,
    )
    assert tuned.weight == 0.1
    assert [row["diverged"] for row in tuned.table] == [False, False, True, True]
    assert tuned.table[2]["score"] == -math.inf
    assert repr(tuned).count("diverged") == 2


def test_a_control_that_diverged_is_beaten_by_all_others():
    tuned = judged(
        course(0, history(math.nan, train_loss=math.nan)),
        course(0.1, history(0.5)),
        course(1, history(0.4)),
        course(10, history(0.6)),
        chance=None,
    )
    assert tuned.weight == 1


def test_where_all_diverged_the_weight_is_0_and_the_remedy_is_said():
    nan = history(math.nan, train_loss=math.nan)
    tuned = judged(course(0, nan), course(1, nan))
    assert tuned.weight == 0
    assert tuned.remarks == [
        "tune_weight: all penalties diverged, so the weight is 0. Lower the learning "
        "rate or the weights."
    ]


@pytest.mark.parametrize(
    ("best", "text"),
    [
        (0.1, "is the smallest of the grid, .* Add 0.001 and 0.01 to weights"),
        (10.0, "is the largest of the grid, .* Add 100 and 1000 to weights"),
    ],
)
def test_the_edge_of_the_grid_is_told_with_the_remedy(best, text):
    import re

    tuned = judged(
        course(0, history(0.5)),
        *(course(w, history(0.3 if w == best else 0.4)) for w in (0.1, 1.0, 10.0)),
        chance=None,
    )
    assert tuned.at_edge
    assert re.search(text, tuned.remarks[0])


def test_epochs_after_the_common_horizon_do_not_count():
    late = history(0.3, epochs=[0, 1, 2])
    early = history(0.4, epochs=EPOCHS)
    early.columns["test_loss"][3:] = [0.0, 0.0]  # would win, had the others gone on
    tuned = judged(
        course(0, history(0.5)), course(0.1, late), course(1, early), chance=None
    )
    assert tuned.epochs == 2
    assert tuned.weight == 0.1


def test_epochs_to_the_threshold_are_means_over_repeats():
    fast, slow = history(0.1, 0.9), history(0.1, 0.9)
    slow.columns["test_accuracy"][1:4] = [0.6, 0.8, 0.9]
    never = history(0.1, 0.6)
    tuned = judged(course(0, fast, slow), course(1, fast, never))
    assert tuned.threshold == pytest.approx(0.5 + 0.9 * 0.4)
    assert tuned.table[0]["epochs"] == (1 + 3) / 2
    assert math.isnan(tuned.table[1]["epochs"])


def test_the_late_mean_is_the_integral_over_uneven_epochs():
    columns = {"epoch": [0, 5, 10, 12, 20], "v": [7.0, 7.0, 1.0, 1.0, 5.0]}
    # 1 for two epochs, then 3 on average for eight.
    assert late_mean(History(columns), "v", 20) == pytest.approx((2 + 24) / 10)
    assert late_mean(History(columns), "v", 0) == 7.0


def generator_of(seed=0):
    return torch.Generator().manual_seed(seed)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 100),
)
def test_every_class_gives_its_share_and_keeps_a_sample(sizes, fraction, seed):
    classes = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    classes = classes[torch.randperm(len(classes), generator=generator_of(seed))]
    held = hold_out(classes, fraction, generator=generator_of(seed))
    counts = [int(held[classes == c].sum()) for c in range(len(sizes))]
    wanted = min(max(1, round(fraction * sum(sizes))), sum(sizes) - len(sizes))
    assert sum(counts) == wanted
    for count, size in zip(counts, sizes, strict=True):
        assert count <= size - 1
        # Rounding moves a share by less than one; more only where others are spent.
        assert count >= min(int(size * wanted / sum(sizes)), size - 1)


def test_a_draw_is_that_of_its_generator():
    classes = torch.arange(60) % 3
    first, again, other = (
        hold_out(classes, 0.3, generator=generator_of(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_classes_of_one_sample_are_left_alone():
    assert not hold_out(torch.arange(5), 0.5, generator=generator_of()).any()


def test_halves_hold_every_sample_once_with_its_target():
    x, y = torch.arange(10.0)[:, None], torch.arange(10)
    halves = Halves.of(x, y, hold_out(y % 2, 0.4, generator=generator_of()))
    assert (len(halves.x_train), len(halves.x_test)) == (6, 4)
    everything = torch.cat([halves.y_train, halves.y_test])
    assert torch.equal(everything.sort().values, y)
    assert torch.equal(halves.x_test[:, 0].long(), halves.y_test)


@pytest.mark.parametrize(
    ("target", "k", "expected"),
    [
        (torch.tensor([2, 0]), 3, [2, 0]),
        (torch.tensor([[0.0, 1.0], [1.0, 0.0]]), 2, [1, 0]),
        (torch.tensor([[-1.0], [1.0]]), 1, [0, 1]),
        (torch.tensor([-1, 1]), 1, [0, 1]),
        (torch.tensor([[0.5, 0.5], [1.0, 0.0]]), 2, None),
        (torch.tensor([[1.0, 0.0]]), 3, None),
        (torch.tensor([0.0, 1.0]), 1, [0, 1]),
        (torch.tensor([[1], [0]]), 1, [1, 0]),
        (torch.tensor([0.0, 1.0, -1.0]), 1, None),
        (torch.tensor([[0, 1], [1, 0]]), 2, [1, 0]),
        (torch.tensor([[0, 1], [1, 1]]), 2, None),
        (torch.tensor([1.5, -2.0]), 1, None),
    ],
)
def test_classes_are_what_an_accuracy_can_count(target, k, expected):
    found = class_numbers(target, k)
    assert (None if found is None else found.tolist()) == expected
