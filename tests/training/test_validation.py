from collections import namedtuple
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from normalign.nn import mlp
from normalign.regularizers import PenaltyForm
from normalign.training import Ensemble, Member, _networks, train_together
from normalign.training.rules import SGD, AdamW
from tests.cases import Recurrent, ResidualNet, TokenModel
from tests.training.ensembles import built, chains, ensemble, task

SGDS = [Member(0, SGD(0.1)), Member(1, SGD(0.1))]


def refused(text, networks=None, data=None, these=SGDS, error=ValueError, **options):
    with pytest.raises(error, match=f"^Ensemble: {text}"):
        ensemble(networks or chains(2), data or task(), these, **options)


def changed(**tensors):
    return SimpleNamespace(**{**vars(task()), **tensors})


class Random(nn.Module):
    """Draws its dropout without a module that would show it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), 0.5)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x), x


class Scaled(nn.Module):
    def __init__(self, factor=1.0, activation=torch.relu, shift=0.0) -> None:
        super().__init__()
        self.linear, self.factor, self.activation = nn.Linear(6, 3), factor, activation
        self.register_buffer("shift", torch.tensor(shift))

    def forward(self, x):
        return self.factor * self.activation(self.linear(x)) + self.shift


def between(layer):
    return built(lambda: nn.Sequential(nn.Linear(6, 4), layer(), nn.Linear(4, 3)), 2)


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (nn.Dropout, "Dropout '1' in training mode. Call .eval()"),
        (nn.AlphaDropout, "AlphaDropout '1' in training mode"),
        (lambda: nn.BatchNorm1d(4), "BatchNorm1d '1' in training mode"),
        (
            lambda: nn.BatchNorm1d(4, track_running_stats=False).eval(),
            "BatchNorm1d '1' without running statistics. .* GroupNorm",
        ),
    ],
)
def test_layers_that_are_random_or_mix_samples_are_refused(layer, text):
    rule = r"networks\[0\] must be a deterministic function of each sample, got "
    refused(rule + text, between(layer))


@pytest.mark.parametrize("layer", [nn.Dropout, lambda: nn.BatchNorm1d(4)])
def test_one_member_of_many_with_such_a_layer_is_found(layer):
    networks = between(layer)
    networks[0].eval()
    refused(r"networks\[1\] must be a deterministic function", networks)


@pytest.mark.parametrize("layer", [nn.Dropout, lambda: nn.BatchNorm1d(4)])
def test_the_same_layers_at_rest_are_trained(layer):
    networks = [network.eval() for network in between(layer)]
    trained = ensemble(networks, task(), SGDS).train()
    assert [one.stopped for one in trained] == ["epochs"] * 2


def test_dropout_that_drops_nothing_is_trained():
    networks = between(lambda: nn.Dropout(0.0))
    assert len(ensemble(networks, task(), SGDS).train()) == 2


def test_hidden_randomness_is_refused_before_training():
    refused("networks must be modules that torch.func can run", built(Random, 2))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_refused_with_what_to_do(layer):
    networks = built(lambda: Recurrent(layer), 2)
    rule = (
        r"networks\[0\] must be without RNN, LSTM and GRU layers, got .*training.train"
    )
    refused(rule, networks, task((5, 6)))


def test_a_module_that_returns_more_than_a_tensor_is_refused():
    text = "networks must be modules that return one tensor"
    refused(text, built(Pair, 2), error=TypeError)


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (
            lambda: mlp([6, 10, 7, 3], activation="tanh"),
            r"got .*\(7,\) where .*\(8,\), at 2.bias",
        ),
        (lambda: mlp([6, 10, 8, 3], activation="relu"), "ReLU .* has .*Tanh, at 1"),
        (lambda: chains(1)[0][:4], "got nothing where the first has .*Linear, at 4"),
        (ResidualNet, "got nothing where the first has .*Linear, at 0"),
    ],
)
def test_other_architectures_are_refused(second, text):
    networks = [chains(1)[0], second().double()]
    refused(rf"networks\[1\] must be of the same architecture.*{text}", networks)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"factor": 2.0}, "got 2.0 where the first has 1.0, at factor"),
        ({"activation": torch.tanh}, "got .*tanh where .* has .*relu, at activation"),
        ({"shift": 1.0}, "of the same buffers as the first, got another 'shift'"),
    ],
)
def test_networks_that_differ_where_no_parameter_shows_it_are_refused(options, text):
    networks = [Scaled().double(), Scaled(**options).double()]
    refused(rf"networks\[1\] must be .*{text}", networks)


def test_another_dtype_is_refused():
    networks = [chains(1)[0], chains(1)[0].float()]
    refused(r"networks\[1\] must be of the dtype and device of the first", networks)
    mixed = chains(2)
    mixed[1][0].float()
    refused(r"networks\[1\] must be of one dtype and device", mixed)


def test_frozen_parameters_are_refused_with_what_to_do():
    networks = chains(2)
    networks[1][2].bias.requires_grad_(False)
    text = (
        r"networks\[1\] must be one whose parameters all train, got a frozen '2.bias'"
    )
    refused(text + r". Call requires_grad_\(\) on it; or make it a buffer", networks)


def test_the_advice_for_frozen_parameters_works():
    networks = built(lambda: Scaled(1.0, torch.tanh), 2)
    for network in networks:
        layer = network.linear
        value = torch.ones_like(layer.weight)
        del layer.weight
        layer.register_buffer("weight", value)
    trained = ensemble(networks, task(), SGDS).train()
    assert list(trained[0].weights) == ["linear.bias"]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_complex_networks_are_refused():
    networks = [mlp([6, 4, 3]).to(torch.complex64) for _ in range(2)]
    refused(r"networks\[0\] must be one of real parameters", networks, error=TypeError)


def test_what_is_no_module_or_has_no_parameters_is_refused():
    with pytest.raises(ValueError, match=r"networks\[0\] must be one with parameters"):
        ensemble([nn.Tanh()], task(), SGDS[:1])
    with pytest.raises(TypeError, match=r"networks\[1\] must be a module"):
        ensemble([chains(1)[0], torch.relu], task(), SGDS)


def test_an_ensemble_has_as_many_of_everything_as_members():
    refused("members must be at least one, got 0", [nn.Linear(6, 3)], these=[])
    refused("networks must be one for each of the 2 members, got 3", chains(3))
    refused("data must be one for each of the 2 members, got 1", data=[task()])
    pair = (task().x_test, task().y_test)
    rule = r"the extra set must be one \(x, y\) for each of the 2 members, got 3"
    refused(rule, also={"extra": [pair] * 3})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (changed(y_train=task().y_train[:5]), r"the train set .* \(24, 6\) and \(5,\)"),
        (changed(x_test=task().x_test[:0]), "the test set must be non-empty"),
        (changed(x_train=task().x_train[:0], y_train=task().y_train[:0]), "the train"),
        ([task(), task(n=20)], "x of the train set must be alike for all members"),
        (
            [task(), changed(y_test=task().y_test.int())],
            "y of the test set must be ali",
        ),
    ],
)
def test_data_that_do_not_fit_are_refused(data, text):
    refused(text, data=data)


def test_data_that_are_no_tensors_are_refused():
    data = changed(x_train=task().x_train.numpy())
    refused("x of the train set must be a tensor", data=data, error=TypeError)


def test_a_further_set_cannot_take_the_place_of_the_training_data():
    pair = (task().x_test, task().y_test)
    for name in ("train", "test"):
        refused(f"also must be sets with names other .*'{name}'", also={name: pair})
    refused("the z set must be non-empty", also={"z": (pair[0][:0], pair[1][:0])})


def test_a_named_tuple_is_one_split_and_not_four():
    kind = namedtuple("Split", vars(task()))
    trained = ensemble(chains(2), kind(**vars(task())), SGDS).train()
    assert len(trained) == 2


def test_targets_are_looked_at_before_training():
    float_targets = changed(y_train=task().y_train.double())
    refused("targets must be class numbers .*Call y.long", data=float_targets)
    unknown = changed(y_test=task().y_test + 1)
    refused("targets must be class numbers from 0 to 2, got 1 to 3", data=unknown)


def test_integers_for_a_network_of_real_inputs_are_refused_with_what_to_do():
    data = changed(x_train=task().x_train.long(), x_test=task().x_test.long())
    refused(r"networks must be .*call x.float\(\) unless", data=data)


def test_a_penalty_on_tokens_needs_a_place():
    tokens = torch.zeros(24, 4).long()
    data = changed(x_train=tokens, x_test=tokens[:12])
    these = [Member(0, SGD(0.1), weight=0.1)]
    text = r"a member's penalty must be one with at= .*PenaltyForm\(at='...'\)"
    refused(text, built(TokenModel, 1), data, these)


def test_a_penalty_at_a_place_that_is_not_there_is_refused_before_training():
    these = [Member(i, SGD(), weight=0.1, penalty=PenaltyForm(at="9")) for i in (0, 1)]
    with pytest.raises(ValueError, match="at must be the name of a submodule"):
        ensemble(chains(2), task(), these)
    form = PenaltyForm("nuclear")
    these = [Member(i, SGD(), weight=0.1, penalty=form) for i in (0, 1)]
    data = task((9,), k=4)
    refused("model must be an nn.Sequential", built(ResidualNet, 2), data, these)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"epochs": -1}, ValueError, "epochs must be at least 0, got -1"),
        ({"epochs": 2.5}, TypeError, "epochs must be an integer, got 2.5"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": True}, TypeError, "batch_size must be an integer, got True"),
        ({"loss": "hinge"}, ValueError, "loss must be 'cross_entropy' or"),
        ({"evaluate": 10}, TypeError, "evaluate must be a function, got 10"),
        ({"evaluate": None}, TypeError, "evaluate must be a function, got None"),
        ({"until": 0.9}, TypeError, "until must be a function, got 0.9"),
        ({"measure": "norm"}, TypeError, "measure must be a function, got 'norm'"),
        ({"measure_at": 5}, TypeError, "measure_at must be a function, got 5"),
        ({"also": {"z": 3}}, TypeError, r"also\['z'\] must be a pair \(x, y\)"),
    ],
)
def test_illegal_numbers_and_names_are_refused(options, error, text):
    refused(text, error=error, **options)


def test_a_loss_that_is_no_mean_is_refused():
    def each(output, target):
        return nn.functional.cross_entropy(output, target, reduction="none")

    refused(r"loss\(output, target\) must be the mean .* got shape \(1,\)", loss=each)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"seed": 1.0}, TypeError, "seed must be an integer, got 1.0"),
        ({"seed": True}, TypeError, "seed must be an integer, got True"),
        ({"seed": 2**63}, ValueError, "seed must be a 64-bit integer"),
        (
            {"optimizer": torch.optim.SGD},
            TypeError,
            "optimizer must be an SGD or AdamW",
        ),
        ({"weight": -0.1}, ValueError, "weight must be finite and at least 0"),
        ({"weight": float("nan")}, ValueError, "weight must be finite and at least 0"),
        ({"weight": "big"}, TypeError, "weight must be a number"),
        ({"weight": True}, TypeError, "weight must be a number, got True"),
        ({"penalty": "output"}, TypeError, "penalty must be a PenaltyForm"),
        ({"gradient_filter": "fast"}, TypeError, "gradient_filter must be a Grokfast"),
    ],
)
def test_illegal_members_are_refused(arguments, error, text):
    with pytest.raises(error, match=f"^Member: {text}"):
        Member(**{"seed": 0, "optimizer": SGD(), **arguments})


def test_data_that_are_no_split_are_refused_with_what_to_pass():
    split = task()
    rule = "data must be an object with x_train, y_train, x_test, y_test, or a sequence"
    advice = r"Pass a normalign.data.Dataset, or types.SimpleNamespace\(x_train=..., "
    for data, got in (
        (vars(split), "a dict"),
        (tuple(vars(split).values()), r"a float64 Tensor of shape \(24, 6\)"),
        (3, "a int"),
        ([split, None], "a NoneType"),
    ):
        refused(f"{rule} .*, got {got}. {advice}", data=data, error=TypeError)


def test_networks_and_members_may_come_from_a_generator():
    made = ensemble(iter(chains(2)), task(), iter(SGDS))
    assert len(made.train()) == 2


def test_networks_and_members_are_sequences_of_their_kind():
    refused(
        r"members\[0\] must be a Member, got 1", these=[1, *SGDS[1:]], error=TypeError
    )
    refused("members must be a sequence", these=SGDS[0], error=TypeError)
    refused("members must be a sequence", these=2, error=TypeError)
    # An nn.Sequential is a sequence of its layers.
    refused("networks must be a sequence", chains(1)[0], error=TypeError)


def test_what_train_is_given_is_looked_at(tmp_path):
    made = ensemble(chains(2), task(), SGDS)
    with pytest.raises(
        TypeError, match=r"^Ensemble.train: callback must be a function"
    ):
        made.train(callback=3)
    with pytest.raises(
        TypeError, match=r"^train_together: callback must be a function"
    ):
        train_together([made], callback=3)
    with pytest.raises(
        ValueError, match=r"^train_together: a checkpoint must be a file"
    ):
        made.train(checkpoint=tmp_path)
    with pytest.raises(TypeError, match=r"^train_together: checkpoints must be paths"):
        made.train(checkpoint=3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "what measure returns must be a mapping .*, got None"),
        ([1.0, 2.0], "what measure returns must be a mapping"),
        ({3: torch.ones(2)}, "a name that measure returns must be a string, got 3"),
        ({"z": torch.ones(2) * 1j}, "measure's 'z' must be of a real dtype"),
    ],
)
def test_measurements_of_another_kind_are_refused(value, text):
    made = ensemble(chains(2), task(), SGDS, measure=lambda stack: value)
    with pytest.raises(TypeError, match=f"^Ensemble: {text}"):
        made.train()


def test_what_a_measurement_returns_is_looked_at():
    wrong = {
        lambda stack: {"penalty": stack.rows[:, 0]}: "named otherwise than the columns",
        lambda stack: {"norm": stack.rows}: r"measure's 'norm' must be of shape \(2,\)",
        lambda stack: {"norm": 3.0}: r"measure's 'norm' must be of shape \(2,\), got 3",
    }
    for measure, text in wrong.items():
        with pytest.raises(ValueError, match=text):
            Ensemble(
                chains(2), task(), SGDS, loss="cross_entropy", epochs=0, measure=measure
            ).train()


TWO_SGDS = [Member(0, SGD(0.1)), Member(1, SGD(0.1))]


class Shaped(nn.Module):
    """A layer behind a function that no parameter shows."""

    def __init__(self, function, *, factor=1.0, hidden=1.0) -> None:
        super().__init__()
        self.function, self.factor, self._hidden = function, factor, hidden
        self.linear = nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, x):
        factor = self.factor[0] if isinstance(self.factor, list) else self.factor
        return self.linear(self.function(x)) * factor * self._hidden


class Counting(nn.Module):
    def __init__(self, *, anew=False) -> None:
        super().__init__()
        self.linear, self.anew = nn.Linear(6, 3, dtype=torch.float64), anew
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.anew:
            self.calls = self.calls + 1
        else:
            self.calls += 1
        return self.linear(x)


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(6, 3, dtype=torch.float64)
        self.spare = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x):
        return self.used(x)


def slope(value):
    return partial(functional.leaky_relu, negative_slope=value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: Shaped(lambda z: z.relu()), lambda: Shaped(lambda z: z.tanh())),
        (lambda: Shaped(slope(0.1)), lambda: Shaped(slope(0.9))),
        (
            lambda: Shaped(torch.tanh, factor=torch.tensor(1.0)),
            lambda: Shaped(torch.tanh, factor=torch.tensor(5.0)),
        ),
        (
            lambda: Shaped(torch.tanh, factor=[1]),
            lambda: Shaped(torch.tanh, factor=[5]),
        ),
        (lambda: Shaped(torch.tanh), lambda: Shaped(torch.tanh, hidden=2.0)),
    ],
    ids=["lambda", "partial", "tensor", "list", "private"],
)
def test_networks_that_differ_in_what_they_do_are_refused(first, second):
    these = [*TWO_SGDS, Member(2, AdamW())]
    rule = r"^Ensemble: networks\[2\] must be what the first network becomes .*off by"
    with pytest.raises(ValueError, match=rule):
        ensemble([first(), first(), second()], task(), these)
    assert len(ensemble([first() for _ in these], task(), these).train()) == 3


def test_each_network_is_looked_at_on_data_of_its_own():
    far = SimpleNamespace(**vars(task()))
    far.x_train = -task().x_train.abs()
    near = SimpleNamespace(**vars(task()))
    near.x_train = task().x_train.abs()
    pair = [Shaped(slope(0.1)), Shaped(slope(0.9))]
    # They agree where inputs are positive, and the second sees no such.
    with pytest.raises(ValueError, match=r"networks\[1\] must be what the first"):
        ensemble(pair, [near, far], TWO_SGDS)


def test_a_wrong_fast_road_is_found(monkeypatch):
    def shifted(self, parameters, x):
        return self.chain.run(parameters, x).stacked + 0.01

    monkeypatch.setattr(_networks.StackedChains, "outputs", shifted)
    for made in (chains(2), [network.float() for network in chains(2)]):
        with pytest.raises(ValueError, match=r"networks\[0\] must be what the first"):
            ensemble(made, task(), TWO_SGDS)


class Cancelling(nn.Module):
    """Large terms that leave a small output, most of it rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 300)

    def forward(self, x):
        large = 1e4 * self.linear(x)
        return large.cumsum(1)[:, -3:] - large.sum(1, keepdim=True).expand(-1, 3)


