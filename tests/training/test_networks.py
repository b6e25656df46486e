import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from normalign.regularizers import PenaltyForm
from normalign.training import Member
from normalign.training.losses import LOSSES
from normalign.training.networks import (
    Objective,
    StackedChains,
    StackedModules,
    stacked,
)
from normalign.training.rules import SGD, AdamW
from tests.cases import TokenModel
from tests.oracles import jacobian_by_loop
from tests.training.ensembles import (
    GENERAL,
    Normed,
    built,
    chains,
    distance,
    ensemble,
    task,
    travelled,
)

# Everything that a penalty can be, on a chain of three layers.
FORMS = {
    "output": PenaltyForm(),
    "output, power 1": PenaltyForm(power=1),
    "output, ratio": PenaltyForm(power="ratio"),
    "output, as released": PenaltyForm(power=1, released=True),
    "output, no offset": PenaltyForm(offset=False),
    "output, three normal probes": PenaltyForm(n_probes=3, probe="normal"),
    "input": PenaltyForm("input"),
    "input, power 1": PenaltyForm("input", power=1, n_probes=2),
    "input, ratio": PenaltyForm("input", power="ratio"),
    "orthogonal": PenaltyForm("orthogonal"),
    "orthogonal, ratio": PenaltyForm("orthogonal", power="ratio"),
    "exact": PenaltyForm("exact", power=1),
    "exact, ratio": PenaltyForm("exact", power="ratio"),
    "noise": PenaltyForm("noise"),
    "nuclear": PenaltyForm("nuclear"),
    "nuclear, at a place": PenaltyForm("nuclear", at="4", offset=False, n_probes=2),
    "output, at a place": PenaltyForm(at="2"),
    "input, at a place": PenaltyForm("input", at="2"),
}


@pytest.mark.parametrize("name", FORMS)
def test_both_roads_take_a_chain_to_the_same_place(name):
    networks, data = chains(2), task()
    these = [
        Member(seed, AdamW(1e-2, weight_decay=0.1), weight=weight, penalty=FORMS[name])
        for seed, weight in enumerate((0.05, 0.01))
    ]
    fast, general = (
        ensemble(networks, data, these, epochs=25, batch_size=12) for _ in range(2)
    )
    assert isinstance(fast.networks, StackedChains)
    general.networks = StackedModules(general.networks.network)
    for network, one, other in zip(
        networks, fast.train(), general.train(), strict=True
    ):
        # Fifty steps, two for each epoch. A finite step of 0.01 divides rounding by it.
        assert distance(one, other) < 1e-8
        assert travelled(network, one) > 0.05
        penalties = one.history["penalty"][-1], other.history["penalty"][-1]
        assert penalties[0] == pytest.approx(penalties[1], rel=1e-7)
        assert penalties[0] != 0


def test_a_place_inside_a_chain_is_where_the_penalised_map_begins():
    """The map of the last layer alone is its weight, whatever comes before."""
    network, data = chains(1)[0], task()
    form = PenaltyForm("exact", at="4", offset=False)
    trained = ensemble(
        [network], data, [Member(0, SGD(0.0), weight=0.5, penalty=form)], epochs=1
    ).train()
    expected = 0.5 * float(network[4].weight.detach().square().sum())
    assert trained[0].history["penalty"] == [pytest.approx(expected, rel=1e-12)]


def by_hand(network, x, y):
    loss = nn.functional.cross_entropy(network(x), y)
    return torch.cat([
        gradient.reshape(-1)
        for gradient in torch.autograd.grad(loss, list(network.parameters()))
    ])  # fmt: skip


EACH = {"chain": (lambda: chains(1)[0], (6,), 3), **GENERAL}


@pytest.mark.parametrize("name", EACH)
def test_outputs_gradients_and_jacobians_are_those_of_each_network(name):
    build, shape, k = EACH[name]
    networks = built(build, 3)
    for i, network in enumerate(networks):  # chains have a source of their own
        network.load_state_dict({
            key: value + 0.1 * i for key, value in network.state_dict().items()
        })  # fmt: skip
    data = [task(shape, k=k, seed=seed, n=4) for seed in range(3)]
    x, y = (
        torch.stack([getattr(d, key) for d in data]) for key in ("x_train", "y_train")
    )
    architecture, rows = stacked(networks, data[0].x_train)
    parameters = architecture.split(rows)
    outputs = architecture.outputs(parameters, x)
    jacobians = architecture.jacobians(parameters, x)
    found = architecture.gradients(rows, x, y, Objective(LOSSES["cross_entropy"]))
    for i, network in enumerate(networks):
        torch.testing.assert_close(outputs[i], network(x[i]))
        torch.testing.assert_close(jacobians[i], jacobian_by_loop(network, x[i]))
        torch.testing.assert_close(found.rows[i], by_hand(network, x[i], y[i]))
    assert torch.equal(found.penalty, torch.zeros(3).double())


