import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normalign.data._augment import moved_images
from normalign.nn import mlp
from normalign.training import Member, stacked_geometry
from normalign.training._attack import (
    Attacked,
    Augmented,
    PerMember,
    measures,
    robust_accuracy,
    stacked_pgd,
)
from normalign.training._networks import StackedModules, stack_networks
from normalign.training._targets import LOSSES, stacked_loss
from normalign.training.randomness import BATCHES, normal_pairs, streams
from normalign.training.rules import SGD, AdamW
from tests.training.ensembles import (
    GENERAL,
    built,
    chains,
    distance,
    ensemble,
    identical,
    members,
    never,
    task,
)

CROSS_ENTROPY = LOSSES["cross_entropy"]


def one_by_one(network, x, y, *, radius, n_steps, step_size, norm, low, high, start):
    """Projected gradient steps on one network, sample by sample."""
    found = []
    for clean, label, begin in zip(x, y, start, strict=True):
        point = begin.clone()
        for step in range(n_steps + 1):
            moved = point - clean
            if norm == "linf":
                moved = moved.clamp(-radius, radius)
            elif moved.norm() > radius:
                moved = moved * radius / moved.norm()
            point = (clean + moved).clamp(low, high).requires_grad_()
            if step == n_steps:
                break
            loss = nn.functional.cross_entropy(network(point[None]), label[None])
            (slope,) = torch.autograd.grad(loss, point)
            length = slope.norm()  # 0 where all units are dead
            along = slope.sign() if norm == "linf" or length == 0 else slope / length
            point = (point + step_size * along).detach()
        found.append(point.detach())
    return torch.stack(found)


def attacked(networks, x, y, **options):
    architecture, rows = stack_networks(networks, x)
    return stacked_pgd(
        architecture, architecture.split(rows), x[None], y[None], **options
    )


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("road", ["chain", *GENERAL])
def test_every_network_is_attacked_as_by_a_loop_over_its_samples(road, norm):
    if road == "chain":
        networks, data = chains(3), task()
    else:
        build, shape, k = GENERAL[road]
        networks, data = built(build, 2), task(shape, k=k, n=8)
    x, y = data.x_train.clamp(-0.9, 0.9), data.y_train
    source = torch.Generator().manual_seed(1)
    start = x + 0.4 * torch.randn(x.shape, generator=source, dtype=x.dtype)
    options = {"radius": 0.2, "n_steps": 4, "step_size": 0.09, "norm": norm,
               "low": -1.0, "high": 1.0}  # fmt: skip
    found = attacked(networks, x, y, loss=CROSS_ENTROPY, start=start[None], **options)
    for network, mine in zip(networks, found, strict=True):
        expected = one_by_one(network, x, y, start=start, **options)
        # float64; a gradient's sign could differ only where it is rounding itself.
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-9)


def test_both_roads_attack_a_chain_alike():
    networks, data = chains(3), task()
    architecture, rows = stack_networks(networks, data.x_train)
    general = StackedModules(architecture.network)
    options = {"loss": CROSS_ENTROPY, "radius": 0.3, "n_steps": 3, "norm": "l2"}
    one, other = (
        stacked_pgd(road, road.split(rows), data.x_train[None], data.y_train[None],
                    **options)
        for road in (architecture, general)
    )  # fmt: skip
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_steps", [1, 5])
def test_two_linear_outputs_are_attacked_along_the_sign_of_their_difference(n_steps):
    network, data = nn.Linear(6, 2).double(), task(k=2)
    found = attacked(
        [network], data.x_train, data.y_train, loss=CROSS_ENTROPY, radius=0.3,
        n_steps=n_steps,
    )[0]  # fmt: skip
    weight = network.weight.detach()
    away = torch.where(data.y_train[:, None] == 0, 1.0, -1.0) * (weight[1] - weight[0])
    torch.testing.assert_close(found, data.x_train + 0.3 * away.sign())


