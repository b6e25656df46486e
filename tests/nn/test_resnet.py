import math

import pytest
import torch
from torch import nn

from normalign.nn.resnet import resnet18, resnet50


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def derived_count(*, bottleneck, depths, stem_kernel, n_classes, width=64):
    """Count by hand: every convolution, two numbers per channel of a norm, a head."""
    expansion = 4 if bottleneck else 1
    total, n_in = 3 * width * stem_kernel**2 + 2 * width, width
    for stage, depth in enumerate(depths):
        w = width * 2**stage
        n_out = w * expansion
        for position in range(depth):
            if bottleneck:
                total += n_in * w + 9 * w * w + w * n_out + 2 * (w + w + n_out)
            else:
                total += 9 * n_in * w + 9 * w * w + 2 * (w + w)
            if position == 0 and (stage > 0 or n_in != n_out):
                total += n_in * n_out + 2 * n_out
            n_in = n_out
    return total + n_in * n_classes + n_classes


@pytest.mark.parametrize(
    ("build", "stem", "n_classes", "known"),
    [
        (resnet18, "cifar", 10, 11_173_962),
        (resnet50, "cifar", 10, 23_520_842),
        (resnet18, "imagenet", 1000, 11_689_512),
        (resnet50, "imagenet", 1000, 25_557_032),
    ],
)
def test_parameter_counts_are_the_known_ones(build, stem, n_classes, known):
    bottleneck = build is resnet50
    derived = derived_count(
        bottleneck=bottleneck,
        depths=(3, 4, 6, 3) if bottleneck else (2, 2, 2, 2),
        stem_kernel=3 if stem == "cifar" else 7,
        n_classes=n_classes,
    )
    assert derived == known
    assert count(build(n_classes, stem=stem)) == known


@pytest.mark.parametrize("build", [resnet18, resnet50])
@pytest.mark.parametrize(
    ("stem", "size", "first"), [("cifar", 32, 32), ("imagenet", 64, 16)]
)
def test_stages_halve_the_picture_and_double_the_channels(build, stem, size, first):
    network = build(7, width=4, stem=stem).eval()
    sizes = {}
    for stage in range(1, 5):
        module = network.get_submodule(f"layer{stage}")
        module.register_forward_hook(
            lambda _m, _i, out, stage=stage: sizes.update({stage: out.shape[1:]})
        )
    assert network(torch.zeros(2, 3, size, size)).shape == (2, 7)
    expansion = 4 if build is resnet50 else 1
    for stage in range(1, 5):
        side = first // 2 ** (stage - 1)
        assert sizes[stage] == (4 * expansion * 2 ** (stage - 1), side, side)


def test_convolutions_start_he_normal_by_fan_out():
    network = resnet18(generator=torch.Generator().manual_seed(0))
    weight = network.get_submodule("layer4.1.conv2").weight.detach().double()
    variance = 2 / (512 * 9)
    n = weight.numel()
    # Five standard errors: the second moment of a normal has variance 2 var^2 / n.
    spread = variance * math.sqrt(2 / n)
    assert (weight.square().mean() - variance).abs() < 5 * spread
    assert weight.mean().abs() < 5 * math.sqrt(variance / n)


def test_same_seed_same_network_and_the_global_generator_stays():
    state = torch.get_rng_state()
    one, two = (resnet18(width=4, generator=torch.Generator()) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_without_branches_a_block_is_its_shortcut():
    network = resnet18(width=4).eval()
    block = network.get_submodule("layer1.0")
    nn.init.zeros_(block.get_submodule("bn2").weight)
    x = torch.rand(2, 4, 8, 8)
    torch.testing.assert_close(block(x), x)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"stem": "cfar"}, "'cifar' or 'imagenet'"), ({"width": 0}, "positive")],
)
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=rf"^ResNet: .*{words}"):
        resnet18(**arguments)