def test_rows_are_the_parameters_in_their_order_and_split_gives_views():
    networks = built(Normed, 2)
    architecture, rows = stacked(networks, torch.zeros(1, 6))
    parts = architecture.split(rows)
    for part, (name, expected) in zip(
        parts, networks[1].named_parameters(), strict=True
    ):
        assert torch.equal(part[1], expected), name
        assert part.data_ptr() - rows.data_ptr() < rows.numel() * 8
    assert sum(architecture.sizes) == rows.shape[1]


def test_the_networks_are_copied_and_stay_as_they_are():
    networks = built(Normed, 2)
    before = copy.deepcopy([network.state_dict() for network in networks])
    training = ensemble(networks, task(), [Member(i, SGD(0.5)) for i in range(2)])
    first = training.train()
    for network, kept in zip(networks, before, strict=True):
        assert all(torch.equal(v, kept[k]) for k, v in network.state_dict().items())
    with torch.no_grad():
        networks[0].stem.weight.zero_()
    networks[0].norm = nn.Identity()
    again = training.train()
    for one, other in zip(first, again, strict=True):
        assert distance(one, other) == 0.0


class Shifted(nn.Module):
    """A buffer that enters the output."""

    def __init__(self, shift: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("shift", torch.full((3,), shift))

    def forward(self, x):
        return self.linear(x) * self.shift


def test_buffers_belong_to_the_architecture():
    network = built(lambda: Shifted(2.0), 1)[0]
    data = task()
    (trained,) = ensemble([network], data, [Member(0, SGD(0.1))], epochs=1).train()
    weight = network.linear.weight.detach().clone().requires_grad_()
    parameters = {"linear.weight": weight, "linear.bias": network.linear.bias.detach()}
    output = functional_call(network, parameters, (data.x_train,))
    loss = nn.functional.cross_entropy(output, data.y_train)
    (gradient,) = torch.autograd.grad(loss, weight)
    expected = (weight - 0.1 * gradient).detach()
    torch.testing.assert_close(trained.weights["linear.weight"], expected)


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    (network,), data = built(Tied, 1), task(k=6)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    (trained,) = ensemble([network], data, [Member(0, SGD(0.1))], epochs=3).train()
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(data.x_train), data.y_train).backward()
        optimizer.step()
    assert "second.weight" not in trained.weights
    assert travelled(network, trained) < 1e-14  # from where torch has brought it


def test_one_layer_used_twice_is_no_chain_and_trains_right():
    layer = nn.Linear(6, 6).double()
    network, data = nn.Sequential(layer, nn.Tanh(), layer), task(k=6)
    training = ensemble([network], data, [Member(0, SGD(0.1))], epochs=1)
    assert isinstance(training.networks, StackedModules)
    gradient = by_hand(network, data.x_train, data.y_train)
    start = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    (trained,) = training.train()
    row = torch.cat([w.reshape(-1) for w in trained.weights.values()])
    torch.testing.assert_close(row, start - 0.1 * gradient)


def test_outputs_without_a_last_dimension_count_as_one_output():
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 1)

        def forward(self, x):
            return self.linear(x).squeeze(1)

    data = task(k=2)
    data.y_train, data.y_test = data.y_train * 2 - 1.0, data.y_test * 2 - 1.0
    (network,) = built(Flat, 1)
    plain = nn.Sequential(copy.deepcopy(network.linear))
    runs = [
        ensemble([one], data, [Member(0, SGD(0.1))], loss="squared_error").train()[0]
        for one in (network, plain)
    ]
    weights = [next(iter(run.weights.values())) for run in runs]
    torch.testing.assert_close(*weights)
    assert runs[0].history.last() == pytest.approx(runs[1].history.last())


@pytest.mark.parametrize(
    "form", [PenaltyForm(at="embed"), PenaltyForm("input", at="embed"), None]
)
def test_tokens_train_through_the_general_road(form):
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 7, (12, 4), generator=source)
    data = task()
    data.x_train, data.x_test = tokens[:8], tokens[8:]
    data.y_train, data.y_test = tokens[:8, 0] % 5, tokens[8:, 0] % 5
    networks = built(TokenModel, 2)
    options = {"weight": 0.1, "penalty": form} if form else {}
    these = [Member(i, SGD(0.1), **options) for i in range(2)]
    trained = ensemble(networks, data, these, epochs=1).train()
    for network, one in zip(networks, trained, strict=True):
        assert travelled(network, one) > 1e-4
        if form is None:
            gradient = by_hand(network, data.x_train, data.y_train)
            start = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
            row = torch.cat([w.reshape(-1) for w in one.weights.values()])
            torch.testing.assert_close(row, start - 0.1 * gradient)
        else:
            assert one.history["penalty"][-1] > 0
