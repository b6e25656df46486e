"""A stack against a plain loop: torch's optimizers, autograd, one network."""

import copy

import pytest
import torch
from torch.nn import functional

from normalign import optim
from normalign.training import Member
from normalign.training.group import Record
from normalign.training.history import History
from normalign.training.randomness import PROBES, SHUFFLE, normal, permutations, streams
from normalign.training.rules import SGD, Grokfast, OrthoGrad
from normalign.training.stack import Points
from tests.oracles import jacobian_by_loop
from tests.training.ensembles import (
    METHODS,
    chains,
    ensemble,
    members,
    task,
)


def torch_optimizer(member, network):
    rule, parameters = member.optimizer, network.parameters()
    if isinstance(rule, SGD):
        optimizer = torch.optim.SGD(
            parameters, rule.learning_rate, rule.momentum,
            weight_decay=rule.weight_decay,
        )  # fmt: skip
    else:
        optimizer = torch.optim.AdamW(
            parameters, rule.learning_rate, (rule.beta1, rule.beta2), rule.eps,
            rule.weight_decay,
        )  # fmt: skip
    if isinstance(member.gradient_filter, Grokfast):
        decay, strength = member.gradient_filter.decay, member.gradient_filter.strength
        optim.Grokfast(optimizer, decay=decay, strength=strength)
    elif isinstance(member.gradient_filter, OrthoGrad):
        optim.OrthoGrad(optimizer)
    return optimizer


def whole_jacobian(network, x):
    """(n, k, d), row by row, as a function of the parameters."""
    x = x.clone().requires_grad_()
    output = network(x)
    rows = [
        torch.autograd.grad(column.sum(), x, create_graph=True)[0]
        for column in output.unbind(1)
    ]
    return output, torch.stack(rows, 1)


def penalty(network, x, noise, form):
    """The mean penalty, written out with whole Jacobians."""
    output, jacobian = whole_jacobian(network, x)
    k = output.shape[1]
    probe = noise * k**0.5 / noise.norm(dim=1, keepdim=True)
    squared = torch.einsum("nk,nkd->nd", probe, jacobian).square().sum(1)
    along = torch.einsum("nkd,nd->nk", jacobian, x)
    if form.power == "ratio":
        return (
            (squared * x.square().sum(1)).log() - along.square().sum(1).log()
        ).mean()
    if form.released:
        offset = (output - along).square().sum(1)
    else:
        offset = (probe * (output - along)).sum(1).square()
    norm = squared if form.power == 2 else squared.clamp_min(1e-8).sqrt()
    return (norm + offset).mean()


def plain_loop(network, data, member, epochs, batch_size):
    """Train a copy as one would without this package's engine; return it."""
    network = copy.deepcopy(network)
    optimizer = torch_optimizer(member, network)
    seed, n = torch.tensor([member.seed]), len(data.x_train)
    penalties = []
    for epoch in range(1, epochs + 1):
        order = torch.arange(n)
        if batch_size < n:
            order = permutations(streams(seed, SHUFFLE, epoch), n)[0]
        keys = streams(seed, PROBES, epoch)
        noise = normal(keys, (1, n, 3), dtype=torch.float64)[0, 0]
        penalties = []
        for index, probes in zip(
            order.split(batch_size), noise.split(batch_size), strict=True
        ):
            x, y = data.x_train[index], data.y_train[index]
            loss = functional.cross_entropy(network(x), y)
            if member.weight:
                value = member.weight * penalty(network, x, probes, member.penalty)
                penalties.append(float(value.detach()))
                loss = loss + value
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network, sum(penalties) / max(1, len(penalties))


@pytest.mark.parametrize("batch_size", [24, 10])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_takes_the_steps_of_a_plain_loop(name, batch_size):
    networks, data, these = chains(2), task(), members(name, seed=11)
    epochs = batch_size  # 24 steps of all samples, or 30 of ten, ten and four
    trained = ensemble(
        networks, data, these, epochs=epochs, batch_size=batch_size
    ).train()
    for network, member, one in zip(networks, these, trained, strict=True):
        expected, mean_penalty = plain_loop(network, data, member, epochs, batch_size)
        for name, value in expected.named_parameters():
            torch.testing.assert_close(
                one.weights[name], value.detach(), rtol=0, atol=1e-10
            )
        row = one.history.last()
        assert row["penalty"] == pytest.approx(mean_penalty, rel=1e-10)
        for half in ("train", "test"):
            x, y = getattr(data, f"x_{half}"), getattr(data, f"y_{half}")
            output = expected(x)
            loss = float(functional.cross_entropy(output, y).detach())
            right = float((output.argmax(1) == y).double().mean())
            assert row[f"{half}_loss"] == pytest.approx(loss, rel=1e-10)
            assert row[f"{half}_accuracy"] == right