def test_rounding_alone_is_no_difference():
    cancelling = [Cancelling(), Cancelling()]
    for made in (cancelling, [network.float() for network in chains(2)]):
        assert len(ensemble(made, task(), TWO_SGDS, epochs=0).train()) == 2


@pytest.mark.parametrize("anew", [False, True])
def test_a_network_that_changes_its_buffers_is_refused_and_left_alone(anew):
    network = Counting(anew=anew)
    rule = r"^Ensemble: networks\[0\] must be one that leaves its buffers alone, got a "
    with pytest.raises(ValueError, match=f"{rule}changed 'calls'"):
        ensemble([network], task(), TWO_SGDS[:1])
    assert network.calls == 0


def test_a_buffer_of_nan_is_not_a_change():
    networks = chains(2)
    for network in networks:
        network.register_buffer("unset", torch.tensor([float("nan"), 1.0]))
    assert len(ensemble(networks, task(), TWO_SGDS, epochs=0).train()) == 2


def test_parameters_that_the_output_does_not_use_are_refused():
    rule = r"networks\[0\] must be one whose output depends on all its parameters"
    with pytest.raises(ValueError, match=f"^Ensemble: {rule}, got an idle 'spare'"):
        ensemble([Idle()], task(), TWO_SGDS[:1])


def test_the_look_draws_no_random_numbers():
    before = torch.get_rng_state()
    ensemble(chains(2), task(), TWO_SGDS)
    assert torch.equal(torch.get_rng_state(), before)
