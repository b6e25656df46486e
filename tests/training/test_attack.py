import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normalign.training import Member, stacked_geometry
from normalign.training.attack import measures, robust_accuracy, stacked_pgd
from normalign.training.losses import LOSSES, stacked_loss
from normalign.training.networks import StackedModules, stacked
from normalign.training.rules import SGD
from tests.training.ensembles import GENERAL, built, chains, ensemble, task

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
    architecture, rows = stacked(networks, x)
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
    architecture, rows = stacked(networks, data.x_train)
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
    architecture, rows = stacked(networks, several[0].x_train)
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
    architecture, rows = stacked(networks, data.x_train)
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
    monkeypatch.setattr("normalign.training.attack._CHUNK", 7)
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
