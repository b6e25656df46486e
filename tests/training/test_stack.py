"""A stack against a plain loop: torch's optimizers, autograd, one network."""

import contextlib
import copy
import gc
import signal
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

from normalign import optim
from normalign.regularizers import PenaltyForm
from normalign.training import Member, train_together
from normalign.training._measures import stacked_geometry
from normalign.training._scheduler import Record
from normalign.training._stack import Points, Replay
from normalign.training.history import History
from normalign.training.randomness import PROBES, SHUFFLE, normal, permutations, streams
from normalign.training.rules import SGD, AdamW, Grokfast, OrthoGrad
from tests.cases import TokenModel
from tests.oracles import jacobian_by_loop
from tests.training.ensembles import (
    GENERAL,
    METHODS,
    built,
    chains,
    distance,
    ensemble,
    identical,
    members,
    task,
    travelled,
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


pytestmark = pytest.mark.usefixtures("ctrl_c", "time_limit")

cuda = pytest.mark.cuda


def every(epoch):
    return True


def test_without_a_stream_the_function_is_called_each_time():
    calls = []
    replay = Replay(lambda: calls.append(1) or len(calls), None)
    assert [replay() for _ in range(4)] == [1, 2, 3, 4]
    replay.forget()
    assert replay() == 5


@cuda
def test_a_function_runs_twice_in_python_and_as_often_as_asked_on_the_device():
    stream = torch.cuda.Stream()
    count, calls = torch.zeros((), device="cuda"), []

    def work():
        calls.append(1)
        count.add_(1)
        return count * 10

    replay = Replay(work, stream)
    with torch.cuda.stream(stream):
        results = [replay() for _ in range(6)]
    stream.synchronize()
    assert float(count) == 6
    assert len(calls) == 2
    assert results[1] is results[5]
    assert float(results[5]) == 60
    replay.forget()
    with torch.cuda.stream(stream):
        replay()
    stream.synchronize()
    assert len(calls) == 3
    assert float(count) == 7


def on_both(networks, data, these, **options):
    """Train on the CPU and on the device, from networks that lie on the CPU."""
    return [
        ensemble(networks, data, these, device=device, **options).train()
        for device in ("cpu", "cuda")
    ]


@cuda
@pytest.mark.parametrize("batch_size", [None, 8])
def test_every_method_takes_a_chain_where_the_cpu_does(batch_size):
    data = [task(seed=seed) for seed in range(16)]
    host, device = on_both(
        chains(16, activation="relu"), data, members(), epochs=30,
        batch_size=batch_size, evaluate=lambda epoch: epoch % 7 == 0,
    )  # fmt: skip
    for one, other in zip(host, device, strict=True):
        assert distance(one, other) < 1e-8, one.member
        for name, column in one.history.columns.items():
            assert other.history[name] == pytest.approx(column, rel=1e-7, abs=1e-9)


@cuda
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", GENERAL)
def test_every_method_takes_any_network_where_the_cpu_does(name, method):
    build, shape, k = GENERAL[name]
    networks = built(build, 2)
    host, device = on_both(
        networks, task(shape, k=k, n=12), members(method), epochs=30, batch_size=8
    )
    for network, one, other in zip(networks, host, device, strict=True):
        assert distance(one, other) < 1e-8
        assert travelled(network, other) > 1e-3


FORMS = [
    PenaltyForm("input"),
    PenaltyForm("orthogonal", power="ratio"),
    PenaltyForm("exact", power=1),
    PenaltyForm("noise"),
    PenaltyForm("nuclear"),
    PenaltyForm("input", at="2", n_probes=2),
]


@cuda
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form_of_penalty_can_be_captured(form):
    these = [Member(i, SGD(0.05), weight=0.02, penalty=form) for i in range(2)]
    host, device = on_both(chains(2), task(), these, epochs=30)
    for one, other in zip(host, device, strict=True):
        assert distance(one, other) < 1e-8


@cuda
@pytest.mark.parametrize("form", [None, PenaltyForm(at="embed")])
def test_tokens_train_on_the_device(form):
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 7, (18, 4), generator=source)
    data = task(n=12)
    data.x_train, data.x_test = tokens[:12], tokens[12:]
    data.y_train, data.y_test = tokens[:12, 0] % 5, tokens[12:, 0] % 5
    options = {} if form is None else {"weight": 0.01, "penalty": form}
    these = [Member(i, AdamW(1e-2), **options) for i in range(2)]
    host, device = on_both(built(TokenModel, 2), data, these, epochs=30, batch_size=5)
    for one, other in zip(host, device, strict=True):
        assert distance(one, other) < 1e-8


