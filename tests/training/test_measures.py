import math

import pytest
import torch
from torch import nn

from normalign import At, local_affine, local_geometry
from normalign.data import modular_addition
from normalign.nn import Transformer
from normalign.training import Ensemble, Member
from normalign.training._measures import stacked_centroid_alignment, stacked_geometry
from normalign.training._networks import StackedChains, StackedModules
from normalign.training.rules import SGD, AdamW
from tests.training.ensembles import GENERAL, built, chains, ensemble, task

COLUMNS = (
    "normal_alignment", "effective_rank", "alignment_ratio", "centroid_alignment",
    "jacobian_norm", "offset_norm", "local_robustness",
)  # fmt: skip


def plain(count):
    return [Member(i, SGD(0.1)) for i in range(count)]


def at_the_start(networks, data, measure, road=None, **options):
    """The first rows of an ensemble, which measures its untouched networks."""
    built_one = ensemble(
        networks, data, plain(len(networks)), epochs=0, measure=measure, **options
    )
    if road is not None:
        built_one.networks = road(built_one.networks.network)
    return [trained.history.last() for trained in built_one.train()]


def assert_is_local_geometry(row, network, x, y=None):
    expected = local_geometry(network.eval(), x, y).mean()
    for name in COLUMNS if y is not None else COLUMNS[:-1]:
        assert row[name] == pytest.approx(expected[name], rel=1e-8, abs=1e-8), name


@pytest.mark.parametrize("road", [None, StackedModules])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_every_chain_has_its_local_geometry_on_both_roads(activation, road):
    networks, data = chains(3, activation=activation), task()
    measure = stacked_geometry(data.x_train, data.y_train)
    rows = at_the_start(networks, data, measure, road)
    for network, row in zip(networks, rows, strict=True):
        assert_is_local_geometry(row, network, data.x_train, data.y_train)


@pytest.mark.parametrize("name", GENERAL)
def test_every_other_network_has_its_local_geometry(name):
    build, shape, k = GENERAL[name]
    networks, data = built(build, 2), task(shape, k=k, n=8)
    measure = stacked_geometry(data.x_test, data.y_test)
    rows = at_the_start(networks, data, measure)
    for network, row in zip(networks, rows, strict=True):
        assert_is_local_geometry(row, network, data.x_test, data.y_test)


def test_more_outputs_than_inputs_are_measured_too():
    networks = built(
        lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 7)), 2
    )
    data = task((3,), k=7)
    rows = at_the_start(networks, data, stacked_geometry(data.x_train, data.y_train))
    for network, row in zip(networks, rows, strict=True):
        assert_is_local_geometry(row, network, data.x_train, data.y_train)


@pytest.mark.parametrize("chunk_size", [1, 7, 24, 1000])
def test_chunks_change_nothing(chunk_size):
    networks, data = chains(2), task()
    whole, pieces = (
        at_the_start(networks, data, stacked_geometry(data.x_train, chunk_size=size))
        for size in (None, chunk_size)
    )
    for one, other in zip(whole, pieces, strict=True):
        for name in COLUMNS[:-1]:
            assert one[name] == pytest.approx(other[name], rel=1e-13)


def test_the_default_chunk_bounds_the_jacobians_that_are_held(monkeypatch):
    held = []
    run = StackedChains.jacobians

    def watched(self, parameters, x):
        found = run(self, parameters, x)
        held.append(found.numel() * 8)
        return found

    monkeypatch.setattr(StackedChains, "jacobians", watched)
    monkeypatch.setattr("normalign.training._measures.BUDGET", 4 * 2 * 5 * 3 * 6 * 8)
    data = task()
    at_the_start(chains(2), data, stacked_geometry(data.x_train))
    assert max(held) == 2 * 5 * 3 * 6 * 8  # 5 samples, and three copies beside them
    assert len(held) == 5  # of 24


