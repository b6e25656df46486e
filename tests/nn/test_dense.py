import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from normalign.nn.dense import ACTIVATIONS, mlp


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_layers_alternate_linear_and_activation_and_end_linear():
    network = mlp([4, 6, 5, 3], activation="tanh")
    kinds = [type(layer) for layer in network]
    assert kinds == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    assert network(torch.zeros(7, 4)).shape == (7, 3)


@pytest.mark.parametrize("bias", [True, False])
def test_parameter_count_is_the_sum_over_layers(bias):
    widths = [784, 200, 200, 200, 10]
    expected = sum(a * b + bias * b for a, b in pairwise(widths))
    count = sum(p.numel() for p in mlp(widths, bias=bias).parameters())
    assert count == expected


@pytest.mark.parametrize("init_scale", [1.0, 8.0])
def test_every_parameter_starts_uniform_in_the_scaled_range(init_scale):
    fan_in, fan_out = 400, 500
    layer = mlp([fan_in, fan_out], init_scale=init_scale, generator=generator())[0]
    bound = init_scale / math.sqrt(fan_in)
    for parameter in (layer.weight, layer.bias):
        values = parameter.detach().double().flatten() / bound
        assert values.abs().max() <= 1 + 1e-6  # rounding of the bound to float32
        # A uniform on [-1, 1] has mean 0, variance 1/3 and fourth moment 1/5; the
        # bands are five standard errors of the mean and of the second moment.
        n = values.numel()
        assert values.mean().abs() < 5 * math.sqrt(1 / 3 / n)
        spread = math.sqrt((1 / 5 - 1 / 9) / n)
        assert (values.square().mean() - 1 / 3).abs() < 5 * spread


def test_the_scale_multiplies_all_parameters_of_the_same_draw():
    small = mlp([5, 4, 3], generator=generator(3), dtype=torch.float64)
    large = mlp([5, 4, 3], generator=generator(3), dtype=torch.float64, init_scale=8.0)
    for a, b in zip(small.parameters(), large.parameters(), strict=True):
        torch.testing.assert_close(8 * a, b)


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = mlp([5, 4, 3], generator=generator())
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    second = mlp([5, 4, 3], generator=generator())
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("relu", 0.0),
        ("quadratic", 4.0),
        ("tanh", math.tanh(-2.0)),
        ("gelu", -2.0 * 0.5 * (1 + math.erf(-2.0 / math.sqrt(2)))),
    ],
)
def test_activation_names_mean_their_formulas(name, value):
    out = ACTIVATIONS[name]()(torch.tensor([-2.0], dtype=torch.float64))
    torch.testing.assert_close(out, torch.tensor([value], dtype=torch.float64))


def test_a_relu_network_without_biases_is_homogeneous():
    network = mlp([6, 8, 3], bias=False, generator=generator(), dtype=torch.float64)
    x = torch.randn(5, 6, dtype=torch.float64, generator=generator(1))
    torch.testing.assert_close(network(3 * x), 3 * network(x))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"widths": [4]}, ValueError, "at least two positive integers"),
        ({"widths": [4, 0]}, ValueError, "at least two positive integers"),
        ({"widths": [4, 2.5]}, TypeError, "integers"),
        ({"widths": [4, 2], "activation": "sine"}, ValueError, "one of relu"),
        ({"widths": [4, 2], "init_scale": 0.0}, ValueError, "positive"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, words):
    with pytest.raises(error, match=rf"^mlp: .*{words}"):
        mlp(arguments.pop("widths"), **arguments)
