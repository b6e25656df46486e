import math
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from normalign.regularizers import PenaltyForm
from normalign.training import Ensemble, History, Member, train_together
from normalign.training import _scheduler as module
from normalign.training._checkpoint import read_checkpoint
from normalign.training._measures import stacked_geometry
from normalign.training._networks import StackedChains, StackedModules
from normalign.training._stack import Stack
from normalign.training.ensemble import Tables, named_sets, one_each, with_targets
from normalign.training.rules import SGD, AdamW, Grokfast
from tests.training.ensembles import (
    GENERAL,
    METHODS,
    built,
    chains,
    convolutional,
    distance,
    ensemble,
    identical,
    members,
    never,
    task,
    travelled,
)

pytestmark = pytest.mark.usefixtures("ctrl_c", "time_limit")


def every(epoch):
    return True


# ---------------------------------------------------------------- alone and together


@pytest.fixture(scope="module")
def together():
    """Sixteen chains of eight kinds, each with data and a shuffling of its own."""
    data = [task(seed=seed) for seed in range(16)]
    networks, these = chains(16, activation="relu"), members()
    # 67 epochs of 24 samples, eight at a time: 201 steps.
    options = {"epochs": 67, "batch_size": 8}
    trained = ensemble(networks, data, these, **options).train()
    return networks, data, these, options, trained


@pytest.mark.parametrize("name", METHODS)
def test_a_chain_goes_its_own_way_alone_and_among_others(name, together):
    networks, data, these, options, trained = together
    i = 2 * list(METHODS).index(name) + 1
    alone = ensemble(networks[i : i + 1], data[i : i + 1], these[i : i + 1], **options)
    (one,) = alone.train()
    assert distance(one, trained[i]) < 1e-8
    assert travelled(networks[i], one) > 0.1
    assert one.history.last() == pytest.approx(trained[i].history.last(), rel=1e-7)


# An architecture, with a method that asks something of it.
ROADS = {
    "residual": "released",
    "layer norm": "grokfast",
    "convolution": "orthograd",
    "attention": "power 1",
}


@pytest.mark.parametrize("name", ROADS)
def test_any_other_network_goes_its_own_way_alone_and_among_others(name):
    build, shape, k = GENERAL[name]
    networks, data = built(build, 2), task(shape, k=k, n=12)
    these = members(ROADS[name])
    training = ensemble(networks, data, these, epochs=200)
    assert isinstance(training.networks, StackedModules)
    trained = training.train()
    (alone,) = ensemble(networks[1:], data, these[1:], epochs=200).train()
    assert distance(alone, trained[1]) < 1e-8
    assert travelled(networks[1], alone) > 0.1


def test_the_order_of_the_members_does_not_matter():
    networks, these, data = chains(16), members(), [task(seed=i) for i in range(16)]
    order = torch.randperm(16, generator=torch.Generator().manual_seed(5)).tolist()
    options = {"epochs": 4, "batch_size": 7}
    one = ensemble(networks, data, these, **options).train()
    other = ensemble(
        *([part[i] for i in order] for part in (networks, data, these)), **options
    ).train()
    for position, i in enumerate(order):
        assert other[position].member is these[i]
        assert distance(one[i], other[position]) < 1e-12


def test_the_schedule_of_evaluations_does_not_change_the_course():
    runs = [
        ensemble(chains(4), task(), members("adamw", "power 2"), evaluate=e).train()
        for e in (every, never, lambda epoch: epoch == 2)
    ]
    for trained in zip(*runs, strict=True):
        assert [len(one.history) for one in trained] == [6, 1, 2]
        assert distance(trained[0], trained[1]) == 0
        assert distance(trained[0], trained[2]) == 0
        assert trained[0].history.last() == trained[1].history.last()


