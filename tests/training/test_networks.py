import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

from normalign.nn import Quadratic, mlp
from normalign.regularizers import PenaltyForm
from normalign.training import Member
from normalign.training._networks import (
    Chain,
    Objective,
    RecordedPass,
    StackedChains,
    StackedModules,
    stack_networks,
)
from normalign.training._targets import LOSSES
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
    architecture, rows = stack_networks(networks, data[0].x_train)
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
    architecture, rows = stack_networks(networks, torch.zeros(1, 6))
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


ACTIVATIONS = {
    "relu": nn.ReLU(),
    "leaky": nn.LeakyReLU(0.2),
    "quadratic": Quadratic(),
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "silu": nn.SiLU(),
    "gelu": nn.GELU(),
    "identity": nn.Identity(),
}


def network(activation: nn.Module, *, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 6, bias=bias), activation, nn.Linear(6, 7, bias=bias), activation,
        nn.Linear(7, 3, bias=bias),
    ).double()  # fmt: skip


def copies(template: nn.Module, s: int = 3) -> list[torch.Tensor]:
    """Stacked parameters of s networks with numbers of their own."""
    return [torch.randn(s, *p.shape, dtype=p.dtype) for p in template.parameters()]


def fresh(activation: nn.Module) -> nn.Sequential:
    """The same network, with an activation module for each place."""
    layers = list(network(activation))
    layers[3] = nn.LeakyReLU(0.2) if isinstance(activation, nn.LeakyReLU) else (
        type(activation)()
    )  # fmt: skip
    return nn.Sequential(*layers)


def call(model: nn.Module, parameters: list[torch.Tensor], i: int, x: torch.Tensor):
    named = zip(dict(model.named_parameters()), parameters, strict=True)
    return functional_call(model, {name: p[i] for name, p in named}, (x,))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_output_and_derivatives_are_those_of_every_network(name):
    model = fresh(ACTIVATIONS[name])
    parameters, x = copies(model), torch.randn(3, 4, 5, dtype=torch.float64)
    chain = Chain.of(model)
    assert chain is not None
    local = RecordedPass(chain, parameters, x)
    probe = torch.randn(12, 3, dtype=torch.float64)
    tangent = torch.randn(12, 5, dtype=torch.float64)
    jacobian = torch.stack([
        vmap(jacrev(lambda z, i=i: call(model, parameters, i, z)))(x[i])
        for i in range(3)
    ])  # fmt: skip
    flat = jacobian.flatten(0, 1)
    output = torch.stack([call(model, parameters, i, x[i]) for i in range(3)])
    torch.testing.assert_close(local.stacked, output)
    torch.testing.assert_close(local.jacobian(), jacobian)
    expected = torch.einsum("nkd,nk->nd", flat, probe)
    torch.testing.assert_close(local.pull(probe), expected)
    expected = torch.einsum("nkd,nd->nk", flat, tangent)
    torch.testing.assert_close(local.push(tangent), expected)
    step = 0.1 * tangent
    moved = [call(model, parameters, i, (x.flatten(0, 1) + step).view(x.shape)[i])
             for i in range(3)]  # fmt: skip
    torch.testing.assert_close(local.output_after(step), torch.cat(moved))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 3)),
        nn.Sequential(nn.Linear(5, 6), nn.LeakyReLU(-0.5), nn.Linear(6, 3)),
    ],
    ids=["two maps in a row", "a linear network", "a slope below zero"],
)
def test_unusual_chains_are_what_their_modules_are(model):
    model = model.double()
    chain = Chain.of(model)
    assert chain is not None
    parameters = [p.detach()[None] for p in model.parameters()]
    x = torch.randn(1, 6, 5, dtype=torch.float64)
    local = chain.run(parameters, x)
    torch.testing.assert_close(local.stacked[0], model(x[0]))
    torch.testing.assert_close(local.jacobian()[0], vmap(jacrev(model))(x[0]))


def test_images_are_flattened_where_the_network_does_so():
    model = nn.Sequential(nn.Flatten(), *mlp([8, 4, 2]))
    chain = Chain.of(model)
    assert chain is not None
    assert chain.flattens
    parameters = [p.detach()[None] for p in model.parameters()]
    x = torch.randn(1, 3, 2, 2, 2)
    local = RecordedPass(chain, parameters, x)
    torch.testing.assert_close(local.stacked[0], model(x[0]))
    assert local.pull(torch.ones(3, 2)).shape == (3, 2, 2, 2)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return x + self.inner(x)


def hooked() -> nn.Module:
    model = mlp([3, 4, 2])
    model[0].register_forward_hook(lambda *_: None)
    return model


def tied() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    "model",
    [
        Residual(),
        nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2)),
        nn.Sequential(nn.Linear(3, 3), nn.ReLU()),
        nn.Sequential(nn.ReLU(), nn.Linear(3, 3)),
        nn.Sequential(nn.Linear(3, 3), nn.GELU(approximate="tanh"), nn.Linear(3, 2)),
        nn.Sequential(nn.Flatten(2), nn.Linear(3, 3)),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
        tied(),
        hooked(),
    ],
    ids=["residual", "layer norm", "activation last", "activation first",
         "approximate", "odd flatten", "weight norm", "tied", "hooked"],
)  # fmt: skip
def test_what_is_no_chain_is_left_to_the_general_road(model):
    assert Chain.of(model) is None