def test_each_member_keeps_its_own_samples_when_others_are_dropped():
    data = [task(seed=seed) for seed in range(5)]
    these = [
        Member(i, AdamW(1e-2) if i % 2 else SGD(0.1), weight=0.01 * (i == 2))
        for i in range(5)
    ]
    measure = stacked_geometry([d.x_test for d in data], [d.y_test for d in data])
    networks = chains(5)
    training = ensemble(
        networks, data, these, measure=measure, epochs=4, evaluate=lambda epoch: True
    )
    trained = training.train(callback=lambda i, row: i in (0, 1) and row["epoch"] == 2)
    assert [len(t.history) for t in trained] == [3, 3, 5, 5, 5]
    for network, split, one in zip(networks, data, trained, strict=True):
        network.load_state_dict(one.weights)
        row = one.history.last()
        assert_is_local_geometry(row, network, split.x_test, split.y_test)


def test_samples_of_each_member_and_shared_labels_go_together():
    data, networks = task(), chains(2)
    x = [data.x_train, data.x_train.flip(0)]
    rows = at_the_start(networks, data, stacked_geometry(x, data.y_train))
    for network, row, points in zip(networks, rows, x, strict=True):
        assert_is_local_geometry(row, network, points, data.y_train)


def test_float32_networks_are_summed_in_float64():
    data = task()
    networks = [network.float() for network in chains(2)]
    seen = {}

    def measure(stack):
        seen.update(stacked_geometry(data.x_train, data.y_train)(stack))
        return seen

    rows = at_the_start(networks, data, measure)
    assert {value.dtype for value in seen.values()} == {torch.float64}
    for network, row in zip(networks, rows, strict=True):
        expected = local_geometry(network, data.x_train.float(), data.y_train).mean()
        # The Jacobians themselves are float32, made by two orders of products.
        for name in COLUMNS:
            assert row[name] == pytest.approx(expected[name], rel=1e-5), name


def test_a_robustness_without_competitors_is_infinite():
    data = task(k=1)
    networks = built(lambda: nn.Linear(6, 1), 1)
    measure = stacked_geometry(data.x_train, data.y_train)
    (row,) = at_the_start(networks, data, measure, loss="squared_error")
    assert row["local_robustness"] == math.inf
    assert row["effective_rank"] == pytest.approx(1.0)


def test_a_diverged_network_has_nan_and_its_neighbour_its_numbers():
    data, networks = task(), chains(2)
    with torch.no_grad():
        networks[0][0].weight.fill_(math.nan)
    rows = at_the_start(networks, data, stacked_geometry(data.x_train, data.y_train))
    assert math.isnan(rows[0]["normal_alignment"])
    assert_is_local_geometry(rows[1], networks[1], data.x_train, data.y_train)


def test_measuring_changes_neither_the_course_nor_the_samples():
    data = task()
    x = data.x_train.clone().requires_grad_()
    runs = [
        ensemble(
            chains(2), data, plain(2), measure=measure, evaluate=lambda epoch: True
        ).train()
        for measure in (stacked_geometry(x, data.y_train), None)
    ]
    for with_it, without in zip(*runs, strict=True):
        for name, value in with_it.weights.items():
            assert torch.equal(value, without.weights[name])
    assert torch.equal(x, data.x_train)
    assert x.grad is None


def test_only_the_chosen_epochs_are_measured():
    data, calls = task(), []
    geometry = stacked_geometry(data.x_train)

    def measure(stack):
        calls.append(stack.epoch)
        return geometry(stack)

    training = ensemble(
        chains(2), data, plain(2), measure=measure, evaluate=lambda epoch: True,
        epochs=4, measure_at=lambda epoch: epoch % 2 == 0,
    )  # fmt: skip
    history = training.train()[0].history
    measured = [not math.isnan(value) for value in history["effective_rank"]]
    assert measured == [True, False, True, False, True]
    assert calls == [0, 2, 4]