def test_members_that_finish_early_leave_the_others_on_their_way():
    networks, these = chains(6), members("power 1", "sgd", "orthograd")
    options = {"epochs": 12, "batch_size": 7, "evaluate": every}
    whole = ensemble(networks, task(), these, **options).train()
    early = ensemble(networks, task(), these, **options).train(
        callback=lambda i, row: row["epoch"] == 2 * i and i in (0, 2, 4)
    )
    assert [one.stopped for one in early] == ["callback", "epochs"] * 3
    assert [one.history["epoch"][-1] for one in early] == [0, 12, 4, 12, 8, 12]
    for i in (1, 3, 5):
        assert distance(early[i], whole[i]) < 1e-12
    for i in (0, 2, 4):  # they are given back as they were when they stopped
        epochs = early[i].history["epoch"][-1]
        shorter = ensemble(networks, task(), these, **{**options, "epochs": epochs})
        assert distance(early[i], shorter.train()[i]) < 1e-12


def test_the_seed_decides_the_order_of_samples_and_the_probes():
    networks = [chains(1)[0]] * 4
    these = [Member(seed, SGD(0.1)) for seed in (3, 3, 4)]
    these.append(Member(3, SGD(0.1), weight=1e-300))
    # the same but for the last bit, which some processors round by where a row stands
    same = 1e-15
    runs = ensemble(networks, task(), these, batch_size=7).train()
    assert distance(runs[0], runs[1]) < same
    assert distance(runs[0], runs[2]) > 1e-4
    assert distance(runs[0], runs[3]) < 1e-12  # the probes are not the shuffling's
    these = [Member(seed, SGD(0.1), weight=0.1) for seed in (3, 3, 4)]
    runs = ensemble(networks[:3], task(), these).train()
    assert distance(runs[0], runs[1]) < same
    assert distance(runs[0], runs[2]) > 1e-4


def test_the_global_generator_and_the_data_are_untouched():
    data = task()
    before = {name: value.clone() for name, value in vars(data).items()}
    state = torch.get_rng_state()
    ensemble(chains(4), data, members("power 2", "ratio"), batch_size=7).train()
    ensemble(built(GENERAL["layer norm"][0], 2), data, members("power 2")).train()
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in vars(data).items():
        assert torch.equal(value, before[name])


def test_several_ensembles_train_together_as_each_alone():
    first = ensemble(chains(2), task(), members("sgd"), evaluate=every)
    second = ensemble(
        built(GENERAL["layer norm"][0], 4), task(seed=3), members("power 1", "adamw"),
        epochs=3, evaluate=every,
    )  # fmt: skip
    seen = []
    both = train_together(
        [first, second], callback=lambda e, i, row: seen.append((e, i, row["epoch"]))
    )
    assert sorted(seen) == [
        (e, i, epoch)
        for e, (members_, epochs) in enumerate([(2, 5), (4, 3)])
        for i in range(members_)
        for epoch in range(epochs + 1)
    ]
    for trained, alone in zip(both, (first, second), strict=True):
        for one, other in zip(trained, alone.train(), strict=True):
            assert identical(one, other)


# ------------------------------------------------------------------- when it ends


def test_the_criterion_ends_a_member_and_no_other():
    trained = ensemble(
        chains(4), task(), members("adamw", "sgd"), epochs=60, evaluate=every,
        until=lambda row: row["train_loss"] < 0.6,
    ).train()  # fmt: skip
    ends = [one.history["epoch"][-1] for one in trained]
    assert len(set(ends)) > 1
    for one in trained:
        losses = one.history["train_loss"]
        assert all(loss >= 0.6 for loss in losses[:-1])
        reason = "criterion" if losses[-1] < 0.6 else "epochs"
        assert one.stopped == reason
    assert "criterion" in [one.stopped for one in trained]