def test_a_linear_output_is_attacked_along_its_gradient_in_the_euclidean_norm():
    network, data = nn.Linear(6, 2).double(), task(k=2)
    found = attacked(
        [network], data.x_train, data.y_train, loss=CROSS_ENTROPY, radius=0.3,
        n_steps=2, norm="l2",
    )[0]  # fmt: skip
    weight = network.weight.detach()
    away = torch.where(data.y_train[:, None] == 0, 1.0, -1.0) * (weight[1] - weight[0])
    expected = data.x_train + 0.3 * away / away.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found, expected)


@settings(max_examples=25, deadline=None)
@given(
    radius=st.floats(0, 2), n_steps=st.integers(0, 4), step=st.floats(0, 3),
    norm=st.sampled_from(["linf", "l2"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_an_attack_stays_in_the_ball_and_in_the_legal_range(
    radius, n_steps, step, norm, seed
):
    x = task(seed=seed).x_train.clamp(-1, 1)
    y = task(seed=seed).y_train
    source = torch.Generator().manual_seed(seed)
    start = x + torch.randn(x.shape, generator=source, dtype=x.dtype)
    found = attacked(
        chains(2, seed=seed), x, y, loss=CROSS_ENTROPY, radius=radius, n_steps=n_steps,
        step_size=step, norm=norm, start=start[None], low=-1.0, high=1.0,
    )  # fmt: skip
    order = float("inf") if norm == "linf" else 2
    # 1e-12: the sum x + r of numbers near 1 is rounded.
    assert (found - x).norm(order, dim=-1).max() <= radius + 1e-12
    assert found.abs().max() <= 1


def test_each_network_has_a_radius_and_a_step_of_its_own():
    networks, data = chains(3), task()
    radius = torch.tensor([0.0, 0.1, 0.4], dtype=torch.float64)
    options = {"loss": CROSS_ENTROPY, "n_steps": 3}
    together = attacked(networks, data.x_train, data.y_train, radius=radius, **options)
    assert torch.equal(together[0], data.x_train)
    for i, network in enumerate(networks):
        alone = attacked(
            [network], data.x_train, data.y_train, radius=float(radius[i]), **options
        )
        torch.testing.assert_close(alone[0], together[i], rtol=0, atol=1e-12)


def test_each_network_may_have_inputs_of_its_own():
    networks, several = chains(2), [task(seed=i) for i in range(2)]
    architecture, rows = stack_networks(networks, several[0].x_train)
    x, y = (
        torch.stack([getattr(data, name) for data in several])
        for name in ("x_train", "y_train")
    )
    options = {"loss": CROSS_ENTROPY, "radius": 0.2, "n_steps": 3}
    found = stacked_pgd(architecture, architecture.split(rows), x, y, **options)
    for i, network in enumerate(networks):
        alone = attacked([network], x[i], y[i], **options)
        torch.testing.assert_close(alone[0], found[i], rtol=0, atol=1e-12)


def test_an_attack_changes_nothing_it_was_given():
    networks, data = chains(2), task()
    architecture, rows = stack_networks(networks, data.x_train)
    before = rows.clone(), data.x_train.clone()
    found = stacked_pgd(
        architecture, architecture.split(rows), data.x_train[None], data.y_train[None],
        loss=CROSS_ENTROPY, radius=0.1, n_steps=2,
    )  # fmt: skip
    assert torch.equal(rows, before[0])
    assert torch.equal(data.x_train, before[1])
    assert not found.requires_grad
    none = attacked(networks, data.x_train, data.y_train, loss=CROSS_ENTROPY,
                    radius=0.1, n_steps=0)  # fmt: skip
    none += 1  # memory of its own, also where no step was taken
    assert torch.equal(data.x_train, before[1])


def test_a_loss_of_ones_own_is_raised():
    def margin(output, target):
        return -output.gather(1, target[:, None]).mean()

    networks, data = chains(2), task()
    found = attacked(
        networks, data.x_train, data.y_train, loss=stacked_loss(margin), radius=0.1,
        n_steps=3,
    )  # fmt: skip
    for network, point in zip(networks, found, strict=True):
        before, after = (
            margin(network(x), data.y_train) for x in (data.x_train, point)
        )
        assert after > before


def start_row(networks, data, measure, **options):
    made = ensemble(
        networks, data, [Member(i, SGD(0.1)) for i in range(len(networks))], epochs=0,
        measure=measure, **options,
    )  # fmt: skip
    return [trained.history.last() for trained in made.train()]


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
@pytest.mark.parametrize("seed", [None, 3])
def test_robust_accuracy_is_the_share_that_survives(loss, seed):
    networks, data = chains(3), task(n=40)
    x, y = data.x_train, data.y_train
    measure = robust_accuracy(x, y, radius=0.15, n_steps=5, loss=loss, seed=seed)
    rows = start_row(networks, data, measure, loss=loss)
    for network, row in zip(networks, rows, strict=True):
        clean = (network(x).argmax(1) == y).double().mean()
        assert row["train_accuracy"] == pytest.approx(float(clean))
        assert row["robust_accuracy"] <= row["train_accuracy"]
    if loss == "cross_entropy" and seed is None:
        found = attacked(networks, x, y, loss=CROSS_ENTROPY, radius=0.15, n_steps=5)
        for network, point, row in zip(networks, found, rows, strict=True):
            right = (network(x).argmax(1) == y) & (network(point).argmax(1) == y)
            assert row["robust_accuracy"] == float(right.double().mean())


def test_robust_accuracy_of_a_linear_classifier_is_the_share_beyond_the_radius():
    network, data = nn.Linear(6, 2).double(), task(k=2, n=60)
    x, y = data.x_train, data.y_train
    # The margin of a linear rule over the l1 norm of its slope is the l-infinity
    # distance to its boundary.
    difference = network.weight.detach()[1] - network.weight.detach()[0]
    output = network(x).detach()
    margin = (output[:, 1] - output[:, 0]) * torch.where(y == 1, 1.0, -1.0)
    distance = margin / difference.abs().sum()
    radius = float(distance[distance > 0].median()) * 1.01
    row = start_row([network], data, robust_accuracy(x, y, radius=radius))[0]
    assert row["robust_accuracy"] == float((distance > radius).double().mean())
    assert 0 < row["robust_accuracy"] < row["train_accuracy"]


def test_long_sets_are_attacked_in_pieces(monkeypatch):
    networks, data = chains(2), task(n=40)
    options = {"radius": 0.15, "n_steps": 3, "seed": 5}
    whole = start_row(
        networks, data, robust_accuracy(data.x_train, data.y_train, **options)
    )
    monkeypatch.setattr("normalign.training._attack._CHUNK", 7)
    pieces = start_row(
        networks, data, robust_accuracy(data.x_train, data.y_train, **options)
    )
    assert whole == pieces


def test_measurements_are_combined():
    networks, data = chains(2), task()
    several = measures(
        stacked_geometry(data.x_train),
        robust_accuracy(data.x_test, data.y_test, radius=0.1, n_steps=2),
        robust_accuracy(data.x_test, data.y_test, radius=9.0, n_steps=9, name="far"),
    )
    row = start_row(networks, data, several)[0]
    assert row["far"] <= row["robust_accuracy"]
    assert 0 < row["normal_alignment"] <= 1


def test_two_measurements_of_one_name_are_refused():
    data = task()
    one = robust_accuracy(data.x_test, data.y_test, radius=0.1)
    with pytest.raises(ValueError, match="measures: each must be of columns"):
        start_row(chains(1), data, measures(one, one))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"radius": -1.0}, "radius must be finite and at least 0"),
        ({"radius": 0.1, "norm": "l1"}, "norm must be 'linf' or 'l2'"),
        ({"radius": 0.1, "n_steps": -1}, "n_steps must be at least 0"),
        ({"radius": 0.1, "step_size": -0.1}, "step_size must be finite"),
        ({"radius": 0.1, "low": 1.0, "high": 0.0}, "low must be below high"),
        ({"radius": torch.ones(5)}, r"radius or step_size must be a number, or of"),
    ],
)
def test_settings_out_of_their_range_are_refused(options, text):
    data = task()
    settings = {"loss": CROSS_ENTROPY, "n_steps": 1, **options}
    with pytest.raises(ValueError, match=text):
        attacked(chains(2), data.x_train, data.y_train, **settings)


