import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normalign as na
from normalign.nn import WideResNet, wide_resnet28_2, wide_resnet28_10
from normalign.nn.wide_resnet import WideBlock


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def derived_count(*, depth, widen, n_classes=10, n_channels=3):
    """Count by hand: convolutions, two numbers per normed channel, a head."""
    n, total, n_in = (depth - 4) // 6, 9 * n_channels * 16, 16
    for stage in range(3):
        n_out = 16 * widen * 2**stage
        for position in range(n):
            total += 2 * n_in + 9 * n_in * n_out + 2 * n_out + 9 * n_out * n_out
            total += n_in * n_out if position == 0 and n_in != n_out else 0
            n_in = n_out
    return total + 2 * n_in + n_in * n_classes + n_classes


def unsettled(network: nn.Module, seed: int = 0) -> nn.Module:
    """Give every tensor a value of its own, so that none can stand for another."""
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.normal_(std=0.3, generator=generator)
            module.running_mean.normal_(std=0.3, generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
    return network


def by_hand(state, x, *, depth, padding="both"):
    """The network of the paper as functions of its tensors, in eval mode."""

    def norm(x, name):
        weight, bias, mean, variance = (
            state[f"{name}.{part}"][:, None, None]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / (variance + 1e-5) ** 0.5 * weight + bias

    def convolved(x, name, stride, before, after):
        return F.conv2d(
            F.pad(x, (before, after, before, after)), state[f"{name}.weight"], None,
            stride,
        )  # fmt: skip

    x = convolved(x, "stem", 1, 1, 1)
    for stage in (1, 2, 3):
        for block in range((depth - 4) // 6):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            before = 0 if padding == "end" and stride == 2 else 1
            active = norm(x, f"{name}.norm1").clamp(min=0)
            branch = convolved(active, f"{name}.conv1", stride, before, 1)
            branch = norm(branch, f"{name}.norm2").clamp(min=0)
            branch = convolved(branch, f"{name}.conv2", 1, 1, 1)
            if f"{name}.shortcut.weight" in state:
                x = convolved(active, f"{name}.shortcut", stride, 0, 0)
            x = x + branch
    x = norm(x, "norm").clamp(min=0).flatten(2).mean(2)
    return x @ state["fc.weight"].T + state["fc.bias"]


@pytest.mark.parametrize(
    ("build", "widen", "known"),
    [(wide_resnet28_2, 2, 1_467_610), (wide_resnet28_10, 10, 36_479_194)],
)
def test_parameter_counts_are_the_known_ones(build, widen, known):
    assert derived_count(depth=28, widen=widen) == known
    assert count(build()) == known


@pytest.mark.parametrize(("depth", "widen"), [(10, 1), (16, 2), (22, 3)])
def test_other_depths_and_widths_count_as_derived(depth, widen):
    network = WideResNet(depth, widen, n_classes=7, n_channels=1)
    assert count(network) == derived_count(
        depth=depth, widen=widen, n_classes=7, n_channels=1
    )


@pytest.mark.parametrize("padding", ["both", "end"])
@pytest.mark.parametrize(("depth", "widen"), [(10, 1), (16, 2)])
def test_the_forward_pass_is_the_one_of_the_paper(depth, widen, padding):
    generator = torch.Generator().manual_seed(depth)
    network = WideResNet(
        depth, widen, n_classes=5, padding=padding, generator=generator
    )
    network = unsettled(network).double().eval()
    x = torch.rand(3, 3, 12, 16, dtype=torch.float64, generator=generator)
    truth = by_hand(network.state_dict(), x, depth=depth, padding=padding)
    torch.testing.assert_close(network(x), truth)  # float64 defaults: 1e-7


def test_the_two_paddings_are_two_functions():
    network = unsettled(WideResNet(10, 1, generator=torch.Generator())).eval()
    other = WideResNet(10, 1, padding="end").eval()
    other.load_state_dict(network.state_dict())
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator())
    assert (network(x) - other(x)).abs().max() > 1e-3


@pytest.mark.parametrize("sides", [(28, 28), (32, 32), (7, 5), (1, 1)])
def test_stages_halve_the_picture_and_double_the_channels(sides):
    network = WideResNet(10, 2, n_channels=1).eval()
    sizes = {}
    for stage in (1, 2, 3):
        network.get_submodule(f"layer{stage}").register_forward_hook(
            lambda _m, _i, out, stage=stage: sizes.update({stage: out.shape[1:]})
        )
    assert network(torch.zeros(2, 1, *sides)).shape == (2, 10)
    for stage in (1, 2, 3):
        halved = [math.ceil(side / 2 ** (stage - 1)) for side in sides]
        assert list(sizes[stage]) == [32 * 2 ** (stage - 1), *halved]


def patterns(network, x):
    """The output and the sign of every input of a ReLU."""
    signs = []
    hooks = [
        module.register_forward_pre_hook(lambda _m, inputs: signs.append(inputs[0] > 0))
        for module in network.modules()
        if isinstance(module, nn.ReLU)
    ]
    output = network(x)
    for hook in hooks:
        hook.remove()
    return output, torch.cat([sign.flatten() for sign in signs])


def test_in_eval_mode_the_network_is_affine_where_no_unit_switches():
    generator = torch.Generator().manual_seed(0)
    network = WideResNet(10, 1, n_channels=1, generator=generator)
    network = unsettled(network).double().eval()
    x, direction = (
        torch.randn(1, 1, 8, 8, dtype=torch.float64, generator=generator)
        for _ in range(2)
    )
    local = na.local_affine(network, x)
    output, here = patterns(network, x)
    for step in (-1e-6, 1e-6):
        moved = x + step * direction
        there, signs = patterns(network, moved)
        assert torch.equal(signs, here)  # the segment stays in one region
        affine = (local.jacobian @ moved.flatten(1)[..., None])[..., 0] + local.offset
        # J x is about a thousand roundings of 1e-16; the step moves f by about 1e-6.
        torch.testing.assert_close(there, affine, rtol=0, atol=1e-12)
        assert (there - output).abs().max() > 1e-9


def test_jacobians_can_be_taken_at_every_stage():
    network = unsettled(WideResNet(10, 1, n_channels=1)).double().eval()
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64, generator=torch.Generator())
    for place in ("layer1", "layer2", "layer3"):
        local = na.local_affine(network, x, at=place)
        torch.testing.assert_close(local.output, network(x))


def test_gradients_are_those_of_finite_differences():
    generator = torch.Generator().manual_seed(1)
    network = WideResNet(10, 1, n_classes=2, n_channels=1, generator=generator)
    network = unsettled(network).double().eval()
    x = torch.randn(1, 1, 4, 4, dtype=torch.float64, generator=generator)
    assert torch.autograd.gradcheck(network, x.requires_grad_())


def test_every_parameter_gets_a_gradient():
    network = WideResNet(10, 1).train()
    x = torch.rand(4, 3, 8, 8)
    network(x).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_convolutions_begin_he_normal_by_fan_out():
    network = WideResNet(10, 2, generator=torch.Generator().manual_seed(0))
    weight = network.get_submodule("layer3.0.conv1").weight  # 64 to 128 channels
    expected = math.sqrt(2 / (128 * 9))
    # Four standard errors of the deviation of 73,728 draws.
    slack = 4 * expected / math.sqrt(2 * weight.numel())
    assert abs(float(weight.detach().std()) - expected) < slack


def test_a_block_that_halves_has_a_projection_whatever_its_channels():
    assert WideBlock(4, 4, stride=2)(torch.zeros(1, 4, 6, 6)).shape == (1, 4, 3, 3)
    assert WideBlock(4, 4).shortcut is None


def test_same_seed_same_network_and_the_global_generator_stays():
    state = torch.get_rng_state()
    one, two, other = (
        WideResNet(10, 1, generator=torch.Generator().manual_seed(seed))
        for seed in (3, 3, 4)
    )
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.stem.weight, other.stem.weight)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"depth": 27}, r"depth must be 6 n \+ 4 for a whole n of 1 or more, got 27"),
        ({"depth": 4}, "depth must be"),
        ({"depth": 28.0}, "depth must be"),
        ({"widen": 0}, "widen must be a positive whole number, got 0"),
        ({"widen": 1.5}, "widen must be"),
        ({"n_classes": 0}, "n_classes must be"),
        ({"n_channels": -1}, "n_channels must be"),
        ({"padding": "same"}, "padding must be 'both' or 'end'"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=rf"^WideResNet: {words}"):
        WideResNet(**({"depth": 10, "widen": 1} | arguments))


@pytest.mark.parametrize("sides", [(30, 32), (32, 7)])
def test_padding_at_the_end_refuses_pictures_it_cannot_halve_twice(sides):
    network = WideResNet(10, 1, padding="end").eval()
    with pytest.raises(ValueError, match=f"multiples of four .* got {sides[0]} x"):
        network(torch.zeros(1, 3, *sides))