@pytest.mark.parametrize("build", ["chain", "convolution"])
@pytest.mark.parametrize("method", [SGD(1e200), AdamW(1e200)])
def test_a_member_that_diverges_stops_alone(build, method):
    if build == "chain":
        networks, data = chains(3, activation="relu"), task()
    else:
        networks, data = built(convolutional, 3), task((2, 6, 6), n=8)
    calm = type(method)(0.01)
    these = [Member(0, calm), Member(1, method), Member(2, calm)]
    # For nine epochs what is not finite lies between the two others.
    options = {"epochs": 20, "evaluate": lambda epoch: epoch % 10 == 0}
    trained = ensemble(networks, data, these, **options).train()
    assert [one.stopped for one in trained] == ["epochs", "diverged", "epochs"]
    assert trained[1].history["epoch"] == [0, 10]
    assert not math.isfinite(trained[1].history["train_loss"][-1])
    for i in (0, 2):
        alone = ensemble(networks[i : i + 1], data, these[i : i + 1], **options).train()
        assert distance(trained[i], alone[0]) < 1e-8


def test_no_epochs_are_a_look_at_the_untouched_networks():
    networks = chains(2)
    trained = ensemble(networks, task(), members("sgd"), epochs=0).train()
    for network, one in zip(networks, trained, strict=True):
        assert one.stopped == "epochs"
        assert one.history["epoch"] == [0]
        assert one.history["penalty"] == [0]
        assert travelled(network, one) == 0


def test_a_callback_that_says_yes_at_the_end_changes_nothing():
    trained = ensemble(chains(2), task(), members("sgd")).train(
        callback=lambda i, row: True
    )
    assert [one.stopped for one in trained] == ["epochs", "epochs"]


def test_further_sets_have_columns_of_their_own_for_each_member():
    data = task()
    test, flipped = (data.x_test, data.y_test), (-data.x_test, data.y_test)
    training = ensemble(
        chains(2), data, members("sgd"),
        also={"same": test, "mine": [test, flipped]},
    )  # fmt: skip
    networks = chains(2)
    for i, one in enumerate(training.train()):
        networks[i].load_state_dict(one.weights)
        row = one.history.last()
        assert row["same_loss"] == row["test_loss"]
        assert row["same_accuracy"] == row["test_accuracy"]
        x, y = (test, flipped)[i]
        output = networks[i](x).detach()
        expected = float(nn.functional.cross_entropy(output, y))
        assert row["mine_loss"] == pytest.approx(expected)
        assert row["mine_accuracy"] == float((output.argmax(1) == y).double().mean())


@pytest.mark.parametrize("road", [None, StackedModules])
def test_images_are_trained_as_the_rows_they_flatten_to(road):
    data = task((2, 3))
    flat = SimpleNamespace(**{
        name: value.flatten(1) if value.is_floating_point() else value
        for name, value in vars(data).items()
    })  # fmt: skip
    networks = chains(2)
    images = [nn.Sequential(nn.Flatten(), *network) for network in networks]
    training = ensemble(images, data, members("power 1"))
    assert isinstance(training.networks, StackedChains)
    if road is not None:
        training.networks = road(training.networks.network)
    expected = ensemble(networks, flat, members("power 1")).train()
    for one, other in zip(training.train(), expected, strict=True):
        for value, wanted in zip(
            one.weights.values(), other.weights.values(), strict=True
        ):
            torch.testing.assert_close(value, wanted, rtol=0, atol=1e-12)


def test_the_weights_load_into_a_network_that_scores_as_recorded():
    networks, data = built(GENERAL["layer norm"][0], 2), task()
    trained = ensemble(networks, data, members("adamw")).train()
    for network, one in zip(networks, trained, strict=True):
        network.load_state_dict(one.weights)
        loss = nn.functional.cross_entropy(network(data.x_test), data.y_test)
        assert one.history["test_loss"][-1] == pytest.approx(float(loss.detach()))


# -------------------------------------------------------- checkpoints and interrupts


def checkpointed(**options):
    """An ensemble of three kinds with data of their own, ready to be interrupted."""
    settings = {"epochs": 8, "batch_size": 7, "evaluate": every, **options}
    these = members("grokfast", "power 1", "sgd")
    return ensemble(chains(6), [task(seed=i) for i in range(6)], these, **settings)


