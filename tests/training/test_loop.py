from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from normalign.nn.dense import mlp
from normalign.regularizers import augmented_norm
from normalign.training.loop import accuracy, evaluation_mode, is_evaluated, train


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def data():
    source = generator(1)
    x = torch.randn(60, 4, generator=source)
    y = (x[:, 0] > 0).long()
    return SimpleNamespace(x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])


def run(data, model=None, **options):
    model = mlp([4, 16, 2], generator=generator(2)) if model is None else model
    settings = {
        "loss": cross_entropy,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.05),
        "epochs": 5,
        "batch_size": 16,
        "seed": 0,
    }
    return model, train(model, data, **{**settings, **options})


def test_a_separable_task_is_learned(data):
    _, history = run(data, epochs=40)
    assert history["train_accuracy"][-1] == 1.0
    assert history["train_loss"][-1] < history["train_loss"][0] / 5
    assert history["epoch"] == list(range(41))


def test_one_full_batch_step_is_gradient_descent_by_hand(data):
    model = nn.Linear(4, 2).double()
    data = SimpleNamespace(**{
        name: value.double() if value.is_floating_point() else value
        for name, value in vars(data).items()
    })  # fmt: skip
    weight = model.weight.detach().clone().requires_grad_()
    bias = model.bias.detach().clone()
    value = cross_entropy(data.x_train @ weight.T + bias, data.y_train)
    (grad,) = torch.autograd.grad(value, weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run(data, model, optimizer=optimizer, epochs=1, batch_size=100)
    torch.testing.assert_close(model.weight.detach(), (weight - 0.1 * grad).detach())


def test_the_same_seed_gives_the_same_run_and_another_does_not(data):
    (_, a), (_, b), (_, c) = (run(data, seed=seed) for seed in (3, 3, 4))
    assert a.columns == b.columns
    assert a.columns != c.columns


def test_evaluation_and_measuring_do_not_change_the_course(data):
    often, _ = run(data, measure=lambda model: {"extra": 1.0})
    seldom, history = run(data, evaluate=lambda epoch: False)
    for a, b in zip(often.parameters(), seldom.parameters(), strict=True):
        assert torch.equal(a, b)
    assert history["epoch"] == [5]


def test_the_global_generator_is_untouched(data):
    state = torch.get_rng_state()
    run(data)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_penalty_is_added_to_the_loss_and_recorded(data):
    def penalty(model, x):
        output, squared_norm = augmented_norm(model, x, generator=source)
        return output, 0.5 * squared_norm.mean()

    source = generator(5)
    (plain, without), (held, with_it) = run(data), run(data, penalty=penalty)

    def norm(model):
        _, squared = augmented_norm(
            model, data.x_train, n_probes=64, generator=generator(6)
        )
        return float(squared.detach().mean())

    assert norm(held) < norm(plain)
    assert with_it["penalty"][0] == 0.0
    assert all(value > 0 for value in with_it["penalty"][1:])
    assert set(without["penalty"]) == {0.0}


def test_measured_numbers_become_columns_in_eval_mode(data):
    seen = []

    def measure(model):
        seen.append(model.training)
        return {"weight": float(model[0].weight.detach().norm())}

    model, history = run(data, measure=measure)
    assert history["weight"][-1] == float(model[0].weight.detach().norm())
    assert not any(seen)
    assert model.training


def test_the_callback_sees_every_epoch_and_can_end_training(data):
    seen = []

    def callback(epoch, row):
        seen.append((epoch, row is not None))
        return epoch == 3

    _, history = run(data, evaluate=lambda epoch: epoch % 2 == 0, callback=callback)
    assert seen == [(0, True), (1, False), (2, True), (3, False)]
    assert history["epoch"] == [0, 2]


def test_ctrl_c_keeps_what_is_done(data):
    def callback(epoch, row):
        if epoch == 2:
            raise KeyboardInterrupt

    _, history = run(data, callback=callback)
    assert history.interrupted
    assert history["epoch"] == [0, 1, 2]


def test_a_loss_that_is_not_finite_is_refused(data):
    with pytest.raises(ValueError, match="finite on every batch, got nan"):
        run(data, loss=lambda output, y: output.sum() * float("nan"))


@pytest.mark.parametrize("options", [{"epochs": -1}, {"batch_size": 0}])
def test_wrong_arguments_are_named(data, options):
    with pytest.raises(ValueError, match=r"^train: (epochs|batch_size) must be"):
        run(data, **options)


def test_layers_kept_in_eval_mode_stay_there(data):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    model[1].eval()
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model] == [True, False, True]


def test_squared_error_on_one_hot_rows_is_scored_by_the_largest(data):
    hot = SimpleNamespace(
        x_train=data.x_train,
        y_train=torch.eye(2)[data.y_train],
        x_test=data.x_test,
        y_test=torch.eye(2)[data.y_test],
    )
    _, history = run(hot, loss=mse_loss, epochs=40)
    assert history["train_accuracy"][-1] == 1.0


def test_one_output_is_scored_by_its_sign():
    output = torch.tensor([[0.3], [-2.0], [0.1], [-0.1]])
    assert accuracy(output, torch.tensor([1.0, -1.0, -1.0, 1.0])) == 0.5


def test_one_output_against_zeros_and_ones_is_a_logit():
    output = torch.tensor([[0.3], [-2.0], [0.1], [-0.1]])
    for target in (
        torch.tensor([1.0, 0.0, 0.0, 0.0]),
        torch.tensor([[1], [0], [0], [0]]),
    ):
        assert accuracy(output, target) == 0.75


@pytest.mark.parametrize(
    ("output", "target"),
    [
        (torch.eye(2), torch.tensor([[0.9, 0.1], [0.2, 0.8]])),
        (torch.eye(2), torch.tensor([1.0, 2.0])),
        (torch.ones(3, 4), torch.zeros(3, 2).long()),
        (torch.ones(3, 1), torch.tensor([0.5, -1.0, 1.0])),
    ],
)
def test_targets_that_are_not_classes_have_no_accuracy(output, target):
    assert accuracy(output, target).isnan()


def test_the_schedule_is_dense_early_and_thin_later():
    evaluated = [epoch for epoch in range(20_001) if is_evaluated(epoch)]
    assert evaluated[:100] == list(range(100))
    assert evaluated[100:190] == list(range(100, 1000, 10))
    assert evaluated[190:280] == list(range(1000, 10_000, 100))
    assert evaluated[280:] == list(range(10_000, 20_001, 1000))
