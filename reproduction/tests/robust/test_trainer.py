"""Robust training: it learns, it is resumed to the bit, and it refuses."""

import signal

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from normalign import GrokAlign, layer_profile
from normalign.nn import WideResNet
from normalign_reproduction.robust import (
    Recipe,
    RobustTrainer,
    TrainingDiverged,
    evaluate,
)
from normalign_reproduction.robust import trainer as trainer_module
from normalign_reproduction.robust.draws import Draws
from normalign_reproduction.robust.trainer import pause_after

pytestmark = pytest.mark.usefixtures("ctrl_c", "time_limit")

TINY = {"epochs": 3, "batch_size": 16, "n_steps": 2, "averaged_from": 0.4}


def images(n=40, size=8):
    """Bright squares, one place for each of four classes, on noise."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 4
    x = 0.3 * torch.rand(n, 1, size, size, generator=generator)
    for i, c in enumerate(y.tolist()):
        row, column = 4 * (c // 2), 4 * (c % 2)
        x[i, :, row : row + 4, column : column + 4] += 0.6
    return x, y


def small():
    generator = torch.Generator().manual_seed(3)
    return WideResNet(10, 1, n_classes=4, n_channels=1, generator=generator)


def weights(trainer):
    return {k: v.clone() for k, v in trainer.network.state_dict().items()}


def same(one, other):
    return (
        all(torch.equal(one[k], other[k]) for k in one) and one.keys() == other.keys()
    )


VARIANTS = {
    "dkl": {},
    "released": {"perturbation": 0.005, "perturbed_from": 2, "ramp": True},
    "trades": {"objective": "trades"},
    "pgd": {"objective": "pgd"},
    "penalised": {"objective": "plain", "penalty_weight": 0.01, "penalty_every": 2},
    "bf16": {"precision": "bf16"},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_that_was_interrupted_anywhere_ends_the_same(name, tmp_path):
    recipe = Recipe(**{**TINY, **VARIANTS[name]})
    x, y = images()
    whole = RobustTrainer(small(), x, y, recipe, seed=5)
    expected = whole.train(evaluate=lambda epoch: True)
    path = tmp_path / "run.safetensors"
    steps, taken = recipe.epochs * 3, 0
    for stop in (1, 4, 6):  # in the middle of epochs, and at the end of one
        trainer = RobustTrainer(small(), x, y, recipe, seed=5)
        take = trainer._take

        def counted(epoch, i, take=take, trainer=trainer, stop=stop):
            take(epoch, i)
            if trainer._done + 1 == stop:
                signal.raise_signal(signal.SIGINT)

        trainer._take = counted
        with pytest.raises(KeyboardInterrupt):
            trainer.train(evaluate=lambda epoch: True, checkpoint=path)
        assert trainer._done == stop
        taken = stop
    assert taken < steps
    resumed = RobustTrainer(small(), x, y, recipe, seed=5)
    found = resumed.train(evaluate=lambda epoch: True, checkpoint=path)
    assert same(weights(whole), weights(resumed))
    assert same(whole.averaged.state_dict(), resumed.averaged.state_dict())
    for column in ("epoch", "loss", "seen_accuracy"):
        assert expected[column] == found[column]


def mean_row(network):
    return network.fc.weight.detach().double().mean(0)


@pytest.mark.parametrize("name", ["dkl", "released", "trades", "pgd"])
def test_training_never_turns_the_mean_row_of_the_head(name):
    # No loss here sees what is added to all logits, so that the mean row has no slope
    # but its decay: centroids show the start of a network, not what it learned.
    recipe = Recipe(**{**TINY, "weight_decay": 0.1, **VARIANTS[name]})
    trainer = RobustTrainer(small(), *images(), recipe, seed=5)
    trainer.train()
    before, after = mean_row(small()), mean_row(trainer.network)
    shrunk = mean_row(small())
    speed = torch.zeros_like(shrunk)
    for epoch in (1, 2, 3):
        for _ in range(3):
            speed = 0.9 * speed + 0.1 * shrunk
            shrunk = shrunk - recipe.rate(epoch) * speed
    torch.testing.assert_close(after, shrunk, rtol=1e-4, atol=1e-6)
    assert after.norm() < 0.95 * before.norm()


def test_centroids_change_sign_with_the_mean_row_that_training_began_with():
    # With heads drawn so that a mean row is as likely as its opposite, centroid
    # alignment is 0 on average, whatever was learned, at every stage.
    x, y = images()
    found = []
    for sign in (1.0, -1.0):
        network = small()
        network.fc.weight.data += (sign - 1.0) * mean_row(network).float()
        trainer = RobustTrainer(network, x, y, Recipe("pgd", **TINY), seed=5)
        trainer.train()
        places = [None, "layer1", "layer3"]
        found.append(layer_profile(network.eval(), x, places=places))
    for one, other in zip(found[0].values(), found[1].values(), strict=True):
        slopes = one.centroid_alignment
        assert slopes.abs().mean() > 0.01
        opposite = -other.centroid_alignment  # but for rounding on the way
        torch.testing.assert_close(slopes, opposite, rtol=0, atol=1e-3)


def test_a_penalty_on_the_jacobian_does_turn_it():
    recipe = Recipe(**{**TINY, **VARIANTS["penalised"]})
    trainer = RobustTrainer(small(), *images(), recipe, seed=5)
    trainer.train()
    cosine = F.cosine_similarity(mean_row(small()), mean_row(trainer.network), dim=0)
    assert cosine < 0.999


def test_plain_training_is_sgd_in_a_loop():
    x, y = images()
    recipe = Recipe(
        "plain", augment="none", averaging=0.0, **(TINY | {"averaged_from": 1})
    )
    trainer = RobustTrainer(small(), x, y, recipe, seed=5)
    trainer.train()
    network = small().train()
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4
    )
    draws = Draws(recipe, seed=5, device=torch.device("cpu"))
    for epoch in (1, 2, 3):
        optimizer.param_groups[0]["lr"] = recipe.rate(epoch)
        for index in draws.order(epoch, 40).split(16):
            optimizer.zero_grad()
            F.cross_entropy(network(x[index]), y[index]).backward()
            optimizer.step()
    assert same(weights(trainer), network.state_dict())


def test_the_penalty_is_grokalign_every_so_often():
    x, y = images()
    settings = TINY | {"epochs": 1}
    recipe = Recipe("plain", augment="none", penalty_weight=0.1, penalty_every=2,
                    **settings)  # fmt: skip
    trainer = RobustTrainer(small(), x, y, recipe, seed=5)
    loss = trainer.train()["loss"][0]
    plain = Recipe("plain", augment="none", **settings)
    without = RobustTrainer(small(), x, y, plain, seed=5).train()["loss"][0]
    assert loss > without
    # The first step's penalty, from the same network and any probes of its size.
    network = small().train()
    index = Draws(recipe, seed=5, device=torch.device("cpu")).order(1, 40)[:16]
    penalty = GrokAlign(0.1, every=2, generator=torch.Generator().manual_seed(0))
    values = [float(penalty(network, x[index])[1].detach()) for _ in range(40)][::2]
    assert loss - without == pytest.approx(
        # Steps 0 and 2, of 16 and of 8 images of 40; the second was not measured here.
        sum(values) / len(values) * 24 / 40, rel=0.5,
    )  # fmt: skip


def test_adversarial_training_makes_a_network_robust():
    x, y = images(80)
    scores = {}
    for objective in ("plain", "pgd", "trades", "dkl"):
        recipe = Recipe(
            objective, epochs=25, batch_size=20, radius=0.2, step_size=0.1, n_steps=4,
            learning_rate=0.05, augment="none", soft_weight=1.0, square_weight=1.0,
        )  # fmt: skip
        network = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)
        )
        generator = torch.Generator().manual_seed(0)
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=0.2, generator=generator)
        trainer = RobustTrainer(network, x, y, recipe, seed=0)
        trainer.train()
        scores[objective] = evaluate(trainer.network, x, y, radius=0.2, n_steps=10)
    assert scores["plain"]["accuracy"] > 0.9
    for objective in ("pgd", "trades", "dkl"):
        gained = scores[objective]["robust_accuracy"]
        assert gained > scores["plain"]["robust_accuracy"] + 0.2, (objective, scores)


def test_measures_come_from_the_network_at_rest_and_progress_from_every_epoch():
    x, y = images()
    modes, epochs = [], []
    trainer = RobustTrainer(small(), x, y, Recipe(**TINY), seed=0)

    def measure(network):
        modes.append(network.training)
        return {"answer": 42.0}

    history = trainer.train(
        evaluate=lambda epoch: epoch == 2, measure=measure,
        progress=lambda epoch, row: epochs.append((epoch, row is not None)),
    )  # fmt: skip
    assert history["answer"] == [42.0, 42.0]
    assert history["epoch"] == [2, 3]
    assert modes == [False, False]
    assert epochs == [(1, False), (2, True), (3, True)]
    assert trainer.network.training


def test_class_weights_are_the_mean_tempered_probabilities_of_each_class():
    x, y = images()
    x, y = x[y < 3], y[y < 3]  # no image of class 3: its row stays
    recipe = Recipe(**(TINY | {"epochs": 1}))
    trainer = RobustTrainer(small(), x, y, recipe, seed=0)
    trainer.train()
    table = trainer._tables["class_weights"]
    torch.testing.assert_close(table.sum(1), torch.ones(4))
    assert table[3].tolist() == [0.25] * 4
    assert table[:3].std() > 0


def test_a_checkpoint_of_another_run_is_refused_and_left(tmp_path):
    x, y = images()
    path = tmp_path / "run.safetensors"
    trainer = RobustTrainer(small(), x, y, Recipe(**TINY), seed=0)
    trainer.train(checkpoint=path, checkpoint_seconds=0)
    content = path.read_bytes()
    other = RobustTrainer(small(), x, y, Recipe(**TINY), seed=1)
    with pytest.raises(ValueError, match=r"another run, which differs in: seed\."):
        other.train(checkpoint=path)
    assert path.read_bytes() == content


def test_a_loss_that_is_lost_is_told():
    x, y = images()
    recipe = Recipe("plain", learning_rate=1e30, **TINY)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    with pytest.raises(TrainingDiverged, match=r"the loss must be finite, got .* in"):
        RobustTrainer(network, x, y, recipe, seed=0).train()


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (
            torch.zeros(2, 3),
            torch.zeros(2).long(),
            r"x must be of shape \(n, c, h, w\)",
        ),
        (torch.zeros(2, 1, 8, 8).long(), torch.zeros(2).long(), "x must be of real"),
        (2 * torch.ones(2, 1, 8, 8), torch.zeros(2).long(), r"values in \[0, 1\]"),
        (torch.zeros(2, 1, 8, 8), torch.zeros(3).long(), r"y must be of shape \(2,\)"),
        (torch.zeros(2, 1, 8, 8), torch.zeros(2), "y must be whole numbers"),
        (torch.zeros(2, 1, 8, 8), torch.full((2,), 4), "y must be classes below 4"),
        (torch.zeros(2, 1, 8, 8), torch.full((2,), -1), "y must be 0 or more"),
    ],
)
def test_data_that_do_not_fit_are_refused(x, y, words):
    with pytest.raises(
        (ValueError, TypeError), match=f"RobustTrainer: .*{words}|{words}"
    ):
        RobustTrainer(small(), x, y, Recipe(**TINY), seed=0)


def interrupted_after(trainer, stop):
    """Have Ctrl-C come in the middle of a step."""
    take = trainer._take

    def counted(epoch, i):
        take(epoch, i)
        if trainer._done + 1 == stop:
            signal.raise_signal(signal.SIGINT)

    trainer._take = counted


class Looks:
    """A measurement that counts its calls, and fails on demand."""

    def __init__(self, *, fails=False):
        self.n, self.fails = 0, fails

    def describe(self):
        return {}

    def __call__(self, network):
        self.n += 1
        if self.fails:
            raise RuntimeError("out of memory")
        return {"answer": 1.0}


def test_ctrl_c_in_the_last_step_of_an_epoch_does_not_wait_for_a_look(tmp_path):
    x, y = images()
    path, looks = tmp_path / "run", Looks()

    def everything(trainer):
        return trainer.train(
            evaluate=lambda epoch: True, measure=looks, checkpoint=path
        )

    trainer = RobustTrainer(small(), x, y, Recipe(**TINY), seed=0)
    interrupted_after(trainer, 3)  # of three steps in an epoch
    with pytest.raises(KeyboardInterrupt):
        everything(trainer)
    assert path.is_file()
    assert looks.n == 0
    history = everything(RobustTrainer(small(), x, y, Recipe(**TINY), seed=0))
    assert history["epoch"] == [1, 2, 3]
    assert looks.n == 3


def test_a_look_that_fails_costs_no_step_and_makes_no_row_twice(tmp_path):
    x, y = images()
    path = tmp_path / "run"
    trainer = RobustTrainer(small(), x, y, Recipe(**TINY), seed=0)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train(
            evaluate=lambda epoch: epoch == 2, measure=Looks(fails=True),
            checkpoint=path, checkpoint_seconds=0,
        )  # fmt: skip
    again = RobustTrainer(small(), x, y, Recipe(**TINY), seed=0)
    taken, take = [], again._take
    again._take = lambda epoch, i: taken.append((epoch, i)) or take(epoch, i)
    history = again.train(
        evaluate=lambda epoch: epoch == 2, measure=Looks(), checkpoint=path
    )
    assert taken == [(3, 0), (3, 1), (3, 2)]
    assert history["epoch"] == [2, 3]


def test_a_checkpoint_of_the_same_images_in_another_order_is_refused(tmp_path):
    x, y = images()
    path = tmp_path / "run"
    RobustTrainer(small(), x, y, Recipe(**TINY), seed=0).train(
        checkpoint=path, checkpoint_seconds=0
    )
    other = RobustTrainer(small(), x.flip(0), y.flip(0), Recipe(**TINY), seed=0)
    with pytest.raises(ValueError, match=r"another run, which differs in: x, y\."):
        other.train(checkpoint=path)


def with_the_same_linear_digest(y):
    """Two other labels that an earlier, linear digest did not tell from ``y``."""
    other = y.clone()
    # Weights of the places are 1, 3, 5, ...: these changes cancel.
    other[[4, 6, 8]] += torch.tensor([1, -2, 1])
    return other


def network(activation, *, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    layers = nn.Linear(64, 8), activation, nn.Linear(8, 4)
    for value in (p for layer in layers for p in layer.parameters()):
        value.data = scale * torch.randn(value.shape, generator=generator)
    return nn.Sequential(nn.Flatten(), *layers)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"network": (nn.Tanh(), 1.0)}, "network"),
        ({"network": (nn.ReLU(), 1.01)}, "weights"),
        ({"y": with_the_same_linear_digest}, "y"),
        ({"radius": 0.1}, r"recipe\.radius"),
        ({"evaluate": True}, "evaluate"),
    ],
)
def test_a_checkpoint_is_of_one_network_its_start_its_labels_and_its_recipe(
    tmp_path, change, names
):
    x, y = images()
    y[8] = 1

    def run(changes):
        recipe = Recipe("pgd", **TINY, radius=changes.get("radius", 0.03))
        activation, scale = changes.get("network", (nn.ReLU(), 1.0))
        labels = changes.get("y", torch.clone)(y)
        return RobustTrainer(
            network(activation, scale=scale), x, labels, recipe, seed=0
        ).train(
            checkpoint=tmp_path / "c", checkpoint_seconds=0,
            evaluate=lambda epoch: changes.get("evaluate", False),
        )  # fmt: skip

    expected = run({})
    assert run({})["loss"] == expected["loss"]
    with pytest.raises(ValueError, match=rf"which differs in: {names}\."):
        run(change)


def test_a_trainer_goes_on_from_the_checkpoint_that_it_wrote_itself(tmp_path):
    x, y = images()
    whole = RobustTrainer(small(), x, y, Recipe(**TINY), seed=0)
    whole.train()
    trainer = RobustTrainer(small(), x, y, Recipe(**TINY), seed=0)
    interrupted_after(trainer, 4)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(checkpoint=tmp_path / "c")
    trainer.train(checkpoint=tmp_path / "c")  # its weights are no longer the first
    assert same(weights(whole), weights(trainer))


def test_a_checkpoint_needs_a_measure_that_it_can_identify(tmp_path):
    x, y = images()
    trainer = RobustTrainer(small(), x, y, Recipe(**TINY), seed=0)
    rule = "^RobustTrainer.train: measure must be one that a checkpoint can identify, "
    with pytest.raises(TypeError, match=f"{rule}got a lambda. Define it at the top"):
        trainer.train(measure=lambda network: {}, checkpoint=tmp_path / "c")
    trainer.train(measure=lambda network: {"answer": 1.0})


def test_checkpoints_that_take_long_are_rarer(tmp_path, monkeypatch):
    assert pause_after(10.0, wanted=15.0) == 150
    assert pause_after(10.0, wanted=0.0) == 0
    x, y = images()
    written = []

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

        perf_counter = monotonic

    def slow(path, parts, record):
        written.append(record["done"])
        clock.now += 3

    clock = Clock()
    monkeypatch.setattr(trainer_module, "time", clock)
    monkeypatch.setattr(trainer_module, "write_checkpoint", slow)
    trainer = RobustTrainer(small(), x, y, Recipe(**TINY), seed=0)
    take = trainer._take

    def timed(epoch, i):
        take(epoch, i)
        clock.now += 7

    trainer._take = timed
    history = trainer.train(checkpoint=tmp_path / "run", checkpoint_seconds=15)
    # Nine steps of 7 s: the first after 15, the next only after 60 more.
    assert written == [3]
    assert history.seconds == 9 * 7


def test_a_network_whose_last_update_was_too_long_is_told():
    x, y = images()
    recipe = Recipe("plain", learning_rate=1e38, **(TINY | {"epochs": 1}))
    recipe = Recipe(**{**vars(recipe), "batch_size": 40})
    with pytest.raises(TrainingDiverged, match="the network's outputs must be finite"):
        RobustTrainer(small(), x, y, recipe, seed=0).train()


def test_what_was_recorded_is_given_back_at_the_end():
    x, y = images()
    trainer = RobustTrainer(small(), x, y, Recipe(**TINY), seed=0)
    trainer.train()
    assert all(p.grad is None for p in trainer.network.parameters())
    assert not trainer._step._recorded
    assert not trainer._step._frozen


def test_a_network_in_another_precision_is_refused():
    words = (
        r"network must be all in float32, got stem.weight in .*\. Call network.float"
    )
    with pytest.raises(ValueError, match=words):
        RobustTrainer(small().double(), *images(), Recipe(**TINY), seed=0)


def test_an_unknown_way_to_compile_is_refused():
    with pytest.raises(TypeError, match="compile must be True, False or 'auto'"):
        RobustTrainer(small(), *images(), Recipe(**TINY), seed=0, compile="always")


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_products_of_training_are_in_the_precision_that_was_asked_for(precision):
    x, y = images()
    network, seen = small(), set()
    network.fc.register_forward_hook(
        lambda module, _, out: seen.add(out.dtype) if module.training else None
    )
    recipe = Recipe(**(TINY | {"epochs": 1}), precision=precision)
    trainer = RobustTrainer(network, x, y, recipe, seed=0)
    trainer.train()
    assert seen == {torch.bfloat16 if precision == "bf16" else torch.float32}
    # What is summed over steps stays in float32.
    state = [*trainer.network.state_dict().values(), trainer._tables["class_sums"]]
    assert {t.dtype for t in state if t.is_floating_point()} == {torch.float32}