def ctrl_c_at(i, epoch):
    def callback(member, row):
        if (member, row["epoch"]) == (i, epoch):
            signal.raise_signal(signal.SIGINT)

    return callback


@pytest.fixture(scope="module")
def whole():
    """The runs of that ensemble when nothing interrupts it."""
    return checkpointed().train()


@pytest.fixture
def interrupted(tmp_path, half_way):
    """A checkpoint of that ensemble, made after Ctrl-C in its second kind."""
    (tmp_path / "c").write_bytes(half_way)
    return tmp_path / "c"


@pytest.fixture(scope="module")
def half_way(tmp_path_factory):
    file = tmp_path_factory.mktemp("half") / "c"
    checkpointed().train(checkpoint=file, callback=ctrl_c_at(2, 3))
    return file.read_bytes()


@pytest.mark.parametrize("moment", [(0, 0), (1, 3), (2, 5), (4, 7), (5, 8)])
def test_a_run_goes_on_after_ctrl_c_as_if_never_interrupted(tmp_path, moment, whole):
    first = checkpointed().train(checkpoint=tmp_path / "c", callback=ctrl_c_at(*moment))
    done = [one.stopped == "epochs" for one in first]
    assert [one.history.interrupted for one in first] == [not end for end in done]
    assert {one.stopped for one in first} <= {"epochs", "interrupted"}
    assert all(done) == (moment == (5, 8))
    second = checkpointed().train(checkpoint=tmp_path / "c")
    for one, other in zip(second, whole, strict=True):
        assert identical(one, other)
        assert not one.history.interrupted


def test_a_run_may_be_interrupted_at_every_turn(tmp_path):
    whole = checkpointed(epochs=3).train()
    turns = 0
    while True:
        seen = []

        def once(i, row, seen=seen):
            if not seen:
                signal.raise_signal(signal.SIGINT)
            seen.append(i)

        trained = checkpointed(epochs=3).train(checkpoint=tmp_path / "c", callback=once)
        if not seen:
            break
        turns += 1
    assert turns == 3 * 4  # three kinds, with four rows each
    for one, other in zip(trained, whole, strict=True):
        assert identical(one, other)


def test_a_run_goes_on_without_the_members_that_had_finished(tmp_path):
    def stop(i, row):
        return i in (0, 3, 4) and row["epoch"] == 2

    def stop_and_interrupt(i, row):
        ctrl_c_at(4, 4)(i, row)
        ctrl_c_at(5, 4)(i, row)
        return stop(i, row)

    whole = checkpointed().train(callback=stop)
    checkpointed().train(checkpoint=tmp_path / "c", callback=stop_and_interrupt)
    stored = read_checkpoint(tmp_path / "c").record
    assert [group["positions"] for group in stored["groups"]] == [[1], [2], [5]]
    second = checkpointed().train(checkpoint=tmp_path / "c", callback=stop)
    assert [one.stopped for one in second] == [one.stopped for one in whole]
    for one, other in zip(second, whole, strict=True):
        assert identical(one, other)


def test_a_general_network_goes_on_with_its_measurements(tmp_path):
    def run(**options):
        data = task()
        training = ensemble(
            built(GENERAL["layer norm"][0], 2), data, members("power 1"), epochs=6,
            evaluate=every, measure=stacked_geometry(data.x_test, data.y_test),
            measure_at=lambda epoch: epoch in (1, 5),
        )  # fmt: skip
        return training.train(**options)

    whole = run()
    run(checkpoint=tmp_path / "c", callback=ctrl_c_at(1, 3))
    for one, other in zip(run(checkpoint=tmp_path / "c"), whole, strict=True):
        assert identical(one, other)
        found = [not math.isnan(value) for value in one.history["effective_rank"]]
        assert found == [epoch in (1, 5) for epoch in range(7)]