def test_kinds_that_cannot_be_attacked_are_refused():
    data = task()
    with pytest.raises(TypeError, match="x must be of a real dtype"):
        robust_accuracy(data.y_test[:, None], data.y_test, radius=0.1)
    with pytest.raises(TypeError, match="y must be of an integer dtype"):
        robust_accuracy(data.x_test, data.x_test[:, 0], radius=0.1)
    with pytest.raises(ValueError, match="y must be of shape"):
        robust_accuracy(data.x_test, data.y_test[:3], radius=0.1)


def blurred(stack, x, y, keys):
    """Noise on every batch: a hook that is a plain function."""
    return x + 0.1 * normal_pairs(keys, tuple(x.shape[1:]), dtype=x.dtype)


def hooks(count):
    """One that draws, one that attacks, each member by an amount of its own."""
    return {
        "function": blurred,
        "augmented": Augmented([0.2 * i for i in range(count)], shape=(1, 2, 3)),
        "attacked": Attacked([0.1 * i for i in range(count)], n_steps=2),
    }


NAMES = sorted(hooks(1))
MIXED = ("adamw", "power 2")


def of(name, position):
    """The same hook for one member alone."""
    hook = hooks(position + 1)[name]
    if name == "augmented":
        return Augmented(hook.strength.values[position], shape=(1, 2, 3))
    if name == "attacked":
        return Attacked(hook.radius.values[position], n_steps=2)
    return hook


