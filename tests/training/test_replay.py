"""Captured graphs: the same numbers as the plain run on the CPU, and no waiting."""

import contextlib
import gc
import signal
import types

import pytest
import torch
from torch import nn

from normalign.regularizers import PenaltyForm
from normalign.training import Member, train_together
from normalign.training.group import Record
from normalign.training.history import History
from normalign.training.replay import Replay
from normalign.training.rules import SGD, AdamW
from normalign.training.stack_geometry import stacked_geometry
from tests.cases import TokenModel
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
