"""Training: the loop of its recipe, interruptions to the bit, and refusals."""

import copy
import math
import signal
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from normalign import layer_profile
from normalign.nn import WideResNet
from normalign_reproduction.robust import (
    Recipe,
    RobustTrainer,
    TrainingDiverged,
    _trainer,
    evaluate,
)
from normalign_reproduction.robust._draws import Draws

pytestmark = pytest.mark.usefixtures("ctrl_c", "time_limit")

CPU = torch.device("cpu")
TINY = {"epochs": 3, "batch_size": 16, "n_steps": 2, "averaged_from": 0.4}
VARIANTS = {
    "dkl": {},
    "released": {"perturbation": 0.005, "perturbed_from": 2, "ramp": True},
    "trades": {"objective": "trades"},
    "pgd": {"objective": "pgd"},
    "penalised": {"objective": "plain", "penalty_weight": 0.01, "penalty_every": 2},
    "bf16": {"precision": "bf16"},
}


def images(n=40, size=8):
    """Bright squares, one place for each of four classes, on noise."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 4
    x = 0.3 * torch.rand(n, 1, size, size, generator=generator)
    for i, c in enumerate(y.tolist()):
        row, column = 4 * (c // 2), 4 * (c % 2)
        x[i, :, row : row + 4, column : column + 4] += 0.6
    return x, y


def wide():
    generator = torch.Generator().manual_seed(3)
    return WideResNet(10, 1, n_classes=4, n_channels=1, generator=generator)


def dense(activation=None, scale=0.2):
    layers = nn.Linear(64, 32), activation or nn.ReLU(), nn.Linear(32, 4)
    network, generator = nn.Sequential(nn.Flatten(), *layers), torch.Generator()
    generator.manual_seed(0)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=scale, generator=generator)
    return network


def trainer_of(network=None, *, data=None, seed=5, **settings):
    recipe = Recipe(**(TINY | settings))
    return RobustTrainer(network or wide(), *(data or images()), recipe, seed=seed)


def same(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(
        torch.equal(one[k], other[k]) for k in one
    )


def apart(one, other):
    """The distance between the weights and statistics of two state dicts."""
    real = [key for key, value in other.items() if value.is_floating_point()]
    return math.sqrt(sum(float((one[k] - other[k]).square().sum()) for k in real))


# what a step does


def attacked(network, x, start, radius, step, n_steps):
    """Signed steps up the divergence from the clean outputs, in evaluation mode."""
    resting = copy.deepcopy(network).eval()
    clean = resting(x).softmax(1).detach()
    z = (x + start).clamp(x - radius, x + radius).clamp(0, 1)
    for _ in range(n_steps):
        z = z.detach().requires_grad_()
        kl = F.kl_div(resting(z).log_softmax(1), clean, reduction="sum")
        (gradient,) = torch.autograd.grad(kl, z)
        z = z.detach() + step * gradient.sign()
        z = torch.min(torch.max(z, x - radius), x + radius).clamp(0, 1)
    return z.detach()


def dkl(adv, nat, weights, soft, square):
    """Pair by pair, as the paper of Cui et al. writes it."""
    gaps = (nat[:, :, None] - nat[:, None]) - (adv[:, :, None] - adv[:, None])
    pairs = weights[:, :, None] * weights[:, None]
    squares = 0.25 * (pairs * gaps**2).sum() / pairs.sum()
    outputs = nat.softmax(1).detach()
    return square * squares - soft * (outputs * adv.log_softmax(1)).sum(1).mean()


def perturbed(network, loss, strength):
    """A copy with moved weights and the statistics of the network."""
    proxy, moved = copy.deepcopy(network), copy.deepcopy(network)
    gradients = torch.autograd.grad(loss(proxy), list(proxy.parameters()))
    with torch.no_grad():
        for weight, gradient in zip(moved.parameters(), gradients, strict=True):
            if weight.ndim > 1:
                weight += strength * weight.norm() * gradient / gradient.norm()
    return moved


ORACLE_RECIPES = {
    "text": Recipe(
        epochs=4, batch_size=8, n_steps=2, averaging=0.9, averaged_from=0.5,
        augment="none", learning_rate=0.02, square_weight=2.0, temperature=3.0,
    ),
    "released": Recipe(
        epochs=3, batch_size=8, n_steps=2, step_size=8 / 255, ramp=True,
        perturbation=0.05, perturbed_from=2, averaging=0.9, averaged_from=0.4,
        learning_rate=0.02,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORACLE_RECIPES)
def test_training_by_dkl_is_a_plain_loop(name):
    recipe, n, k = ORACLE_RECIPES[name], 20, 4  # batches of 8, 8 and 4
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(n, 1, 8, 8, generator=generator), torch.arange(n) % k
    trainer = RobustTrainer(wide(), x, y, recipe, seed=7)
    history = trainer.train(evaluate=lambda epoch: True)
    network, draws = wide().train(), Draws(recipe, seed=7, device=CPU)
    velocity = [torch.zeros_like(p) for p in network.parameters()]
    weights, average, step, losses = torch.full((k, k), 1 / k), {}, 0, []
    for epoch in range(1, recipe.epochs + 1):
        rate = recipe.learning_rate / 2
        rate *= 1 + math.cos(math.pi * epoch / (recipe.epochs + 1))
        share = epoch / recipe.epochs if recipe.ramp else 1
        radius, length = share * recipe.radius, share * recipe.step_size
        sums, total = torch.zeros(k, k), 0.0
        for index in draws.order(epoch, n).split(8):
            a, labels = draws.images(x[index], step), y[index]
            start = draws.starts(a, step, radius)
            z = attacked(network, a, start, radius, length, recipe.n_steps)
            seen = []

            def loss(model, a=a, z=z, labels=labels, weights=weights, seen=seen):
                adv, nat = model(z), model(a)
                seen[:] = [nat]
                return F.cross_entropy(nat, labels) + dkl(
                    adv, nat, weights[labels], recipe.soft_weight, recipe.square_weight
                )

            used = network
            if recipe.perturbation and epoch >= recipe.perturbed_from:
                used = perturbed(network, loss, recipe.perturbation)
            value = loss(used)
            gradients = torch.autograd.grad(value, list(used.parameters()))
            with torch.no_grad():
                for own, moved in zip(network.buffers(), used.buffers(), strict=True):
                    own.copy_(moved)
                for p, v, g in zip(
                    network.parameters(), velocity, gradients, strict=True
                ):
                    v.mul_(0.9).add_(g + 5e-4 * p)
                    p -= rate * v
                sums.index_add_(0, labels, (seen[0] / recipe.temperature).softmax(1))
                now = {key: v.clone() for key, v in network.state_dict().items()}
                began = int(recipe.averaged_from * recipe.epochs)
                if epoch == began:
                    average = now
                elif epoch > began:
                    for key, new in now.items():
                        if new.is_floating_point():
                            average[key] = 0.9 * average[key] + 0.1 * new
            total += float(value.detach()) * len(index)
            step += 1
        weights = sums / sums.sum(1, keepdim=True)
        losses.append(total / n)
    # A gradient that is zero up to rounding has either sign and moves its pixel the
    # other way, which a dozen steps amplify.
    assert history["loss"] == pytest.approx(losses, rel=2e-3)
    assert history["loss"][0] == pytest.approx(losses[0], rel=1e-5)
    torch.testing.assert_close(
        trainer._tables["class_weights"], weights, rtol=0, atol=2e-3
    )
    start = wide().state_dict()
    for found, expected in (
        (trainer.network.state_dict(), network.state_dict()),
        (trainer.averaged.state_dict(), average),
    ):
        assert apart(found, expected) < 0.05 * apart(start, expected)


@pytest.mark.parametrize("penalty_weight", [0.0, 0.05])
def test_plain_training_is_sgd_with_the_penalty_of_the_paper(penalty_weight):
    x, y = images()
    settings = {"augment": "none", "averaging": 0.0, "epochs": 1}
    penalty = {"penalty_weight": penalty_weight, "penalty_every": 2}
    trainer = trainer_of(dense(), objective="plain", **settings, **penalty)
    trainer.train()
    recipe, network = trainer.recipe, dense()
    draws = Draws(recipe, seed=5, device=CPU)
    optimizer = torch.optim.SGD(
        network.parameters(), recipe.rate(1), momentum=0.9, weight_decay=5e-4
    )
    for step, index in enumerate(draws.order(1, 40).split(16)):
        a = x[index].requires_grad_()
        outputs = network(a)
        loss = F.cross_entropy(outputs, y[index])
        if penalty_weight and step % 2 == 0:
            noise = draws.probes(a, 4, step)[0]
            v = noise / noise.norm(dim=1, keepdim=True) * math.sqrt(4)
            (row,) = torch.autograd.grad((outputs * v).sum(), a, create_graph=True)
            offset = (outputs * v).sum(1) - (row * a).sum((1, 2, 3))
            value = row.square().sum((1, 2, 3)) + offset.square()
            loss = loss + penalty_weight * 2 * value.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if not penalty_weight:
        assert same(trainer.network, network)
    for own, other in zip(
        trainer.network.parameters(), network.parameters(), strict=True
    ):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_class_weights_are_the_mean_tempered_probabilities_of_each_class():
    x, y = images()
    trainer = trainer_of(data=(x[y < 3], y[y < 3]), epochs=1)
    trainer.train()
    table = trainer._tables["class_weights"]
    torch.testing.assert_close(table.sum(1), torch.ones(4))
    assert table[3].tolist() == [0.25] * 4  # no image of class 3: its row stays
    assert table[:3].std() > 0


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_passes_have_the_precision_of_the_recipe_and_sums_float32(precision):
    network, seen = wide(), set()
    network.fc.register_forward_hook(
        lambda module, _, out: seen.add(out.dtype) if module.training else None
    )
    trainer = trainer_of(network, epochs=1, precision=precision)
    trainer.train()
    assert seen == {torch.bfloat16 if precision == "bf16" else torch.float32}
    state = [*trainer.network.state_dict().values(), trainer._tables["class_sums"]]
    assert {t.dtype for t in state if t.is_floating_point()} == {torch.float32}


# what training does


def test_adversarial_training_makes_a_network_robust():
    x, y = images(80)
    scores = {}
    for objective in ("plain", "pgd", "trades", "dkl"):
        trainer = trainer_of(
            dense(), data=(x, y), seed=0, objective=objective, epochs=25,
            batch_size=20, radius=0.2, step_size=0.1, n_steps=4, learning_rate=0.05,
            augment="none", soft_weight=1.0, square_weight=1.0,
        )  # fmt: skip
        trainer.train()
        scores[objective] = evaluate(trainer.network, x, y, radius=0.2, n_steps=10)
    plain = scores.pop("plain")
    assert plain["accuracy"] > 0.9
    for found in scores.values():
        assert found["robust_accuracy"] > plain["robust_accuracy"] + 0.2, scores


def mean_row(network):
    return network.fc.weight.detach().double().mean(0)


@pytest.mark.parametrize("name", ["dkl", "released", "trades", "pgd"])
def test_training_never_turns_the_mean_row_of_the_head(name):
    # No loss here depends on what is added to all logits, so the gradient of the mean
    # row is its decay alone: centroids show a network's start, not what it learned.
    trainer = trainer_of(weight_decay=0.1, **VARIANTS[name])
    trainer.train()
    before, after = mean_row(wide()), mean_row(trainer.network)
    shrunk, speed = before.clone(), torch.zeros_like(before)
    for epoch in (1, 2, 3):
        for _ in range(3):
            speed = 0.9 * speed + 0.1 * shrunk
            shrunk = shrunk - trainer.recipe.rate(epoch) * speed
    torch.testing.assert_close(after, shrunk, rtol=1e-4, atol=1e-6)
    assert after.norm() < 0.95 * before.norm()


def test_centroids_change_sign_with_the_mean_row_that_training_began_with():
    # With heads drawn so that a mean row is as likely as its opposite, centroid
    # alignment is 0 on average at every stage, whatever was learned.
    found = []
    for sign in (1.0, -1.0):
        network = wide()
        network.fc.weight.data += (sign - 1.0) * mean_row(network).float()
        trainer_of(network, objective="pgd").train()
        places = [None, "layer1", "layer3"]
        found.append(layer_profile(network.eval(), images()[0], places=places))
    for one, other in zip(found[0].values(), found[1].values(), strict=True):
        centroids = one.centroid_alignment
        assert centroids.abs().mean() > 0.01
        opposite = -other.centroid_alignment  # up to rounding on the way
        torch.testing.assert_close(centroids, opposite, rtol=0, atol=1e-3)


def test_rows_and_progress_come_from_the_epochs_asked_for():
    modes, epochs = [], []
    trainer = trainer_of()

    def measure(network):
        modes.append(network.training)
        return {"number": 42.0}

    history = trainer.train(
        evaluate=lambda epoch: epoch == 2,
        measure=measure,
        progress=lambda epoch, row: epochs.append((epoch, row is not None)),
    )
    assert history["number"] == [42.0, 42.0]
    assert history["epoch"] == [2, 3]
    assert modes == [False, False]
    assert epochs == [(1, False), (2, True), (3, True)]
    # The network is as it was, and the memory of the steps is released.
    assert trainer.network.training
    assert all(p.grad is None for p in trainer.network.parameters())
    assert not trainer._step._recorded
    assert not trainer._step._copies


# interruptions and checkpoints


def interrupt_after(trainer, stop):
    """Have Ctrl-C arrive in the middle of a step."""
    take = trainer._take_step

    def interrupted():
        if trainer._n_steps + 1 == stop:
            signal.raise_signal(signal.SIGINT)
        take()

    trainer._take_step = interrupted


@pytest.mark.parametrize("name", VARIANTS)
def test_an_interrupted_run_ends_the_same(name, tmp_path):
    whole, path = trainer_of(**VARIANTS[name]), tmp_path / "run"
    expected = whole.train(evaluate=lambda epoch: True)
    for stop in (1, 4, 6):  # in the middle of an epoch, and at the end of one
        trainer = trainer_of(**VARIANTS[name])
        interrupt_after(trainer, stop)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(evaluate=lambda epoch: True, checkpoint=path)
        assert trainer._n_steps == stop
    # Another trainer, and the interrupted one, whose weights are no longer the first.
    for resumed in (trainer_of(**VARIANTS[name]), trainer):
        resumed._take_step = type(resumed)._take_step.__get__(resumed)
        found = resumed.train(evaluate=lambda epoch: True, checkpoint=path)
        assert same(whole.network, resumed.network)
        assert same(whole.averaged, resumed.averaged)
        for column in ("epoch", "loss", "seen_accuracy"):
            assert expected[column] == found[column]


class Measure:
    """A measure that counts its calls, and can fail."""

    def __init__(self, *, fails=False):
        self.n, self.fails = 0, fails

    def describe(self):
        return {}

    def __reduce__(self):  # the same to a checkpoint, whatever it counts
        return Measure, ()

    def __call__(self, network):
        self.n += 1
        if self.fails:
            raise RuntimeError("out of memory")
        return {"number": 1.0}


def test_ctrl_c_in_the_last_step_of_an_epoch_does_not_wait_for_its_measure(tmp_path):
    path, measure = tmp_path / "run", Measure()
    options = {"evaluate": lambda epoch: True, "measure": measure, "checkpoint": path}
    trainer = trainer_of()
    interrupt_after(trainer, 3)  # of three steps in an epoch
    with pytest.raises(KeyboardInterrupt):
        trainer.train(**options)
    assert path.is_file()
    assert measure.n == 0
    assert trainer_of().train(**options)["epoch"] == [1, 2, 3]
    assert measure.n == 3


def test_a_failing_measure_costs_no_step_and_repeats_no_row(tmp_path):
    options = {"evaluate": lambda epoch: epoch == 2, "checkpoint": tmp_path / "run"}
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer_of().train(**options, measure=Measure(fails=True), checkpoint_seconds=0)
    again, steps = trainer_of(), []
    take = again._take_step
    again._take_step = lambda: steps.append(again._n_steps) or take()
    assert again.train(**options, measure=Measure())["epoch"] == [2, 3]
    assert steps == [6, 7, 8]


def other_labels(y):
    """Labels with the same weighted sum: no linear digest tells them apart."""
    other = y.clone()
    other[[4, 6, 8]] += torch.tensor([1, -2, 1])
    return other


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({"seed": 1}, "seed"),
        ({"network": dense(nn.Tanh())}, "network"),
        ({"network": dense(scale=0.21)}, "weights"),
        ({"change": lambda x, y: (x, other_labels(y))}, "y"),
        ({"change": lambda x, y: (x.flip(0), y.flip(0))}, "x, y"),
        ({"radius": 0.1}, r"recipe\.radius"),
        ({"every": True}, "evaluate"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_stays(tmp_path, changed, names):
    path = tmp_path / "run"

    def run(*, network=None, change=None, every=False, **settings):
        x, y = images()
        y[8] = 1
        data = change(x, y) if change else (x, y)
        network = copy.deepcopy(network or dense())
        settings = {"objective": "pgd"} | settings
        return trainer_of(network, data=data, **settings).train(
            checkpoint=path, checkpoint_seconds=0, evaluate=lambda epoch: every
        )

    loss = run()["loss"]
    assert run()["loss"] == loss
    content = path.read_bytes()
    with pytest.raises(ValueError, match=rf"which differs in: {names}\."):
        run(**changed)
    assert path.read_bytes() == content


def test_a_checkpoint_needs_a_measure_that_it_can_identify(tmp_path):
    trainer = trainer_of()
    with pytest.raises(TypeError, match=r"^RobustTrainer\.train: measure must be"):
        trainer.train(measure=lambda network: {}, checkpoint=tmp_path / "c")
    trainer.train(measure=lambda network: {"number": 1.0})


def test_checkpoints_that_take_long_are_rarer(tmp_path, monkeypatch):
    written, now = [], [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0])

    def slow_write(path, state, record):
        written.append(record["steps"])
        now[0] += 3

    monkeypatch.setattr(_trainer, "time", clock)
    monkeypatch.setattr(_trainer, "write_checkpoint", slow_write)
    trainer = trainer_of()
    take = trainer._take_step
    trainer._take_step = lambda: (take(), now.__setitem__(0, now[0] + 7))
    history = trainer.train(checkpoint=tmp_path / "run", checkpoint_seconds=15)
    # Nine steps of 7 s: the first after 15, the next only after 60 more.
    assert written == [3]
    assert history.seconds == 9 * 7


# refusals


@pytest.mark.parametrize(
    ("rate", "batch_size", "message"),
    [
        (1e30, 16, "the loss must be finite, got .* in epoch 1"),
        # One step: the loss before it is finite, the outputs after it are not.
        (1e38, 40, "the network's outputs must be finite"),
    ],
)
def test_a_diverged_run_is_refused(rate, batch_size, message):
    settings = {"objective": "plain", "learning_rate": rate, "epochs": 1}
    with pytest.raises(TrainingDiverged, match=f"^RobustTrainer.train: {message}"):
        trainer_of(**settings, batch_size=batch_size).train()


ZEROS, LABELS = torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(2, 3), LABELS, r"x must have shape \(n, c, h, w\)"),
        (torch.zeros(0, 1, 8, 8), LABELS[:0], "x must have shape"),
        (ZEROS + 2, LABELS, r"x must have values in \[0, 1\], got values from 2 to 2"),
        (ZEROS * torch.nan, LABELS, r"x must have values in \[0, 1\]"),
        (ZEROS, LABELS[:1], r"y must be integers of shape \(2,\)"),
        (ZEROS, LABELS.double(), "y must be integers"),
        (ZEROS, LABELS + 4, "y must be from 0 to 3, .* got 4 to 4"),
        (ZEROS, LABELS - 1, "y must be from 0 to 3, .* got -1 to -1"),
    ],
)
def test_unsuitable_data_are_refused(x, y, message):
    with pytest.raises(ValueError, match=f"^RobustTrainer: {message}"):
        trainer_of(data=(x, y))


def test_a_network_in_another_precision_is_refused():
    message = r"network must be all in float32, got stem.weight in .*\. Call network"
    with pytest.raises(ValueError, match=message):
        trainer_of(wide().double())
