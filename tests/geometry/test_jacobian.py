"""Jacobians and offsets, over models of many kinds and in many modes."""

import pytest
import torch
from torch import nn

from normalign import local_affine
from tests.cases import CASES, cnn, mlp
from tests.oracles import jacobian_by_loop


@pytest.mark.parametrize("case", CASES, ids=repr)
class TestAgainstTheLoop:
    def test_jacobian(self, case):
        model, x = case.model(), case.x()
        found = local_affine(model, x).jacobian
        torch.testing.assert_close(found, jacobian_by_loop(model, x), rtol=0, atol=1e-9)

    def test_output_is_jacobian_times_input_plus_offset(self, case):
        model, x = case.model(), case.x()
        affine = local_affine(model, x)
        rebuilt = torch.einsum("nkd,nd->nk", affine.jacobian, x.flatten(1))
        torch.testing.assert_close(rebuilt + affine.offset, model(x))
        torch.testing.assert_close(affine.output, model(x))
        torch.testing.assert_close(affine.input, x.flatten(1))

    @pytest.mark.parametrize("chunk_size", [1, 4, None])
    def test_chunks_do_not_matter(self, case, chunk_size):
        model, x = case.model(), case.x()
        for a, b in zip(
            local_affine(model, x),
            local_affine(model, x, chunk_size=chunk_size),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)

    def test_a_tiny_budget_only_costs_time(self, case):
        model, x = case.model(), case.x()
        tight = local_affine(model, x, memory_budget=1)
        torch.testing.assert_close(tight.jacobian, local_affine(model, x).jacobian)

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_same_without_grad_mode(self, case, mode):
        model, x = case.model(), case.x()
        expected = local_affine(model, x).jacobian.detach()
        with mode():
            found = local_affine(model, x.clone()).jacobian
        assert not found.requires_grad
        torch.testing.assert_close(found.clone(), expected)

    def test_input_is_left_alone(self, case):
        model, x = case.model(), case.x()
        before = x.clone()
        local_affine(model, x)
        assert torch.equal(x, before)
        assert not x.requires_grad

    def test_inner_map_is_that_of_the_rest_of_the_network(self, case):
        model, x = case.model(), case.x()
        seen = []
        handle = model.get_submodule(case.inner).register_forward_pre_hook(
            lambda _, args: seen.append(args[0])
        )
        model(x)
        handle.remove()
        affine = local_affine(model, x, at=case.inner)
        torch.testing.assert_close(affine.input, seen[0].flatten(1))
        torch.testing.assert_close(affine.output, model(x))
        step = 1e-6 * torch.randn_like(seen[0])

        def shifted(_, args):
            return (args[0] + step,)

        handle = model.get_submodule(case.inner).register_forward_pre_hook(shifted)
        moved = model(x) - affine.output
        handle.remove()
        expected = torch.einsum("nkd,nd->nk", affine.jacobian, step.flatten(1))
        # second-order terms of a step of 1e-6 are of order 1e-12
        torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-10)


def test_a_linear_model_has_its_weight_and_bias():
    model, x = nn.Linear(5, 3).double(), torch.randn(7, 5, dtype=torch.float64)
    affine = local_affine(model, x)
    torch.testing.assert_close(affine.jacobian, model.weight.expand(7, 3, 5))
    torch.testing.assert_close(affine.offset, model.bias.expand(7, 3))


def test_gradients_reach_the_parameters():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    parameters = dict(model.named_parameters())

    def energy(*values):
        def call(z):
            return torch.func.functional_call(
                model, dict(zip(parameters, values, strict=True)), (z,)
            )

        affine = local_affine(call, x)
        return affine.jacobian.square().sum() + affine.offset.square().sum()

    values = [p.detach().clone().requires_grad_() for p in parameters.values()]
    assert torch.autograd.gradcheck(energy, values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_result_has_the_dtype_of_the_model(dtype):
    model, x = mlp().to(dtype), torch.randn(3, 10).to(dtype)
    affine = local_affine(model, x)
    assert {value.dtype for value in affine} == {dtype}


def test_channels_last_input():
    model, x = cnn().double().eval(), torch.randn(3, 2, 8, 8, dtype=torch.float64)
    turned = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        local_affine(model, turned).jacobian, local_affine(model, x).jacobian
    )


def test_empty_batch():
    affine = local_affine(mlp(), torch.zeros(0, 10))
    assert affine.jacobian.shape == (0, 4, 10)
    assert affine.offset.shape == (0, 4)


def test_outputs_of_one_number_and_of_many_dimensions():
    x = torch.randn(3, 4)
    assert local_affine(lambda z: z.sum(1), x).jacobian.shape == (3, 1, 4)
    assert local_affine(lambda z: z[:, :, None] * z[:, None], x).jacobian.shape == (
        3,
        16,
        4,
    )


@pytest.mark.cuda
def test_a_model_on_two_devices():
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 3).cuda()

        def forward(self, x):
            return self.second(torch.relu(self.first(x)).cuda())

    model, x = Split().double(), torch.randn(4, 5, dtype=torch.float64)
    affine = local_affine(model, x)
    assert affine.jacobian.device == x.device
    expected = jacobian_by_loop(lambda z: model(z).cpu(), x)
    torch.testing.assert_close(affine.jacobian, expected)


def test_parameter_gradients_of_more_outputs_than_inputs_through_layer_norm():
    layers = nn.Linear(3, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 8)
    model = nn.Sequential(*layers).double()
    x = torch.randn(4, 3, dtype=torch.float64)

    def rows(z):
        outputs = model(z).sum(0)
        pulled = [torch.autograd.grad(o, z, create_graph=True)[0] for o in outputs]
        return torch.stack(pulled, 1)

    weights = torch.randn(4, 8, 3, dtype=torch.float64)
    parameters = list(model.parameters())
    total = (weights * local_affine(model, x).jacobian).sum()
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    total = (weights * rows(x.clone().requires_grad_())).sum()
    wanted = torch.autograd.grad(total, parameters, allow_unused=True)
    assert sum(w is not None for w in wanted) >= 4
    for one, other in zip(found, wanted, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other)