KILLED = """
import sys
from tests.training.test_ensemble import checkpointed

def callback(i, row):
    print(i, row["epoch"], flush=True)

checkpointed(epochs=4000).train(
    checkpoint=sys.argv[1], checkpoint_seconds=0.0, callback=callback
)
"""


def test_a_run_goes_on_after_the_process_was_killed(tmp_path):
    file = tmp_path / "c"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(file)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if line.split() == ["0", "20"]:
            process.send_signal(signal.SIGKILL)
            break
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    reached = read_checkpoint(file).record["groups"][0]["epoch"]
    assert 19 <= reached < 4000

    def stop(i, row):
        return row["epoch"] == 5 if i > 1 else row["epoch"] == reached + 3

    options = {"epochs": 4000}
    whole = checkpointed(**options).train(callback=stop)
    second = checkpointed(**options).train(checkpoint=file, callback=stop)
    for one, other in zip(second, whole, strict=True):
        assert identical(one, other)


def test_a_finished_run_comes_back_without_training(tmp_path, monkeypatch):
    first = checkpointed().train(checkpoint=tmp_path / "c")

    def refuse(self, epochs):
        raise AssertionError("it trains again")

    monkeypatch.setattr(Stack, "advance", refuse)
    seen = []
    second = checkpointed().train(
        checkpoint=tmp_path / "c", callback=lambda i, row: seen.append(row)
    )
    assert seen == []
    for one, other in zip(first, second, strict=True):
        assert identical(one, other)
        assert one.history.seconds == other.history.seconds


OTHER = {
    "more epochs": {"epochs": 9},
    "another batch size": {"batch_size": 6},
    "another loss": {"loss": "squared_error"},
    "a loss of one's own": {"loss": nn.CrossEntropyLoss()},
    "another schedule": {"evaluate": lambda epoch: epoch % 2 == 0},
    "a further set": {"also": {"more": (task().x_test, task().y_test)}},
    "a measurement": {"measure": stacked_geometry(task().x_test)},
}


def refusal(file, training, names=""):
    content = file.read_bytes()
    text = (
        "^Ensemble.train: checkpoint must be one that was written with these settings "
        r"and data, got c of another run, which differs in: "
        rf".*{names}.*\. Delete the file to start over"
    )
    with pytest.raises(ValueError, match=text):
        training.train(checkpoint=file)
    assert file.read_bytes() == content


@pytest.mark.parametrize("name", OTHER)
def test_a_checkpoint_of_other_settings_is_refused_and_left(interrupted, name):
    refusal(interrupted, checkpointed(**OTHER[name]))


def scaled(factor):
    def loss(output, target):
        return factor * nn.functional.cross_entropy(output, target)

    return loss


def summed(output, target, factor=1.0):
    return factor * nn.functional.cross_entropy(output, target, reduction="sum")


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, output, target):
        return self.factor * nn.functional.cross_entropy(output, target)


def brief(loss, **options):
    return checkpointed(loss=loss, epochs=1).train(**options)


@pytest.mark.parametrize(
    ("loss", "got"),
    [
        (lambda output, target: output.mean(), "a lambda"),
        (scaled(1.0), r"the local function scaled\.<locals>\.loss"),
        (partial(scaled(1.0)), r"the local function scaled\.<locals>\.loss"),
    ],
)
def test_a_loss_that_cannot_be_identified_is_not_checkpointed(tmp_path, loss, got):
    text = f"Ensemble.train: loss must be one that a checkpoint can identify, got {got}"
    remedy = r"\. Define it at the top level of a module, .* without a checkpoint\."
    with pytest.raises(TypeError, match=text + remedy):
        brief(loss, checkpoint=tmp_path / "c")
    assert not (tmp_path / "c").exists()
    brief(loss)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Scaled(1.0), Scaled(5.0)),
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(torch.ones(3).double())),
        (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)),
        (nn.functional.cross_entropy, summed),
        (partial(summed, factor=1.0), partial(summed, factor=5.0)),
    ],
)
def test_losses_with_other_settings_are_other_losses(tmp_path, one, other):
    first = brief(one, checkpoint=tmp_path / "c")
    again = brief(one, checkpoint=tmp_path / "c")
    assert all(map(identical, first, again))
    refusal(tmp_path / "c", checkpointed(loss=other, epochs=1), "loss")


