"""Convolutions and linear layers: the same numbers, at half the price."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from normalign.regularizers._second_order import lean_operations
from tests.regularizers.second_order.cases import (
    CLOSE,
    MODELS,
    Step,
    leaves,
    mlp,
    normal,
    pulled_by,
    under_lean,
)


class Calls(TorchDispatchMode):
    """Count the products: one for each output of a convolution or of its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.n_products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.convolution.default:
            self.n_products += 1
        if func is torch.ops.aten.convolution_backward.default:
            self.n_products += sum(args[-1][:2])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("point_gradient", [True, False])
@pytest.mark.usefixtures("every_linear_layer")
def test_a_lean_step_equals_a_plain_step(name, point_gradient):
    build, shape = MODELS[name]
    model, x = build(), normal(5, *shape)
    plain = Step(model, x, lean=False)
    lean = Step(model, x, point_gradient=point_gradient)
    lean.agrees_with(plain)
    if point_gradient:
        torch.testing.assert_close(lean.x.grad, plain.x.grad, **CLOSE)


def test_a_penalised_step_takes_twice_the_convolutions_of_a_plain_one():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)
    )
    x = normal(5, 3, 8, 8, dtype=torch.float32)
    with Calls() as plain:
        model(x).sum().backward()
    assert plain.n_products == 3 * 3 - 1  # no gradient in x

    point = x.clone().requires_grad_()
    with Calls() as lean:
        with lean_operations(point, point_gradient=False) as operations:
            y = model(point)
        with operations.pulling():
            (pulled,) = torch.autograd.grad(
                y, point, torch.ones_like(y), create_graph=True
            )
        (y.sum() + pulled.square().sum()).backward()
    # Three more for each layer: the pull-back, its weight gradient, and the gradient
    # in the cotangent, which ends before the last layer since the probe is given.
    assert lean.n_products == plain.n_products + 3 * 3 - 1


def test_a_point_that_nobody_asks_about_gets_no_gradient():
    size = 2**7  # a product of 2^21 numbers: worth leaving out
    layer, x = nn.Linear(size, size), torch.randn(size, size).requires_grad_()
    with lean_operations(x, point_gradient=False):
        y = layer(x.clone())
    y.sum().backward()
    assert x.grad is None
    torch.testing.assert_close(layer.weight.grad, x.detach().sum(0).expand(size, -1))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.usefixtures("every_linear_layer")
def test_what_is_added_to_the_point_gets_its_gradient(first):
    # A learned prompt or position: behind the layer there is more than the point.
    layer, shift, x = mlp(), normal(5, 6, seed=2).requires_grad_(), normal(5, 6)
    (expected,) = torch.autograd.grad(layer(x + shift).square().sum(), shift)
    x = x.requires_grad_()
    with lean_operations(x, point_gradient=False):
        y = layer(x + shift if first else shift + x)
    (found,) = torch.autograd.grad(y.square().sum(), shift)
    torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("kernel", [(2, 3), (3, 2), (2, 4), (4, 1)])
def test_same_padding_puts_the_odd_one_where_torch_puts_it(kernel):
    x, weight = leaves((2, 2, 6, 5), (3, 2, *kernel))
    with lean_operations(x):
        found = F.conv2d(x, weight, padding="same")
    expected = F.conv2d(x, weight, padding="same")
    torch.testing.assert_close(found, expected, **CLOSE)


def test_linear_layers_that_see_more_than_the_point_are_torchs_own():
    size = 2**7
    model, x = nn.Sequential(*[nn.Linear(size, size) for _ in range(3)]), None
    x = torch.randn(size, size).requires_grad_()
    with lean_operations(x, point_gradient=False):
        hidden = model[0](x)
        output = model[2](model[1](hidden))
    assert type(hidden.grad_fn).__name__ == "LinearBackward"
    assert type(output.grad_fn).__name__ == "AddmmBackward0"


