"""What the mode does in all the surroundings that training has."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.nn.utils.parametrizations import weight_norm

from normalign.regularizers._second_order import lean_operations
from tests.regularizers.second_order.cases import (
    CLOSE,
    MODELS,
    Checkpointed,
    Step,
    bf16,
    cnn,
    mlp,
    normal,
    normalised,
    with_statistics,
)

pytestmark = pytest.mark.usefixtures("every_linear_layer")


@pytest.mark.parametrize("name", MODELS)
def test_autocast_gives_the_precisions_that_it_gives_without_the_mode(name):
    build, shape = MODELS[name]
    model = build().float()
    x = normal(5, *shape, dtype=torch.float32)
    truth = Step(copy.deepcopy(model).double(), x.double()).gradients
    plain = Step(model, x, lean=False, context=bf16)
    lean = Step(model, x, point_gradient=False, context=bf16)
    assert lean.output.dtype == plain.output.dtype == torch.bfloat16
    assert lean.pulled.dtype == plain.pulled.dtype == torch.float32
    assert torch.equal(lean.output, plain.output)
    errors = []
    for step in (plain, lean):
        for label, gradient in step.gradients.items():
            assert gradient.dtype == model.get_parameter(label).dtype
        errors.append(sum((g - truth[n]).norm() for n, g in step.gradients.items()))
    # Both round every product to 8 bits; the order in which they do differs.
    assert errors[1] <= 1.5 * errors[0]


def test_autocast_keeps_the_statistics_in_single_precision():
    model = with_statistics(normalised()).float().train()
    twin, x = copy.deepcopy(model), normal(5, 4, 8, 8, dtype=torch.float32)
    point = x.clone().requires_grad_()
    with lean_operations(point) as operations, bf16():
        output = model(point)
    with bf16():
        expected = twin(x)
    assert torch.equal(output, expected)
    for buffer, other in zip(model.buffers(), twin.buffers(), strict=True):
        assert torch.equal(buffer, other)

    exact = Step(twin, x)
    with bf16(), operations.pulling():  # autocast must not reach into the pull-back
        v = normal(*output.shape).to(output)
        (pulled,) = torch.autograd.grad(output, point, v, create_graph=True)
    error = (pulled - exact.pulled).norm()
    assert error <= 0.05 * exact.pulled.norm()


def test_a_layer_kept_out_of_autocast_keeps_its_precision_in_a_pull_back():
    layer, x = nn.Linear(6, 4), normal(5, 6, dtype=torch.float32).requires_grad_()
    with lean_operations(x) as operations:
        y = layer(x)
    v = normal(5, 4, dtype=torch.float32)
    with bf16(), operations.pulling():
        (pulled,) = torch.autograd.grad(y, x, v)
    assert torch.equal(pulled, v @ layer.weight)


@pytest.mark.parametrize("layer", [nn.Conv1d(3, 2, 2), nn.Linear(4, 3)])
def test_autocast_does_not_reach_into_a_backward_pass(layer):
    x = normal(5, 3, 4, dtype=torch.float32).requires_grad_()
    v = normal(*layer(x).shape, dtype=torch.float32)
    (expected,) = torch.autograd.grad(layer(x), layer.weight, v)
    with lean_operations(x, point_gradient=False):
        y = layer(x)
    with bf16():
        (found,) = torch.autograd.grad(y, layer.weight, v)
    torch.testing.assert_close(found, expected)


def test_channels_last_stays_channels_last():
    model = normalised().float().to(memory_format=torch.channels_last)[:6]
    x = normal(5, 4, 8, 8, dtype=torch.float32).to(memory_format=torch.channels_last)
    point = x.requires_grad_()
    with lean_operations(point) as operations:
        y = model(point)
    with operations.pulling():
        (pulled,) = torch.autograd.grad(y, point, torch.ones_like(y), create_graph=True)
    pulled.square().sum().backward()
    for tensor in (y, pulled, model[0].weight.grad):
        assert tensor.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("frozen", ["first", "biases", "all but the last"])
def test_frozen_parameters_stay_out(name, frozen):
    build, shape = MODELS[name]
    model, x = build(), normal(5, *shape)
    parameters = list(model.named_parameters())
    for i, (label, parameter) in enumerate(parameters):
        hit = {
            "first": i == 0,
            "biases": label.endswith("bias"),
            "all but the last": i < len(parameters) - 2,
        }[frozen]
        parameter.requires_grad_(not hit)
    plain = Step(model, x, lean=False)
    Step(model, x, point_gradient=False).agrees_with(plain)


def test_a_point_from_an_encoder_passes_its_gradient_on():
    encoder, model, x = nn.Linear(3, 6).double(), mlp(), normal(5, 3)
    gradients = []
    for lean in (False, True):
        point = encoder(x)
        operations = lean_operations(point)
        with operations if lean else nullcontext():
            y = model(point)
        v = normal(*y.shape)
        with operations.pulling():
            (pulled,) = torch.autograd.grad(y, point, v, create_graph=True)
        loss = y.square().sum() + pulled.square().sum()
        gradients.append(torch.autograd.grad(loss, list(encoder.parameters())))
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, **CLOSE)


class Entangled(nn.Module):
    """The point enters three layers, makes a weight, and one weight is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.maker, self.head = nn.Linear(6, 12), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x)) + self.second(x)
        hidden = hidden + self.first(torch.sin(hidden))
        weight = self.maker(x).mean(0).view(2, 6)
        made = F.linear(hidden, weight, weight.sum(1))
        return self.head(hidden) + made.repeat(1, 2)