ones = torch.ones(3, 6)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((ones.long(),), {}, TypeError, "x must be of a real dtype, .* at="),
        ((ones[:0],), {}, ValueError, "x must be non-empty"),
        (([ones, ones[:2]],), {}, ValueError, "x must be of one shape for all"),
        (("rows",), {}, TypeError, "x must be a tensor, or one for each member"),
        (([],), {}, TypeError, "x must be a tensor, or one for each member"),
        ((ones, torch.ones(3)), {}, TypeError, "y must be of an integer dtype"),
        ((ones, torch.ones(2).long()), {}, ValueError, r"y must be of shape \(3,\)"),
        ((ones,), {"chunk_size": 0}, ValueError, "chunk_size must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, options, error, text):
    with pytest.raises(error, match=f"^stacked_geometry: {text}"):
        stacked_geometry(*arguments, **options)


def test_classes_that_the_networks_do_not_have_are_refused():
    measure = stacked_geometry(ones, torch.tensor([0, 1, 3]))
    with pytest.raises(ValueError, match="class indices from 0 to 2, got values"):
        at_the_start(chains(1), task(), measure)


def test_samples_for_fewer_members_than_there_are_are_refused():
    with pytest.raises(ValueError, match="x must be one for each member"):
        at_the_start(chains(3), task(), stacked_geometry([ones, ones]))


def transformers(count):
    return [
        Transformer(
            6, 6, width=8, n_heads=2, hidden=12,
            generator=torch.Generator().manual_seed(seed),
        ).double()
        for seed in range(count)
    ]  # fmt: skip


def without_penalty(count):
    return [Member(i, SGD(0.1)) for i in range(count)]


def first_rows(networks, data, measure):
    built_one = Ensemble(
        networks, data, without_penalty(len(networks)), loss="cross_entropy", epochs=0,
        measure=measure,
    )  # fmt: skip
    return [trained.history.last() for trained in built_one.train()]


@pytest.fixture
def pairs():
    return modular_addition(modulus=5, train_fraction=0.6, encoding="tokens")


def assert_is(row, cosine):
    # the local geometry of tokens comes in float32
    near = 1e-6 if cosine.dtype == torch.float32 else 1e-9
    assert row["centroid_alignment"] == pytest.approx(float(cosine.mean()), abs=near)
    size = float(cosine.abs().mean())
    assert row["centroid_magnitude"] == pytest.approx(size, abs=near)


@pytest.mark.parametrize("at", ["blocks", "blocks.0.mlp", At("blocks", token=-1)])
def test_inside_a_transformer_it_is_that_of_the_local_geometry(pairs, at):
    networks = transformers(2)
    measure = stacked_centroid_alignment(pairs.x_train, at=at)
    rows = first_rows(networks, pairs, measure)
    for network, row in zip(networks, rows, strict=True):
        found = local_geometry(network, pairs.x_train, at=at)
        assert_is(row, found.centroid_alignment)


def test_of_the_embedded_tokens_it_is_the_cosine_with_one_pull_back(pairs):
    (network,) = transformers(1)
    x = (network.embed(pairs.x_train) + network.pos).detach().requires_grad_()
    total = network.unembed(network.blocks(x)[:, -1]).sum()
    (centroid,) = torch.autograd.grad(total, x)
    cosine = torch.cosine_similarity(centroid.flatten(1), x.flatten(1))
    measure = stacked_centroid_alignment(pairs.x_train, at="blocks")
    assert_is(first_rows([network], pairs, measure)[0], cosine.detach())


@pytest.mark.parametrize("name", GENERAL)
def test_without_a_place_the_map_begins_at_the_input(name):
    build, shape, k = GENERAL[name]
    networks, data = built(build, 2), task(shape, k=k, n=8)
    measure = stacked_centroid_alignment(data.x_test)
    built_one = ensemble(networks, data, without_penalty(2), epochs=0, measure=measure)
    for network, trained in zip(networks, built_one.train(), strict=True):
        found = local_geometry(network.eval(), data.x_test)
        assert_is(trained.history.last(), found.centroid_alignment)


def test_chains_and_samples_of_ones_own_are_measured_too():
    networks, data = chains(2), task()
    points = [data.x_train, data.x_train.flip(0) + 1]
    measure = stacked_centroid_alignment(points)
    built_one = ensemble(networks, data, without_penalty(2), epochs=0, measure=measure)
    rows = [trained.history.last() for trained in built_one.train()]
    for network, x, row in zip(networks, points, rows, strict=True):
        assert_is(row, local_geometry(network, x).centroid_alignment)


def test_with_labels_the_row_of_the_true_class_is_measured_too(pairs):
    networks = transformers(2)
    measure = stacked_centroid_alignment(pairs.x_train, pairs.y_train, at="blocks")
    rows = first_rows(networks, pairs, measure)
    for network, row in zip(networks, rows, strict=True):
        x = (network.embed(pairs.x_train) + network.pos).detach().requires_grad_()
        logits = network.unembed(network.blocks(x)[:, -1])
        answers = logits.gather(1, pairs.y_train[:, None]).sum()
        (pulled,) = torch.autograd.grad(answers, x)
        wanted = torch.cosine_similarity(pulled.flatten(1), x.flatten(1)).mean()
        assert row["answer_alignment"] == pytest.approx(float(wanted.detach()))


def test_labels_may_be_each_members_own():
    networks, data = chains(2), task()
    labels = [data.y_train, data.y_train.flip(0)]
    measure = stacked_centroid_alignment(data.x_train, labels)
    trained = ensemble(
        networks, data, without_penalty(2), epochs=0, measure=measure
    ).train()
    for network, y, one in zip(networks, labels, trained, strict=True):
        jacobian = local_affine(network, data.x_train).jacobian
        rows = jacobian[torch.arange(len(y)), y]
        wanted = torch.cosine_similarity(rows, data.x_train).mean()
        found = one.history.last()["answer_alignment"]
        assert found == pytest.approx(float(wanted.detach()))


@pytest.mark.parametrize(
    ("y", "error", "words"),
    [
        (torch.zeros(3), TypeError, "y must be of an integer dtype"),
        (torch.zeros(2, dtype=torch.int64), ValueError, r"y must be of shape \(3,\)"),
        ([], TypeError, "y must be a tensor, or one for each member"),
    ],
)
def test_wrong_labels_are_refused(y, error, words):
    with pytest.raises(error, match=words):
        stacked_centroid_alignment(torch.zeros(3, 2), y)


def test_measuring_changes_no_course(pairs):
    measure = stacked_centroid_alignment(pairs.x_train, at="blocks")
    courses = [
        Ensemble(
            transformers(2), pairs, without_penalty(2), loss="cross_entropy", epochs=3,
            measure=extra,
        ).train()
        for extra in (None, measure)
    ]  # fmt: skip
    for bare, measured in zip(*courses, strict=True):
        assert bare.history["train_loss"] == measured.history["train_loss"]


@pytest.mark.parametrize(
    ("x", "at", "error", "words"),
    [
        (torch.zeros(3, 2, dtype=torch.int64), None, TypeError, "x must be of a real"),
        ([torch.zeros(3, 2), torch.zeros(2, 2)], None, ValueError, "one shape"),
        (torch.zeros(0, 2), None, ValueError, "non-empty"),
        (3, None, TypeError, "x must be"),
    ],
)
def test_wrong_samples_are_refused(x, at, error, words):
    with pytest.raises(error, match=words):
        stacked_centroid_alignment(x, at=at)


def test_a_place_that_is_not_there_is_named(pairs):
    measure = stacked_centroid_alignment(pairs.x_train, at="bloks")
    with pytest.raises(ValueError, match="stacked_centroid_alignment: at must be"):
        first_rows(transformers(1), pairs, measure)