# Each with the shapes of x, of a cotangent, and of the parameters.
OPERATIONS = {
    "linear": (F.linear, [(2, 3), (2, 2), (2, 3), (2,)]),
    "linear of sequences": (F.linear, [(2, 2, 3), (2, 2, 2), (2, 3), (2,)]),
    "convolution": (
        lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1, groups=2),
        [(2, 4, 5), (2, 2, 3), (2, 2, 3), (2,)],
    ),
    "dilated pictures": (
        lambda x, w, b: F.conv2d(x, w, b, padding="same", dilation=(1, 2)),
        [(1, 2, 4, 3), (1, 2, 4, 3), (2, 2, 2, 2), (2,)],
    ),
    "volumes": (
        lambda x, w, b: F.conv3d(x, w, b, padding=(0, 1, 0)),
        [(1, 1, 2, 3, 2), (1, 2, 1, 3, 1), (2, 1, 2, 3, 2), (2,)],
    ),
    "transposed": (
        lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1, 1),
        [(2, 2, 3), (2, 3, 6), (2, 3, 3), (3,)],
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_first_and_second_derivatives_agree_with_differences(name):
    function, (x, _, *parameters) = OPERATIONS[name]
    inputs = leaves(x, *parameters)
    assert gradcheck(under_lean(function), inputs)
    assert gradgradcheck(under_lean(function), inputs)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.usefixtures("every_linear_layer")
def test_derivatives_of_a_pull_back_agree_with_differences(name):
    function, shapes = OPERATIONS[name]
    inputs = leaves(*shapes)
    assert gradcheck(pulled_by(function), inputs)
    assert gradgradcheck(pulled_by(function), inputs)


@st.composite
def convolutions(draw):
    n_axes = draw(st.integers(1, 3))
    axis = st.integers(1, 3)
    per_axis = lambda value: draw(st.tuples(*[value] * n_axes))  # noqa: E731
    groups, n_in, n_out = draw(st.integers(1, 3)), draw(axis), draw(axis)
    kernel, size = per_axis(axis), per_axis(st.integers(1, 6))
    transposed = draw(st.booleans())
    dilation = per_axis(st.integers(1, 2))
    stride, padding = per_axis(st.integers(1, 3)), per_axis(st.integers(0, 2))
    options = {"stride": stride, "dilation": dilation, "groups": groups}
    options["padding"] = padding
    if not transposed:
        named = draw(st.sampled_from([None, "valid", "same"]))
        if named is not None:
            options["padding"] = named
        if named == "same":
            options["stride"] = 1
        padding = {"same": [99] * n_axes, "valid": [0] * n_axes}.get(named, padding)
        reach = zip(size, kernel, dilation, padding, strict=True)
        assume(all(s + 2 * p > d * (k - 1) for s, k, d, p in reach))
    channels = (groups * n_in, n_out) if transposed else (groups * n_out, n_in)
    bias = (groups * n_out,) if draw(st.booleans()) else None
    name = f"conv{'_transpose' if transposed else ''}{n_axes}d"
    shapes = (draw(st.integers(1, 3)), groups * n_in, *size), (*channels, *kernel), bias
    return getattr(F, name), shapes, options


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@given(convolutions())
def test_any_convolution_agrees_with_torch(case):
    function, (x, weight, bias), options = case
    point, w = leaves(x, weight)
    b = None if bias is None else normal(*bias).requires_grad_()

    def step(y: Tensor, v: Tensor) -> list[Tensor | None]:
        (pulled,) = torch.autograd.grad(y, point, v, create_graph=True)
        loss = y.square().sum() + pulled.pow(3).sum()
        given = [point, w] if b is None else [point, w, b]
        return [y, pulled, *torch.autograd.grad(loss, given)]

    try:
        expected = function(point, w, b, **options)
    except RuntimeError:  # an output of size zero
        assume(False)
    assume(expected.numel() > 0)
    v = normal(*expected.shape)
    with lean_operations(point):
        output = function(point, w, b, **options)
    found = step(output, v)
    for one, two in zip(found, step(expected, v), strict=True):
        torch.testing.assert_close(one, two, **CLOSE)