@cuda
def test_buffers_go_to_the_device_with_the_architecture():
    networks = built(
        lambda: nn.Sequential(
            nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)
        ).eval(),
        2,
    )
    for one, other in zip(*on_both(networks, task(), members("sgd")), strict=True):
        assert distance(one, other) < 1e-10
    assert next(networks[0].parameters()).device.type == "cpu"


@cuda
def test_networks_on_the_device_are_trained_there_and_come_back_on_the_cpu():
    networks = [network.cuda() for network in chains(2)]
    trained = ensemble(networks, task(), members("sgd")).train()
    assert {w.device.type for one in trained for w in one.weights.values()} == {"cpu"}
    expected = ensemble(chains(2), task(), members("sgd")).train()
    for one, other in zip(trained, expected, strict=True):
        assert distance(one, other) < 1e-10


@cuda
def test_members_that_finish_and_diverge_leave_the_others_on_their_way():
    these = [Member(i, SGD(0.01), weight=0.01) for i in range(8)]
    these[3] = Member(3, SGD(1e200), weight=0.01)
    networks, data = chains(8, activation="relu"), [task(seed=i) for i in range(8)]
    ends = {0: 6, 1: 6, 2: 12, 5: 12}  # half of them gone, and half of the rest
    runs = [
        ensemble(
            networks, data, these, epochs=60, device=device,
            evaluate=lambda epoch: epoch % 6 == 0,
        ).train(callback=lambda i, row: row["epoch"] == ends.get(i))
        for device in ("cpu", "cuda")
    ]  # fmt: skip
    for host, device in zip(*runs, strict=True):
        assert host.stopped == device.stopped
        assert host.history["epoch"] == device.history["epoch"]
        if host.stopped != "diverged":
            assert distance(host, device) < 1e-8
    assert runs[1][3].stopped == "diverged"


@cuda
def test_an_evaluation_more_or_less_does_not_change_the_course():
    runs = [
        ensemble(
            chains(4), task(), members("power 1", "adamw"), epochs=40, device="cuda",
            evaluate=evaluate, batch_size=8,
        ).train()
        for evaluate in (every, lambda epoch: False)
    ]  # fmt: skip
    for one, other in zip(*runs, strict=True):
        assert distance(one, other) == 0


def interruptible(**options):
    return ensemble(
        chains(16), [task(seed=i) for i in range(16)], members(), epochs=70,
        batch_size=8, evaluate=lambda epoch: epoch % 5 == 0, device="cuda", **options,
    )  # fmt: skip


def stop_some(i, row):
    return i in (0, 4, 5) and row["epoch"] == 10


@cuda
@pytest.mark.parametrize("moment", [(1, 0), (2, 5), (9, 35), (15, 65)])
def test_a_run_on_the_device_goes_on_bit_for_bit(tmp_path, moment):
    pytest.importorskip("safetensors")
    whole = interruptible().train(callback=stop_some)

    def callback(i, row):
        if (i, row["epoch"]) == moment:
            signal.raise_signal(signal.SIGINT)
        return stop_some(i, row)

    first = interruptible().train(checkpoint=tmp_path / "c", callback=callback)
    assert any(one.history.interrupted for one in first)
    second = interruptible().train(checkpoint=tmp_path / "c", callback=stop_some)
    for one, other in zip(second, whole, strict=True):
        assert identical(one, other), one.member


