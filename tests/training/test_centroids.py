import pytest
import torch

from normalign import At, local_affine, local_geometry
from normalign.data import modular_addition
from normalign.nn import Transformer
from normalign.training import Ensemble, Member
from normalign.training.centroids import stacked_centroid_alignment
from normalign.training.rules import SGD
from tests.training.ensembles import GENERAL, built, chains, ensemble, task


def transformers(count):
    return [
        Transformer(
            6, 6, width=8, n_heads=2, hidden=12,
            generator=torch.Generator().manual_seed(seed),
        ).double()
        for seed in range(count)
    ]  # fmt: skip


def plain(count):
    return [Member(i, SGD(0.1)) for i in range(count)]


def first_rows(networks, data, measure):
    built_one = Ensemble(
        networks, data, plain(len(networks)), loss="cross_entropy", epochs=0,
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
    built_one = ensemble(networks, data, plain(2), epochs=0, measure=measure)
    for network, trained in zip(networks, built_one.train(), strict=True):
        found = local_geometry(network.eval(), data.x_test)
        assert_is(trained.history.last(), found.centroid_alignment)


def test_chains_and_samples_of_ones_own_are_measured_too():
    networks, data = chains(2), task()
    points = [data.x_train, data.x_train.flip(0) + 1]
    measure = stacked_centroid_alignment(points)
    built_one = ensemble(networks, data, plain(2), epochs=0, measure=measure)
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
    trained = ensemble(networks, data, plain(2), epochs=0, measure=measure).train()
    for network, y, one in zip(networks, labels, trained, strict=True):
        jacobian = local_affine(network, data.x_train).jacobian
        rows = jacobian[torch.arange(len(y)), y]
        wanted = torch.cosine_similarity(rows, data.x_train).mean()
        found = one.history.last()["answer_alignment"]
        assert found == pytest.approx(float(wanted.detach()))


@pytest.mark.parametrize(
    ("y", "error", "words"),
    [
        (torch.zeros(3), TypeError, "y must be an integer tensor"),
        (torch.zeros(2, dtype=torch.int64), ValueError, r"y must be of shape \(3,\)"),
        ([], TypeError, "y must be an integer tensor"),
    ],
)
def test_wrong_labels_are_refused(y, error, words):
    with pytest.raises(error, match=words):
        stacked_centroid_alignment(torch.zeros(3, 2), y)


def test_measuring_changes_no_course(pairs):
    measure = stacked_centroid_alignment(pairs.x_train, at="blocks")
    courses = [
        Ensemble(
            transformers(2), pairs, plain(2), loss="cross_entropy", epochs=3,
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
