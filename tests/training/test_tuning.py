import copy
import signal

import pytest
import torch
from torch import nn

from normalign.data import sparse_parity
from normalign.nn import mlp
from normalign.optim import Grokfast
from normalign.regularizers import GrokAlign, PenaltyForm
from normalign.training import Ensemble, Member, rules, tuning
from normalign.training.tuning import tune_weight
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
