"""Proposition 1 and the theorems on centroids and radii behind it."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import jacrev, vmap
from torch.nn.functional import normalize

from normalign.geometry import centroid_alignment, local_affine, power_diagram
from normalign.theory import (
    laguerre_distance,
    layer_power_diagram,
    network_power_diagrams,
    normal_aligned_network,
    optimal_jacobian,
)

DOUBLE = torch.float64

NETWORKS = {
    "relu": lambda: nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)
    ),
    "leaky, no bias": lambda: nn.Sequential(
        nn.Linear(4, 6, bias=False), nn.LeakyReLU(0.2), nn.Linear(6, 3, bias=False)
    ),
    "convolution and pooling": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 2), nn.ReLU(), nn.MaxPool1d(2),
        nn.Flatten(), nn.Linear(3, 2),
    ),
    "batch norm": lambda: nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)
    ).eval(),
}  # fmt: skip


def built(name, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name]().double()


def points(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=DOUBLE)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_recursion_gives_the_centroids_of_every_truncated_network(name):
    model, x = built(name), points(7, 4)
    diagrams = network_power_diagrams(model, x)
    starts = [
        i for i, m in enumerate(model) if any(True for _ in m.parameters()) and i > 0
    ]
    if name == "convolution and pooling":
        starts = [i for i in starts if i > 1]  # the unflattening opens its layer
    assert len(diagrams) == len(starts) + 1
    for diagram, end in zip(diagrams, [*starts, len(model)], strict=True):
        part = nn.Sequential(*list(model)[:end])
        slope = vmap(jacrev(lambda p, f=part: f(p[None])[0].flatten()))(x)
        output = part(x).flatten(1)
        offset = output - torch.einsum("nkd,nd->nk", slope, x)
        centroid = slope.sum(1)
        torch.testing.assert_close(diagram.centroid, centroid)
        torch.testing.assert_close(
            diagram.radius, centroid.square().sum(1) + 2 * offset.sum(1)
        )


def test_the_last_pair_is_the_power_diagram_of_the_whole_network():
    model, x = built("relu"), points(7, 4)
    affine = local_affine(model, x)
    whole = power_diagram(affine.jacobian, affine.offset)
    last = network_power_diagrams(model, x)[-1]
    torch.testing.assert_close(last.centroid, whole.centroid)
    torch.testing.assert_close(last.radius, whole.radius)


@pytest.mark.parametrize("low", [0.0, 0.3, -1.0])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**20), h=st.integers(1, 7), d=st.integers(1, 4))
def test_the_least_laguerre_distance_finds_the_activation_pattern(low, seed, h, d):
    """ReLU, leaky ReLU and absolute value: all 2^h slope patterns against the true."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(h, d, generator=generator, dtype=DOUBLE)
    bias = torch.randn(h, generator=generator, dtype=DOUBLE)
    x = 2 * torch.randn(200, d, generator=generator, dtype=DOUBLE)
    patterns = torch.tensor(list(itertools.product([low, 1.0], repeat=h)), dtype=DOUBLE)
    diagram = layer_power_diagram(weight, bias, patterns)
    tiles = laguerre_distance(x, diagram).argmin(-1)
    heights = x @ weight.T + bias
    found = patterns[tiles]
    # A unit within rounding of its hyperplane lies on the border of two tiles.
    clear = heights.abs() > 1e-9
    assert torch.equal((found == 1.0)[clear], (heights > 0)[clear])
    assert clear.double().mean() > 0.99


def test_the_layer_formula_is_that_of_its_jacobian():
    weight, bias = points(5, 3, seed=1), points(1, 5, seed=2)[0]
    x = points(9, 3)
    slopes = (x @ weight.T + bias > 0).double()
    jacobian = slopes.unsqueeze(-1) * weight
    expected = power_diagram(jacobian, slopes * bias)
    diagram = layer_power_diagram(weight, bias, slopes)
    torch.testing.assert_close(diagram.centroid, expected.centroid)
    torch.testing.assert_close(diagram.radius, expected.radius)
    bare = layer_power_diagram(weight, None, slopes)
    torch.testing.assert_close(bare.radius, bare.centroid.square().sum(-1))


def test_deeper_centroids_do_not_give_back_the_partition():
    """As the paper says: (mu, r) of a subdivision are descriptors, not its sites."""
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2), nn.ReLU())
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    model = model.double()
    x = points(400, 2)
    diagram = network_power_diagrams(model, x)[-1]
    nearest = laguerre_distance(x, diagram).argmin(-1)
    same = (diagram.centroid[nearest] - diagram.centroid).norm(dim=1) < 1e-9
    assert not same.all()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 5), st.integers(2, 6))
def test_a_normal_aligned_jacobian_has_an_aligned_centroid(seed, k, d):
    """Corollary jacobian_aligned_implies_centroid_aligned: mu = (c . 1) x."""
    c, x = points(3, k, seed), points(3, d, seed + 1)
    jacobian = c.unsqueeze(-1) * x.unsqueeze(1)
    centroid = power_diagram(jacobian, torch.zeros(3, k, dtype=DOUBLE)).centroid
    torch.testing.assert_close(centroid, c.sum(1, keepdim=True) * x)


def test_a_normal_aligned_network_is_centroid_aligned():
    x = normalize(points(6, 4))
    model = normal_aligned_network(x, points(6, 3, seed=1).abs())
    last = network_power_diagrams(model, x)[-1]
    cosine = centroid_alignment(last.centroid, x)
    torch.testing.assert_close(cosine, torch.ones(6, dtype=DOUBLE))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**20), st.integers(2, 6), st.floats(0.1, 5))
def test_cross_entropy_alignment_has_zero_centroids_and_squared_error_has_not(
    seed, k, budget
):
    x = points(4, 5, seed)
    y = torch.arange(4) % k
    entropy = optimal_jacobian(x, y, budget=budget, n_classes=k)
    centroid = power_diagram(entropy.jacobian, entropy.offset).centroid
    assert centroid.abs().max() < 1e-13 * entropy.jacobian.abs().max() * k
    squared = optimal_jacobian(x, y, budget=budget, n_classes=k, loss="squared_error")
    centroid = power_diagram(squared.jacobian, squared.offset).centroid
    torch.testing.assert_close(centroid, squared.coefficients.sum(1, keepdim=True) * x)
    assert (centroid.norm(dim=1) > 0).all()


def test_squared_error_centroids_lie_on_a_sphere_only_for_long_samples():
    """|mu| = sqrt(B) |x| / |(x, 1)|: the offset takes its share of the budget."""
    x = torch.tensor([[1.0, 0.0], [0.0, 1e6]], dtype=DOUBLE)
    budget = 1e-14  # small enough that the constraint binds for both
    squared = optimal_jacobian(
        x, torch.tensor([0, 1]), budget=budget, n_classes=2, loss="squared_error"
    )
    norms = squared.jacobian.sum(1).norm(dim=1) / budget**0.5
    expected = torch.tensor([0.5**0.5, 1.0], dtype=DOUBLE)
    torch.testing.assert_close(norms, expected)


def test_only_a_sequence_of_layers_is_cut():
    with pytest.raises(TypeError, match=r"an nn.Sequential, got Linear.*power_diagram"):
        network_power_diagrams(nn.Linear(2, 2), torch.ones(1, 2))
