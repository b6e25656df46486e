"""The attacker, the perturbed weights and the average, each against its formula."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from normalign.nn import WideResNet
from normalign.robustness import pgd
from normalign_reproduction.robust import attack, evaluate
from normalign_reproduction.robust.attack import (
    FrozenCopy,
    InnerAttack,
    perturbed_weights,
)
from normalign_reproduction.robust.draws import PADDING, Draws
from normalign_reproduction.robust.recipe import Recipe
from normalign_reproduction.robust.step import Captured
from normalign_reproduction.robust.trainer import AveragedWeights


@pytest.fixture
def network():
    made = WideResNet(10, 1, n_channels=1, generator=torch.Generator().manual_seed(0))
    # Statistics unlike the initial ones, or evaluation would normalise nothing.
    made.train()(torch.rand(32, 1, 8, 8, generator=torch.Generator().manual_seed(1)))
    return made


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(2)
    return torch.rand(6, 1, 8, 8, generator=generator), torch.arange(6)


def attacker(network, **settings):
    recipe = Recipe(**settings)
    frozen = FrozenCopy(network, precision=recipe.precision)
    return InnerAttack(frozen, recipe)


def test_from_the_center_it_is_the_attack_of_the_robustness_folder(network, batch):
    x, y = batch
    attack = attacker(network, objective="pgd", n_steps=5)
    lengths = torch.tensor(8 / 255), torch.tensor(2 / 255)
    (found,) = attack(x, y, torch.zeros_like(x), *lengths)
    peer = pgd(
        network.eval(), x, y, radii=[8 / 255], n_steps=5, step_size=0.25,
        start="center", low=0.0, high=1.0,
    )  # fmt: skip
    torch.testing.assert_close(found, peer.points[0], rtol=0, atol=1e-6)


def test_the_attack_stays_in_the_ball_and_raises_the_loss(network, batch):
    x, y = batch
    attack = attacker(network, objective="pgd")
    radius = torch.tensor(8 / 255)
    (found,) = attack(x, y, torch.zeros_like(x), radius, torch.tensor(2 / 255))
    assert float((found - x).abs().max()) <= 8 / 255 + 1e-6
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    network.eval()
    before, after = (F.cross_entropy(network(z), y) for z in (x, found))
    assert after > before


def test_the_attack_leaves_the_network_alone_and_follows_its_weights(network, batch):
    x, y = batch
    attack = attacker(network, objective="pgd")
    before = copy.deepcopy(network.state_dict())
    lengths = torch.tensor(8 / 255), torch.tensor(2 / 255)
    (first,) = attack(x, y, torch.zeros_like(x), *lengths)
    assert network.training
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    with torch.no_grad():
        network.fc.weight.neg_()
    (second,) = attack(x, y, torch.zeros_like(x), *lengths)
    assert not torch.equal(first, second)


def test_a_copy_in_bfloat16_normalises_in_float32(network, batch):
    x, _ = batch
    frozen = FrozenCopy(network, precision="bf16")
    kinds = {
        type(module).__name__: part.dtype
        for module in frozen.module.modules()
        for part in module.parameters(recurse=False)
    }
    assert kinds["Conv2d"] == kinds["Linear"] == torch.bfloat16
    assert kinds["BatchNorm2d"] == torch.float32
    exact = network.eval()(x)
    assert frozen(x).dtype == torch.float32
    # Eight bits of mantissa through some ten layers.
    torch.testing.assert_close(frozen(x), exact, rtol=0.1, atol=0.1)


def test_perturbed_weights_go_uphill_by_their_share_and_come_back(network, batch):
    x, y = batch
    network.train()
    before = copy.deepcopy(network.state_dict())

    def loss():
        return F.cross_entropy(network(x), y)

    slopes = dict(
        zip(
            [name for name, _ in network.named_parameters()],
            torch.autograd.grad(loss(), list(network.parameters())),
            strict=True,
        )
    )
    network.load_state_dict(before)
    with perturbed_weights(network, loss, strength=0.01):
        for name, value in network.named_parameters():
            slope, old = slopes[name], before[name]
            expected = old
            if value.ndim > 1:
                expected = old + 0.01 * old.norm() * slope / slope.norm()
            torch.testing.assert_close(value.detach(), expected)
        for name, value in network.named_buffers():
            assert torch.equal(value, before[name])
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_average_is_the_sum_with_geometric_weights():
    layer = nn.BatchNorm1d(3)
    average = AveragedWeights(layer, decay=0.9)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, 3, generator=generator)
    for i, value in enumerate(values):
        with torch.no_grad():
            layer.weight.copy_(value)
            layer.running_mean.copy_(2 * value)
            layer.num_batches_tracked += 1
        average.follow() if i else average.take_over()
    weights = torch.tensor([0.9**4, *(0.1 * 0.9 ** (4 - i) for i in range(1, 5))])
    expected = (weights[:, None] * values).sum(0)
    torch.testing.assert_close(average.module.weight.detach(), expected)
    torch.testing.assert_close(average.module.running_mean, 2 * expected)
    assert int(average.module.num_batches_tracked) == 5
    assert not average.module.weight.requires_grad


def test_draws_depend_on_seed_and_step_alone():
    x = torch.rand(50, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    device = torch.device("cpu")
    one, same, other = (Draws(Recipe(), seed=seed, device=device) for seed in (1, 1, 2))
    assert torch.equal(one.images(x, 7), same.images(x, 7))
    assert not torch.equal(one.images(x, 7), one.images(x, 8))
    assert not torch.equal(one.images(x, 7), other.images(x, 7))
    assert sorted(one.order(3, 50).tolist()) == list(range(50))
    assert one.order(3, 50).tolist() != one.order(4, 50).tolist()


def test_every_shift_and_both_sides_are_drawn():
    x = torch.zeros(4000, 1, 9, 9)
    x[:, :, 4, 4] = 1  # one bright pixel, which a shift of four keeps inside
    moved = Draws(Recipe(), seed=0, device=torch.device("cpu")).images(x, 0)
    rows, columns = moved.sum((1, 3)).argmax(1), moved.sum((1, 2)).argmax(1)
    assert set(rows.tolist()) == set(columns.tolist()) == set(range(2 * PADDING + 1))
    # 4000 draws of nine equal chances: 444 with a deviation of 20.
    assert torch.bincount(rows).min() > 444 - 5 * 20


def test_the_start_of_pgd_fills_the_ball_and_that_of_a_divergence_is_small():
    x, device = torch.zeros(10, 3, 8, 8), torch.device("cpu")
    wide = Draws(Recipe("pgd"), seed=0, device=device).starts(x, 0, 0.5)
    assert 0.45 < float(wide.max()) <= 0.5
    assert -0.5 <= float(wide.min()) < -0.45
    near = Draws(Recipe("dkl"), seed=0, device=device).starts(x, 0, 0.5)
    # 1920 draws: the deviation is known to 2 %.
    assert float(near.std()) == pytest.approx(0.001, rel=0.1)


def test_on_a_cpu_a_captured_function_is_the_function():
    seen = []
    captured = Captured(lambda x: seen.append(1) or [2 * x], [torch.ones(2)])
    assert captured(torch.full((2,), 3.0))[0].tolist() == [6.0, 6.0]
    assert len(seen) == 1


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_an_evaluation_is_the_attack_that_it_says(
    network, batch, precision, monkeypatch
):
    x, y = batch
    heard = {}

    def listening(model, x, y, *, generator, **settings):
        heard.update(settings, seed=generator.initial_seed(), mode=model.training)
        heard["low precision"] = torch.is_autocast_enabled("cpu")
        return pgd(model, x, y, generator=generator, **settings)

    monkeypatch.setattr(attack, "pgd", listening)
    network.train()
    settings = {"radius": 0.1, "n_steps": 3, "n_restarts": 2, "seed": 5}
    found = evaluate(network, x, y, **settings, precision=precision)
    assert heard == {
        "radii": [0.1], "n_steps": 3, "n_restarts": 2, "keep": "best", "low": 0.0,
        "high": 1.0, "seed": 5, "mode": False, "low precision": precision == "bf16",
    }  # fmt: skip
    assert network.training
    assert found.keys() == {"accuracy", "robust_accuracy"}


def test_an_evaluation_in_another_precision_is_refused(network, batch):
    with pytest.raises(ValueError, match="evaluate: precision must be one of"):
        evaluate(network, *batch, radius=0.1, precision="fp16")


def test_about_half_of_the_images_are_flipped():
    x = torch.zeros(2000, 1, 20, 20)
    x[..., 5] = 1  # a column to the left, where every shift leaves it
    moved = Draws(Recipe(), seed=0, device=torch.device("cpu")).images(x, 0)
    right = int((moved[..., 10:].sum((1, 2, 3)) > 0).sum())
    # 2000 even chances: 1000 with a deviation of 22.
    assert abs(right - 1000) < 5 * 23
