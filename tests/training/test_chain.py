import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

from normalign.nn import Quadratic, mlp
from normalign.training.chain import Chain
from normalign.training.chain_gradient import RecordedPass

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