@cuda
def test_a_general_network_on_the_device_goes_on_bit_for_bit(tmp_path):
    pytest.importorskip("safetensors")

    def run(**options):
        training = ensemble(
            built(GENERAL["layer norm"][0], 2), task(), members("adamw"), epochs=60,
            evaluate=lambda epoch: epoch % 20 == 0, device="cuda",
        )  # fmt: skip
        return training.train(**options)

    def callback(i, row):
        if (i, row["epoch"]) == (1, 20):
            signal.raise_signal(signal.SIGINT)

    whole = run()
    first = run(checkpoint=tmp_path / "c", callback=callback)
    assert first[0].stopped == "interrupted"
    for one, other in zip(run(checkpoint=tmp_path / "c"), whole, strict=True):
        assert identical(one, other)


@cuda
def test_several_ensembles_together_are_each_as_alone():
    def three():
        return [
            ensemble(
                chains(16), task(), members(), epochs=40, batch_size=8, device="cuda"
            ),
            ensemble(
                built(GENERAL["residual"][0], 2), task((9,), k=4), members("adamw"),
                epochs=40, device="cuda", evaluate=every,
            ),
            ensemble(
                chains(4, seed=1), task(seed=1), members("power 1", "sgd"), epochs=40,
                device="cuda", evaluate=lambda epoch: epoch % 3 == 0,
            ),
        ]  # fmt: skip

    alone = [one.train() for one in three()]
    for trained, expected in zip(train_together(three()), alone, strict=True):
        for one, other in zip(trained, expected, strict=True):
            # Beside others a product may be summed in another order.
            assert distance(one, other) < 1e-10
            assert one.history["epoch"] == other.history["epoch"]


@cuda
@pytest.mark.parametrize("name", ["chain", "residual"])
def test_the_geometry_is_that_of_the_cpu(name):
    if name == "chain":
        networks, data = chains(4), task()
    else:
        networks, data = built(GENERAL[name][0], 4), task((9,), k=4)
    runs = on_both(
        networks, data, members("sgd", "adamw"), evaluate=every,
        measure=stacked_geometry(data.x_train, data.y_train, chunk_size=10),
    )  # fmt: skip
    for host, device in zip(*runs, strict=True):
        for column, values in host.history.columns.items():
            assert device.history[column] == pytest.approx(values, rel=1e-7, abs=1e-9)


@cuda
@pytest.mark.parametrize("method", METHODS)
def test_between_evaluations_nothing_waits_for_the_device(method):
    training = ensemble(chains(2), task(), members(method), batch_size=8, device="cuda")
    (group,) = training.groups([Record(History()) for _ in range(2)])
    stack = group.stack
    stack.advance(3)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        stack.advance(40)
        stack.scores()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert stack.epoch == 43
    assert bool(stack.rows.isfinite().all())


@pytest.mark.parametrize("was_enabled", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_the_collector_rests_during_a_capture_alone(monkeypatch, was_enabled, fails):
    graph = types.SimpleNamespace(replay=lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda *a, **k: contextlib.nullcontext())
    seen = []

    def work():
        seen.append(gc.isenabled())
        if fails and len(seen) == 2:
            raise RuntimeError("no capture")

    replay = Replay(work, types.SimpleNamespace(synchronize=lambda: None))
    gc.enable() if was_enabled else gc.disable()
    try:
        replay()
        with pytest.raises(RuntimeError) if fails else contextlib.nullcontext():
            replay()
        assert seen == [was_enabled, False]
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()


def leave_a_graph_to_the_collector(stream):
    count = torch.zeros((), device="cuda")
    replay = Replay(lambda: count.add_(1), stream)
    with torch.cuda.stream(stream):
        replay()
        replay()
    replay.itself = replay


@cuda
def test_a_graph_that_is_garbage_does_not_spoil_a_capture():
    stream, count = torch.cuda.Stream(), torch.zeros((), device="cuda")

    def work():
        gc.set_threshold(1)  # from here on nearly every new list calls the collector
        made = [[] for _ in range(1000)]
        return count.add_(len(made))

    replay, before = Replay(work, stream), gc.get_threshold()
    try:
        with torch.cuda.stream(stream):
            replay()
            gc.collect()
            gc.set_threshold(10**9)
            leave_a_graph_to_the_collector(stream)
            replay()
    finally:
        gc.set_threshold(*before)
    stream.synchronize()
    assert float(count) == 2000