def trained(these, *, positions=None, file=None, callback=None, **options):
    networks = chains(len(these))
    if positions is not None:
        networks, these = ([v[i] for i in positions] for v in (networks, these))
    settings = {"epochs": 6, "batch_size": 7, "evaluate": lambda e: e % 2 == 0}
    made = ensemble(networks, task(), these, **{**settings, **options})
    return made.train(checkpoint=file, checkpoint_seconds=0, callback=callback)


@pytest.mark.parametrize("name", NAMES)
def test_a_hook_treats_a_network_alone_as_beside_others(name):
    these = members(*MIXED)
    together = trained(these, prepare=hooks(len(these))[name])
    plain = trained(these)
    for i in range(len(these)):
        (alone,) = trained(these, positions=[i], prepare=of(name, i))
        # Sums in another order, in float64, over 24 steps.
        assert distance(alone, together[i]) < 1e-10
        unmoved = i == 0 and name != "function"
        assert (distance(plain[i], together[i]) < 1e-10) is unmoved


@pytest.mark.parametrize("name", NAMES)
def test_a_run_with_a_hook_goes_on_bit_for_bit(tmp_path, name):
    these, file = members(*MIXED), tmp_path / "run.safetensors"
    count = len(these)
    whole = trained(these, prepare=hooks(count)[name])

    class Killed(Exception):
        pass

    def kill(i, row):
        if row["epoch"] == 4:
            raise Killed

    with pytest.raises(Killed):
        trained(these, prepare=hooks(count)[name], file=file, callback=kill)
    resumed = trained(these, prepare=hooks(count)[name], file=file)
    for one, other in zip(whole, resumed, strict=True):
        assert identical(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_networks_keep_their_amounts_when_others_have_finished(name):
    these = members("adamw", "adamw")
    prepare = hooks(len(these))[name]
    whole = trained(these, prepare=prepare)
    seen = iter(range(99))
    stopped = trained(these, prepare=prepare, until=lambda row: next(seen) in (0, 1, 4))
    assert [one.stopped for one in stopped].count("epochs") == 1
    for one, other in zip(whole, stopped, strict=True):
        if other.stopped == "epochs":
            # Fewer networks in a product are summed in another order.
            assert distance(one, other) < 1e-10


def test_a_hook_sees_every_batch_with_its_targets_and_keys_of_its_own():
    seen = []

    def look(stack, x, y, keys):
        seen.append((x.clone(), y.clone(), keys.clone(), list(stack.positions)))
        assert not torch.is_grad_enabled()
        return x

    these, data = members("sgd"), task()
    with_hook = trained(these, prepare=look, epochs=2)
    for one, other in zip(trained(these, epochs=2), with_hook, strict=True):
        assert identical(one, other)
    assert [x.shape[1] for x, *_ in seen] == [7, 7, 7, 3] * 2
    keys = torch.cat([keys for _, _, keys, _ in seen])
    assert len(keys.unique()) == len(keys)
    seeds = torch.tensor([member.seed for member in these])
    for number, (_, _, found, positions) in enumerate(seen):
        assert positions == [0, 1]
        assert torch.equal(found, streams(seeds, BATCHES, 4 + number))
    for i in range(2):
        x, y = (torch.cat([s[part][i] for s in seen[:4]]) for part in (0, 1))
        index = torch.cdist(x, data.x_train).argmin(1)
        assert sorted(index.tolist()) == list(range(24))
        assert torch.equal(data.y_train[index], y)


def test_what_a_hook_returns_is_what_is_trained_on():
    data = task()
    doubled = task()
    doubled.x_train = 2 * data.x_train
    these = members("sgd", "power 2")
    networks = chains(len(these))
    changed = ensemble(networks, data, these, prepare=lambda s, x, y, k: 2 * x).train()
    expected = ensemble(networks, doubled, these).train()
    for one, other in zip(changed, expected, strict=True):
        assert distance(one, other) < 1e-12


def test_evaluation_sees_the_data_as_they_are():
    these = [Member(0, SGD(0.0))]
    row = trained(these, prepare=lambda s, x, y, k: 0 * x)[0].history.last()
    assert row["train_loss"] == trained(these)[0].history.last()["train_loss"]


def test_a_hook_must_keep_the_shape():
    with pytest.raises(ValueError, match="what prepare returns must be of the shape"):
        trained(members("sgd"), prepare=lambda stack, x, y, keys: x[:, :1])
    with pytest.raises(TypeError, match="prepare must be a function"):
        trained(members("sgd"), prepare=3)


def test_a_checkpoint_of_another_hook_is_refused(tmp_path):
    these, file = members("adamw"), tmp_path / "run"
    trained(these, prepare=Augmented(0.5, shape=(1, 2, 3)), file=file)
    trained(these, prepare=Augmented(0.5, shape=(1, 2, 3)), file=file)
    for other in (Augmented(0.4, shape=(1, 2, 3)), Attacked(0.5, n_steps=2), None):
        with pytest.raises(ValueError, match="checkpoint must be one that was written"):
            trained(these, prepare=other, file=file)


@pytest.mark.parametrize("front", [(), (1, 2, 3)])
def test_augmented_images_are_turned_shifted_and_noisy_as_their_strength_says(front):
    strengths = [0.0, 0.5, 1.0]
    hook = Augmented(strengths, shape=(1, 2, 3), fill=0.25)
    stack = a_stack(3)
    x = torch.rand(3, 400, *(front or (6,)), dtype=torch.float64)
    found = hook(stack, x, None, streams(torch.arange(3), BATCHES, 1))
    torch.testing.assert_close(found[0], x[0], rtol=0, atol=1e-12)
    quiet = Augmented(strengths, shape=(1, 2, 3), noise=0.0, fill=0.25)
    moved = quiet(stack, x, None, streams(torch.arange(3), BATCHES, 1))
    noise = (found - moved).flatten(1)
    for i in (1, 2):
        # Five standard errors of the standard deviation of 2400 normal numbers.
        expected, error = 0.3 * strengths[i], 5 / math.sqrt(2 * 2400)
        assert float(noise[i].std()) == pytest.approx(expected, rel=error)


def test_angles_and_shifts_are_uniform_within_their_bounds(monkeypatch):
    seen = {}

    def look(images, *, angles, shifts, fill):
        seen.update(angles=angles, shifts=shifts)
        return moved_images(images, angles=angles, shifts=shifts, fill=fill)

    monkeypatch.setattr("normalign.training._attack.moved_images", look)
    x, keys = torch.rand(2, 3000, 6), streams(torch.arange(2), BATCHES, 9)
    stack = a_stack(2, dtype=torch.float32)
    Augmented([0.5, 1.0], shape=(1, 2, 3))(stack, x, None, keys)
    for i, strength in enumerate((0.5, 1.0)):
        for values, bound in (
            (seen["angles"][i], math.radians(30) * strength),
            (seen["shifts"][i, :, 0], 0.2 * strength),
            (seen["shifts"][i, :, 1], 0.2 * strength),
        ):
            share = values.double() / bound
            assert share.abs().max() <= 1 + 1e-6
            # Five standard errors of mean and variance of 3000 uniform numbers.
            assert abs(share.mean()) < 5 / math.sqrt(3 * 3000)
            assert abs(share.var() - 1 / 3) < 5 * math.sqrt(4 / 45 / 3000)
    both = torch.stack([seen["angles"][0], *seen["shifts"][0].T, seen["angles"][1]])
    # Five standard errors of a correlation.
    assert both.corrcoef().fill_diagonal_(0).abs().max() < 5 / math.sqrt(3000)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_an_attacked_batch_is_the_stacked_attack(norm):
    networks, data = chains(2), task()
    stack = a_stack(2, networks=networks)
    hook = Attacked([0.1, 0.3], n_steps=3, norm=norm, random_start=False)
    x, y = (v[None].expand(2, *v.shape) for v in (data.x_train, data.y_train))
    keys = streams(torch.arange(2), BATCHES, 1)
    architecture, rows = stack_networks(networks, data.x_train)
    expected = stacked_pgd(
        architecture, architecture.split(rows), x, y, loss=LOSSES["cross_entropy"],
        radius=torch.tensor([0.1, 0.3], dtype=torch.float64), n_steps=3, norm=norm,
    )  # fmt: skip
    assert torch.equal(hook(stack, x, y, keys), expected)


def test_an_attack_starts_anywhere_in_the_cube():
    stack, keys = a_stack(2), streams(torch.arange(2), BATCHES, 1)
    x = torch.full((2, 1000, 6), 0.5, dtype=torch.float64)
    start = Attacked(0.2, n_steps=0)(stack, x, torch.zeros(2, 1000).long(), keys) - x
    assert start.abs().max() <= 0.2 + 1e-12
    # Five standard errors of the mean and of the variance of uniform numbers.
    n = start[0].numel()
    assert abs(start.mean()) < 5 * 0.2 / math.sqrt(3 * 2 * n)
    assert abs((start / 0.2).var() - 1 / 3) < 5 * math.sqrt(4 / 45 / (2 * n))
    assert not torch.equal(start[0], start[1])


def test_adversarial_training_pays_under_attack():
    """On two classes that one strong and many weak inputs tell apart."""
    source = torch.Generator().manual_seed(0)
    y = torch.randint(2, (200,), generator=source)
    sign = (2 * y - 1)[:, None].double()
    noise = torch.randn(200, 20, generator=source, dtype=torch.float64)
    x = torch.cat([sign * 1.0, 0.3 * sign + noise], dim=1)
    data = task(k=2)
    data.x_train, data.y_train, data.x_test, data.y_test = x, y, x, y

    def build():
        source = torch.Generator().manual_seed(1)
        return mlp([21, 32, 2], generator=source, dtype=torch.float64)

    accuracy = {}
    for radius in (0.0, 0.5):
        (one,) = ensemble(
            [build()], data, [Member(0, AdamW(1e-2))], epochs=100, evaluate=never,
            prepare=Attacked(radius, n_steps=4),
            measure=robust_accuracy(x, y, radius=0.5),
        ).train()  # fmt: skip
        accuracy[radius] = one.history.last()["robust_accuracy"]
    assert accuracy[0.5] > accuracy[0.0] + 0.1


def test_numbers_for_other_members_are_refused():
    with pytest.raises(ValueError, match="strength must be finite and at least 0"):
        Augmented([], shape=(1, 2, 3))
    with pytest.raises(ValueError, match="radius must be one, or one for each"):
        trained(members(*MIXED), prepare=Attacked([0.1, 0.2], n_steps=1))
    with pytest.raises(ValueError, match="finite and at least 0"):
        PerMember([0.1, -1.0], "strength")
    with pytest.raises(ValueError, match="noise must be finite"):
        Augmented(1.0, shape=(1, 2, 3), noise=-1.0)
    with pytest.raises(ValueError, match="x must be images of shape"):
        trained(members("sgd"), prepare=Augmented(1.0, shape=(1, 28, 28)))
    with pytest.raises(ValueError, match="norm must be"):
        Attacked(0.1, n_steps=1, norm="l7")


def a_stack(s, *, networks=None, dtype=torch.float64):
    """A stack of s networks on six inputs, as an ensemble makes it."""
    networks = [n.to(dtype) for n in networks or chains(s)]
    made = ensemble(networks, task(), [Member(i, SGD(0.1)) for i in range(s)])
    return made.groups([])[0].stack


def test_modules_that_are_no_chains_have_hooks_too():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 3).double()

        def forward(self, x):
            return self.inner(x) * 1.5

    data, these = task(), [Member(0, SGD(0.1)), Member(1, SGD(0.1))]
    networks = [Odd(), Odd()]
    together = ensemble(
        networks, data, these, prepare=Attacked([0.0, 0.2], n_steps=2)
    ).train()
    alone = ensemble(
        networks[1:], data, these[1:], prepare=Attacked(0.2, n_steps=2)
    ).train()
    assert distance(together[1], alone[0]) < 1e-10


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
def test_a_hook_in_a_captured_graph_does_what_it_does_on_the_cpu(name):
    these = members(*MIXED)
    here, there = (
        trained(these, prepare=hooks(len(these))[name], epochs=12, device=device)
        for device in ("cpu", "cuda")
    )
    for one, other in zip(here, there, strict=True):
        # float64: only the order of sums differs.
        assert distance(one, other) < 1e-8


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
def test_a_hook_on_cuda_keeps_its_amounts_when_half_have_finished(name):
    these = members("adamw", "adamw")
    prepare = hooks(len(these))[name]
    whole = trained(these, prepare=prepare, epochs=12, device="cuda")
    seen = iter(range(999))
    stopped = trained(
        these, prepare=prepare, epochs=12, device="cuda",
        until=lambda row: next(seen) in (4, 5),
    )  # fmt: skip
    assert [one.stopped for one in stopped].count("criterion") == 2
    for one, other in zip(whole, stopped, strict=True):
        if other.stopped == "epochs":
            assert distance(one, other) < 1e-8


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
def test_a_hook_waits_for_nothing_after_its_first_call(name):
    these = members("power 2")
    made = ensemble(
        chains(2), task(), these, batch_size=7, device="cuda",
        prepare=hooks(2)[name],
    )  # fmt: skip
    (group,) = made.groups([])
    group.stack.advance(1)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with group.stack.work():
            group.stack._run_epoch()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
