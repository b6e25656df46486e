import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

from normalign.nn import Quadratic
from normalign.training.chain import Chain
from normalign.training.chain_gradient import RecordedPass

ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky": nn.LeakyReLU,
    "quadratic": Quadratic,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "identity": nn.Identity,
}


def network(name: str, *, bias: bool) -> nn.Sequential:
    activation = ACTIVATIONS[name]
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
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_written_gradients_are_those_of_autograd(name, bias, n):
    model = network(name, bias=bias)
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
    model = network("tanh", bias=True)
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
