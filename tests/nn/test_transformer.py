import math

import pytest
import torch

from normalign.nn.transformer import Attention, Block, Blocks, Transformer


def tokens(n: int, t: int = 3, size: int = 114) -> torch.Tensor:
    return torch.randint(size, (n, t), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("n_layers", [1, 2])
def test_parameter_count_is_derived_from_the_sizes(n_layers):
    network = Transformer(114, 113, n_layers=n_layers)
    block = 4 * 128 * 128 + (128 * 512 + 512) + (512 * 128 + 128)
    expected = 114 * 128 + 3 * 128 + n_layers * block + 128 * 113
    assert sum(p.numel() for p in network.parameters()) == expected


def test_logits_come_from_the_last_position():
    assert Transformer(114, 113)(tokens(5)).shape == (5, 113)


def test_attention_looks_only_back():
    attention = Attention(8, 2).double()
    x = torch.randn(1, 4, 8, dtype=torch.float64)
    changed = x.clone()
    changed[:, 2] += 1
    before, after = attention(x), attention(changed)
    torch.testing.assert_close(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2:], after[:, 2:])


def test_attention_agrees_with_torchs_own():
    attention = Attention(8, 2).double()
    x = torch.randn(3, 4, 8, dtype=torch.float64)
    heads = [
        layer(x).view(3, 4, 2, 4).transpose(1, 2)
        for layer in (attention.query, attention.key, attention.value)
    ]
    mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
    expected = attention.out(mixed.transpose(1, 2).reshape(3, 4, 8))
    torch.testing.assert_close(attention(x), expected)


@pytest.mark.parametrize("n_tokens", [1, 3])
def test_blocks_asked_for_the_last_position_give_the_last_of_all(n_tokens):
    blocks = Blocks(Block(8, 2, 12), Block(8, 2, 12)).double()
    x = torch.randn(5, n_tokens, 8, dtype=torch.float64, requires_grad=True)
    last = blocks(x, last_only=True)
    torch.testing.assert_close(last, blocks(x)[:, -1:])
    (ours,) = torch.autograd.grad(last.square().sum(), x)
    (theirs,) = torch.autograd.grad(blocks(x)[:, -1].square().sum(), x)
    torch.testing.assert_close(ours, theirs)


def test_the_map_from_embedded_tokens_is_twice_differentiable():
    network = Transformer(5, 5, width=4, n_heads=2, hidden=6).double()
    embedded = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    # tanh in place of the kinks of ReLU, where finite differences mean nothing
    network.get_submodule("blocks.0.mlp").register_module("1", torch.nn.Tanh())
    assert torch.autograd.gradgradcheck(network.blocks, embedded)


def test_initial_variances_are_those_of_the_reference_network():
    network = Transformer(114, 113, generator=torch.Generator().manual_seed(0))
    for name, parameter in network.named_parameters():
        values = parameter.detach().double()
        if name.endswith("bias"):
            assert not values.any()
            continue
        variance = 1 / 113 if name == "unembed.weight" else 1 / 128
        spread = variance * math.sqrt(2 / values.numel())
        # five standard errors of the second moment of a normal
        assert (values.square().mean() - variance).abs() < 5 * spread, name


def test_the_global_generator_stays():
    state = torch.get_rng_state()
    Transformer(5, 5, generator=torch.Generator())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Transformer(5, 5, width=6), ValueError, "multiple of n_heads = 4"),
        (lambda: Transformer(5, 0), ValueError, "positive"),
        (lambda: Transformer(5, 5)(torch.zeros(2, 4).long()), ValueError, "context"),
        (lambda: Transformer(5, 5)(torch.zeros(2, 3)), TypeError, "at='blocks'"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=rf"^Transformer: .*{words}"):
        call()
