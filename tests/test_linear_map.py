"""Products with J and J^T, on every kind of model that autograd knows."""

import threading

import pytest
import torch
from torch import nn

from normalign import (
    alignment_ratio,
    layer_profile,
    local_affine,
    local_geometry,
    local_robustness,
    normal_alignment,
)
from normalign._linear_map import LinearMap, LocalMap
from normalign.geometry import ntk
from normalign.geometry._matrix_free import Compressed
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
    linear = LinearMap(*LocalMap(OldStyleExp.apply).on(x))
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
        linear = LinearMap(*LocalMap(model).on(x))
        pulled, pushed = linear.pull(v), linear.push(u)
    assert linear.shape == (3, k, d)
    torch.testing.assert_close(pulled, torch.einsum("nkd,bnk->bnd", jacobian, v))
    torch.testing.assert_close(pushed, torch.einsum("nkd,bnd->bnk", jacobian, u))


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_forward_mode_and_double_backward_agree(case):
    model, x = case.model(), case.x(3)
    tangents = torch.randn(2, 3, x[0].numel(), dtype=x.dtype)
    with torch.no_grad():
        linear = LinearMap(*LocalMap(model).on(x))
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
    linear = LinearMap(*LocalMap(WithoutForwardRule.apply).on(x), vmappable=False)
    pushed = linear.push(torch.stack([x, 2 * x]))
    expected = 3 * x**3
    torch.testing.assert_close(pushed, torch.stack([expected, 2 * expected]))


def test_compressed_products_are_those_of_the_range():
    head = nn.Linear(3, 8).double()
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh()).double().append(head)
    x = torch.randn(2, 5, dtype=torch.float64)
    basis = torch.linalg.qr(head.weight.detach())[0]
    with torch.no_grad():
        short = Compressed(LinearMap(*LocalMap(model).on(x)), basis)
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


class TestThreads:
    """Threads that measure the same model at once get what one of them gets."""

    def in_threads(self, function, n=4, repeats=5):
        start, results = threading.Barrier(n), []

        def work():
            start.wait()
            results.extend(function() for _ in range(repeats))

        threads = [threading.Thread(target=work) for _ in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == n * repeats  # no thread has failed
        return results

    @pytest.mark.parametrize("at", [None, "2"])
    @pytest.mark.parametrize("method", ["exact", "matrix_free"])
    def test_forward_mode_and_places(self, method, at):
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 12)).double()
        x = torch.randn(4, 6, dtype=torch.float64)

        def norms():
            return local_geometry(model, x, at=at, method=method).jacobian_norm

        for found in self.in_threads(norms):
            torch.testing.assert_close(found, norms())

    def test_layer_profiles(self):
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()
        x = torch.randn(4, 6, dtype=torch.float64)

        def norms():
            profile = layer_profile(model, x, places=[None, "1", "2"])
            return torch.stack([g.jacobian_norm for g in profile.values()])

        for found in self.in_threads(norms):
            torch.testing.assert_close(found, norms())

    @pytest.mark.parametrize("method", ["contraction", "products"])
    def test_tangent_kernels(self, method):
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)).double()
        x = torch.randn(3, 6, dtype=torch.float64)
        for found in self.in_threads(lambda: ntk(model, x, method=method)):
            torch.testing.assert_close(found, ntk(model, x, method=method))


@pytest.mark.parametrize("method", ["exact", "matrix_free"])
def test_group_norm_on_channels_last(method):
    layers = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3)
    model = nn.Sequential(*layers).double()
    x = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    last = x.contiguous(memory_format=torch.channels_last)
    found = local_geometry(model, last, method=method).jacobian_norm
    wanted = jacobian_by_loop(model, x).flatten(1).norm(dim=1)
    torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        affine = local_affine(model, last)
    torch.testing.assert_close(affine.jacobian, jacobian_by_loop(model, x))


class TestAutocast:
    def test_layer_norm(self):
        layers = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        model, x = nn.Sequential(*layers), torch.randn(3, 4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = local_affine(model, x)
        wanted = jacobian_by_loop(model, x)
        torch.testing.assert_close(found.jacobian.float(), wanted, rtol=0.1, atol=0.05)

    def test_measures_of_given_numbers_keep_their_precision(self):
        jacobian, x, offset = torch.randn(5, 3, 8), torch.randn(5, 8), torch.randn(5, 3)
        y = (jacobian @ x[..., None])[..., 0].add(offset).argmax(1)
        measures = (
            lambda: normal_alignment(jacobian, x),
            lambda: alignment_ratio(jacobian, x),
            lambda: local_robustness(jacobian, offset, x, y),
        )
        for measure in measures:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found = measure()
            assert torch.equal(found, measure())