def changed(**parts):
    """The same ensemble with other networks, data or members."""
    networks = parts.get("networks", chains(6))
    data = parts.get("data", [task(seed=i) for i in range(6)])
    these = parts.get("members", members("grokfast", "power 1", "sgd"))
    return ensemble(networks, data, these, epochs=8, batch_size=7, evaluate=every)


def with_one(sequence, position, value):
    return [*sequence[:position], value, *sequence[position + 1 :]]


def altered(name):
    data = [task(seed=i) for i in range(6)]
    these = members("grokfast", "power 1", "sgd")
    one = SimpleNamespace(**vars(data[5]))
    if name == "an input":
        one.x_train = one.x_train.clone()
        one.x_train[3, 2] += 1e-12
    elif name == "a label":
        one.y_train = (one.y_train + (torch.arange(24) == 3)) % 3
    elif name == "a test label":
        one.y_test = one.y_test.flip(0)
    elif name == "two members' data changed places":
        data[0], data[1] = data[1], data[0]
        one = data[5]
    member = {
        "a seed": lambda: Member(9, SGD(0.05)),
        "a learning rate": lambda: Member(5, SGD(0.06)),
        "another optimizer": lambda: Member(5, AdamW(0.05)),
        "a weight": lambda: Member(5, SGD(0.05), weight=0.1),
        "a filter": lambda: Member(5, SGD(0.05), gradient_filter=Grokfast()),
        "a form": lambda: Member(5, SGD(0.05), penalty=PenaltyForm(n_probes=2)),
    }.get(name, lambda: these[5])()
    networks = chains(6)
    if name == "a start":
        with torch.no_grad():
            networks[5][4].bias[0] += 1e-12
    elif name == "an activation":
        networks = [nn.Sequential(*n[:3], nn.ReLU(), n[4]) for n in networks]
    return changed(
        networks=networks,
        data=with_one(data, 5, one),
        members=with_one(these, 5, member),
    )


@pytest.mark.parametrize(
    "name",
    ["a seed", "a learning rate", "another optimizer", "a weight", "a filter", "a form",
     "a start", "an activation", "an input", "a label", "a test label",
     "two members' data changed places"],
)  # fmt: skip
def test_a_checkpoint_of_other_networks_data_or_members_is_refused(interrupted, name):
    refusal(interrupted, altered(name))


def test_labels_count_for_each_member_where_inputs_are_shared(tmp_path):
    data = task()
    noisy = SimpleNamespace(**{**vars(data), "y_train": data.y_train.flip(0)})

    def run(splits, **options):
        return ensemble(chains(3), splits, members("sgd", "adamw")[:3]).train(**options)

    run([data, noisy, noisy], checkpoint=tmp_path / "c")
    for other in ([data, data, noisy], [data, noisy, data], [data] * 3):
        with pytest.raises(ValueError, match="of another run"):
            run(other, checkpoint=tmp_path / "c")
    run([data, noisy, noisy], checkpoint=tmp_path / "c")


def test_a_damaged_checkpoint_is_refused_and_left(interrupted):
    part = interrupted.read_bytes()[:-100]
    interrupted.write_bytes(part)
    with pytest.raises(ValueError, match="must be a whole checkpoint"):
        checkpointed().train(checkpoint=interrupted)
    assert interrupted.read_bytes() == part