@pytest.mark.parametrize("point_gradient", [True, False])
def test_a_point_may_enter_many_layers_and_weights(point_gradient):
    model, x = Entangled().double(), normal(5, 6)
    plain = Step(model, x, lean=False)
    Step(model, x, point_gradient=point_gradient).agrees_with(plain)


def test_parametrized_weights_are_followed():
    model, x = cnn(), normal(5, 4, 9, 9)
    for layer in (model[0], model[2], model[-1]):
        weight_norm(layer)
    Step(model, x).agrees_with(Step(model, x, lean=False))


@pytest.mark.parametrize("cuts", [(0, 11), (0, 3, 6, 11), (0, 2, 11)])
@pytest.mark.parametrize("context", [torch.enable_grad, bf16])
def test_activation_checkpoints_run_again_under_the_mode(cuts, context):
    model, x = with_statistics(normalised()).train(), normal(5, 4, 8, 8)
    if context is bf16:
        model, x = model.float(), x.float()
    twin = copy.deepcopy(model)
    whole = Step(twin, x, context=context)
    parts = Step(Checkpointed(model, *cuts), x, context=context)
    parts.gradients = {
        name.removeprefix("model."): gradient
        for name, gradient in parts.gradients.items()
    }
    parts.agrees_with(whole)
    for (name, buffer), other in zip(
        model.named_buffers(), twin.buffers(), strict=True
    ):
        if "num_batches" not in name:  # counted by the module, at each run
            assert torch.equal(buffer, other), name


def test_distributed_data_parallel_modules_run():
    model, x = cnn(), normal(5, 4, 9, 9)
    expected = Step(copy.deepcopy(model), x)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = Step(nn.parallel.DistributedDataParallel(model), x)
    finally:
        dist.destroy_process_group()
    found.gradients = {
        name.removeprefix("module."): gradient
        for name, gradient in found.gradients.items()
    }
    found.agrees_with(expected)


def test_nothing_keeps_the_graph_alive():
    model, x = with_statistics(normalised()).train(), normal(5, 4, 8, 8)
    gc.disable()
    try:
        step = Step(model, x, point_gradient=False)
        gone = [weakref.ref(step.pulled), weakref.ref(step.x), weakref.ref(step.output)]
        del step
        assert [reference() for reference in gone] == [None] * 3
    finally:
        gc.enable()


# Stepping aside


class Labelled(Tensor):
    """A tensor subclass that its operations keep."""


def test_subclasses_keep_their_own_operations():
    layer = nn.Conv1d(3, 2, 2)
    x = normal(5, 3, 4, dtype=torch.float32).as_subclass(Labelled).requires_grad_()
    with lean_operations(x):
        y = layer(x)
    assert type(y) is Labelled
    assert type(y.grad_fn) is type(layer(x).grad_fn)


def test_transforms_of_torch_func_work_inside():
    model, x = cnn(), normal(5, 4, 9, 9).requires_grad_()
    with lean_operations(x):
        output, pull = vjp(lambda x: functional_call(model, {}, (x,)), x.detach())
        (pulled,) = pull(torch.ones_like(output))
        rows = torch.vmap(model)(x.detach().unsqueeze(1))
    expected = Step(model, x.detach())
    torch.testing.assert_close(output, expected.output, **CLOSE)
    torch.testing.assert_close(rows.squeeze(1), expected.output, **CLOSE)
    assert pulled.shape == x.shape


def test_forward_mode_works_inside():
    model, x = cnn(), normal(5, 4, 9, 9)
    point = x.clone().requires_grad_()
    tangent = normal(*x.shape, seed=5)
    with torch.autograd.forward_ad.dual_level(), lean_operations(point):
        dual = torch.autograd.forward_ad.make_dual(point, tangent)
        pushed = torch.autograd.forward_ad.unpack_dual(model(dual)).tangent
    expected = torch.func.jvp(model, (x,), (tangent,))[1]
    torch.testing.assert_close(pushed, expected, **CLOSE)


def test_without_gradients_nothing_is_replaced():
    model, x = cnn(), normal(5, 4, 9, 9)
    with lean_operations(x.clone().requires_grad_()), torch.no_grad():
        y = model(x)
    assert not y.requires_grad
    assert torch.equal(y, model(x))


def test_calls_that_torch_refuses_are_refused_by_torch():
    x = normal(1, 2, 5).requires_grad_()
    with lean_operations(x):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            F.batch_norm(x[..., 0], None, None, training=True)
        with pytest.raises(RuntimeError, match="strided"):
            F.conv1d(x, normal(2, 2, 3), stride=2, padding="same")
        with pytest.raises(RuntimeError, match="dimensions"):
            F.conv2d(x, normal(2, 2, 3))
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            F.linear(x, normal(3, 4))


def test_pictures_without_a_batch_axis_pass():
    layer, x = nn.Conv2d(2, 3, 3).double(), normal(2, 5, 5).requires_grad_()
    with lean_operations(x):
        y = layer(x)
    torch.testing.assert_close(y, layer(x), **CLOSE)


@pytest.mark.parametrize(
    ("point", "error"),
    [(torch.ones(2, 3), ValueError), (torch.ones(2, dtype=torch.int), TypeError)],
)
def test_a_point_must_be_differentiable(point, error):
    with pytest.raises(error, match="lean_operations: point must be"):
        lean_operations(point)
