"""Attacks on images and weights: formulas, and other implementations."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from normalign.nn import WideResNet, resnet18
from normalign.robustness import masking_report, pgd
from normalign_reproduction.robust import Recipe, RobustTrainer, _attack, evaluate
from normalign_reproduction.robust._attack import (
    FrozenCopy,
    attack_images,
    perturbed_weights,
)

N_CLASSES, SHAPE = 4, (3, 8, 8)
RADIUS, N_STEPS, SHARE = 0.01, 10, 0.25


def images(n, seed):
    """Four patterns in noise, in [0, 1]."""
    generator = torch.Generator().manual_seed(99)
    pattern = torch.rand(N_CLASSES, *SHAPE, generator=generator)
    y = torch.arange(n) % N_CLASSES
    noise = torch.rand(n, *SHAPE, generator=generator.manual_seed(seed))
    return 0.35 * pattern[y] + 0.65 * noise, y


def convolutional(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 12, 3),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, N_CLASSES),
    )


@pytest.fixture
def network():
    made = WideResNet(10, 1, n_classes=4, generator=torch.Generator().manual_seed(0))
    # Statistics unlike the initial ones, which would normalise nothing.
    made.train()(images(32, 1)[0])
    return made


@pytest.fixture(scope="module", params=["residual", "wide"])
def trained(request):
    """A network with small margins: elsewhere other gradients round to zero."""
    generator = torch.Generator().manual_seed(0)
    if request.param == "wide":
        network = WideResNet(10, 1, n_classes=N_CLASSES, generator=generator)
    else:
        network = resnet18(N_CLASSES, width=4, generator=generator)
    x, y = images(96, seed=0)
    optimizer = torch.optim.SGD(network.parameters(), 0.05, momentum=0.9)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(network(x), y, label_smoothing=0.2).backward()
        optimizer.step()
    return network.eval().requires_grad_(False), *images(64, seed=1)


def attack_in_training(network, x, y, start=None):
    recipe = Recipe("pgd", n_steps=N_STEPS)
    frozen = FrozenCopy(network, precision="float32")
    start = torch.zeros_like(x) if start is None else start
    lengths = {"radius": RADIUS, "step_size": SHARE * RADIUS}
    lengths = {name: torch.tensor(value) for name, value in lengths.items()}
    return attack_images(frozen, recipe, x, y, start=start, **lengths)


def attack_by_pgd(network, x, y, **options):
    return pgd(
        network, x, y, radii=RADIUS, n_steps=N_STEPS, step_size=SHARE, low=0.0,
        high=1.0, **{"start": "center"} | options,
    )  # fmt: skip


def share_apart(ours, theirs):
    """The share of pixels that end elsewhere, by more than float32 rounds."""
    return float(((ours - theirs).abs() > 1e-5).double().mean())


# A gradient that is zero up to rounding has either sign and moves its pixel the other
# way: a few in ten thousand, and on some processors one in a thousand.
FLIPPED = 3e-3


def test_the_attack_of_training_takes_the_steps_of_pgd(trained):
    network, x, y = trained
    found = attack_in_training(network, x, y)
    assert share_apart(found, attack_by_pgd(network, x, y).points[0]) <= FLIPPED
    assert float((found - x).abs().max()) == pytest.approx(RADIUS, rel=1e-5)
    # From a random start, which the other attack returns after no steps.
    start = {"start": "uniform", "generator": torch.Generator().manual_seed(3)}
    attack = pgd(network, x, y, radii=RADIUS, n_steps=0, **start)
    offsets = attack.points[0] - x
    start["generator"].manual_seed(3)
    attack = attack_by_pgd(network, x, y, **start)
    found = attack_in_training(network, x, y, start=offsets)
    right = attack.clean  # where it is wrong the attack keeps x itself
    assert share_apart(found[right], attack.points[0][right]) <= FLIPPED


def test_attacks_leave_the_network_unchanged_and_follow_its_weights(network):
    x, y = images(16, seed=2)
    recipe, frozen = Recipe("pgd", n_steps=2), FrozenCopy(network, precision="float32")
    options = {"start": torch.zeros_like(x)}
    options |= dict.fromkeys(("radius", "step_size"), torch.tensor(0.03))
    before = copy.deepcopy(network.state_dict())
    first = attack_images(frozen, recipe, x, y, **options)
    evaluate(network, x, y, radius=RADIUS, n_steps=2)
    assert network.training
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    with torch.no_grad():
        network.fc.weight.neg_()
    frozen.refresh()
    assert not torch.equal(attack_images(frozen, recipe, x, y, **options), first)


def test_a_copy_in_bfloat16_normalises_in_float32(network):
    x = images(6, seed=2)[0]
    frozen = FrozenCopy(network, precision="bf16")
    dtypes = {
        type(module).__name__: parameter.dtype
        for module in frozen.module.modules()
        for parameter in module.parameters(recurse=False)
    }
    assert dtypes["Conv2d"] == dtypes["Linear"] == torch.bfloat16
    assert dtypes["BatchNorm2d"] == torch.float32
    assert frozen(x).dtype == torch.float32
    # Eight bits of mantissa through ten layers.
    torch.testing.assert_close(frozen(x), network.eval()(x), rtol=0.1, atol=0.1)


def test_perturbed_weights_go_uphill_by_their_share_and_come_back(network):
    x, y = images(6, seed=2)
    before = copy.deepcopy(network.state_dict())

    def loss():
        return F.cross_entropy(network(x), y)

    names = [name for name, _ in network.named_parameters()]
    gradients = torch.autograd.grad(loss(), list(network.parameters()))
    network.load_state_dict(before)
    expected = dict(before)
    for name, gradient in zip(names, gradients, strict=True):
        if gradient.ndim > 1:
            length = 0.01 * before[name].norm() / gradient.norm()
            expected[name] = before[name] + length * gradient
    with perturbed_weights(network, loss, strength=0.01):
        torch.testing.assert_close(dict(network.state_dict()), expected)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_an_evaluation_passes_its_settings_to_the_attack(
    network, precision, monkeypatch
):
    x, y = images(6, seed=2)
    received = {}

    def spy(model, x, y, *, generator, **settings):
        received.update(settings, seed=generator.initial_seed(), mode=model.training)
        received["low precision"] = torch.is_autocast_enabled("cpu")
        return pgd(model, x, y, generator=generator, **settings)

    monkeypatch.setattr(_attack, "pgd", spy)
    settings = {"radius": 0.1, "n_steps": 3, "n_restarts": 2, "seed": 5}
    found = evaluate(network, x, y, **settings, precision=precision)
    assert received == {
        "radii": [0.1], "n_steps": 3, "n_restarts": 2, "keep": "best", "low": 0.0,
        "high": 1.0, "seed": 5, "mode": False, "low precision": precision == "bf16",
    }  # fmt: skip
    assert network.training
    assert found.keys() == {"accuracy", "robust_accuracy"}
    with pytest.raises(ValueError, match="evaluate: precision must be one of"):
        evaluate(network, x, y, radius=0.1, precision="fp16")


@pytest.fixture(scope="module")
def several():
    """Small networks: trained plainly, with the penalty, and against attacks."""
    x, y = images(96, seed=0)
    recipes = {
        "plain": {"objective": "plain", "epochs": 15},
        "grokalign": {"objective": "plain", "epochs": 15, "penalty_weight": 1e-3},
        "pgd": {
            "objective": "pgd", "epochs": 20, "n_steps": 4, "radius": 0.06,
            "step_size": 0.03,
        },
    }  # fmt: skip
    common = {"batch_size": 32, "augment": "none", "averaging": 0.0}
    networks = {}
    for name, settings in recipes.items():
        recipe = Recipe(**common, **settings, learning_rate=0.05)
        trainer = RobustTrainer(convolutional(), x, y, recipe, seed=0, device="cpu")
        trainer.train()
        networks[name] = trainer.network.eval().requires_grad_(False)
    return networks


# Of 64 images, how many twenty steps from one start may miss that a longer attack on
# the same loss breaks, or with another loss as well.
MISSED, MISSED_BY_LOSS = 3, 5


@pytest.mark.parametrize("name", ["plain", "grokalign", "pgd"])
def test_robust_accuracy_is_close_to_that_of_a_longer_attack(several, name):
    network, (x, y) = several[name], images(64, seed=1)
    radii = [level / 255 for level in (4, 8, 12, 18)]
    reported = [evaluate(network, x, y, radius=radius) for radius in radii]
    longer = {"n_steps": 60, "n_restarts": 3, "keep": "best", "low": 0.0, "high": 1.0}
    same_loss, margin = (
        pgd(network, x, y, radii=radii, loss=loss, **longer).broken
        for loss in ("cross_entropy", "margin")
    )
    for missed, broken in ((MISSED, same_loss), (MISSED_BY_LOSS, same_loss | margin)):
        left = (~broken).sum(1).tolist()
        for found, n_left in zip(reported, left, strict=True):
            assert 64 * found["robust_accuracy"] <= n_left + missed
    robust = [found["robust_accuracy"] for found in reported]
    assert max(robust) <= reported[0]["accuracy"]
    assert robust[0] > robust[-1]


def test_training_against_attacks_makes_robust_without_hiding_gradients(several):
    x, y = images(64, seed=1)
    plain, robust = (
        evaluate(several[name], x, y, radius=0.04) for name in ("plain", "pgd")
    )
    assert robust["robust_accuracy"] > plain["robust_accuracy"] + 0.1
    report = masking_report(
        several["pgd"], x, y, radii=[0.02, 0.04], surrogate=several["plain"],
        keep="best", low=0.0, high=1.0,
    )  # fmt: skip
    assert report.passed, report
    # Some images resist, so that there is something that could be hidden.
    assert float(report.attack.robust_accuracy[0]) > 0.3
    assert all(check.passed is not None for check in report.checks)