RECORDED = {
    "relu": nn.ReLU,
    "leaky": nn.LeakyReLU,
    "quadratic": Quadratic,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "identity": nn.Identity,
}


def recorded_network(name: str, *, bias: bool) -> nn.Sequential:
    activation = RECORDED[name]
    return nn.Sequential(
        nn.Linear(5, 6, bias=bias), activation(), nn.Linear(6, 7, bias=bias),
        activation(), nn.Linear(7, 3, bias=bias),
    ).double()  # fmt: skip


class Naive:
    """The same pass, chain rule by chain rule, for autograd to differentiate."""

    def __init__(self, model, parameters, x) -> None:
        self.model, self.parameters, self.x = model, parameters, x
        self.point, self.output = x.flatten(0, 1), self.at(x)

    def at(self, x):
        names = list(dict(self.model.named_parameters()))

        def one(parameters, x):
            named = dict(zip(names, parameters, strict=True))
            return functional_call(self.model, named, (x,))

        return vmap(one)(self.parameters, x).flatten(0, 1)

    def jacobian(self):
        names = list(dict(self.model.named_parameters()))

        def one(parameters, x):
            named = dict(zip(names, parameters, strict=True))
            return vmap(jacrev(lambda z: functional_call(self.model, named, (z,))))(x)

        return vmap(one)(self.parameters, self.x).flatten(0, 1)

    def pull(self, cotangent):
        return torch.einsum("nkd,nk->nd", self.jacobian(), cotangent)

    def push(self, tangent):
        return torch.einsum("nkd,nd->nk", self.jacobian(), tangent)

    def output_after(self, step):
        return self.at(self.x + step.view(self.x.shape))


def number(local, seed: int) -> torch.Tensor:
    """Something that needs every derivative: outputs, two pulls, two pushes, a move."""
    source = torch.Generator().manual_seed(seed)

    def draw(like: torch.Tensor) -> torch.Tensor:
        return torch.randn(like.shape, generator=source, dtype=like.dtype)

    total = local.output.sin().sum()
    for _ in range(2):
        total = total + local.pull(draw(local.output)).square().sum().sqrt()
        pushed = local.push(draw(local.point))
        total = total + (pushed * local.output).sum()
    return total + local.output_after(0.1 * draw(local.point)).square().sum()


# Few samples: their products are joined; many: they are added up.
@pytest.mark.parametrize("n", [2, 9])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", RECORDED)
def test_written_gradients_are_those_of_autograd(name, bias, n):
    model = recorded_network(name, bias=bias)
    chain = Chain.of(model)
    assert chain is not None
    parameters = [torch.randn(4, *p.shape).double() for p in model.parameters()]
    x = torch.randn(4, n, 5, dtype=torch.float64)
    leaves = [p.clone().requires_grad_() for p in parameters]
    expected = torch.autograd.grad(number(Naive(model, leaves, x), 3), leaves)
    local = RecordedPass(chain, parameters, x)
    found = [torch.full_like(p, torch.nan) for p in parameters]
    local.write_gradients(number(local, 3), found)
    torch.testing.assert_close(found, list(expected), rtol=1e-11, atol=1e-11)


def test_one_linear_map_is_a_chain_too():
    model = nn.Linear(4, 2).double()
    chain = Chain.of(model)
    assert chain is not None
    parameters = [p.detach()[None] for p in model.parameters()]
    local = RecordedPass(chain, parameters, torch.randn(1, 5, 4).double())
    found = [torch.empty_like(p) for p in parameters]
    probe = torch.randn(5, 2).double()
    local.write_gradients(local.pull(probe).sum(), found)
    # J^T v = W^T v: every column of the gradient is the sum of the probes.
    torch.testing.assert_close(found[0][0], probe.sum(0)[:, None].expand(2, 4))
    assert not found[1].any()


def test_gradients_are_written_into_views_of_one_tensor():
    model = recorded_network("tanh", bias=True)
    chain = Chain.of(model)
    assert chain is not None
    parameters = [torch.randn(2, *p.shape).double() for p in model.parameters()]
    sizes = [p[0].numel() for p in parameters]
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    rows = torch.full((2, sum(sizes)), torch.nan, dtype=torch.float64)
    views = [
        part.unflatten(1, p.shape[1:])
        for part, p in zip(rows.split(sizes, 1), parameters, strict=True)
    ]
    apart = [torch.empty_like(p) for p in parameters]
    for into in (views, apart):
        local = RecordedPass(chain, parameters, x)
        local.write_gradients(number(local, 1), into)
    assert rows.isfinite().all()
    for view, one in zip(views, apart, strict=True):
        torch.testing.assert_close(view, one)