def test_a_path_that_cannot_be_written_is_found_before_training(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(Stack, "advance", lambda self, epochs: pytest.fail("it trains"))
    with pytest.raises(OSError, match="file"):
        checkpointed().train(checkpoint=tmp_path / "file" / "c")


@pytest.mark.parametrize(("seconds", "least", "most"), [(0, 27, 30), (1e9, 2, 2)])
def test_checkpoints_are_written_as_often_as_asked(
    tmp_path, monkeypatch, seconds, least, most
):
    written = []
    write = module.write_checkpoint

    def counting(*arguments):
        written.append(1)
        write(*arguments)

    monkeypatch.setattr(module, "write_checkpoint", counting)
    checkpointed().train(checkpoint=tmp_path / "c", checkpoint_seconds=seconds)
    # At most after each of three times nine turns, at the beginning and at the end.
    assert least <= len(written) <= most


def test_the_seconds_of_interrupted_runs_add_up(tmp_path, monkeypatch):
    def clock(step):
        ticks = count(0, step)
        fake = SimpleNamespace(perf_counter=lambda: next(ticks), sleep=None)
        monkeypatch.setattr(module, "time", fake)

    clock(1000)
    first = checkpointed().train(checkpoint=tmp_path / "c", callback=ctrl_c_at(2, 3))
    stored = read_checkpoint(tmp_path / "c").record["seconds"]
    clock(1)
    second = checkpointed().train(checkpoint=tmp_path / "c")
    assert stored >= 1000
    for one, other in zip(first, second, strict=True):
        if one.stopped == "epochs":  # it was done before the interruption
            assert one.history.seconds == other.history.seconds <= stored
        else:
            assert stored < other.history.seconds < stored + 1000


def test_ctrl_c_gives_back_what_is_done(whole):
    before = signal.getsignal(signal.SIGINT)
    trained = checkpointed().train(callback=ctrl_c_at(2, 3))
    assert signal.getsignal(signal.SIGINT) is before
    stopped = ["epochs"] * 2 + ["interrupted"] * 4
    assert [one.stopped for one in trained] == stopped
    assert [len(one.history) for one in trained] == [9, 9, 4, 4, 0, 0]
    for one, other in zip(trained, whole, strict=True):
        assert one.history.interrupted == (one.stopped == "interrupted")
        rows = one.history.rows()
        assert rows == other.history.rows()[: len(rows)]
    networks = chains(6)
    assert travelled(networks[2], trained[2]) > 0
    assert travelled(networks[5], trained[5]) == 0


def test_a_second_ctrl_c_interrupts_at_once_and_the_checkpoint_is_whole(
    tmp_path, whole
):
    def twice(i, row):
        if (i, row["epoch"]) == (2, 3):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        checkpointed().train(
            checkpoint=tmp_path / "c", checkpoint_seconds=0, callback=twice
        )
    assert signal.getsignal(signal.SIGINT) is before
    second = checkpointed().train(checkpoint=tmp_path / "c")
    for one, other in zip(second, whole, strict=True):
        assert identical(one, other)


def test_a_mistake_in_the_callback_is_not_swallowed(tmp_path):
    def callback(i, row):
        raise ZeroDivisionError

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError):
        checkpointed().train(checkpoint=tmp_path / "c", callback=callback)
    assert signal.getsignal(signal.SIGINT) is before


def test_training_works_outside_the_main_thread(whole):
    found = []
    thread = threading.Thread(target=lambda: found.append(checkpointed().train()))
    thread.start()
    thread.join()
    for one, other in zip(found[0], whole, strict=True):
        assert identical(one, other)


def test_several_ensembles_have_a_checkpoint_each(tmp_path):
    def both():
        return [checkpointed(), ensemble(chains(2), task(), members("sgd"))]

    files = [tmp_path / "a", tmp_path / "deeper" / "b"]
    whole = train_together(both())
    train_together(
        both(), checkpoints=files,
        callback=lambda e, i, row: ctrl_c_at(0, 2)(i, row) if e == 0 else None,
    )  # fmt: skip
    assert all(file.is_file() for file in files)
    second = train_together(both(), checkpoints=files)
    for trained, expected in zip(second, whole, strict=True):
        for one, other in zip(trained, expected, strict=True):
            assert identical(one, other)
    with pytest.raises(ValueError, match="a file of its own for each ensemble"):
        train_together(both(), checkpoints=[files[0], files[0]])
    with pytest.raises(ValueError, match="one for each of the 2 ensembles, got 1"):
        train_together(both(), checkpoints=files[:1])


