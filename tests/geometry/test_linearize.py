"""Products with J and J^T, on every kind of model that autograd knows."""

import pytest
import torch
from torch import nn

from normalign import local_affine
from normalign.geometry.linearize import Compressed, Linearization
from normalign.geometry.local_map import LocalMap
from tests.cases import CASES, Recurrent
from tests.oracles import jacobian_by_loop


@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_take_the_loop(cell):
    model, x = Recurrent(cell).double(), torch.randn(3, 5, 6, dtype=torch.float64)
    found = local_affine(model, x).jacobian
    torch.testing.assert_close(found, jacobian_by_loop(model, x), rtol=0, atol=1e-9)


class OldStyleExp(torch.autograd.Function):
    """An autograd function that torch.func does not take."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].exp()


def test_old_autograd_functions_fall_back_to_plain_autograd():
    x = torch.randn(3, 4, dtype=torch.float64)
    linear = Linearization(LocalMap(OldStyleExp.apply).on(x))
    expected = torch.diag_embed(x.exp())
    torch.testing.assert_close(local_affine(OldStyleExp.apply, x).jacobian, expected)
    pushed = linear.push(x.unsqueeze(0))[0]
    torch.testing.assert_close(pushed, x.exp() * x)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_both_products_are_those_of_the_jacobian(case):
    model, x = case.model(), case.x(3)
    jacobian = jacobian_by_loop(model, x)
    _, k, d = jacobian.shape
    generator = torch.Generator().manual_seed(2)
    v = torch.randn(4, 3, k, generator=generator, dtype=x.dtype)
    u = torch.randn(4, 3, d, generator=generator, dtype=x.dtype)
    with torch.no_grad():
        linear = Linearization(LocalMap(model).on(x))
        pulled, pushed = linear.pull(v), linear.push(u)
    assert linear.shape == (3, k, d)
    torch.testing.assert_close(pulled, torch.einsum("nkd,bnk->bnd", jacobian, v))
    torch.testing.assert_close(pushed, torch.einsum("nkd,bnd->bnk", jacobian, u))


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_forward_mode_and_double_backward_agree(case):
    model, x = case.model(), case.x(3)
    tangents = torch.randn(2, 3, x[0].numel(), dtype=x.dtype)
    with torch.no_grad():
        linear = Linearization(LocalMap(model).on(x))
        forward = linear.push(tangents)
        linear._has_forward_mode = False  # as for want of a forward rule
        torch.testing.assert_close(linear.push(tangents), forward)


class Cube(torch.autograd.Function):
    """An autograd function of the newer style, without a rule for vmap."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx, tangent):
        return 3 * tangent * ctx.saved_tensors[0] ** 2


def test_an_operator_without_a_forward_rule_is_pushed_by_double_backward():
    class WithoutForwardRule(Cube):
        @staticmethod
        def jvp(ctx, tangent):
            raise NotImplementedError

    x = torch.randn(2, 3, dtype=torch.float64)
    linear = Linearization(LocalMap(WithoutForwardRule.apply).on(x), vmappable=False)
    pushed = linear.push(torch.stack([x, 2 * x]))
    expected = 3 * x**3
    torch.testing.assert_close(pushed, torch.stack([expected, 2 * expected]))


def test_compressed_products_are_those_of_the_range():
    head = nn.Linear(3, 8).double()
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh()).double().append(head)
    x = torch.randn(2, 5, dtype=torch.float64)
    basis = torch.linalg.qr(head.weight.detach())[0]
    with torch.no_grad():
        short = Compressed(Linearization(LocalMap(model).on(x)), basis)
        b = short.pull(torch.eye(3).double()[:, None].expand(3, 2, 3)).transpose(0, 1)
        pushed = short.push(x.unsqueeze(0))[0]
    jacobian = jacobian_by_loop(model, x)
    assert short.shape == (2, 3, 5)
    torch.testing.assert_close(short.outputs(b), jacobian)  # J = Q B
    torch.testing.assert_close(pushed, torch.einsum("npd,nd->np", b, x))


def test_an_autograd_function_without_a_vmap_rule_is_taken_one_by_one():
    weight = torch.randn(7, 3, dtype=torch.float64)
    x = torch.randn(2, 3, dtype=torch.float64)

    def model(z):
        return Cube.apply(z) @ weight.T

    expected = weight * (3 * x**2).unsqueeze(1)
    torch.testing.assert_close(local_affine(model, x).jacobian, expected)