def test_the_oracle_has_the_right_jacobian():
    (network,), data = chains(1), task()
    _, jacobian = whole_jacobian(network, data.x_train)
    torch.testing.assert_close(jacobian, jacobian_by_loop(network, data.x_train))


def test_scores_do_not_depend_on_the_pieces_they_are_made_in():
    data = task(n=2500)  # three pieces, the last one smaller
    (network,) = chains(1)
    (trained,) = ensemble([network], data, [Member(0, SGD())], epochs=0).train()
    output = network(data.x_train).detach()
    row = trained.history.last()
    expected = float(functional.cross_entropy(output, data.y_train))
    assert row["train_loss"] == pytest.approx(expected, rel=1e-13)
    right = (output.argmax(1) == data.y_train).double().mean()
    assert row["train_accuracy"] == pytest.approx(float(right), rel=1e-15)


def stack_of(networks, data, these, **options):
    """The one stack of an ensemble whose members are of one kind."""
    training = ensemble(networks, data, these, **options)
    (group,) = training.groups([Record(History()) for _ in these])
    return group.stack


def test_a_stack_goes_on_from_its_state_bit_for_bit():
    arguments = chains(2), task(), members("grokfast")
    one, other = (stack_of(*arguments, batch_size=7) for _ in range(2))
    one.advance(5)
    state = {name: value.clone() for name, value in one.state().items()}
    other.restore(state, 5)
    for stack in (one, other):
        stack.advance(4)
    assert torch.equal(one.rows, other.rows)
    assert torch.equal(one.scores(), other.scores())
    assert one.epoch == other.epoch == 9


def test_dropping_networks_leaves_the_others_on_their_way():
    data = [task(seed=seed) for seed in range(4)]
    these = [
        Member(seed, SGD(0.1 / (1 + seed), momentum=0.5), weight=0.01 * (1 + seed))
        for seed in range(4)
    ]
    whole, part = (stack_of(chains(4), data, these, batch_size=7) for _ in range(2))
    whole.advance(6)
    part.advance(3)
    part.keep([3, 1])
    part.advance(3)
    assert part.positions == [3, 1]
    assert part.size == 2
    torch.testing.assert_close(part.rows, whole.rows[[3, 1]], rtol=0, atol=1e-13)
    torch.testing.assert_close(part.scores(), whole.scores()[[3, 1]])


def test_score_names_are_the_columns_of_the_scores():
    data = task()
    stack = stack_of(
        chains(2), data, members("sgd"), also={"other": (data.x_test, data.y_test)}
    )
    names = stack.score_names()
    assert names[-3:] == ["other_loss", "other_accuracy", "penalty"]
    scores = stack.scores()
    assert scores.shape == (2, len(names))
    column = {name: scores[:, i] for i, name in enumerate(names)}
    assert torch.equal(column["other_loss"], column["test_loss"])


def test_float32_is_trained_and_scored_in_float32_and_recorded_in_float64():
    networks = [network.float() for network in chains(2)]
    stack = stack_of(networks, task(), members("power 1"))
    stack.advance(3)
    assert stack.rows.dtype == torch.float32
    assert stack.scores().dtype == torch.float64


def test_points_are_picked_for_each_network_and_shared_ones_are_not_copied():
    source = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 5, 2, generator=source), torch.arange(15).reshape(3, 5)
    index = torch.tensor([[4, 0], [1, 1], [2, 3]])
    for shared_x in (True, False):
        for shared_y in (True, False):
            points = Points(x[:1] if shared_x else x, y[:1] if shared_y else y)
            assert len(points) == 5
            picked_x, picked_y = points.at(index)
            for i in range(3):
                assert torch.equal(picked_x[i], x[0 if shared_x else i, index[i]])
                assert torch.equal(picked_y[i], y[0 if shared_y else i, index[i]])
            all_x, all_y = points.all_of(3)
            assert all_x.shape == x.shape
            assert all_y.shape == y.shape
            assert all_x.data_ptr() == x.data_ptr()
            few = points.keep(torch.tensor([2]))
            assert torch.equal(few.all_of(1)[0][0], x[0 if shared_x else 2])
            assert torch.equal(few.all_of(1)[1][0], y[0 if shared_y else 2])