def test_an_ensemble_may_be_trained_again_from_its_start():
    training = checkpointed()
    for one, other in zip(training.train(), training.train(), strict=True):
        assert identical(one, other)


def test_no_ensembles_are_trained_at_once():
    assert train_together([]) == []


def test_the_default_schedule_is_that_of_the_released_experiments():
    training = Ensemble(
        chains(1), task(), members("sgd")[:1], loss="cross_entropy", epochs=110
    )
    history = training.train()[0].history
    assert isinstance(history, History)
    assert history["epoch"] == [*range(101), 110]


def tables():
    return Tables(torch.float64, torch.device("cpu"))


def test_shared_data_are_stored_once_whatever_number_of_members_reads_them():
    data = task()
    training = ensemble(chains(16), data, members())
    groups = training.groups([None] * 16)
    stored = {id(group.stack.data["train"].x) for group in groups}
    assert len(groups) == 8
    assert len(stored) == 1
    assert groups[0].stack.data["train"].x.shape == (1, 24, 6)


def test_methods_that_train_on_the_same_seeds_share_their_data():
    data = [task(seed=0), task(seed=1)]
    training = ensemble(chains(4), data * 2, members("sgd", "adamw"))
    one, other = training.groups([None] * 4)
    assert one.stack.data["train"].x is other.stack.data["train"].x
    assert one.stack.data["train"].x.shape == (2, 24, 6)


def test_inputs_are_shared_where_only_the_targets_differ():
    data = task()
    pairs = [(data.x_train, data.y_train), (data.x_train, data.y_train.flip(0))]
    points = tables().points(pairs)
    assert len(points.x) == 1
    assert torch.equal(points.y, torch.stack([y for _, y in pairs]))


def test_tensors_that_change_places_are_not_taken_for_shared_ones():
    a, b = torch.randn(4, 2).double(), torch.randn(4, 2).double()
    points = tables().points([(a, b), (b, a)])
    assert torch.equal(points.x, torch.stack([a, b]))
    assert torch.equal(points.y, torch.stack([b, a]))
    points = tables().points([(a, a), (a, a)])
    assert points.x.shape == points.y.shape == (1, 4, 2)


def test_real_numbers_take_the_dtype_of_the_networks_and_integers_stay():
    x, y = torch.randn(4, 2, requires_grad=True), torch.arange(4)
    points = tables().points([(x, y)])
    assert points.x.dtype == torch.float64
    assert not points.x.requires_grad
    assert points.y.dtype == torch.int64


def test_what_the_caller_changes_later_does_not_reach_the_ensemble():
    x, y = torch.randn(4, 2).double(), torch.arange(4)
    points = tables().points([(x, y)])
    kept = x.clone()
    x.zero_()
    assert torch.equal(points.x[0], kept)


def test_one_split_serves_all_members_and_several_one_each():
    data = task()
    assert one_each(data, 3) == [data] * 3
    assert one_each([data, data], 2) == [data] * 2


def test_further_sets_are_given_once_or_for_each_member():
    data = task()
    pair, other = (data.x_test, data.y_test), (data.x_train, data.y_train)
    sets = named_sets([data] * 2, {"once": pair, "each": [pair, other]})
    assert list(sets) == ["train", "test", "once", "each"]
    assert sets["once"][1][0] is data.x_test
    assert sets["each"][1][0] is data.x_train


def test_shared_targets_are_prepared_once():
    data = task()
    sets = named_sets([data] * 3, {})
    made = with_targets(sets, "squared_error", 3)
    assert len({id(y) for _, y in made["train"]}) == 1
    assert made["train"][0][1].shape == (24, 3)
